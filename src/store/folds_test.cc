// Names of folds, the object that lists them, and what a manifest says of one.
#include "store/folds.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "base/result_matchers.h"
#include "base/temp_dir.h"
#include "store/manifest.h"
#include "store/source.h"

namespace syncline::store {
namespace {

using base::Code;
using base::FileSystem;
using testing::ElementsAre;
using testing::IsEmpty;

FileSystem& files = FileSystem::Posix();

const std::string kDigits(64, 'a');

TEST(FoldsTest, OnlyAFoldsOwnNameIsOne) {
  EXPECT_EQ(FoldName({3, 12}), "fold_v000003_v000012");
  EXPECT_EQ(ParseFoldName("fold_v000003_v000012"), (FoldRange{3, 12}));
  EXPECT_EQ(ParseFoldName("fold_v000000_v1234567"), (FoldRange{0, 1234567}));
  for (const std::string_view name :
       {"", "fold_v", "fold_v000003", "fold_v3_v12", "fold_v000003_v000003", "fold_v000012_v000003",
        "fold_v000003_v000012_", "fold_v000003_v000012.tmp", "fold_v000003-v000012",
        "weight_v000003", "fold_v_v", "fold_v-00003_v000012",
        "fold_v000003_v99999999999999999999"}) {
    EXPECT_EQ(ParseFoldName(name), std::nullopt) << name;
  }
}

RC_GTEST_PROP(FoldsProperty, NamesAndTextsComeBack, ()) {
  std::vector<FoldEntry> folds;
  const auto count = *rc::gen::inRange(0, 5);
  for (int i = 0; i < count; ++i) {
    const auto from = *rc::gen::inRange<std::uint64_t>(0, 2'000'000);
    const FoldRange range{from, *rc::gen::inRange<std::uint64_t>(from + 1, 3'000'000)};
    RC_ASSERT(ParseFoldName(FoldName(range)) == range);
    folds.push_back({range, kDigits, *rc::gen::arbitrary<std::uint64_t>()});
  }
  const auto parsed = ParseFolds(FoldsText(folds));
  RC_ASSERT(parsed.has_value());
  RC_ASSERT(*parsed == folds);
}

TEST(FoldsTest, WhatFollowsNoFormatIsRefused) {
  EXPECT_ERROR(ParseFolds("{"), Code::kCorrupt, "");
  EXPECT_ERROR(ParseFolds(R"({"folds":[]})"), Code::kCorrupt, "\"format\" is missing");
  EXPECT_ERROR(ParseFolds(R"({"format":2,"folds":[]})"), Code::kIncompatible, "expected 1");
  EXPECT_ERROR(ParseFolds(R"({"format":1})"), Code::kCorrupt, "\"folds\" is missing");
  const auto with = [](std::string_view from, std::string_view identity) {
    return ParseFolds(std::string(R"({"format":1,"folds":[{"to":5,"bytes":1,"from":)") +
                      std::string(from) + R"(,"identity":")" + std::string(identity) + "\"}]}");
  };
  EXPECT_OK(with("4", kDigits));
  EXPECT_ERROR(with("5", kDigits), Code::kCorrupt, "cannot lead from version 5 to 5");
  EXPECT_ERROR(with("\"4\"", kDigits), Code::kCorrupt, "\"from\" is missing or not");
  EXPECT_ERROR(with("4", "abc"), Code::kCorrupt, "\"identity\" is not 64");
}

Manifest FoldManifest(const FoldRange& range) {
  return {.run = std::string(32, '1'),
          .version = range.to,
          .base_version = range.from,
          .parent = kDigits,
          .fold = ManifestFold{kDigits, std::string(64, 'b')},
          .files = {{"model.safetensors.index.json", 7, kDigits}}};
}

TEST(FoldsTest, AManifestSaysWhatItsFoldLeadsFromAndTo) {
  Manifest manifest = FoldManifest({3, 12});
  ASSERT_OK_AND_ASSIGN(const Manifest parsed, ParseManifest(ManifestText(manifest)));
  EXPECT_EQ(parsed.fold, manifest.fold);
  EXPECT_EQ(ManifestText(parsed), ManifestText(manifest));
  manifest.parent.clear();
  EXPECT_ERROR(ParseManifest(ManifestText(manifest)), Code::kCorrupt, "whose parent is its base");
  manifest.fold->base.clear();
  ASSERT_OK_AND_ASSIGN(const Manifest of_seed, ParseManifest(ManifestText(manifest)));
  EXPECT_EQ(of_seed.fold->base, "");
  manifest.base_version.reset();
  EXPECT_ERROR(ParseManifest(ManifestText(manifest)), Code::kCorrupt, "must be a delta");
  manifest.base_version = 3;
  manifest.fold->target = "12";
  EXPECT_ERROR(ParseManifest(ManifestText(manifest)), Code::kCorrupt, "\"target\" is not 64");
}

TEST(FoldsTest, TheListFollowsWhatTheStoreHolds) {
  const base::TempDir dir;
  ASSERT_OK_AND_ASSIGN(const auto store, objects::Open(files, dir.path(), {}));
  const auto write = [&](const FoldRange& range, const std::string& text) {
    const std::string folder = dir / FoldName(range);
    ASSERT_OK(files.MakeDirectories(folder));
    ASSERT_OK(base::WriteTextAtomically(files, folder + "/syncline.manifest.json", text, false));
  };
  const auto listed = [&] {
    const auto text = base::ReadText(files, dir / kFoldsName, 10'000);
    return text ? ParseFolds(*text).value() : std::vector<FoldEntry>();
  };
  ASSERT_OK(UpdateFolds(*store, nullptr));
  EXPECT_THAT(listed(), IsEmpty());
  const std::string text = ManifestText(FoldManifest({3, 12}));
  write({3, 12}, text);
  write({4, 12}, "{");                                        // cannot be read
  ASSERT_OK(files.MakeDirectories(dir / FoldName({5, 12})));  // on its way up
  ASSERT_OK(UpdateFolds(*store, nullptr));
  EXPECT_THAT(listed(), ElementsAre(FoldEntry{{3, 12}, Identity(text), 7}));
  const auto before = files.Stat(dir / kFoldsName).value();
  ASSERT_OK(UpdateFolds(*store, nullptr));
  EXPECT_EQ(files.Stat(dir / kFoldsName).value().number, before.number) << "written for nothing";
  // What is there is replaced, whatever it is.
  ASSERT_OK(base::WriteTextAtomically(files, dir / kFoldsName, "damaged", false));
  ASSERT_OK(UpdateFolds(*store, nullptr));
  EXPECT_EQ(listed().size(), 1U);
  ASSERT_OK(files.RemoveAll(dir / FoldName({3, 12})));
  ASSERT_OK(UpdateFolds(*store, nullptr));
  EXPECT_FALSE(base::Exists(files, dir / kFoldsName).value());
}

TEST(FoldsTest, AFoldIsNoVersionUnderAnyName) {
  const base::TempDir dir;
  const std::string text = ManifestText(FoldManifest({3, 12}));
  const std::string index =
      R"({"metadata":{"version":"000012","base_version":"000003","delta_encoding":"xor",)"
      R"("compression_format":"zstd","checksum_format":"xxh3-128"},"weight_map":{}})";
  for (const std::string& name : {FoldName({3, 12}), FoldName({2, 12}), VersionName(12)}) {
    ASSERT_OK(files.MakeDirectories(dir / name));
    ASSERT_OK(
        base::WriteTextAtomically(files, dir / (name + "/syncline.manifest.json"), text, false));
    ASSERT_OK(base::WriteTextAtomically(files, dir / (name + "/model.safetensors.index.json"),
                                        index, false));
  }
  ASSERT_OK_AND_ASSIGN(const auto source, Source::Open(files, dir.path(), {}));
  EXPECT_THAT(source->ListVersions().value(), ElementsAre(12));
  EXPECT_ERROR(source->Describe(12), Code::kCorrupt, "the manifest is that of a fold");
  ASSERT_OK_AND_ASSIGN(const Described fold, source->DescribeFold({3, 12}));
  EXPECT_EQ(fold.identity, std::string(64, 'b'));
  EXPECT_EQ(fold.bytes, 7U);
  EXPECT_TRUE(fold.is_fold());
  EXPECT_ERROR(source->DescribeFold({2, 12}), Code::kCorrupt, "do not speak of a fold");
  EXPECT_ERROR(source->DescribeFold({1, 12}), Code::kNotFound, "fold_v000001_v000012");
  EXPECT_THAT(source->ListFolds().value(), ElementsAre(FoldRange{2, 12}, FoldRange{3, 12}));
}

}  // namespace
}  // namespace syncline::store

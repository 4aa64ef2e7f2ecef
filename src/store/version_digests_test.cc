#include "store/version_digests.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <array>
#include <functional>

#include "base/result_matchers.h"
#include "base/temp_dir.h"
#include "store/publisher.h"

namespace syncline::store {
namespace {

using base::Code;
using base::FileSystem;
using base::Result;
using base::Status;
using delta::Encoding;
using tensor::Digest;
using tensor::Dtype;
using tensor::TensorView;

FileSystem& files = FileSystem::Posix();

struct Step {
  std::optional<Encoding> encoding;  // nothing: a full version
  std::array<bool, 5> changed;       // the tensors
  bool copy = false;
};

// A model, and the publishers of its versions: one for each, which knows nothing of those before.
class Story {
 public:
  // Without `empty` every tensor has bytes, so that a delta can change all of them.
  explicit Story(bool empty = true) {
    Add("bytes", Dtype::kU8, {70, 3});
    Add("embed", Dtype::kBF16, {5000});
    Add("empty", Dtype::kBF16, {2, empty ? 0U : 1U});
    Add("numbers", Dtype::kI64, {9});
    Add("scalar", Dtype::kF32, {});
  }

  std::string store() const { return dir_ / "store"; }
  std::string Directory(std::uint64_t version) const {
    return store() + "/" + VersionName(version);
  }
  std::string path(std::string_view name) const { return dir_ / name; }
  std::uint64_t version() const { return next_ - 1; }

  // The first version of the store builds on these tensors, which it does not hold.
  void BaseAtZero() {
    based_at_zero_ = true;
    next_ = 1;
  }

  void Change(const std::array<bool, 5>& changed) {
    ++step_;
    for (std::size_t i = 0; i < bytes_.size(); ++i) {
      for (std::size_t at = step_ % 3; changed[i] && at < bytes_[i].size(); at += 7) {
        bytes_[i][at] ^= static_cast<std::byte>(1 + step_ % 200);
      }
    }
  }

  Status Publish(const Step& step, std::string key = {}) {
    auto baseline = MakeMemoryBaseline();
    base::ThreadPool pool(1);
    if (next_ > 0) SYNCLINE_TRY(baseline->Advance(next_ - 1, Views(), {}, pool));
    Change(step.changed);
    PublisherOptions options{.signing_key = std::move(key),
                             .full_copy_ratio = step.copy ? 1e-9 : 0,
                             .durable = false,
                             .threads = 1};
    if (step.encoding) options.encoding.encoding = *step.encoding;
    SYNCLINE_ASSIGN(Publisher publisher,
                    Publisher::Open(files, store(), std::move(baseline), based_at_zero_, options));
    base::Progress progress;
    SYNCLINE_ASSIGN(const PublishReport report,
                    publisher.Publish(next_, Views(), !step.encoding, progress));
    ++next_;
    return {};
  }

  std::vector<TensorView> Views() const {
    std::vector<TensorView> views = views_;
    for (std::size_t i = 0; i < views.size(); ++i) views[i].bytes = bytes_[i];
    return views;
  }

  Result<VersionDigests> Read(std::uint64_t version, std::vector<std::string> keys = {},
                              const base::CancelToken* cancel = nullptr) const {
    SYNCLINE_ASSIGN(const auto source,
                    Source::Open(files, store(), {.trusted_keys = std::move(keys)}));
    return ReadVersionDigests(*source, version, cancel);
  }

  // What is found is the model as it is now, but for the digests of `unknown` and the tensors of
  // `missing`. Empty: it is.
  std::string Difference(const Result<VersionDigests>& found,
                         const std::vector<std::string>& unknown = {},
                         const std::vector<std::string>& missing = {}) const {
    if (!found) return base::ErrorText(found);
    if (found->complete != missing.empty()) return "complete is wrong";
    std::vector<std::string> expected;
    std::vector<std::string> names;
    const auto text = [](const std::string& name, Dtype dtype,
                         const std::vector<std::uint64_t>& shape,
                         const std::optional<Digest>& digest) {
      return fmt::format("{} {} {} {}\n", name, Name(dtype), tensor::ShapeText(shape),
                         digest ? digest->Hex() : "unknown");
    };
    for (const TensorView& view : Views()) {
      if (Holds(missing, view.name)) continue;
      std::optional<Digest> digest = tensor::DigestOf(view.bytes, DigestUnitBytes(view.dtype));
      if (Holds(unknown, view.name)) digest.reset();
      expected.push_back(text(view.name, view.dtype, view.shape, digest));
    }
    std::ranges::sort(expected);
    for (const TensorDigest& tensor : found->tensors) {
      names.push_back(text(tensor.name, tensor.dtype, tensor.shape, tensor.digest));
    }
    if (names == expected) return "";
    std::string difference;
    for (const std::string& line : names) difference += "found " + line;
    for (const std::string& line : expected) difference += "expected " + line;
    return difference;
  }

 private:
  static bool Holds(const std::vector<std::string>& names, const std::string& name) {
    return std::ranges::find(names, name) != names.end();
  }
  void Add(std::string name, Dtype dtype, std::vector<std::uint64_t> shape) {
    std::vector<std::byte>& bytes = bytes_.emplace_back(ByteCount(dtype, shape).value());
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 37 % 251);
    views_.push_back({std::move(name), dtype, std::move(shape), {}});
  }

  const base::TempDir dir_{base::TempDir::MemoryFolder()};
  std::vector<TensorView> views_;
  std::vector<std::vector<std::byte>> bytes_;
  bool based_at_zero_ = false;
  std::uint64_t next_ = 0;
  std::size_t step_ = 0;
};

constexpr std::array<bool, 5> kAll = {true, true, true, true, true};
constexpr std::array<bool, 5> kNone = {};
constexpr std::array<bool, 5> kEmbed = {false, true, false, false, false};
constexpr std::array<bool, 5> kOthers = {true, true, true, false, true};  // than the next
constexpr std::array<bool, 5> kNumbers = {false, false, false, true, false};

Status RemoveManifest(const Story& story, std::uint64_t version) {
  return files.Remove(base::JoinPath(story.Directory(version), kManifestName));
}

// Writes the manifest of a version as a release before the digests did, or another one.
Status EditManifest(const Story& story, std::uint64_t version,
                    const std::function<void(Manifest&)>& edit) {
  SYNCLINE_ASSIGN(auto read, ReadManifest(files, story.Directory(version)));
  if (!read) return base::Fail(Code::kNotFound, "no manifest");
  edit(read->manifest);
  return base::WriteTextAtomically(files, base::JoinPath(story.Directory(version), kManifestName),
                                   ManifestText(read->manifest), false);
}

RC_GTEST_PROP(VersionDigestsTest, AreThoseOfTheModelWhateverTheEncodings, ()) {
  const auto encodings = rc::gen::element<std::optional<Encoding>>(
      std::nullopt, Encoding::kXor, Encoding::kOverwrite, Encoding::kCompact, Encoding::kCompact);
  const auto steps = *rc::gen::container<std::vector<Step>>(
      6, rc::gen::build<Step>(rc::gen::set(&Step::encoding, encodings),
                              rc::gen::set(&Step::changed), rc::gen::set(&Step::copy)));
  Story story;
  RC_ASSERT(story.Publish({std::nullopt, kAll, false}).has_value());
  for (const Step& step : steps) {
    const Status published = story.Publish(step);
    RC_ASSERT(base::ErrorText(published) == "ok");
    RC_ASSERT(story.Difference(story.Read(story.version())) == "");
  }
}

TEST(VersionDigestsTest, IdentityIsThatOfTheVersion) {
  Story story;
  ASSERT_OK(story.Publish({std::nullopt, kAll}));
  ASSERT_OK(story.Publish({Encoding::kCompact, kEmbed}));
  ASSERT_OK_AND_ASSIGN(const auto manifest, ReadManifest(files, story.Directory(1)));
  ASSERT_OK_AND_ASSIGN(const VersionDigests found, story.Read(1));
  EXPECT_EQ(found.identity, manifest->identity);
}

TEST(VersionDigestsTest, AChainOnACheckpointElsewhereIsCompleteOnceEverythingHasChanged) {
  for (const Encoding encoding : {Encoding::kXor, Encoding::kCompact}) {
    Story story;
    story.BaseAtZero();
    ASSERT_OK(story.Publish({encoding, kEmbed}));
    EXPECT_EQ(story.Difference(story.Read(1), {}, {"bytes", "empty", "numbers", "scalar"}), "");
    ASSERT_OK(story.Publish({encoding, kNumbers}));
    EXPECT_EQ(story.Difference(story.Read(2), {}, {"bytes", "empty", "scalar"}), "");
    EXPECT_ERROR(story.Read(0), Code::kNotFound, "version 0 is not in");
    Story all(false);
    all.BaseAtZero();
    ASSERT_OK(all.Publish({encoding, kNumbers}));
    ASSERT_OK(all.Publish({encoding, kOthers}));
    ASSERT_OK(all.Publish({encoding, kEmbed}));
    EXPECT_EQ(all.Difference(all.Read(3)), "");
  }
}

TEST(VersionDigestsTest, AFullCopyNeedsNothingThatIsOlder) {
  for (const Encoding encoding : {Encoding::kXor, Encoding::kCompact}) {
    Story story;
    ASSERT_OK(story.Publish({std::nullopt, kAll}));
    ASSERT_OK(story.Publish({encoding, kNumbers}));
    ASSERT_OK(story.Publish({encoding, kNone, true}));
    ASSERT_OK(story.Publish({encoding, kEmbed}));
    for (const std::uint64_t version : {0, 1}) ASSERT_OK(files.RemoveAll(story.Directory(version)));
    EXPECT_EQ(story.Difference(story.Read(3)), "");
  }
}

// Of an earlier release.
TEST(VersionDigestsTest, AFullCopyWhoseTensorsTheManifestDoesNotName) {
  Story story;
  ASSERT_OK(story.Publish({std::nullopt, kAll}));
  ASSERT_OK(story.Publish({Encoding::kXor, kNumbers}));
  ASSERT_OK(story.Publish({Encoding::kXor, kEmbed, true}));
  ASSERT_OK(EditManifest(story, 2, [](Manifest& manifest) { manifest.copy_tensors.clear(); }));
  EXPECT_EQ(story.Difference(story.Read(2)), "");
  ASSERT_OK(files.RemoveAll(story.Directory(0)));
  EXPECT_EQ(story.Difference(story.Read(2), {"bytes", "empty", "scalar"}), "");
}

TEST(VersionDigestsTest, OldManifestsTellNoDigests) {
  Story story;
  ASSERT_OK(story.Publish({std::nullopt, kAll}));
  ASSERT_OK(story.Publish({Encoding::kXor, kEmbed}));
  const auto forget = [](Manifest& manifest) {
    for (ManifestTensor& tensor : manifest.tensors) tensor.digest.reset();
  };
  ASSERT_OK(EditManifest(story, 1, forget));
  // What version 0 says of the tensor is of older bytes.
  EXPECT_EQ(story.Difference(story.Read(1), {"embed"}), "");
}

TEST(VersionDigestsTest, VersionsOfOtherPublishers) {
  for (const Encoding encoding : {Encoding::kXor, Encoding::kOverwrite, Encoding::kCompact}) {
    SCOPED_TRACE(Name(encoding));
    const bool in_tables = encoding == Encoding::kCompact;
    Story story;
    ASSERT_OK(story.Publish({std::nullopt, kAll}));
    ASSERT_OK(story.Publish({encoding, kEmbed}));
    ASSERT_OK(story.Publish({encoding, kNumbers}));
    ASSERT_OK(RemoveManifest(story, 1));
    EXPECT_EQ(story.Difference(story.Read(2), in_tables ? std::vector<std::string>()
                                                        : std::vector<std::string>{"embed"}),
              "");
    ASSERT_OK(RemoveManifest(story, 0));
    std::vector<std::string> unknown = {"bytes", "empty", "scalar"};
    if (!in_tables) unknown.emplace_back("embed");
    EXPECT_EQ(story.Difference(story.Read(2), unknown), "");
    // Nothing is left that tells the tensors.
    ASSERT_OK(files.Remove(story.Directory(0) + "/model.safetensors"));
    EXPECT_FALSE(story.Read(2));
  }
}

// All tensors are named before what they are is known.
TEST(VersionDigestsTest, AVersionOfAnotherPublisherThatChangesAllTheRest) {
  Story story(false);
  ASSERT_OK(story.Publish({std::nullopt, kAll}));
  ASSERT_OK(story.Publish({Encoding::kXor, kOthers}));
  ASSERT_OK(story.Publish({Encoding::kXor, kNumbers}));
  ASSERT_OK(RemoveManifest(story, 1));
  EXPECT_EQ(story.Difference(story.Read(2), {"bytes", "embed", "empty", "scalar"}), "");
}

TEST(VersionDigestsTest, WhatNobodyTellsIsNamed) {
  Story story;
  story.BaseAtZero();
  ASSERT_OK(story.Publish({Encoding::kXor, kEmbed}));
  ASSERT_OK(story.Publish({Encoding::kXor, kNumbers}));
  ASSERT_OK(RemoveManifest(story, 1));
  EXPECT_ERROR(story.Read(2), Code::kIncompatible,
               "has no manifest: nothing tells the dtype and shape of tensor embed");
  EXPECT_ERROR(story.Read(2), Code::kIncompatible, "version 1 of");
}

TEST(VersionDigestsTest, ContradictionsAreErrors) {
  Story story;
  ASSERT_OK(story.Publish({std::nullopt, kAll}));
  ASSERT_OK(story.Publish({Encoding::kXor, kEmbed}));
  ASSERT_OK(story.Publish({Encoding::kXor, kNumbers}));
  base::CancelToken cancel;
  cancel.Cancel();
  EXPECT_ERROR(story.Read(2, {}, &cancel), Code::kCancelled, "cancelled");
  const std::string removed = story.path("removed");
  ASSERT_OK(files.Rename(story.Directory(1), removed));
  EXPECT_ERROR(story.Read(2), Code::kNotFound, "lacks version 1");
  ASSERT_OK(files.Rename(removed, story.Directory(1)));
  ASSERT_OK(EditManifest(story, 1, [](Manifest& manifest) { ++manifest.created_ns; }));
  EXPECT_ERROR(story.Read(2), Code::kOutOfOrder, "version 1 of");
  ASSERT_OK(RemoveManifest(story, 1));
  const auto rename = [](Manifest& manifest) { manifest.tensors[0].name = "other"; };
  ASSERT_OK(EditManifest(story, 2, rename));
  EXPECT_ERROR(story.Read(2), Code::kCorrupt, "it has no tensor other, which version 2 changes");
  const auto reshape = [](Manifest& manifest) {
    manifest.tensors[0].name = "numbers";
    manifest.tensors[0].shape = {3, 3};
  };
  ASSERT_OK(EditManifest(story, 2, reshape));
  EXPECT_ERROR(story.Read(2), Code::kCorrupt, "tensor numbers is I64 [9], in version 2");
}

TEST(VersionDigestsTest, WithTrustedKeysTablesAreThoseThatWereSigned) {
  Story story;
  Story other;
  const std::string key = story.path("key");
  ASSERT_OK(WriteKeyPair(files, key));
  const std::vector<std::string> trusted = {key + ".pub"};
  ASSERT_OK(story.Publish({std::nullopt, kAll}, key));
  ASSERT_OK(story.Publish({Encoding::kCompact, kEmbed}, key));
  EXPECT_EQ(story.Difference(story.Read(1, trusted)), "");
  other.Change(kAll);
  ASSERT_OK(other.Publish({std::nullopt, kAll}));
  ASSERT_OK(other.Publish({Encoding::kCompact, kEmbed}));
  EXPECT_ERROR(other.Read(1, trusted), Code::kPermissionDenied, "");
  ASSERT_OK(files.Rename(other.Directory(1) + "/delta-00000.syncline",
                         story.Directory(1) + "/delta-00000.syncline"));
  EXPECT_NE(story.Difference(story.Read(1)), "");  // nothing tells that it is another one
  EXPECT_FALSE(story.Read(1, trusted));
}

}  // namespace
}  // namespace syncline::store

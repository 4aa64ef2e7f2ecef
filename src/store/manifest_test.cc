#include "store/manifest.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "base/result_matchers.h"
#include "base/temp_dir.h"
#include "store/file_hash.h"
#include "store/latest.h"

namespace syncline::store {
namespace {

using base::Code;
using tensor::Dtype;

const std::string kHash(32, 'a');
const std::string kSha(64, 'b');

Manifest Example() {
  return {.run = std::string(32, '7'),
          .version = 3,
          .base_version = 2,
          .parent = std::string(64, 'c'),
          .created_ns = 5,
          .tensors_total = 9,
          .elements = 100,
          .elements_changed = 4,
          .full_bytes = 200,
          .tensors = {{"empty", Dtype::kU8, {2, 0}, kHash}, {"w", Dtype::kBF16, {3, 4}, kHash}},
          .files = {{"a.safetensors", 12, kSha}, {"full/config.json", 3, kSha}}};
}

// The text of the example with one part replaced.
std::string With(std::string_view part, std::string_view other) {
  std::string text = ManifestText(Example());
  const std::size_t at = text.find(part);
  EXPECT_NE(at, std::string::npos) << part;
  return text.replace(at, part.size(), other);
}

TEST(ManifestTest, RoundTrip) {
  const std::string text = ManifestText(Example());
  ASSERT_OK_AND_ASSIGN(const Manifest read, ParseManifest(text));
  EXPECT_EQ(ManifestText(read), text);
  EXPECT_EQ(read.base_version, 2U);
  EXPECT_EQ(read.parent, Example().parent);
  EXPECT_EQ(read.tensors[1].shape, (std::vector<std::uint64_t>{3, 4}));
  // What a later writer adds is ignored.
  EXPECT_OK(ParseManifest(With("{\"format\"", "{\"more\":[{}],\"format\"")));
  Manifest first = Example();
  first.parent.clear();
  EXPECT_EQ(ParseManifest(ManifestText(first))->parent, "");
}

TEST(ManifestTest, DigestsMayBeThere) {
  Manifest manifest = Example();
  manifest.tensors[1].digest = tensor::Digest{.low = 5, .high = 6};
  const std::string text = ManifestText(manifest);
  ASSERT_OK_AND_ASSIGN(Manifest read, ParseManifest(text));
  EXPECT_EQ(read.tensors[1].digest, manifest.tensors[1].digest);
  EXPECT_EQ(read.tensors[0].digest, std::nullopt);
  EXPECT_EQ(ManifestText(read), text);
  const std::string hex = manifest.tensors[1].digest->Hex();
  for (const std::string& bad : {hex.substr(1), hex + "0", "G" + hex.substr(1)}) {
    std::string other = text;
    other.replace(other.find(hex), hex.size(), bad);
    EXPECT_ERROR(ParseManifest(other), Code::kCorrupt, "tensor w: \"digest\" is not 32 lower");
  }
}

TEST(ManifestTest, TensorsOfTheFullCopyMayBeThere) {
  Manifest manifest = Example();
  manifest.tensors_total = 3;
  manifest.elements = 13;
  manifest.full_bytes = 25;
  manifest.copy_tensors = {{"empty", Dtype::kU8, {2, 0}, {}},
                           {"s", Dtype::kI8, {}, {}, tensor::Digest{.low = 5, .high = 6}},
                           {"w", Dtype::kBF16, {3, 4}, {}, tensor::Digest{.low = 7, .high = 8}}};
  const std::string text = ManifestText(manifest);
  ASSERT_OK_AND_ASSIGN(const Manifest read, ParseManifest(text));
  ASSERT_EQ(read.copy_tensors.size(), 3U);
  EXPECT_EQ(read.copy_tensors[2].digest, manifest.copy_tensors[2].digest);
  EXPECT_EQ(ManifestText(read), text);
  Manifest fewer = manifest;
  fewer.copy_tensors.pop_back();
  EXPECT_ERROR(ParseManifest(ManifestText(fewer)), Code::kCorrupt,
               "its tensors have 2 tensors, the model 3");
  Manifest full = manifest;
  full.base_version.reset();
  full.tensors = full.copy_tensors;
  for (ManifestTensor& tensor : full.tensors) tensor.hash = kHash;
  EXPECT_ERROR(ParseManifest(ManifestText(full)), Code::kCorrupt, "carries no full copy");
  Manifest without = manifest;
  without.files.pop_back();
  EXPECT_ERROR(ParseManifest(ManifestText(without)), Code::kCorrupt, "carries no full copy");
}

TEST(ManifestTest, IdentityIsTheSha256OfTheText) {
  EXPECT_EQ(Identity("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_NE(DrawRun(), DrawRun());
  EXPECT_TRUE(IsLowerHex(DrawRun(), 32));
}

TEST(ManifestTest, FaultsAreRefused) {
  const auto expect = [](const std::string& text, Code code, std::string_view message) {
    EXPECT_ERROR(ParseManifest(text), code, std::string(message));
  };
  expect("{}", Code::kCorrupt, "\"format\" is missing");
  expect(R"({"format":1})", Code::kIncompatible, "format 1, expected 2");
  expect(R"({"format":3})", Code::kIncompatible, "format 3, expected 2");
  expect(With("\"run\":\"7", "\"run\":\"G"), Code::kCorrupt, "\"run\" is not 32 lower-case hex");
  expect(With("\"version\":3", "\"version\":3.0"), Code::kCorrupt, "\"version\"");
  expect(With("\"version\":3", "\"version\":-3"), Code::kCorrupt, "\"version\"");
  expect(With("\"version\":3", "\"version\":99999999999999999999"), Code::kCorrupt, "\"version\"");
  expect(With("\"version\":3", "\"version\":2"), Code::kCorrupt, "cannot build on version 2");
  expect(With("\"parent\":\"c", "\"parent\":\"C"), Code::kCorrupt, "\"parent\"");
  expect(With("\"parent\"", "\"mother\""), Code::kCorrupt, "\"parent\" is missing");
  expect(With("\"elements_changed\":4", "\"elements_changed\":101"), Code::kCorrupt,
         "101 elements changed of 100");
  expect(With("BF16", "BF61"), Code::kIncompatible, "tensor w: unknown dtype BF61");
  expect(With("[3,4]", "[3,-4]"), Code::kCorrupt, "tensor w: \"shape\"");
  expect(With("[3,4]", "[4294967296,4294967296]"), Code::kCorrupt, "cannot be");
  expect(With("[3,4]", "[4294967296,2147483648]"), Code::kCorrupt, "cannot be");
  expect(With("[3,4]", "[3,40]"), Code::kCorrupt, "have 120 elements, the model 100");
  expect(With("\"full_bytes\":200", "\"full_bytes\":20"), Code::kCorrupt, "24 bytes, the model 20");
  expect(With("\"base_version\":2", "\"base_version\":null"), Code::kCorrupt,
         "have 2 tensors, the model 9");
  expect(With("\"empty\"", "\"w\""), Code::kCorrupt, "duplicate name \"w\"");
  expect(With("xxh3-128\":\"a", "xxh3-128\":\"A"), Code::kCorrupt, "32 lower-case hex");
  expect(With("sha256\":\"b", "sha256\":\""), Code::kCorrupt, "64 lower-case hex");
  expect(With("\"bytes\":12", "\"bytes\":\"12\""), Code::kCorrupt, "\"bytes\"");
  expect(With("\"bytes\":12", "\"bytes\":18446744073709551615"), Code::kCorrupt, "too large");
}

TEST(ManifestTest, FileNamesStayInsideAndStandOnce) {
  for (const char* name :
       {"../a", "/etc/passwd", "a/../../b", "", "a//b", "./a", "a\\u0000b", "a/"}) {
    EXPECT_ERROR(ParseManifest(With("a.safetensors", name)), Code::kCorrupt, "not inside");
  }
  for (const char* name : {"syncline.manifest.json", "syncline.manifest.sig"}) {
    EXPECT_ERROR(ParseManifest(With("a.safetensors", name)), Code::kCorrupt, "cannot be listed");
  }
  EXPECT_ERROR(ParseManifest(With("a.safetensors", "full/config.json")), Code::kCorrupt,
               "duplicate name");
  EXPECT_OK(ParseManifest(With("a.safetensors", "a/b/c.json")));
}

TEST(ManifestTest, DeepNestingIsRefused) {
  EXPECT_ERROR(ParseManifest(With("[3,4]", std::string(100'000, '['))), Code::kCorrupt,
               "invalid JSON");
}

RC_GTEST_PROP(ManifestTest, NoTextCrashesOrIsReadAsAnotherManifest, ()) {
  std::string text = ManifestText(Example());
  const int changes = *rc::gen::inRange(1, 4);
  for (int i = 0; i < changes; ++i) {
    const auto at = *rc::gen::inRange<std::size_t>(0, text.size());
    const char byte = *rc::gen::element('"', '{', '[', ',', '0', '9', '.', '-', '\0', 'e', ':');
    if (*rc::gen::arbitrary<bool>()) {
      text[at] = byte;
    } else {
      text.erase(at, *rc::gen::inRange<std::size_t>(1, 40));
      if (text.empty()) text = "{";
    }
  }
  const auto manifest = ParseManifest(text);
  if (manifest) RC_ASSERT(ParseManifest(ManifestText(*manifest)).has_value());
}

TEST(ManifestTest, FilesAreCheckedPartByPart) {
  base::FileSystem& files = base::FileSystem::Posix();
  const base::TempDir dir;
  base::ThreadPool pool(2);
  Manifest manifest = Example();
  manifest.files = {{"a", 3, Sha256Hex(base::AsBytes("abc"))},
                    {"full/b", 2, Sha256Hex(base::AsBytes("de"))},
                    {"fuller", 0, Sha256Hex({})}};
  ASSERT_OK(files.MakeDirectories(dir / "full"));
  ASSERT_OK(base::WriteTextAtomically(files, dir / "a", "abc", false));
  ASSERT_OK(base::WriteTextAtomically(files, dir / "fuller", "", false));
  ASSERT_OK(base::WriteTextAtomically(files, dir / "other", "x", false));
  const auto check = [&](Part part, bool hash) {
    return CheckFiles(files, dir.path(), manifest, part, hash, pool, nullptr);
  };
  EXPECT_OK(check(Part::kVersion, true));
  EXPECT_ERROR(check(Part::kAll, false), Code::kNotFound, "full/b");
  ASSERT_OK(base::WriteTextAtomically(files, dir / "full/b", "xy", false));
  EXPECT_OK(check(Part::kFullCopy, false));
  EXPECT_ERROR(check(Part::kFullCopy, true), Code::kChecksumMismatch, "full/b has the SHA-256");
  ASSERT_OK(base::WriteTextAtomically(files, dir / "a", "ab", false));
  EXPECT_ERROR(check(Part::kVersion, false), Code::kCorrupt, "has 2 bytes, the manifest says 3");
}

TEST(LatestTest, RoundTripAndFaults) {
  const Latest latest{std::string(32, 'a'), 7, std::string(64, 'b')};
  const std::string text = LatestText(latest);
  EXPECT_EQ(ParseLatest(text).value(), latest);
  const auto with = [&](std::string_view part, std::string_view other) {
    std::string changed = text;
    return ParseLatest(changed.replace(changed.find(part), part.size(), other));
  };
  EXPECT_ERROR(with("\"format\":1", "\"format\":2"), Code::kIncompatible, "format 2, expected 1");
  EXPECT_ERROR(with(":7", ":-7"), Code::kCorrupt, "\"version\"");
  EXPECT_ERROR(with("aa", "A"), Code::kCorrupt, "\"run\" is not 32");
  EXPECT_ERROR(with("bb", ""), Code::kCorrupt, "\"identity\" is not 64");
  EXPECT_ERROR(ParseLatest(std::string(5000, ' ')), Code::kLimitExceeded, "5000 bytes");
}

}  // namespace
}  // namespace syncline::store

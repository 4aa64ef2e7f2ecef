#include "store/signature.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "base/faulty_file_system.h"
#include "base/result_matchers.h"
#include "base/temp_dir.h"
#include "store/file_hash.h"

namespace syncline::store {
namespace {

using base::Code;

base::FileSystem& files = base::FileSystem::Posix();

class SignatureTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK(WriteKeyPair(files, dir_ / "a"));
    ASSERT_OK(WriteKeyPair(files, dir_ / "b"));
  }
  std::vector<TrustedKey> Trust(std::initializer_list<std::string> names) {
    std::vector<TrustedKey> keys;
    for (const std::string& name : names) {
      keys.push_back(TrustedKey::Read(files, dir_ / (name + ".pub")).value());
    }
    return keys;
  }
  const base::TempDir dir_;
};

TEST_F(SignatureTest, OneOfTheTrustedKeysMustHaveSignedThatText) {
  ASSERT_OK_AND_ASSIGN(const SigningKey key, SigningKey::Read(files, dir_ / "a"));
  const std::string text = key.Sign("manifest");
  EXPECT_EQ(CheckSignature("manifest", text, Trust({"b", "a"})).value(), key.fingerprint());
  EXPECT_EQ(ClaimedSigner(text), key.fingerprint());
  EXPECT_ERROR(CheckSignature("manifest ", text, Trust({"a"})), Code::kPermissionDenied,
               "the signature is wrong");
  EXPECT_ERROR(CheckSignature("manifest", text, Trust({"b"})), Code::kPermissionDenied,
               "signed by key " + key.fingerprint());
  EXPECT_ERROR(CheckSignature("manifest", "", Trust({"a"})), Code::kPermissionDenied,
               "is not signed");
  EXPECT_ERROR(CheckSignature("manifest", text, {}), Code::kPermissionDenied, "not trusted");
}

// Whatever byte of the file changes, it does not verify.
TEST_F(SignatureTest, ChangedSignaturesNeverVerify) {
  ASSERT_OK_AND_ASSIGN(const SigningKey key, SigningKey::Read(files, dir_ / "a"));
  const std::string text = key.Sign("manifest");
  const auto trusted = Trust({"a"});
  for (std::size_t i = 0; i + 1 < text.size(); ++i) {
    std::string changed = text;
    changed[i] = changed[i] == '5' ? '6' : '5';
    EXPECT_FALSE(CheckSignature("manifest", changed, trusted).has_value()) << changed;
    EXPECT_FALSE(CheckSignature("manifest", text.substr(0, i), trusted).has_value()) << i;
  }
  EXPECT_EQ(ClaimedSigner("{}"), "");
  EXPECT_EQ(ClaimedSigner(std::string(100'000, '[')), "");
}

TEST_F(SignatureTest, KeyFiles) {
  struct stat info = {};
  ASSERT_EQ(stat((dir_ / "a").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
  ASSERT_EQ(stat((dir_ / "a.pub").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777 & ~0644U, 0U);
  EXPECT_ERROR(WriteKeyPair(files, dir_ / "a"), Code::kAlreadyExists, "a is there already");
  ASSERT_OK(files.Remove(dir_ / "a"));
  EXPECT_ERROR(WriteKeyPair(files, dir_ / "a"), Code::kAlreadyExists, "a.pub is there already");
  EXPECT_ERROR(SigningKey::Read(files, dir_ / "a"), Code::kNotFound, "/a");
  EXPECT_ERROR(SigningKey::Read(files, dir_ / "b.pub"), Code::kCorrupt, "no PEM file");
  EXPECT_ERROR(TrustedKey::Read(files, dir_ / "b"), Code::kCorrupt, "no PEM file");
  // The public half of a private key of OpenSSL's own making (RFC 8032, test 1).
  ASSERT_OK(
      base::WriteTextAtomically(files, dir_ / "rfc",
                                "-----BEGIN PRIVATE KEY-----\n"
                                "MC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g\n"
                                "-----END PRIVATE KEY-----\n",
                                false));
  ASSERT_OK_AND_ASSIGN(const SigningKey rfc, SigningKey::Read(files, dir_ / "rfc"));
  EXPECT_THAT(rfc.Sign(""),
              testing::HasSubstr(
                  "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bac"
                  "c61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b"));
}

TEST_F(SignatureTest, NewKeysAreSynced) {
  base::FaultyFileSystem faulty(files);
  for (const auto& [operation, name] : {std::pair("write", "c"), std::pair("sync", "d"),
                                        std::pair("write", "e.pub"), std::pair("sync", "f.pub")}) {
    const std::string path = dir_ / std::string(name, 1);
    faulty.FailNth(operation, name, 0, {Code::kIo, "the disk is gone"});
    EXPECT_ERROR(WriteKeyPair(faulty, path), Code::kIo, "the disk is gone");
    EXPECT_OK(WriteKeyPair(faulty, path));  // nothing half-made is in its way
  }
  faulty.FailNth("sync_directory", dir_.path(), 0, {Code::kIo, "the disk is gone"});
  EXPECT_ERROR(WriteKeyPair(faulty, dir_ / "g"), Code::kIo, "the disk is gone");
}

}  // namespace
}  // namespace syncline::store

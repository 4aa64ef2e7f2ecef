// store::CheckSignature and ClaimedSigner, of the text of a signature file.
//
// - Nothing is accepted without a trusted key.
// - With one, nothing but the one signature that its private half makes of the manifest is: Ed25519
//   is deterministic, and OpenSSL takes no other form of the same signature.
// - What is refused is kPermissionDenied, and a signer is claimed as 16 hexadecimal digits or not
//   at all.
#include "store/signature.h"

#include <array>

#include "base/json.h"
#include "base/temp_dir.h"
#include "support.h"

namespace syncline::fuzz {
namespace {

constexpr std::string_view kManifest = "the manifest";
// The key of the bytes 0, 1, … 31. Its signature of kManifest is a seed.
constexpr std::string_view kPrivateKey =
    "-----BEGIN PRIVATE KEY-----\n"
    "MC4CAQAwBQYDK2VwBCIEIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f\n"
    "-----END PRIVATE KEY-----\n";
constexpr std::string_view kPublicKey =
    "-----BEGIN PUBLIC KEY-----\n"
    "MCowBQYDK2VwAyEAA6EHv/POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg=\n"
    "-----END PUBLIC KEY-----\n";

struct Keys {
  std::string signature;  // text of the file
  std::array<store::TrustedKey, 1> trusted;
};

Keys MakeKeys() {
  base::FileSystem& files = base::FileSystem::Posix();
  const base::TempDir directory;
  Must(base::WriteTextAtomically(files, directory / "key", kPrivateKey, false).has_value(), "key");
  Must(base::WriteTextAtomically(files, directory / "pub", kPublicKey, false).has_value(), "key");
  const auto signing = store::SigningKey::Read(files, directory / "key");
  auto trusted = store::TrustedKey::Read(files, directory / "pub");
  Must(signing.has_value() && trusted.has_value(), "keys can be read");
  return {.signature = signing->Sign(kManifest), .trusted = {*std::move(trusted)}};
}

std::string SignatureIn(std::string_view text) {
  const auto json = base::ParseJson(text);
  Must(json.has_value(), "a signature that was accepted is JSON");
  const base::Json* member = json->Find("signature");
  Must(member != nullptr && member->string() != nullptr, "it has a signature");
  return *member->string();
}

void Check(std::string_view text) {
  static const Keys keys = MakeKeys();
  const std::string claimed = store::ClaimedSigner(text);
  Must(claimed.empty() || (claimed.size() == 16 &&
                           claimed.find_first_not_of("0123456789abcdef") == std::string::npos),
       "a signer is 16 digits");
  const auto nobody = store::CheckSignature(kManifest, text, {});
  Must(!nobody && nobody.error().code == base::Code::kPermissionDenied, "nobody is trusted");
  const auto signer = store::CheckSignature(kManifest, text, keys.trusted);
  if (!signer) {
    Must(signer.error().code == base::Code::kPermissionDenied, "a refusal is one of permission");
    Must(text != keys.signature, "the right signature is accepted");
    return;
  }
  Must(*signer == keys.trusted[0].fingerprint() && claimed == *signer, "the signer is the key");
  Must(SignatureIn(text) == SignatureIn(keys.signature), "only the signature is accepted");
  Must(!store::CheckSignature("another manifest", text, keys.trusted), "it is of one manifest");
}

}  // namespace
}  // namespace syncline::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  syncline::fuzz::Check(syncline::fuzz::Text(data, size));
  return 0;
}

// Ed25519 signatures of manifests (RFC 8032, by OpenSSL). The signature of a version lies beside
// its manifest in syncline.manifest.sig.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/file.h"

namespace syncline::store {

inline constexpr std::string_view kSignatureName = "syncline.manifest.sig";

// The private half, from the PEM file that WriteKeyPair made (or `openssl genpkey -algorithm
// ed25519`). Never printed; errors name the file only.
class SigningKey {
 public:
  static base::Result<SigningKey> Read(base::FileSystem& files, const std::string& path);
  SigningKey(SigningKey&&) noexcept;
  SigningKey& operator=(SigningKey&&) noexcept;
  ~SigningKey();

  // Text of a signature file for that manifest.
  std::string Sign(std::string_view manifest_text) const;
  // See TrustedKey::fingerprint().
  std::string fingerprint() const;

 private:
  SigningKey() = default;
  void* key_ = nullptr;  // EVP_PKEY
};

// The public half, from a PEM file; one who may sign what we pull.
class TrustedKey {
 public:
  static base::Result<TrustedKey> Read(base::FileSystem& files, const std::string& path);
  TrustedKey(TrustedKey&&) noexcept;
  TrustedKey& operator=(TrustedKey&&) noexcept;
  ~TrustedKey();

  // First 16 hex digits of the SHA-256 of the raw public key.
  const std::string& fingerprint() const { return fingerprint_; }
  bool Verifies(std::string_view manifest_text, std::string_view raw_signature) const;

 private:
  TrustedKey() = default;
  void* key_ = nullptr;  // EVP_PKEY
  std::string fingerprint_;
};

// `path` (mode 0600) and `path`.pub, synced. kAlreadyExists if either is there.
base::Status WriteKeyPair(base::FileSystem& files, const std::string& path);

// Is `signature_text` (the content of the signature file; empty: there is none) by one of `trusted`
// for that manifest? kPermissionDenied that says "is not signed", or by which key instead, or "the
// signature is wrong". Returns the fingerprint.
base::Result<std::string> CheckSignature(std::string_view manifest_text,
                                         std::string_view signature_text,
                                         std::span<const TrustedKey> trusted);

// Fingerprint that a signature file claims, unchecked; empty if it cannot be read. For listings.
std::string ClaimedSigner(std::string_view signature_text);

}  // namespace syncline::store

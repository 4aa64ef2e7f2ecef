#include "store/signature.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/json.h"
#include "store/file_hash.h"

namespace syncline::store {
namespace {

using base::Code;
using base::Fail;
using base::FileSystem;
using base::Json;
using base::Result;
using base::Status;

constexpr std::uint64_t kMaxKeyBytes = 64 << 10;
constexpr std::uint64_t kFormat = 1;
constexpr std::string_view kAlgorithm = "ed25519";
constexpr std::size_t kPublicKeyBytes = 32;
constexpr std::size_t kSignatureBytes = 64;
constexpr std::size_t kFingerprintDigits = 16;

struct FreeKey {
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};
struct FreeBio {
  void operator()(BIO* bio) const { BIO_free_all(bio); }
};
struct FreeContext {
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
};
using Key = std::unique_ptr<EVP_PKEY, FreeKey>;
using Bio = std::unique_ptr<BIO, FreeBio>;
using Context = std::unique_ptr<EVP_MD_CTX, FreeContext>;

EVP_PKEY* AsKey(void* key) { return static_cast<EVP_PKEY*>(key); }

const unsigned char* Bytes(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

// A key with a passphrase is refused instead of asking for it on the terminal.
int NoPassphrase(char*, int, int, void*) { return -1; }

using ReadPem = EVP_PKEY* (*)(BIO*, EVP_PKEY**, pem_password_cb*, void*);

Result<Key> ReadKey(FileSystem& files, const std::string& path, ReadPem read,
                    std::string_view what) {
  SYNCLINE_ASSIGN(std::string text, base::ReadText(files, path, kMaxKeyBytes));
  const Bio bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
  Key key(bio == nullptr ? nullptr : read(bio.get(), nullptr, NoPassphrase, nullptr));
  OPENSSL_cleanse(text.data(), text.size());
  ERR_clear_error();
  if (key == nullptr) {
    return Fail(Code::kCorrupt,
                fmt::format("{} is no PEM file of a {} without passphrase", path, what));
  }
  if (EVP_PKEY_get_id(key.get()) != EVP_PKEY_ED25519) {
    return Fail(Code::kIncompatible,
                fmt::format("{} is a {} of another kind than Ed25519", path, what));
  }
  return key;
}

// Empty if OpenSSL failed.
std::string FingerprintOf(EVP_PKEY* key) {
  std::array<std::byte, kPublicKeyBytes> raw;
  std::size_t size = raw.size();
  if (EVP_PKEY_get_raw_public_key(key, reinterpret_cast<unsigned char*>(raw.data()), &size) != 1 ||
      size != raw.size()) {
    return {};
  }
  return Sha256Hex(raw).substr(0, kFingerprintDigits);
}

struct Signature {
  std::string key;
  std::string raw;
};

std::optional<Signature> ParseSignature(std::string_view text) {
  constexpr std::size_t kMaxBytes = 4096;
  if (text.size() > kMaxBytes) return std::nullopt;
  const auto json = base::ParseJson(text);
  if (!json) return std::nullopt;
  const auto string = [&](std::string_view name) -> std::string {
    const Json* value = json->Find(name);
    return value != nullptr && value->string() != nullptr ? *value->string() : std::string();
  };
  const Json* format = json->Find("format");
  if (format == nullptr || format->unsigned_integer() == nullptr ||
      *format->unsigned_integer() != kFormat || string("algorithm") != kAlgorithm) {
    return std::nullopt;
  }
  const std::string hex = string("signature");
  Signature signature{.key = string("key"), .raw = {}};
  if (!IsLowerHex(signature.key, kFingerprintDigits) || !IsLowerHex(hex, 2 * kSignatureBytes)) {
    return std::nullopt;
  }
  signature.raw = base::FromHex(hex);
  return signature;
}

Result<std::string> TextOf(const Bio& bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &data);
  if (size <= 0) return Fail(Code::kInternal, "cannot write a key as PEM");
  return std::string(data, static_cast<std::size_t>(size));
}

Status WriteNew(FileSystem& files, const std::string& path, std::string_view text,
                base::OpenMode mode) {
  SYNCLINE_ASSIGN(const auto file, files.Open(path, mode));
  Status written = file->WriteAt(base::AsBytes(text), 0);
  if (written) written = file->Sync();
  if (!written) (void)files.Remove(path);
  return written;
}

}  // namespace

Result<SigningKey> SigningKey::Read(FileSystem& files, const std::string& path) {
  SYNCLINE_ASSIGN(Key read, ReadKey(files, path, PEM_read_bio_PrivateKey, "private key"));
  SigningKey key;
  key.key_ = read.release();
  return key;
}

SigningKey::SigningKey(SigningKey&& other) noexcept : key_(std::exchange(other.key_, nullptr)) {}

SigningKey& SigningKey::operator=(SigningKey&& other) noexcept {
  std::swap(key_, other.key_);
  return *this;
}

SigningKey::~SigningKey() { EVP_PKEY_free(AsKey(key_)); }

std::string SigningKey::Sign(std::string_view manifest_text) const {
  std::array<std::uint8_t, kSignatureBytes> raw{};
  std::size_t size = raw.size();
  const Context context(EVP_MD_CTX_new());
  if (context == nullptr ||
      EVP_DigestSignInit(context.get(), nullptr, nullptr, nullptr, AsKey(key_)) != 1 ||
      EVP_DigestSign(context.get(), raw.data(), &size, Bytes(manifest_text),
                     manifest_text.size()) != 1) {
    ERR_clear_error();  // out of memory; what is written then verifies for nobody
  }
  return ToText(Json(Json::Object{{"format", kFormat},
                                  {"algorithm", kAlgorithm},
                                  {"key", fingerprint()},
                                  {"signature", base::ToHex(raw)}})) +
         "\n";
}

std::string SigningKey::fingerprint() const { return FingerprintOf(AsKey(key_)); }

Result<TrustedKey> TrustedKey::Read(FileSystem& files, const std::string& path) {
  SYNCLINE_ASSIGN(Key read, ReadKey(files, path, PEM_read_bio_PUBKEY, "public key"));
  TrustedKey key;
  key.fingerprint_ = FingerprintOf(read.get());
  key.key_ = read.release();
  return key;
}

TrustedKey::TrustedKey(TrustedKey&& other) noexcept
    : key_(std::exchange(other.key_, nullptr)), fingerprint_(std::move(other.fingerprint_)) {}

TrustedKey& TrustedKey::operator=(TrustedKey&& other) noexcept {
  std::swap(key_, other.key_);
  std::swap(fingerprint_, other.fingerprint_);
  return *this;
}

TrustedKey::~TrustedKey() { EVP_PKEY_free(AsKey(key_)); }

bool TrustedKey::Verifies(std::string_view manifest_text, std::string_view raw_signature) const {
  const Context context(EVP_MD_CTX_new());
  const bool good =
      context != nullptr &&
      EVP_DigestVerifyInit(context.get(), nullptr, nullptr, nullptr, AsKey(key_)) == 1 &&
      EVP_DigestVerify(context.get(), Bytes(raw_signature), raw_signature.size(),
                       Bytes(manifest_text), manifest_text.size()) == 1;
  ERR_clear_error();
  return good;
}

Status WriteKeyPair(FileSystem& files, const std::string& path) {
  const std::string public_path = path + ".pub";
  for (const std::string& made : {path, public_path}) {
    SYNCLINE_ASSIGN(const bool there, base::Exists(files, made));
    if (there) return Fail(Code::kAlreadyExists, made + " is there already");
  }
  const Key key(EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519"));
  const Bio secret(BIO_new(BIO_s_secmem()));
  const Bio open(BIO_new(BIO_s_mem()));
  if (key == nullptr || secret == nullptr || open == nullptr ||
      PEM_write_bio_PKCS8PrivateKey(secret.get(), key.get(), nullptr, nullptr, 0, nullptr,
                                    nullptr) != 1 ||
      PEM_write_bio_PUBKEY(open.get(), key.get()) != 1) {
    ERR_clear_error();
    return Fail(Code::kInternal, "cannot make an Ed25519 key");
  }
  SYNCLINE_ASSIGN(std::string private_text, TextOf(secret));
  SYNCLINE_ASSIGN(const std::string public_text, TextOf(open));
  Status written = WriteNew(files, path, private_text, base::OpenMode::kCreatePrivate);
  OPENSSL_cleanse(private_text.data(), private_text.size());
  SYNCLINE_TRY(written);
  written = WriteNew(files, public_path, public_text, base::OpenMode::kCreateNew);
  if (!written) {
    (void)files.Remove(path);
    return written;
  }
  return files.SyncDirectory(base::ParentOf(path));
}

Result<std::string> CheckSignature(std::string_view manifest_text, std::string_view signature_text,
                                   std::span<const TrustedKey> trusted) {
  if (signature_text.empty()) return Fail(Code::kPermissionDenied, "the version is not signed");
  const auto signature = ParseSignature(signature_text);
  if (!signature) return Fail(Code::kPermissionDenied, "the signature cannot be read");
  bool known = false;
  for (const TrustedKey& key : trusted) {
    if (key.fingerprint() != signature->key) continue;
    known = true;
    if (key.Verifies(manifest_text, signature->raw)) return signature->key;
  }
  if (known) {
    return Fail(Code::kPermissionDenied,
                fmt::format("the signature is wrong: the manifest is not what key {} signed",
                            signature->key));
  }
  std::vector<std::string> names;
  for (const TrustedKey& key : trusted) names.push_back(key.fingerprint());
  return Fail(Code::kPermissionDenied,
              fmt::format("signed by key {}, which is not trusted (trusted: {})", signature->key,
                          fmt::join(names, ", ")));
}

std::string ClaimedSigner(std::string_view signature_text) {
  const auto signature = ParseSignature(signature_text);
  return signature ? signature->key : std::string();
}

}  // namespace syncline::store

#include "http/test_identity.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <cstdlib>
#include <memory>

namespace syncline::http {
namespace {

using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;

void Must(bool done) {
  if (!done) std::abort();
}

Key MakeKey() {
  Key key(EVP_EC_gen("P-256"), EVP_PKEY_free);
  Must(key != nullptr);
  return key;
}

void Extend(X509* certificate, X509* issuer, int kind, const char* value) {
  X509V3_CTX context = {};
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const std::unique_ptr<X509_EXTENSION, decltype(&X509_EXTENSION_free)> extension(
      X509V3_EXT_conf_nid(nullptr, &context, kind, value), X509_EXTENSION_free);
  Must(extension != nullptr && X509_add_ext(certificate, extension.get(), -1) == 1);
}

// For an hour before and after now, not signed yet.
Certificate Draft(const char* subject, EVP_PKEY* key, long serial) {
  Certificate draft(X509_new(), X509_free);
  Must(draft != nullptr && X509_set_version(draft.get(), X509_VERSION_3) == 1);
  ASN1_INTEGER_set(X509_get_serialNumber(draft.get()), serial);
  X509_gmtime_adj(X509_getm_notBefore(draft.get()), -3600);
  X509_gmtime_adj(X509_getm_notAfter(draft.get()), 3600);
  const auto* name = reinterpret_cast<const unsigned char*>(subject);
  Must(X509_NAME_add_entry_by_txt(X509_get_subject_name(draft.get()), "CN", MBSTRING_ASC, name, -1,
                                  -1, 0) == 1);
  Must(X509_set_pubkey(draft.get(), key) == 1);
  return draft;
}

void Sign(X509* certificate, X509* issuer, EVP_PKEY* key) {
  Must(X509_set_issuer_name(certificate, X509_get_subject_name(issuer)) == 1);
  Must(X509_sign(certificate, key, EVP_sha256()) > 0);
}

template <typename Write>
void ToFile(const std::string& path, const Write& write) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "w"),
                                                             std::fclose);
  Must(file != nullptr && write(file.get()) == 1);
}

}  // namespace

TestIdentity::TestIdentity(const std::string& key_password) : key_password_(key_password) {
  const Key authority_key = MakeKey();
  const Key key = MakeKey();
  const Certificate authority = Draft("Authority of the tests", authority_key.get(), 1);
  Extend(authority.get(), authority.get(), NID_basic_constraints, "critical,CA:TRUE");
  Extend(authority.get(), authority.get(), NID_key_usage, "critical,keyCertSign");
  Sign(authority.get(), authority.get(), authority_key.get());
  const Certificate server = Draft("Server of the tests", key.get(), 2);
  Extend(server.get(), authority.get(), NID_subject_alt_name, "IP:127.0.0.1,IP:::1");
  Sign(server.get(), authority.get(), authority_key.get());

  const auto pem = [](X509* certificate) {
    return [certificate](std::FILE* file) { return PEM_write_X509(file, certificate); };
  };
  ToFile(authority_file(), pem(authority.get()));
  ToFile(certificate_file(), pem(server.get()));
  ToFile(key_file(), [&](std::FILE* file) {
    const EVP_CIPHER* cipher = key_password.empty() ? nullptr : EVP_aes_256_cbc();
    return PEM_write_PKCS8PrivateKey(file, key.get(), cipher, key_password.data(),
                                     static_cast<int>(key_password.size()), nullptr, nullptr);
  });
}

const TestIdentity& TestIdentity::Shared() {
  static const TestIdentity identity;
  return identity;
}

}  // namespace syncline::http

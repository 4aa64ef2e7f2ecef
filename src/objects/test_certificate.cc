#include "objects/test_certificate.h"

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <cstdlib>

namespace syncline::objects {
namespace {

void Must(bool done) {
  if (!done) std::abort();
}

void Extend(X509* certificate, X509* issuer, int kind, const char* value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, kind, value);
  Must(extension != nullptr && X509_add_ext(certificate, extension, -1) == 1);
  X509_EXTENSION_free(extension);
}

// Valid for a day. issuer: null: signs itself.
X509* Issue(const char* name, EVP_PKEY* key, X509* issuer, EVP_PKEY* issuer_key) {
  X509* certificate = X509_new();
  Must(certificate != nullptr && X509_set_version(certificate, 2) == 1);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), issuer == nullptr ? 1 : 2);
  X509_gmtime_adj(X509_getm_notBefore(certificate), -3600);
  X509_gmtime_adj(X509_getm_notAfter(certificate), 86400);
  X509_NAME* subject = X509_get_subject_name(certificate);
  Must(X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                                  reinterpret_cast<const unsigned char*>(name), -1, -1, 0) == 1);
  X509_set_issuer_name(certificate, issuer == nullptr ? subject : X509_get_subject_name(issuer));
  X509_set_pubkey(certificate, key);
  if (issuer == nullptr) {
    Extend(certificate, certificate, NID_basic_constraints, "critical,CA:TRUE");
    Extend(certificate, certificate, NID_key_usage, "critical,keyCertSign");
  } else {
    Extend(certificate, issuer, NID_subject_alt_name, "IP:127.0.0.1");
  }
  Must(X509_sign(certificate, issuer == nullptr ? key : issuer_key, EVP_sha256()) > 0);
  return certificate;
}

}  // namespace

TestCertificate::TestCertificate(const char* authority_name) {
  EVP_PKEY* authority_key = EVP_EC_gen("P-256");
  EVP_PKEY* key = EVP_EC_gen("P-256");
  Must(authority_key != nullptr && key != nullptr);
  X509* authority = Issue(authority_name, authority_key, nullptr, nullptr);
  X509* certificate = Issue("Test server", key, authority, authority_key);

  BIO* pem = BIO_new(BIO_s_mem());
  Must(PEM_write_bio_X509(pem, authority) == 1);
  char* data = nullptr;
  const long size = BIO_get_mem_data(pem, &data);
  authority_pem_.assign(data, static_cast<std::size_t>(size));
  BIO_free(pem);

  context_ = SSL_CTX_new(TLS_server_method());
  Must(SSL_CTX_use_certificate(context_, certificate) == 1 &&
       SSL_CTX_use_PrivateKey(context_, key) == 1);
  X509_free(certificate);
  X509_free(authority);
  EVP_PKEY_free(key);
  EVP_PKEY_free(authority_key);
}

TestCertificate::~TestCertificate() { SSL_CTX_free(context_); }

}  // namespace syncline::objects

#include "daemon/endpoint/tls_files.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <cerrno>
#include <fstream>
#include <memory>
#include <sstream>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "storage/base/private_file.h"
#include "storage/base/status.h"

namespace kvist::endpoint {
namespace {

template <auto release>
struct Free {
  template <class T>
  void operator()(T* object) const {
    release(object);
  }
};
using Bio = std::unique_ptr<BIO, Free<BIO_free>>;
using Certificate = std::unique_ptr<X509, Free<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Free<EVP_PKEY_free>>;

Bio Reader(const std::string& text) { return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size()))); }

// OpenSSL would ask for a password on the terminal.
int NoPassword(char*, int, int, void*) { return 0; }

Certificate NextCertificate(BIO* bio) { return Certificate(PEM_read_bio_X509(bio, nullptr, NoPassword, nullptr)); }

absl::StatusOr<std::string> ReadCertificates(const std::string& key, const std::string& path) {
  std::ifstream file(path);
  if (!file) return ErrnoStatus(absl::StrCat(key, ": opening ", path), errno);
  std::ostringstream read;  // a directory can be opened, but not read
  if (!(read << file.rdbuf()))
    return absl::InvalidArgumentError(absl::StrCat(key, ": ", path, " can't be read, or is empty"));
  const std::string text = read.str();
  const Bio bio = Reader(text);
  ERR_clear_error();
  size_t count = 0;
  while (NextCertificate(bio.get()) != nullptr) ++count;
  const bool whole = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;  // nothing more begins
  ERR_clear_error();
  if (count == 0) return absl::InvalidArgumentError(absl::StrCat(key, ": ", path, " begins with no certificate in PEM"));
  if (!whole) return absl::InvalidArgumentError(absl::StrCat(key, ": ", path, " is broken after ", count, " certificates"));
  return text;
}

bool IsNow(const X509& certificate) {
  return X509_cmp_current_time(X509_get0_notBefore(&certificate)) < 0 &&
         X509_cmp_current_time(X509_get0_notAfter(&certificate)) > 0;
}

Certificate First(const std::string& pem) {
  const Bio bio = Reader(pem);
  Certificate certificate = NextCertificate(bio.get());
  ERR_clear_error();
  return certificate;
}

}  // namespace

std::string Missing(const TlsFiles& files, const TlsFileKeys& keys) {
  std::vector<std::string> missing;
  if (files.certificate.empty()) missing.push_back(keys.certificate);
  if (files.key.empty()) missing.push_back(keys.key);
  if (files.ca.empty()) missing.push_back(keys.ca);
  return absl::StrJoin(missing, ", ");
}

bool HasRunOut(const std::string& pem) {
  const Certificate certificate = First(pem);
  return certificate == nullptr || X509_cmp_current_time(X509_get0_notAfter(certificate.get())) <= 0;
}

bool IsInTime(const std::string& pem) {
  const Certificate certificate = First(pem);
  return certificate != nullptr && IsNow(*certificate);
}

bool IsAnyInTime(const std::string& pem) {
  const Bio bio = Reader(pem);
  bool any = false;
  while (const Certificate certificate = NextCertificate(bio.get())) any = any || IsNow(*certificate);
  ERR_clear_error();
  return any;
}

absl::StatusOr<TlsTexts> ReadTlsFiles(const TlsFiles& files, const TlsFileKeys& keys) {
  if (!files.complete()) return absl::InvalidArgumentError(absl::StrCat("TLS lacks ", Missing(files, keys)));
  TlsTexts texts;
  KVIST_ASSIGN_OR_RETURN(texts.certificate, ReadCertificates(keys.certificate, files.certificate));
  KVIST_ASSIGN_OR_RETURN(texts.ca, ReadCertificates(keys.ca, files.ca));
  KVIST_ASSIGN_OR_RETURN(texts.key, ReadPrivateFile(keys.key, files.key));
  const Bio bio = Reader(texts.key);
  const Key key(PEM_read_bio_PrivateKey(bio.get(), nullptr, NoPassword, nullptr));
  const bool fits = key != nullptr && X509_check_private_key(First(texts.certificate).get(), key.get()) == 1;
  ERR_clear_error();
  if (key == nullptr)
    return absl::InvalidArgumentError(
        absl::StrCat(keys.key, ": ", files.key, " holds no private key in PEM without a password"));
  if (!fits) {
    return absl::InvalidArgumentError(
        absl::StrCat(keys.key, ": ", files.key, " isn't the key of the certificate in ", files.certificate));
  }
  return texts;
}

absl::Status CheckTlsFiles(const TlsFiles& files, const TlsFileKeys& keys) { return ReadTlsFiles(files, keys).status(); }

}  // namespace kvist::endpoint

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

absl::StatusOr<Certificate> FirstCertificate(const std::string& key, const std::string& path) {
  std::ifstream file(path);
  if (!file) return ErrnoStatus(absl::StrCat(key, ": opening ", path), errno);
  std::ostringstream read;  // a directory can be opened, but not read
  if (!(read << file.rdbuf()))
    return absl::InvalidArgumentError(absl::StrCat(key, ": ", path, " can't be read, or is empty"));
  const std::string text = read.str();
  const Bio bio = Reader(text);
  Certificate certificate(PEM_read_bio_X509(bio.get(), nullptr, NoPassword, nullptr));
  ERR_clear_error();
  if (certificate == nullptr)
    return absl::InvalidArgumentError(absl::StrCat(key, ": ", path, " begins with no certificate in PEM"));
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
  const Bio bio = Reader(pem);
  const Certificate certificate(PEM_read_bio_X509(bio.get(), nullptr, NoPassword, nullptr));
  ERR_clear_error();
  return certificate == nullptr || X509_cmp_current_time(X509_get0_notAfter(certificate.get())) <= 0;
}

absl::Status CheckTlsFiles(const TlsFiles& files, const TlsFileKeys& keys) {
  if (!files.complete()) return absl::InvalidArgumentError(absl::StrCat("TLS lacks ", Missing(files, keys)));
  KVIST_ASSIGN_OR_RETURN(const Certificate certificate, FirstCertificate(keys.certificate, files.certificate));
  KVIST_ASSIGN_OR_RETURN(const Certificate ca, FirstCertificate(keys.ca, files.ca));
  KVIST_ASSIGN_OR_RETURN(const std::string secret, ReadPrivateFile(keys.key, files.key));
  const Bio bio = Reader(secret);
  const Key key(PEM_read_bio_PrivateKey(bio.get(), nullptr, NoPassword, nullptr));
  const bool fits = key != nullptr && X509_check_private_key(certificate.get(), key.get()) == 1;
  ERR_clear_error();
  if (key == nullptr)
    return absl::InvalidArgumentError(
        absl::StrCat(keys.key, ": ", files.key, " holds no private key in PEM without a password"));
  if (!fits) {
    return absl::InvalidArgumentError(
        absl::StrCat(keys.key, ": ", files.key, " isn't the key of the certificate in ", files.certificate));
  }
  return absl::OkStatus();
}

}  // namespace kvist::endpoint

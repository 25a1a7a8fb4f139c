#ifndef KVIST_DAEMON_ENDPOINT_TLS_FILES_H_
#define KVIST_DAEMON_ENDPOINT_TLS_FILES_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace kvist::endpoint {

// By what a process of kvist shows who it is, and whom it believes; all PEM. Both sides of a connection have all three.
struct TlsFiles {
  std::string certificate;  // its own, and those between it and its CA
  std::string key;          // of that certificate; not encrypted, closed to other users
  std::string ca;           // by whom the other side's certificate has to be signed

  bool empty() const { return certificate.empty() && key.empty() && ca.empty(); }
  bool complete() const { return !certificate.empty() && !key.empty() && !ca.empty(); }
  bool operator==(const TlsFiles&) const = default;
};

// The settings that name them, for errors.
struct TlsFileKeys {
  std::string certificate = "tls.certificate_file";
  std::string key = "tls.key_file";
  std::string ca = "tls.ca_file";
};

// "tls.key_file, tls.ca_file": those that name nothing.
std::string Missing(const TlsFiles& files, const TlsFileKeys& keys = {});

// Whether a connection could be made with them. A certificate whose time is over is taken: the files are looked at again while a process runs.
//
// Errors, each with the setting and the file: InvalidArgument  one is missing, isn't PEM, or the key isn't the certificate's.
//         FailedPrecondition  others may read the key; has the command that mends it.  Those of files.
absl::Status CheckTlsFiles(const TlsFiles& files, const TlsFileKeys& keys = {});

// What stands in them.
struct TlsTexts {
  std::string certificate, key, ca;
  bool operator==(const TlsTexts&) const = default;
};
// The same, with what was looked at.
absl::StatusOr<TlsTexts> ReadTlsFiles(const TlsFiles& files, const TlsFileKeys& keys = {});

// Whether the time of a certificate, the first of several, has come and isn't over.
bool IsInTime(const std::string& pem);
// The same of any of several: of CAs one that is in time will do.
bool IsAnyInTime(const std::string& pem);
// Whether the time of a certificate is over; also of what is none.
bool HasRunOut(const std::string& pem);

}  // namespace kvist::endpoint

#endif  // KVIST_DAEMON_ENDPOINT_TLS_FILES_H_

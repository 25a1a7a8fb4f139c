#ifndef KVIST_STORAGE_REMOTE_TLS_H_
#define KVIST_STORAGE_REMOTE_TLS_H_

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"

struct ssl_ctx_st;
struct ssl_st;

// TLS over sockets that don't block; the one place where OpenSSL's errors of it become statuses.
namespace kvist::remote {

struct TlsOptions {
  bool enabled = false;
  std::string ca_file;    // whom to believe; empty: whom the system believes
  std::string cert_file;  // ours, for servers that ask for one; PEM, both or none
  std::string key_file;
  // That the server's certificate has to be for; empty: the host of the address, which unix: has none of
  std::string server_name;
};

// How far a socket's read, write or handshake came.
struct Progress {
  enum class Waits : unsigned char { kNothing, kToRead, kToWrite };
  size_t bytes = 0;
  Waits waits = Waits::kNothing;  // kNothing: it was done, so far as `bytes` says
};

// Threads: any; one Tls at a time for each connection.
class TlsContext {
 public:
  // Errors: InvalidArgument, when a file can't be used, and says which.
  static absl::StatusOr<std::shared_ptr<TlsContext>> Create(const TlsOptions& options);
  ~TlsContext();

 private:
  friend class Tls;
  explicit TlsContext(ssl_ctx_st* context) : context_(context) {}
  ssl_ctx_st* const context_;
};

// One connection over a socket, which it doesn't own. The owner's thread has SIGPIPE blocked: OpenSSL writes as it likes.
class Tls {
 public:
  // `name`: which the certificate has to be for, a host or an IP address; not empty: that would be anyone's.
  Tls(const TlsContext& context, int socket, const std::string& name);
  ~Tls();
  Tls(const Tls&) = delete;
  Tls& operator=(const Tls&) = delete;

  // Errors of all: Unavailable, the connection is no more.
  absl::StatusOr<Progress> Handshake();
  absl::StatusOr<Progress> Read(std::span<std::byte> into);
  absl::StatusOr<Progress> Write(std::span<const std::byte> from);

 private:
  absl::StatusOr<Progress> Ended(const char* what, int result);
  ssl_st* const ssl_;
};

}  // namespace kvist::remote

#endif  // KVIST_STORAGE_REMOTE_TLS_H_

#ifndef KVIST_STORAGE_REMOTE_NET_STREAM_H_
#define KVIST_STORAGE_REMOTE_NET_STREAM_H_

#include <sys/uio.h>

#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "storage/base/unique_fd.h"
#include "storage/remote/net_address.h"
#include "storage/remote/tls.h"

namespace kvist::remote {

// A connection to a server, plain or TLS, that never blocks.
//
// Lifecycle: Connect -> Establish until it says that it is -> Read and Write. After an error it is no more use.
// Threads: one, with SIGPIPE blocked. Errors: Unavailable.
class NetStream {
 public:
  // `tls`: none for a plain one. `name`: what its certificate has to be for.
  static absl::StatusOr<std::unique_ptr<NetStream>> Connect(const SocketAddress& address,
                                                            std::shared_ptr<const TlsContext> tls, const std::string& name);

  int fd() const { return socket_.get(); }
  // kNothing: it is established.
  absl::StatusOr<Progress> Establish();
  // Some of it. The end of the stream is an error.
  absl::StatusOr<Progress> Read(std::span<const iovec> into);
  absl::StatusOr<Progress> Write(std::span<const iovec> from);

 private:
  NetStream(UniqueFd socket, std::shared_ptr<const TlsContext> context, std::string name)
      : socket_(std::move(socket)), context_(std::move(context)), name_(std::move(name)) {}

  UniqueFd socket_;
  bool connected_ = false;
  const std::shared_ptr<const TlsContext> context_;
  const std::string name_;
  std::unique_ptr<Tls> tls_;
};

}  // namespace kvist::remote

#endif  // KVIST_STORAGE_REMOTE_NET_STREAM_H_

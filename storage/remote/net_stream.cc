#include "storage/remote/net_stream.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <cerrno>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "storage/base/status.h"

namespace kvist::remote {
namespace {

absl::Status NetError(const char* what, int error) {
  return absl::UnavailableError(absl::StrCat(what, ": ", ErrnoStatus("", error).message()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<NetStream>> NetStream::Connect(const SocketAddress& address,
                                                              std::shared_ptr<const TlsContext> tls,
                                                              const std::string& name) {
  UniqueFd socket(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) return NetError("socket", errno);
  if (address.storage.ss_family != AF_UNIX) {
    const int on = 1;
    ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    ::setsockopt(socket.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  }
  // EAGAIN is what a unix socket with a full backlog says: the server doesn't accept.
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.length) != 0 &&
      errno != EINPROGRESS)
    return NetError("connect", errno);
  return absl::WrapUnique(new NetStream(std::move(socket), std::move(tls), name));
}

absl::StatusOr<Progress> NetStream::Establish() {
  if (!connected_) {
    pollfd ready{socket_.get(), POLLOUT, 0};
    if (::poll(&ready, 1, 0) == 0) return Progress{0, Progress::Waits::kToWrite};
    int error = 0;
    socklen_t size = sizeof error;
    if (::getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
    if (error != 0) return NetError("connect", error);
    connected_ = true;
    if (context_ != nullptr) tls_ = std::make_unique<Tls>(*context_, socket_.get(), name_);
  }
  return tls_ != nullptr ? tls_->Handshake() : Progress{};
}

absl::StatusOr<Progress> NetStream::Read(std::span<const iovec> into) {
  if (tls_ != nullptr) return tls_->Read({static_cast<std::byte*>(into[0].iov_base), into[0].iov_len});
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(into.data());
  message.msg_iovlen = into.size();
  const ssize_t n = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT);
  if (n > 0) return Progress{static_cast<size_t>(n)};
  if (n == 0) return absl::UnavailableError("the server closed the connection");
  if (errno == EAGAIN || errno == EINTR) return Progress{0, Progress::Waits::kToRead};
  return NetError("receive", errno);
}

absl::StatusOr<Progress> NetStream::Write(std::span<const iovec> from) {
  if (tls_ != nullptr) return tls_->Write({static_cast<const std::byte*>(from[0].iov_base), from[0].iov_len});
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(from.data());
  message.msg_iovlen = from.size();
  const ssize_t n = ::sendmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (n >= 0) return Progress{static_cast<size_t>(n)};
  if (errno == EAGAIN || errno == EINTR) return Progress{0, Progress::Waits::kToWrite};
  return NetError("send", errno);
}

}  // namespace kvist::remote

#include "storage/base/shm/frame_socket.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/check.h"
#include "storage/base/status.h"

namespace kvist::shm {

absl::Status SendFrame(int socket, std::string_view bytes, std::span<const int> fds) {
  KVIST_CHECK(bytes.size() <= kFrameBytesMax && fds.size() <= kFrameFdsMax && !bytes.empty());
  iovec part{const_cast<char*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kFrameFdsMax * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(head), fds.data(), fds.size_bytes());
  }
  if (::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
    return absl::UnavailableError(absl::StrCat("the peer can't be sent to: ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

absl::StatusOr<Frame> ReceiveFrame(int socket, std::vector<UniqueFd>* refused) {
  Frame frame;
  frame.bytes.resize(kFrameBytesMax);
  iovec part{frame.bytes.data(), frame.bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kFrameFdsMax * sizeof(int))];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t received = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (received < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return absl::NotFoundError("no packet yet");
    return absl::UnavailableError(absl::StrCat("the peer can't be read from: ", std::strerror(errno)));
  }
  for (cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr; head = CMSG_NXTHDR(&message, head)) {
    if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(head) + i * sizeof(int), sizeof fd);
      frame.fds.emplace_back(fd);
    }
  }
  const size_t came = frame.fds.size();
  const bool wrong = received == 0 || (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0;
  if (wrong && refused != nullptr) *refused = std::move(frame.fds);
  if (received == 0) return absl::UnavailableError("closed");
  if ((message.msg_flags & MSG_CTRUNC) != 0 && came < kFrameFdsMax)
    return absl::ResourceExhaustedError("no descriptors are left to take those of a packet: raise LimitNOFILE (ulimit -n)");
  if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a packet of more than ", kFrameBytesMax, " bytes or ", kFrameFdsMax, " descriptors"));
  }
  frame.bytes.resize(static_cast<size_t>(received));
  return frame;
}

bool EndWithoutDescriptors(int socket) {
  ::shutdown(socket, SHUT_RDWR);  // nothing more comes in
  // With every packet comes who sent it, also with an empty one, which looks like the end otherwise.
  const int on = 1;
  if (::setsockopt(socket, SOL_SOCKET, SO_PASSCRED, &on, sizeof on) != 0) return false;
  while (true) {
    char byte;
    iovec part{&byte, 1};
    alignas(cmsghdr) char sender[CMSG_SPACE(sizeof(ucred))];
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = sender;
    message.msg_controllen = sizeof sender;
    // Without room for descriptors they stay where they are while one only looks, and the flag says that there are some.
    const ssize_t seen = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_PEEK);
    if (seen < 0 && errno == EINTR) continue;
    if (seen >= 0 && (message.msg_flags & MSG_CTRUNC) != 0) return false;
    if (seen < 0 || message.msg_controllen == 0) return true;
    (void)::recv(socket, &byte, 1, MSG_DONTWAIT);
  }
}

}  // namespace kvist::shm

#ifndef KVIST_STORAGE_BASE_SHM_FRAME_SOCKET_H_
#define KVIST_STORAGE_BASE_SHM_FRAME_SOCKET_H_

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/base/unique_fd.h"

namespace kvist::shm {

// A packet of the handshake: one message, and file descriptors beside it. Packets keep their boundaries (SOCK_SEQPACKET), so a peer
// can send half a message never, and a wrong length only once.
struct Frame {
  std::string bytes;
  std::vector<UniqueFd> fds;
};

inline constexpr size_t kFrameBytesMax = 64 << 10;  // a Hello of 1,024 layers in 64 regions has 20 KiB
inline constexpr size_t kFrameFdsMax = 64;

// Sends one packet; never blocks. Errors: Unavailable  the peer is gone or doesn't read.
absl::Status SendFrame(int socket, std::string_view bytes, std::span<const int> fds = {});

// Receives one packet; never blocks. Errors: Unavailable "closed"  the peer has hung up, or sent an empty packet; NotFound  nothing there yet;
// InvalidArgument  longer than kFrameBytesMax or with more than kFrameFdsMax descriptors. Those that came with such a packet are in `refused`; null:
// they are closed here, which may block when they are a stranger's.
absl::StatusOr<Frame> ReceiveFrame(int socket, std::vector<UniqueFd>* refused = nullptr);

// Ends a connection for both sides, and throws away what the peer has sent and nobody received, until it comes to a packet with descriptors.
// True: there is none, so closing the socket closes nothing of a stranger's. Never blocks.
bool EndWithoutDescriptors(int socket);

}  // namespace kvist::shm

#endif  // KVIST_STORAGE_BASE_SHM_FRAME_SOCKET_H_

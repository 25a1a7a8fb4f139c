#ifndef KVIST_STORAGE_REMOTE_NET_ADDRESS_H_
#define KVIST_STORAGE_REMOTE_NET_ADDRESS_H_

#include <sys/socket.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace kvist::remote {

// A server as the configuration has it: "unix:/run/redis.sock", "host:6379", "10.0.0.1:6379", "[::1]:6379".
struct Endpoint {
  std::string unix_path;  // empty: TCP
  std::string host;
  uint16_t port = 0;

  // Errors: InvalidArgument, which says how it should look.
  static absl::StatusOr<Endpoint> Parse(const std::string& text);
};

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
};

// Finds a host's address without making its owner wait: names are asked for on a thread of its own, which nobody can interrupt and which is
// left alone when this is destroyed. Numbers and paths need none. At most one is asked for at a time.
// Threads: one. `wake` is called on the other one when there is an answer, as long as this lives, and after that not.
class Resolver {
 public:
  Resolver(Endpoint endpoint, std::function<void()> wake);
  ~Resolver();

  // Nothing while it isn't known yet; then the answer to a question that was asked after the last answer was taken.
  std::optional<absl::StatusOr<SocketAddress>> Resolve();

 private:
  struct Question;
  const Endpoint endpoint_;
  const std::function<void()> wake_;
  std::shared_ptr<Question> question_;
};

}  // namespace kvist::remote

#endif  // KVIST_STORAGE_REMOTE_NET_ADDRESS_H_

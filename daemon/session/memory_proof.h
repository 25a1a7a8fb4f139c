#ifndef KVIST_DAEMON_SESSION_MEMORY_PROOF_H_
#define KVIST_DAEMON_SESSION_MEMORY_PROOF_H_

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace kvist::session {

// What a daemon gives an engine that has proven its GPU memory with probe pages, so that a later daemon believes it without: by then the pages
// hold KV. Names of GPU memory are no secret, so it is bound to who has shown it: HMAC-SHA256 over the process's uid and number and the whole
// description. Another process of that number can have it only once the one that proved it, and its memory, are gone.
//
// Threads: any.
class MemoryProofs {
 public:
  static constexpr size_t kKeyBytes = 32;
  using Key = std::array<unsigned char, kKeyBytes>;

  explicit MemoryProofs(const Key& key) : key_(key) {}
  // The key in this file, which is made when it isn't there: readable by nobody else. Errors: those of open, read, write; DataLoss  it holds
  // something else.
  static absl::StatusOr<MemoryProofs> Open(const std::string& path);
  // With a key that ends with this process. Errors: those of getrandom.
  static absl::StatusOr<MemoryProofs> Ephemeral();

  // `description`: of the memory, as it was sent.
  std::string Of(uid_t uid, pid_t pid, std::string_view description) const;
  bool Holds(std::string_view proof, uid_t uid, pid_t pid, std::string_view description) const;

 private:
  Key key_;
};

}  // namespace kvist::session

#endif  // KVIST_DAEMON_SESSION_MEMORY_PROOF_H_

#ifndef KVIST_TESTS_SUPPORT_REDIS_SERVER_H_
#define KVIST_TESTS_SUPPORT_REDIS_SERVER_H_

#include <memory>
#include <string>
#include <vector>

#include "tests/support/child_process.h"
#include "tests/support/temp_dir.h"

namespace kvist::test {

// A redis-server of its own, on a unix socket in a fresh folder, which keeps nothing on disk. It ends with this object or its thread.
//
// Errors: ends the process, saying why, when it doesn't answer within 10 s.
class RedisServer {
 public:
  // `settings`: as on its command line, {"--maxmemory", "10mb"}.
  explicit RedisServer(std::vector<std::string> settings = {});

  std::string address() const { return "unix:" + socket(); }
  std::string socket() const { return folder_ / "redis.sock"; }
  const TempDir& folder() const { return folder_; }
  ChildProcess& process() { return *process_; }
  // Starts it anew, empty, after it was killed.
  void Start();

  // A command by a connection of its own; what the server answers, as it stands in the stream, one read of it.
  std::string Command(const std::vector<std::string>& words) const;

 private:
  TempDir folder_;
  const std::vector<std::string> settings_;
  std::unique_ptr<ChildProcess> process_;
};

}  // namespace kvist::test

#endif  // KVIST_TESTS_SUPPORT_REDIS_SERVER_H_

#ifndef KVIST_TESTS_SUPPORT_REDIS_CLUSTER_H_
#define KVIST_TESTS_SUPPORT_REDIS_CLUSTER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/redis_server.h"

namespace kvist::test {

// A Redis Cluster of its own on ports of loopback that were free: so many masters with equal parts of the slots, and one replica of the first
// if wanted. Keeps nothing on disk but what its servers know of each other.
//
// Errors: ends the process, saying why, when it isn't whole within 30 s.
class RedisCluster {
 public:
  explicit RedisCluster(size_t masters, bool replica = false);

  size_t size() const { return servers_.size(); }  // masters first
  RedisServer& server(size_t i) { return *servers_[i].server; }
  std::string address(size_t i) const;    // HOST:PORT
  size_t master_of(uint16_t slot) const;  // that had it at first
  std::string id(size_t i) const;         // as its servers call each other

  // Moves a slot and all its keys, in steps: it is on its way from Begin to End.
  void BeginMove(uint16_t slot, size_t from, size_t to);
  void MoveKeys(uint16_t slot, size_t from, size_t to, size_t most = SIZE_MAX);
  void EndMove(uint16_t slot, size_t to);

  // Keys of all masters.
  uint64_t keys() const;
  // How often servers have sent somebody elsewhere since they started.
  uint64_t redirects() const;

 private:
  struct One {
    uint16_t port = 0;
    uint16_t bus_port = 0;
    std::unique_ptr<RedisServer> server;
  };
  std::string Must(size_t i, const std::vector<std::string>& words) const;  // an answer that is no error
  bool IsWhole() const;

  std::vector<One> servers_;
  size_t masters_;
};

}  // namespace kvist::test

#endif  // KVIST_TESTS_SUPPORT_REDIS_CLUSTER_H_

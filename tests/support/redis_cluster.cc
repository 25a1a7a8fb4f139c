#include "tests/support/redis_cluster.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <thread>

#include "tests/support/free_port.h"

namespace kvist::test {
namespace {

constexpr uint32_t kSlots = 16384;

void WaitFor(const char* what, const std::function<bool()>& holds) {
  for (int i = 0; i < 3000; ++i) {
    if (holds()) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  std::fprintf(stderr, "a cluster of redis-servers isn't ready after 30 s: %s\n", what);
  std::abort();
}

// The number behind "name:" or "name=" in an answer; 0 if there is none.
uint64_t NumberIn(const std::string& text, const std::string& name) {
  const size_t at = text.find(name);
  return at == std::string::npos ? 0 : std::strtoull(text.c_str() + at + name.size(), nullptr, 10);
}

}  // namespace

RedisCluster::RedisCluster(size_t masters, bool replica) : masters_(masters) {
  servers_.resize(masters + (replica ? 1 : 0));
  for (size_t i = 0; i < servers_.size(); ++i) {
    One& one = servers_[i];
    one.port = FreePort();
    one.bus_port = FreePort();
    one.server = std::make_unique<RedisServer>(std::vector<std::string>{
        "--port", std::to_string(one.port), "--bind", "127.0.0.1", "--cluster-enabled", "yes", "--cluster-port",
        std::to_string(one.bus_port), "--cluster-node-timeout", "1000", "--cluster-require-full-coverage", "no"});
    Must(i, {"CLUSTER", "SET-CONFIG-EPOCH", std::to_string(i + 1)});
  }
  for (size_t i = 0; i < masters_; ++i)
    Must(i, {"CLUSTER", "ADDSLOTSRANGE", std::to_string(i * kSlots / masters_),
             std::to_string((i + 1) * kSlots / masters_ - 1)});
  for (size_t i = 1; i < servers_.size(); ++i)
    Must(0, {"CLUSTER", "MEET", "127.0.0.1", std::to_string(servers_[i].port), std::to_string(servers_[i].bus_port)});
  if (replica) {
    const size_t last = servers_.size() - 1;
    WaitFor("the replica knows its master", [&] {
      return server(last).Command({"CLUSTER", "REPLICATE", id(0)}).front() == '+';
    });
    WaitFor("the replica follows", [&] {
      return server(last).Command({"INFO", "replication"}).find("master_link_status:up") != std::string::npos;
    });
  }
  WaitFor("all know all", [&] { return IsWhole(); });
}

bool RedisCluster::IsWhole() const {
  for (const One& one : servers_) {
    const std::string info = one.server->Command({"CLUSTER", "INFO"});
    if (info.find("cluster_state:ok") == std::string::npos || NumberIn(info, "cluster_slots_ok:") != kSlots ||
        NumberIn(info, "cluster_known_nodes:") != servers_.size() || NumberIn(info, "cluster_size:") != masters_)
      return false;
  }
  return true;
}

std::string RedisCluster::address(size_t i) const { return "127.0.0.1:" + std::to_string(servers_[i].port); }

size_t RedisCluster::master_of(uint16_t slot) const {
  size_t master = 0;
  while (master + 1 < masters_ && slot >= (master + 1) * kSlots / masters_) ++master;
  return master;
}

std::string RedisCluster::id(size_t i) const { return Must(i, {"CLUSTER", "MYID"}).substr(5, 40); }  // "$40\r\n"

std::string RedisCluster::Must(size_t i, const std::vector<std::string>& words) const {
  const std::string answer = servers_[i].server->Command(words);
  if (!answer.empty() && answer.front() != '-') return answer;
  std::fprintf(stderr, "redis-server %zu answers %s to %s %s\n", i, answer.c_str(), words[0].c_str(), words[1].c_str());
  std::abort();
}

void RedisCluster::BeginMove(uint16_t slot, size_t from, size_t to) {
  Must(to, {"CLUSTER", "SETSLOT", std::to_string(slot), "IMPORTING", id(from)});
  Must(from, {"CLUSTER", "SETSLOT", std::to_string(slot), "MIGRATING", id(to)});
}

void RedisCluster::MoveKeys(uint16_t slot, size_t from, size_t to, size_t most) {
  for (size_t i = 0; i < most; ++i) {
    // "*1\r\n$12\r\nthe key here\r\n"
    const std::string keys = Must(from, {"CLUSTER", "GETKEYSINSLOT", std::to_string(slot), "1"});
    if (keys.substr(0, 2) == "*0") return;
    const size_t begin = keys.find("\r\n", 4) + 2;
    const std::string key = keys.substr(begin, keys.size() - 2 - begin);
    Must(from, {"MIGRATE", "127.0.0.1", std::to_string(servers_[to].port), key, "0", "5000"});
  }
}

void RedisCluster::EndMove(uint16_t slot, size_t to) {
  Must(to, {"CLUSTER", "SETSLOT", std::to_string(slot), "NODE", id(to)});
  for (size_t i = 0; i < masters_; ++i)
    if (i != to) Must(i, {"CLUSTER", "SETSLOT", std::to_string(slot), "NODE", id(to)});
}

uint64_t RedisCluster::keys() const {
  uint64_t keys = 0;
  for (size_t i = 0; i < masters_; ++i) keys += NumberIn(Must(i, {"DBSIZE"}), ":");
  return keys;
}

uint64_t RedisCluster::redirects() const {
  uint64_t redirects = 0;
  for (const One& one : servers_) {
    const std::string errors = one.server->Command({"INFO", "errorstats"});
    redirects += NumberIn(errors, "errorstat_MOVED:count=") + NumberIn(errors, "errorstat_ASK:count=");
  }
  return redirects;
}

}  // namespace kvist::test

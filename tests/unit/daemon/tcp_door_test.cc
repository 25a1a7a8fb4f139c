#include "daemon/rpc/tcp_door.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "daemon/rpc/strangers.h"
#include "daemon/rpc/tcp_listening.h"
#include "daemon/rpc/tcp_peer.h"
#include "storage/base/unique_fd.h"
#include "tests/support/free_port.h"

namespace kvist::rpc {
namespace {

constexpr char kFirst[] = "127.0.0.1", kSecond[] = "127.0.0.2";
constexpr int kSoonMillis = 20'000;

// A connection that doesn't say anything; from one of this machine's own addresses.
UniqueFd ConnectFrom(const std::string& address, uint16_t port) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in own{}, to{};
  own.sin_family = to.sin_family = AF_INET;
  REQUIRE(::inet_pton(AF_INET, address.c_str(), &own.sin_addr) == 1);
  REQUIRE(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&own), sizeof own) == 0);
  to.sin_port = htons(port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0);
  return fd;
}

TcpPeer OwnSide(const UniqueFd& fd) {
  sockaddr_in own{};
  socklen_t size = sizeof own;
  REQUIRE(::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own), &size) == 0);
  char text[INET_ADDRSTRLEN];
  ::inet_ntop(AF_INET, &own.sin_addr, text, sizeof text);
  return *PeerNamed(absl::StrCat("ipv4:", text, ":", ntohs(own.sin_port)));
}

bool Ends(const UniqueFd& fd, int within_millis) {
  pollfd ended{fd.get(), POLLIN, 0};
  return ::poll(&ended, 1, within_millis) == 1;
}

// A door, and somebody behind it who serves: keeps what it is given until the other end, or the door, has ended it.
class Behind {
 public:
  explicit Behind(TcpDoor::Limits limits) {
    TcpDoor::Options options;
    absl::StatusOr<UniqueFd> listening = ListenByTcp(absl::StrCat(kFirst, ":", port), "test.listen");
    REQUIRE(listening.ok());
    options.listening = *std::move(listening);
    options.limits = limits;
    options.take = [this](UniqueFd socket) {
      const absl::MutexLock lock(&mutex_);
      taken_.push_back(std::move(socket));
      ++came_;
      one_came_.SignalAll();
    };
    options.warn = [this](const std::string& text) {
      const absl::MutexLock lock(&mutex_);
      warned_.push_back(text);
    };
    auto created = TcpDoor::Create(std::move(options));
    REQUIRE(created.ok());
    door = *std::move(created);
    door->Open();
  }
  bool HasTaken(size_t count) {
    const absl::MutexLock lock(&mutex_);
    const absl::Time deadline = absl::Now() + absl::Milliseconds(kSoonMillis);
    while (came_ < count) {
      if (one_came_.WaitWithDeadline(&mutex_, deadline)) break;
    }
    return came_ >= count;
  }
  bool Has(const TcpPeer& peer) {
    const absl::MutexLock lock(&mutex_);
    return std::any_of(taken_.begin(), taken_.end(), [&](const UniqueFd& fd) { return PeerOf(fd.get()) == peer; });
  }
  // Closes those that are over, as a server does.
  void Reap() {
    const absl::MutexLock lock(&mutex_);
    const auto over = [](const UniqueFd& fd) {
      pollfd hung_up{fd.get(), 0, 0};
      return ::poll(&hung_up, 1, 0) == 1;
    };
    taken_.erase(std::remove_if(taken_.begin(), taken_.end(), over), taken_.end());
  }
  void CloseAll() {
    const absl::MutexLock lock(&mutex_);
    for (const UniqueFd& fd : taken_) ::shutdown(fd.get(), SHUT_RDWR);
    taken_.clear();
  }
  std::vector<std::string> warned() {
    const absl::MutexLock lock(&mutex_);
    return warned_;
  }

  const uint16_t port = test::FreePort();
  std::unique_ptr<TcpDoor> door;

 private:
  absl::Mutex mutex_;
  absl::CondVar one_came_;
  std::vector<UniqueFd> taken_ ABSL_GUARDED_BY(mutex_);
  size_t came_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::string> warned_ ABSL_GUARDED_BY(mutex_);
};

template <class Condition>
bool Soon(const Condition& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(kSoonMillis);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    ::poll(nullptr, 0, 1);
  }
  return true;
}

TcpPeer Peer(const std::string& name) {
  const std::optional<TcpPeer> peer = PeerNamed(name);
  REQUIRE(peer.has_value());
  return *peer;
}

TEST_CASE("PeerNamed reads what gRPC calls a client") {
  CHECK(Peer("ipv4:10.0.0.7:65535").port == 65535);
  CHECK(NetText(Peer("ipv4:10.0.0.7:1").net()) == "10.0.0.7");
  CHECK(Peer("ipv6:%5B::ffff:10.0.0.7%5D:1") == Peer("ipv4:10.0.0.7:1"));
  CHECK(Peer("ipv6:[fd00::7]:1") == Peer("ipv6:%5Bfd00::7%5D:1"));
  CHECK(NetText(Peer("ipv6:%5Bfd00:0:0:1:2::3%5D:1").net()) == "fd00:0:0:1::/64");
  CHECK(Peer("ipv6:%5Bfe80::1%25eth0%5D:1") == Peer("ipv6:[fe80::1]:1"));
  for (const std::string none :
       {"", "unix:/run/kvist", "ipv4:", "ipv4:10.0.0.7", "ipv4:10.0.0.7:", "ipv4:10.0.0.7:65536", "ipv6:x:1"}) {
    INFO(none);
    CHECK_FALSE(PeerNamed(none).has_value());
  }
}

TEST_CASE("Strangers sends away the one that has waited longest of the net that has most, as a plain list of them would") {
  std::mt19937 random(7);
  Strangers strangers;
  struct One {
    uint64_t number;
    std::string net;
  };
  std::vector<One> model;
  for (uint64_t step = 0; step < 5000; ++step) {
    if (random() % 3 != 0) {
      const TcpPeer peer = Peer(absl::StrCat("ipv4:10.0.0.", random() % 4 * (random() % 2), ":", step % 60'000));
      strangers.Came(step, peer);
      model.push_back({step, NetText(peer.net())});
    } else if (random() % 2 == 0 && !model.empty()) {
      const size_t which = random() % model.size();
      strangers.Forget(model[which].number);
      strangers.Forget(model[which].number);
      model.erase(model.begin() + static_cast<ptrdiff_t>(which));
    }
    REQUIRE(strangers.size() == model.size());
    const std::optional<uint64_t> first = strangers.FirstToGo();
    REQUIRE(first.has_value() == !model.empty());
    if (!first.has_value()) continue;
    std::map<std::string, size_t> counts;
    for (const One& one : model) ++counts[one.net];
    size_t most = 0;
    for (const auto& [net, count] : counts) most = std::max(most, count);
    const auto goes = std::find_if(model.begin(), model.end(), [&](const One& one) { return one.number == *first; });
    REQUIRE(goes != model.end());
    REQUIRE(counts[goes->net] == most);
    REQUIRE(std::none_of(model.begin(), goes, [&](const One& one) { return one.net == goes->net; }));
  }
}

TEST_CASE("ListenByTcp says what is in the way, and what can be done") {
  const uint16_t port = test::FreePort();
  const auto first = ListenByTcp(absl::StrCat(kFirst, ":", port), "admin.listen");
  REQUIRE(first.ok());
  const auto why = [](const std::string& address) { return ListenByTcp(address, "admin.listen").status(); };
  const absl::Status taken = why(absl::StrCat(kFirst, ":", port));
  CHECK(absl::IsUnavailable(taken));
  CHECK(taken.message() == absl::StrCat("admin.listen: can't listen at 127.0.0.1:", port,
                                        ": another process has the port; `ss -ltnp` names it"));
  const absl::Status elsewhere = why("192.0.2.1:9416");  // RFC 5737: nobody's
  CHECK(absl::IsUnavailable(elsewhere));
  CHECK_THAT(std::string(elsewhere.message()),
             Catch::StartsWith("admin.listen: can't listen at 192.0.2.1:9416: this machine hasn't the address 192.0.2.1;"));
  for (const std::string none : {"", "localhost:1", "127.0.0.1", "127.0.0.1:65536", "::1:5", "[::1:5"})
    CHECK(absl::IsInvalidArgument(why(none)));
}

TEST_CASE("0.0.0.0 is IPv4 and nothing else, [::] is both") {
  const uint16_t port = test::FreePort();
  const auto v4 = ListenByTcp(absl::StrCat("0.0.0.0:", port), "test.listen");
  REQUIRE(v4.ok());
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  REQUIRE(::getsockname(v4->get(), reinterpret_cast<sockaddr*>(&bound), &size) == 0);
  CHECK(bound.ss_family == AF_INET);
  const uint16_t other = test::FreePort();
  const auto both = ListenByTcp(absl::StrCat("[::]:", other), "test.listen");
  if (!both.ok()) {
    WARN("no IPv6 here: " << both.status().message());
    return;
  }
  const UniqueFd client = ConnectFrom(kFirst, other);
  pollfd waiting{both->get(), POLLIN, 0};
  REQUIRE(::poll(&waiting, 1, kSoonMillis) == 1);
  const UniqueFd socket(::accept4(both->get(), nullptr, nullptr, SOCK_CLOEXEC));
  REQUIRE(PeerOf(socket.get()).has_value());
  CHECK(*PeerOf(socket.get()) == OwnSide(client));
}

TEST_CASE("TcpDoor counts the connections that are there, until both sides have ended them") {
  Behind behind({.connections = 16, .strangers = 8, .descriptors_left = 8});
  std::vector<UniqueFd> clients;
  for (int i = 0; i < 5; ++i) clients.push_back(ConnectFrom(kFirst, behind.port));
  REQUIRE(behind.HasTaken(5));
  CHECK(behind.door->count().connections == 5);
  CHECK(behind.door->count().strangers == 5);
  behind.door->Known(OwnSide(clients[0]));
  behind.door->Known(OwnSide(clients[0]));
  behind.door->Known(Peer("ipv4:127.0.0.1:1"));
  CHECK(behind.door->count().strangers == 4);
  clients.clear();
  behind.CloseAll();
  CHECK(Soon([&] { return behind.door->count().connections == 0; }));
  CHECK(behind.door->count().strangers == 0);
  CHECK(behind.warned().empty());
}

TEST_CASE("TcpDoor sends the flood of one machine away for who comes from another") {
  Behind behind({.connections = 16, .strangers = 8, .descriptors_left = 8});
  const UniqueFd other = ConnectFrom(kSecond, behind.port), known = ConnectFrom(kFirst, behind.port);
  REQUIRE(behind.HasTaken(2));
  behind.door->Known(OwnSide(known));
  std::vector<UniqueFd> flood;
  for (size_t i = 0; i < 100; ++i) {
    flood.push_back(ConnectFrom(kFirst, behind.port));
    REQUIRE(behind.HasTaken(3 + i));
    behind.Reap();
  }
  CHECK(behind.door->count().connections == 9);
  CHECK(behind.door->count().strangers == 8);
  for (size_t i = 0; i < flood.size(); ++i) {
    INFO(i);
    REQUIRE(Ends(flood[i], i < 93 ? kSoonMillis : 0) == (i < 93));
  }
  CHECK_FALSE(Ends(other, 0));
  CHECK_FALSE(Ends(known, 0));
  REQUIRE(behind.warned().size() == 1);
  CHECK_THAT(behind.warned()[0], Catch::Contains("sent away, of 127.0.0.1"));
}

TEST_CASE("TcpDoor refuses who comes when all are known") {
  Behind behind({.connections = 4, .strangers = 4, .descriptors_left = 8});
  std::vector<UniqueFd> clients;
  for (size_t i = 0; i < 4; ++i) {
    clients.push_back(ConnectFrom(kFirst, behind.port));
    REQUIRE(behind.HasTaken(i + 1));
    behind.door->Known(OwnSide(clients[i]));
  }
  const UniqueFd more = ConnectFrom(kFirst, behind.port);
  CHECK(Ends(more, kSoonMillis));
  for (const UniqueFd& client : clients) CHECK_FALSE(Ends(client, 0));
  clients.clear();
  behind.CloseAll();
  REQUIRE(Soon([&] { return behind.door->count().connections == 0; }));
  const UniqueFd again = ConnectFrom(kFirst, behind.port);
  CHECK(behind.HasTaken(5));
  CHECK_THAT(behind.warned().at(0), Catch::StartsWith("a connection by TLS is refused: there are 4 already"));
}

// Lowers the process's limit of descriptors to so many more than it has now.
class FewDescriptors {
 public:
  explicit FewDescriptors(int more) {
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &before_) == 0);
    const UniqueFd lowest(::dup(0));
    rlimit now = before_;
    now.rlim_cur = static_cast<rlim_t>(lowest.get() + more);
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &now) == 0);
  }
  ~FewDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_;
};

TEST_CASE("TcpDoor takes who waits once there are descriptors again, and leaves the last ones to others") {
  Behind behind({.connections = 1000, .strangers = 1000, .descriptors_left = 40});
  const FewDescriptors few(100);
  std::vector<UniqueFd> clients;  // each takes three: of this side, of that one, and the door's
  for (int i = 0; i < 30; ++i) clients.push_back(ConnectFrom(kFirst, behind.port));
  REQUIRE(Soon([&] { return !behind.warned().empty(); }));
  CHECK_THAT(behind.warned()[0], Catch::Contains("too few descriptors left") && Catch::Contains("LimitNOFILE"));
  std::vector<UniqueFd> others;
  for (int i = 0; i < 25; ++i) others.emplace_back(::dup(0));
  CHECK(static_cast<bool>(others.back()));
  // Without any, either.
  while (others.back()) others.emplace_back(::dup(0));
  others.clear();
  clients.clear();
  behind.CloseAll();
  const UniqueFd again = ConnectFrom(kFirst, behind.port);
  CHECK(Soon([&] { return behind.Has(OwnSide(again)); }));
  CHECK(behind.warned().size() == 1);
}

}  // namespace
}  // namespace kvist::rpc

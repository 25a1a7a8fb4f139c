// Row 31 of the fault matrix: floods of connections, slow frames, descriptors and truncated memfds. Limits per uid hold, descriptors
// are closed, and an engine beside all that goes on: its p99 is printed.
#include <catch2/catch.hpp>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/any_packet.h"
#include "tests/support/bystander.h"
#include "tests/support/campaign.h"
#include "tests/support/child_process.h"
#include "tests/support/ctl.h"
#include "tests/support/daemon_process.h"
#include "tests/support/fake_engine.h"
#include "tests/support/raw_client.h"
#include "tests/support/sanitizers.h"
#include "tests/support/slow_to_close.h"
#include "tests/support/temp_dir.h"

namespace session = kvist::session::v1;
namespace shm = kvist::shm;
using kvist::MonotonicNanos;
using kvist::UniqueFd;
using kvist::test::BecomeUser;
using kvist::test::Bystander;
using kvist::test::ChildProcess;
using kvist::test::DaemonProcess;
using kvist::test::Eventually;
using kvist::test::FakeEngine;
using kvist::test::FdsFallTo;
using kvist::test::FullCampaign;
using kvist::test::kProvoked;
using kvist::test::RawClient;
using kvist::test::SendAny;
using kvist::test::SlowToClose;
using kvist::test::StatusOf;
using kvist::test::TempDir;

namespace {

constexpr uid_t kNobody = 65534;
constexpr uint32_t kPerUid = 100;
const std::vector<std::string> kSettings = [] {
  std::vector<std::string> settings = kProvoked;
  settings.push_back("session.socket_mode=0666");
  settings.push_back("session.connections_per_uid=" + std::to_string(kPerUid));
  return settings;
}();

// A connected socket, or none.
UniqueFd Connect(const std::string& path) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, path.c_str());
  if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) fd.reset();
  return fd;
}

// Descriptors that a child of the test may have: as many as the hard limit allows. The test itself takes as many, too.
uint32_t DescriptorsForChildren() {
  rlimit descriptors{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &descriptors) == 0);
  descriptors.rlim_cur = descriptors.rlim_max;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &descriptors) == 0);
  return static_cast<uint32_t>(std::min<rlim_t>(descriptors.rlim_cur, UINT32_MAX));
}

// A user's process that holds `count` connections and never says Hello; one that kvistd ends is made again at once.
class Mute {
 public:
  Mute(const std::string& dir, uid_t user, uint32_t count) {
    int report[2];
    REQUIRE(::pipe2(report, O_CLOEXEC) == 0);
    report_ = UniqueFd(report[0]);
    const UniqueFd say(report[1]);
    process_.emplace([&] {
      report_.reset();
      BecomeUser(dir, user, user);
      std::vector<UniqueFd> held;
      std::vector<pollfd> ends;
      for (uint32_t i = 0; i < count; ++i) {
        held.push_back(Connect("engine.sock"));
        if (!held.back()) return 2;
        ends.push_back({held.back().get(), POLLIN, 0});
      }
      if (::write(say.get(), "!", 1) != 1) return 3;
      while (true) {
        ::poll(ends.data(), ends.size(), 1000);
        for (uint32_t i = 0; i < count; ++i) {
          if (ends[i].revents == 0) continue;
          held[i] = Connect("engine.sock");
          ends[i].fd = held[i].get();  // negative: poll passes over it
        }
      }
    });
    pollfd readable{report_.get(), POLLIN, 0};
    REQUIRE(::poll(&readable, 1, 20'000) == 1);
    char c;
    REQUIRE(::read(report_.get(), &c, 1) == 1);
  }

 private:
  std::optional<ChildProcess> process_;
  UniqueFd report_;
};

// Another user's process that opens `count` connections, says how many were left open, and holds them until it is ended.
class Flood {
 public:
  Flood(const std::string& dir, uint32_t count) {
    int report[2];
    REQUIRE(::pipe2(report, O_CLOEXEC) == 0);
    report_ = UniqueFd(report[0]);
    const UniqueFd say(report[1]);
    process_.emplace([&] {
      report_.reset();
      if (::geteuid() == 0) BecomeUser(dir, kNobody, kNobody);
      std::vector<UniqueFd> held;
      for (uint32_t i = 0; i < count; ++i) {
        held.push_back(Connect(::geteuid() == kNobody ? "engine.sock" : dir + "/engine.sock"));
        if (!held.back()) return 2;
      }
      // A refusal is a packet and a hang-up; what is served so far says nothing. Refusals may be under way yet.
      const int64_t deadline = MonotonicNanos() + 20'000'000'000;
      uint32_t open = 0;
      do {
        open = 0;
        for (const UniqueFd& fd : held) {
          pollfd ready{fd.get(), POLLIN, 0};
          open += ::poll(&ready, 1, 0) == 0;
        }
      } while (open > kPerUid && MonotonicNanos() < deadline);
      if (::write(say.get(), &open, sizeof open) != sizeof open) return 3;
      while (true) ::pause();
    });
  }

  bool Done() const {
    pollfd ready{report_.get(), POLLIN, 0};
    return ::poll(&ready, 1, 0) == 1;
  }
  uint32_t OpenConnections() const {
    uint32_t open = 0;
    REQUIRE(::read(report_.get(), &open, sizeof open) == sizeof open);  // else the child has failed
    return open;
  }
  void End() { process_->Kill(); }

 private:
  std::optional<ChildProcess> process_;
  UniqueFd report_;
};

// Microseconds of lookups in order, until `enough`.
template <class Enough>
std::vector<double> LookupMicros(FakeEngine* engine, const std::vector<kvist_key>& keys, Enough enough) {
  std::vector<double> micros;
  while (!enough(micros.size())) {
    const int64_t begin = MonotonicNanos();
    REQUIRE(engine->scheduler().Lookup(keys, 0, 10'000'000).chunks == keys.size());
    micros.push_back(static_cast<double>(MonotonicNanos() - begin) / 1000);
  }
  std::sort(micros.begin(), micros.end());
  return micros;
}
double P99(const std::vector<double>& sorted) { return sorted[sorted.size() * 99 / 100]; }

// Seconds of CPU that a process has used.
double CpuSeconds(pid_t pid) {
  clockid_t clock;
  timespec used{};
  REQUIRE(::clock_getcpuclockid(pid, &clock) == 0);
  REQUIRE(::clock_gettime(clock, &used) == 0);
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) / 1e9;
}

}  // namespace

TEST_CASE("Row 31: 10,000 connections of one user are held to the limit, and an engine of another goes on") {
  const uint32_t connections = std::min(10'000u, DescriptorsForChildren() - 100);
  if (connections < 10'000)
    WARN("only " << connections << " connections: the hard limit of descriptors (ulimit -Hn) allows no more");
  TempDir dir;
  DaemonProcess daemon(dir.path(), kSettings);
  FakeEngine good(FakeEngine::On(daemon.socket(), "good"));
  REQUIRE(good.status.message == "");
  const auto keys = good.Keys(1, 8);
  REQUIRE(good.StoreAll(keys).status == KVIST_OK);
  const size_t fds = daemon.OpenFds();
  const auto quiet = LookupMicros(&good, keys, [](size_t n) { return n == 2000; });
  std::vector<double> flooded;
  uint32_t open = 0;
  for (int round = 0; round < (FullCampaign() ? 20 : 1); ++round) {
    Flood flood(dir.path(), connections);
    const auto during = LookupMicros(&good, keys, [&](size_t n) { return n >= 2000 && flood.Done(); });
    flooded.insert(flooded.end(), during.begin(), during.end());
    open = flood.OpenConnections();
    // Of the same user the flood has left no room.
    CHECK(open <= kPerUid);
    if (::geteuid() == 0) {
      CHECK(open == kPerUid);
      FakeEngine another(FakeEngine::On(daemon.socket(), "another"));  // while all that is held open
      CHECK(another.status.message == "");
    }
    flood.End();
    CHECK(FdsFallTo(daemon, fds));
  }
  std::sort(flooded.begin(), flooded.end());
  std::printf(
      "row 31: %u connections of one uid, %u left open (limit %u), good client's p99 %.0f us before, %.0f us during\n",
      connections, open, kPerUid, P99(quiet), P99(flooded));
  std::string wrong;
  CHECK(good.LoadAll(keys, &wrong) == 8);
  CHECK(wrong == "");
  FakeEngine after(FakeEngine::On(daemon.socket(), "after"));
  CHECK(after.status.message == "");
  CHECK(daemon.Terminate() == 0);
}

TEST_CASE("Row 31: a kvistd without descriptors refuses connections with the reason, and rests") {
  if (kvist::test::kAddressSanitizer) {
    WARN(
        "skipped: UndefinedBehaviorSanitizer looks at memory through a pipe; without descriptors it takes no object for "
        "one");
    return;
  }
  TempDir dir;
  DaemonProcess daemon(dir.path(), kProvoked);
  // A connection takes two: by turns there is none left to accept one, and none to watch its process.
  const rlim_t descriptors = GENERATE(rlim_t{256}, rlim_t{257});
  const rlimit few{descriptors, descriptors};
  REQUIRE(::prlimit(daemon.pid(), RLIMIT_NOFILE, &few, nullptr) == 0);
  Bystander bystander(daemon);
  std::vector<std::unique_ptr<RawClient>> held;
  std::string reason;
  for (int i = 0; i < 400 && reason.empty(); ++i) {
    held.push_back(std::make_unique<RawClient>(daemon));
    pollfd ready{held.back()->socket(), POLLIN, 0};
    if (::poll(&ready, 1, i < 80 ? 0 : 50) == 0) continue;
    const auto answer = held.back()->Receive();
    if (answer != nullptr) reason = answer->refused().message();  // else it was taken, but its process couldn't be watched
  }
  CHECK_THAT(reason, Catch::Contains("LimitNOFILE"));
  std::vector<UniqueFd> more;
  for (int i = 0; i < 100; ++i) more.push_back(Connect(daemon.socket()));
  // At the limit it waits as it does otherwise, instead of going round on what it can't accept.
  const double cpu = CpuSeconds(daemon.pid());
  const int64_t begin = MonotonicNanos();
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  const double share = (CpuSeconds(daemon.pid()) - cpu) / (static_cast<double>(MonotonicNanos() - begin) / 1e9);
  std::printf("row 31: %zu connections use up %lu descriptors; kvistd then uses %.1f %% of a core\n", held.size(),
              descriptors, share * 100);
  CHECK(share < 0.2);
  held.clear();
  more.clear();
  REQUIRE(FdsFallTo(daemon, 128));
  RawClient again(daemon);
  again.Open();
}

TEST_CASE("Row 31: descriptors that take their owner's time to close keep nobody else waiting") {
  constexpr int kLinger = 30;
  TempDir dir;
  DaemonProcess daemon(dir.path(), kProvoked);
  std::optional<Bystander> bystander(daemon);
  std::vector<std::unique_ptr<SlowToClose>> slow;
  // Sends such a descriptor with the last of these packets, as the last who has it.
  const auto send = [&](const RawClient& client, const std::vector<std::string>& packets) {
    slow.push_back(std::make_unique<SlowToClose>(kLinger));
    daemon.Signal(SIGSTOP);
    for (const std::string& packet : packets)
      SendAny(client.socket(), packet, &packet == &packets.back() ? slow.back()->socket.get() : -1);
    slow.back()->socket.reset();
    daemon.Signal(SIGCONT);
  };
  const auto seconds_since = [](int64_t begin) { return static_cast<double>(MonotonicNanos() - begin) / 1e9; };
  double longest = 0;
  const auto engine_comes_and_goes = [&] {
    const int64_t begin = MonotonicNanos();
    {
      FakeEngine engine(FakeEngine::On(daemon.socket(), "comes and goes"));
      REQUIRE(engine.status.message == "");
      CHECK(engine.StoreAll(engine.Keys(2000, 4)).status == KVIST_OK);
    }
    CHECK(Eventually([&] { return StatusOf(daemon)["sessions"] == 2; }));  // the bystander's
    longest = std::max(longest, seconds_since(begin));
  };

  std::vector<std::unique_ptr<RawClient>> clients;
  const auto client = [&]() -> RawClient& { return *clients.emplace_back(std::make_unique<RawClient>(daemon)); };
  const std::string hello = RawClient::GoodHello().SerializeAsString();
  for (const std::vector<std::string>& packets :
       std::vector<std::vector<std::string>>{{"no frame"},
                                             {""},
                                             {hello},
                                             {std::string(shm::kFrameBytesMax, '\0') + "too long"},
                                             {"no frame", "never read"},
                                             {"no frame", "never", "read", ""}}) {
    send(client(), packets);
    engine_comes_and_goes();
  }
  {
    RawClient& probed = client();  // beside a packet that has none, and with another one behind it
    session::ClientFrame frame = RawClient::GoodHello();
    frame.mutable_hello()->set_probed(false);
    probed.SendBytes(frame.SerializeAsString(), {probed.memfd()});
    const auto answer = probed.Receive();
    REQUIRE(answer != nullptr);
    REQUIRE(answer->has_probe());
    session::ClientFrame written;
    written.mutable_probe_written();
    send(probed, {written.SerializeAsString()});
    (void)::send(probed.socket(), "x", 1, MSG_NOSIGNAL);
    engine_comes_and_goes();
  }
  std::printf("row 31: beside %zu descriptors that take %d s to close an engine came and was gone within %.2f s\n",
              slow.size(), kLinger, longest);
  CHECK(longest < kLinger / 3);

  bystander.reset();
  const int64_t begin = MonotonicNanos();
  daemon.Signal(SIGSTOP);
  SlowToClose before_the_door(kLinger);
  RawClient waiting(daemon);
  SendAny(waiting.socket(), "", before_the_door.socket.get());
  before_the_door.socket.reset();
  daemon.Signal(SIGTERM);  // once: a second one ends it on the spot
  daemon.Signal(SIGCONT);
  std::optional<int> ended;
  CHECK(Eventually([&] { return (ended = daemon.Ended()).has_value(); }));
  CHECK(ended == 0);
  CHECK(seconds_since(begin) < kLinger / 3);
}

TEST_CASE("Row 31: users who hold all connections without a word don't keep another one out") {
  if (::geteuid() != 0) {
    WARN("skipped: needs root, to be three users");
    return;
  }
  constexpr uint32_t kMax = 1024, kOfOne = 512;  // as by default
  DescriptorsForChildren();
  TempDir dir;
  std::vector<std::string> settings = kProvoked;
  settings.push_back("session.socket_mode=0666");
  DaemonProcess daemon(dir.path(), settings);
  const size_t fds = daemon.OpenFds();
  double longest_ms = 0;
  int slow = 0;
  {
    const Mute one(dir.path(), kNobody, kOfOne), two(dir.path(), kNobody - 1, kOfOne);
    REQUIRE(kvist::test::Eventually([&] { return daemon.OpenFds() >= fds + 2 * (kMax - 2); }));
    for (int i = 0; i < 20; ++i) {
      const int64_t begin = MonotonicNanos();
      FakeEngine::Options options = FakeEngine::On(daemon.socket(), "third");
      options.ask_again = true;
      options.connect_timeout_us = 25'000'000;
      FakeEngine third(options);
      REQUIRE(third.status.message == "");
      const auto keys = third.Keys(1, 8);
      REQUIRE(third.StoreAll(keys).status == KVIST_OK);
      const double ms = static_cast<double>(MonotonicNanos() - begin) / 1e6;
      longest_ms = std::max(longest_ms, ms);
      slow += ms >= 1000;
    }
  }
  std::printf(
      "row 31: beside %u connections of two users that never say Hello a third one was served within %.0f ms (asked: "
      "1000)\n",
      kMax, longest_ms);
  CHECK(slow <= 2);  // whoever waits for one of the others to be hung up waits each time
  CHECK(FdsFallTo(daemon, fds));
}

TEST_CASE("Row 31: a kvistd started with few descriptors takes as many as it may") {
  TempDir dir;
  constexpr uint32_t kConnections = 300;  // two descriptors each
  if (DescriptorsForChildren() < 4 * kConnections) {
    WARN("skipped: the hard limit of descriptors (ulimit -Hn) is too low");
    return;
  }
  DaemonProcess daemon(dir.path(), kProvoked, "", "ulimit -Sn 256");
  std::vector<UniqueFd> held;
  for (uint32_t i = 0; i < kConnections; ++i) {
    held.push_back(Connect(daemon.socket()));
    REQUIRE(held.back());
  }
  FakeEngine good(FakeEngine::On(daemon.socket(), "good"));
  CHECK(good.status.message == "");
  uint32_t refused = 0;
  for (const UniqueFd& fd : held) {
    pollfd answered{fd.get(), POLLIN, 0};
    refused += ::poll(&answered, 1, 0) != 0;
  }
  CHECK(refused == 0);
}

TEST_CASE("Row 31: frames that come byte by byte end their connection at the first") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), kSettings);
  Bystander bystander(daemon);
  const size_t fds = daemon.OpenFds();
  const std::string hello = RawClient::GoodHello().SerializeAsString();
  const int hellos = FullCampaign() ? 2000 : 50;
  for (int i = 0; i < hellos; ++i) {
    RawClient client(daemon);
    for (const char c : hello) client.SendBytes(std::string(1, c), {});
    CHECK(client.HungUp());
  }
  CHECK(FdsFallTo(daemon, fds));
  std::printf("row 31: %d Hellos byte by byte: connections ended at the first byte, %ld descriptors left open\n", hellos,
              std::max(0L, static_cast<long>(daemon.OpenFds()) - static_cast<long>(fds)));
}

TEST_CASE("Row 31: descriptors that come in floods are closed") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), kSettings);
  Bystander bystander(daemon);
  const size_t fds = daemon.OpenFds();
  uint32_t sent = 0;
  for (int i = 0; i < (FullCampaign() ? 5000 : 200); ++i) {
    RawClient client(daemon);
    const std::vector<int> flood(shm::kFrameFdsMax, client.memfd());
    session::ClientFrame frame = RawClient::GoodHello();
    if (i % 4 == 0) frame.mutable_hello()->set_role(session::Hello::ROLE_SCHEDULER);  // has no memory
    if (i % 4 == 1) frame.mutable_probe_written();                                    // out of turn
    if (i % 4 == 2) frame.mutable_hello()->set_protocol_version(0);
    if (i % 4 == 3) frame.mutable_hello()->mutable_space()->clear_groups();
    client.SendBytes(frame.SerializeAsString(), flood);
    sent += shm::kFrameFdsMax;
    CHECK(client.HungUp());
  }
  CHECK(FdsFallTo(daemon, fds));
  std::printf("row 31: %u descriptors in frames that were refused, %zu of them left open\n", sent, daemon.OpenFds() - fds);
}

TEST_CASE("Row 31: truncated memfds are refused, or end in an error") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), kSettings);
  Bystander bystander(daemon);
  constexpr off_t kWhole = RawClient::kPages * RawClient::kLayers * RawClient::kSegmentBytes;
  for (const off_t length : {off_t{0}, off_t{1}, off_t{4095}, kWhole / 2, kWhole - 1}) {
    for (const bool sealed : {true, false}) {
      INFO(length << (sealed ? " sealed" : " not sealed"));
      RawClient client(daemon);
      const UniqueFd memfd(::memfd_create("short", MFD_CLOEXEC | MFD_ALLOW_SEALING));
      REQUIRE(::ftruncate(memfd.get(), length) == 0);
      if (sealed) REQUIRE(::fcntl(memfd.get(), F_ADD_SEALS, F_SEAL_SHRINK) == 0);
      client.SendBytes(RawClient::GoodHello().SerializeAsString(), {memfd.get()});
      const auto answer = client.Receive();
      REQUIRE(answer != nullptr);
      CHECK(answer->has_refused());
      CHECK(!answer->refused().message().empty());
    }
  }
  {  // Between the description and the proof that it is right.
    RawClient client(daemon);
    const UniqueFd memfd(::memfd_create("shrinks", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    REQUIRE(::ftruncate(memfd.get(), kWhole) == 0);
    session::ClientFrame frame = RawClient::GoodHello();
    frame.mutable_hello()->set_probed(false);
    client.SendBytes(frame.SerializeAsString(), {memfd.get()});
    REQUIRE(client.Receive()->has_probe());
    REQUIRE(::ftruncate(memfd.get(), 0) == 0);
    session::ClientFrame written;
    written.mutable_probe_written();
    client.SendBytes(written.SerializeAsString(), {});
    const auto answer = client.Receive();
    REQUIRE(answer != nullptr);
    CHECK(answer->has_refused());
  }
}

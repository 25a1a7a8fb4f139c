// Row 36 of the fault matrix: connector and kvistd of different versions. Both sides refuse the other's with a message that says so;
// fields that one side doesn't know yet change nothing.
#include <catch2/catch.hpp>

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/bystander.h"
#include "tests/support/ctl.h"
#include "tests/support/daemon_process.h"
#include "tests/support/fake_engine.h"
#include "tests/support/raw_client.h"
#include "tests/support/temp_dir.h"

namespace session = kvist::session::v1;
namespace shm = kvist::shm;
using kvist::UniqueFd;
using kvist::test::Bystander;
using kvist::test::DaemonProcess;
using kvist::test::Eventually;
using kvist::test::FakeEngine;
using kvist::test::kProvoked;
using kvist::test::RawClient;
using kvist::test::TempDir;

namespace {

// A field of a later version in protobuf's encoding: number 100 to 227, of each wire type.
std::string UnknownField(std::mt19937* random) {
  const uint32_t number = 100 + (*random)() % 128;
  const auto tag = [&](uint32_t type) {
    const uint32_t word = number << 3 | type;
    return std::string{static_cast<char>(word | 0x80), static_cast<char>(word >> 7)};
  };
  switch ((*random)() % 4) {
    case 0: return tag(0) + static_cast<char>((*random)() % 128);
    case 1: return tag(1) + "8 bytes.";
    case 2: return tag(2) + static_cast<char>(3) + std::string("\0\xff.", 3);
    default: return tag(5) + "4by.";
  }
}

// GoodHello with unknown fields in every message of it.
std::string HelloOfTheFuture(std::mt19937* random) {
  session::ClientFrame frame = RawClient::GoodHello();
  session::Hello& hello = *frame.mutable_hello();
  const auto extend = [&](auto* message) {
    const std::string bytes = message->SerializeAsString() + UnknownField(random) + UnknownField(random);
    REQUIRE(message->ParseFromString(bytes));
    REQUIRE(message->SerializeAsString().size() == bytes.size());  // they are kept, so they are sent
  };
  extend(hello.mutable_space()->mutable_groups(0));
  extend(hello.mutable_space());
  extend(hello.mutable_memory()->mutable_layers(0));
  extend(hello.mutable_memory());
  extend(&hello);
  return frame.SerializeAsString() + UnknownField(random);
}

// A kvistd that answers every Hello with the Welcome that `make_memory` goes into.
class OtherDaemon {
 public:
  OtherDaemon(const std::string& path, std::function<UniqueFd()> make_memory)
      : listener_(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, path.c_str());
    REQUIRE(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    REQUIRE(::listen(listener_.get(), 8) == 0);
    thread_ = std::thread([this, make_memory = std::move(make_memory)] {
      while (true) {
        const UniqueFd peer(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (!peer) return;
        pollfd hello{peer.get(), POLLIN, 0};
        ::poll(&hello, 1, 10'000);
        (void)shm::ReceiveFrame(peer.get());
        session::DaemonFrame frame;
        frame.mutable_welcome()->set_session(1);
        frame.mutable_welcome()->set_space_digest(std::string(32, 'd'));
        frame.mutable_welcome()->set_memory_bytes(shm::kSessionBytes.value);
        const UniqueFd memory = make_memory();
        const UniqueFd bell(::eventfd(0, EFD_CLOEXEC));
        const UniqueFd self(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
        const int fds[] = {memory.get(), bell.get(), self.get()};
        (void)shm::SendFrame(peer.get(), frame.SerializeAsString(), fds);
        pollfd hung_up{peer.get(), POLLIN, 0};
        ::poll(&hung_up, 1, 10'000);
      }
    });
  }
  ~OtherDaemon() {
    ::shutdown(listener_.get(), SHUT_RDWR);  // ends accept
    thread_.join();
  }

 private:
  UniqueFd listener_;
  std::thread thread_;
};

UniqueFd MemoryOfVersion(uint32_t magic, uint32_t version) {
  auto created = shm::SessionMemory::Create();
  REQUIRE(created.ok());
  created->memory.header()->magic = magic;
  created->memory.header()->version = version;
  return std::move(created->fd);
}

}  // namespace

TEST_CASE("Row 36: kvistd refuses connectors of every other version and says which it speaks") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), kProvoked);
  Bystander bystander(daemon);
  uint32_t pairs = 0;
  for (uint32_t version : {0u, shm::kVersion - 1, shm::kVersion + 1, shm::kVersion + 2, 1u << 31, UINT32_MAX}) {
    for (const auto role : {session::Hello::ROLE_SCHEDULER, session::Hello::ROLE_WORKER}) {
      INFO("version " << version);
      RawClient client(daemon);
      session::ClientFrame frame = RawClient::GoodHello();
      frame.mutable_hello()->set_protocol_version(version);
      frame.mutable_hello()->set_role(role);
      client.Send(frame);
      const auto answer = client.Receive();
      REQUIRE(answer != nullptr);
      CHECK(answer->refused().code() == static_cast<int>(absl::StatusCode::kFailedPrecondition));
      CHECK_THAT(answer->refused().message(), Catch::Contains("version " + std::to_string(version)));
      CHECK_THAT(answer->refused().message(), Catch::Contains("this kvistd " + std::to_string(shm::kVersion)));
      ++pairs;
    }
  }
  std::printf("row 36: %u Hellos of other versions refused by name\n", pairs);
}

TEST_CASE("Row 36: fields of a later version are passed over, and leave the space as it is") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), kProvoked);
  Bystander bystander(daemon);
  std::mt19937 random(36);
  RawClient plain(daemon);
  plain.Send(RawClient::GoodHello());
  const auto welcome = plain.Receive();
  REQUIRE(welcome->has_welcome());
  constexpr int kHellos = 100;
  for (int i = 0; i < kHellos; ++i) {
    RawClient client(daemon);
    client.SendBytes(HelloOfTheFuture(&random), {client.memfd()});
    const auto answer = client.Receive();
    REQUIRE(answer != nullptr);
    INFO(answer->refused().message());
    REQUIRE(answer->has_welcome());
    CHECK(answer->welcome().space_digest() == welcome->welcome().space_digest());
  }
  std::printf("row 36: %d Hellos with unknown fields in every message are served in the same space\n", kHellos);
}

TEST_CASE("Row 36: the connector refuses a session memory of every other layout") {
  struct Case {
    const char* what;
    std::function<UniqueFd()> memory;
  };
  const std::vector<Case> cases = {
      {"version", [] { return MemoryOfVersion(shm::kMagic, shm::kVersion - 1); }},
      {"version", [] { return MemoryOfVersion(shm::kMagic, shm::kVersion + 1); }},
      {"version", [] { return MemoryOfVersion(shm::kMagic, UINT32_MAX); }},
      {"version", [] { return MemoryOfVersion(shm::kMagic + 1, shm::kVersion); }},
      {"bytes",
       [] {
         UniqueFd fd(::memfd_create("large", MFD_CLOEXEC | MFD_ALLOW_SEALING));
         CHECK(::ftruncate(fd.get(), static_cast<off_t>(shm::kSessionBytes.value) + 4096) == 0);
         CHECK(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
         return fd;
       }},
      {"seals",
       [] {
         UniqueFd fd(::memfd_create("open", MFD_CLOEXEC | MFD_ALLOW_SEALING));
         CHECK(::ftruncate(fd.get(), static_cast<off_t>(shm::kSessionBytes.value)) == 0);
         return fd;
       }},
  };
  for (const Case& c : cases) {
    TempDir dir;
    FakeEngine::Options options = FakeEngine::On(dir.path() + "/engine.sock");
    const OtherDaemon daemon(options.socket, c.memory);
    FakeEngine engine(options);
    CHECK(engine.status.code == KVIST_FAILED_PRECONDITION);
    CHECK_THAT(engine.status.message, Catch::Contains(c.what));
  }
  std::printf("row 36: %zu session memories of other layouts refused by the connector\n", cases.size());
}

TEST_CASE("Row 36: an engine that asks again runs without a kvistd of another version, and is served by the next one") {
  TempDir dir;
  FakeEngine::Options options = FakeEngine::On(dir.path() + "/engine.sock");
  options.ask_again = true;
  std::optional<OtherDaemon> other;
  other.emplace(options.socket, [] { return MemoryOfVersion(shm::kMagic, shm::kVersion + 1); });
  FakeEngine engine(options);
  CHECK(engine.status.message == "");
  CHECK(engine.scheduler().connection() == KVIST_REFUSED);
  CHECK_THAT(engine.scheduler().WaitConnected(1000).message, Catch::Contains("version"));
  CHECK(engine.scheduler().Lookup(engine.Keys(1, 4), 0).status == KVIST_UNAVAILABLE);
  SECTION("but not with memory that isn't as it was described") {
    options.wrong_stride = true;
    FakeEngine wrong(options);
    CHECK(wrong.status.code == KVIST_FAILED_PRECONDITION);
    CHECK_THAT(wrong.status.message, Catch::Contains("page 63 of layer 0"));
  }
  other.reset();
  REQUIRE(::unlink(options.socket.c_str()) == 0);
  DaemonProcess daemon(dir.path(), kProvoked);
  CHECK(Eventually([&] { return engine.scheduler().connection() == KVIST_CONNECTED; }));
  CHECK(Eventually([&] { return engine.worker(0).connection() == KVIST_CONNECTED; }));
  std::string wrong;
  CHECK(engine.StoreAll(engine.Keys(1, 4)).chunks_copied == 4);
  CHECK(engine.LoadAll(engine.Keys(1, 4), &wrong) == 4);
  CHECK(wrong == "");
}

TEST_CASE(
    "Row 36: engines whose KV isn't the same byte for byte never hit each other's, though they ask for the same keys") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), kProvoked);
  const FakeEngine::Options plain = FakeEngine::On(daemon.socket());
  std::vector<FakeEngine::Options> options(6, plain);
  options[1].revision = "2";
  options[2].kv_dtype = "i8";
  options[3].layout = "other kernels, other order of bytes";
  options[4].segment_bytes = 2 * plain.segment_bytes;
  options[5].layers = plain.layers + 1;
  constexpr uint32_t kChunks = 8;
  uint32_t pairs = 0, hits_of_others = 0, wrong_chunks = 0;
  std::vector<std::unique_ptr<FakeEngine>> engines;
  for (FakeEngine::Options& one : options) {
    one.instance = "engine " + std::to_string(engines.size());
    engines.push_back(std::make_unique<FakeEngine>(one));
    INFO(one.instance);
    REQUIRE(engines.back()->status.message == "");
    const auto keys = engines.back()->Keys(1, kChunks);
    CHECK(engines.back()->scheduler().Lookup(keys, 0).chunks == 0);  // those before it have stored them
    CHECK(engines.back()->StoreAll(keys).chunks_copied == kChunks);
  }
  for (size_t i = 0; i < engines.size(); ++i) {
    for (size_t j = 0; j < engines.size(); ++j) {
      if (i == j) continue;
      const auto keys =
          engines[i]->Keys(static_cast<uint32_t>(1000 * (10 * i + j + 2)), kChunks);  // i stores them, and j asks
      CHECK(engines[i]->StoreAll(keys).chunks_copied == kChunks);
      hits_of_others += engines[j]->scheduler().Lookup(keys, 0).chunks;
      ++pairs;
    }
    std::string wrong;
    CHECK(engines[i]->LoadAll(engines[i]->Keys(1, kChunks), &wrong) == kChunks);
    INFO(wrong);
    wrong_chunks += wrong.empty() ? 0 : 1;
  }
  std::printf("row 36: %u pairs of engines whose KV differs tested: hits of the other's chunks %u, wrong chunks %u\n", pairs,
              hits_of_others, wrong_chunks);
  CHECK(hits_of_others == 0);
  CHECK(wrong_chunks == 0);
}

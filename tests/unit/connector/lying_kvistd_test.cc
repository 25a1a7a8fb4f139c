// The connector and a kvistd that answers what can't be: it is taken for no more than was asked.
#include <kvist/client.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "proto/session.pb.h"
#include "storage/base/shm/frame_socket.h"
#include "storage/base/shm/futex.h"
#include "storage/base/shm/session_memory.h"
#include "storage/base/unique_fd.h"
#include "tests/support/temp_dir.h"

namespace {

using kvist::UniqueFd;
namespace shm = kvist::shm;

// What it says became of the chunks of a request.
struct Answer {
  uint32_t copied = 0, skipped = 0, refused = 0;
};

// Welcomes one client, and answers all of its requests alike.
class LyingKvistd {
 public:
  LyingKvistd(const std::string& path, Answer answer)
      : answer_(answer), listening_(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    REQUIRE(path.size() < sizeof address.sun_path);
    std::strcpy(address.sun_path, path.c_str());
    REQUIRE(::bind(listening_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    REQUIRE(::listen(listening_.get(), 4) == 0);
    auto created = shm::SessionMemory::Create();
    REQUIRE(created.ok());
    memory_ = std::move(created->memory);
    fd_ = std::move(created->fd);
    thread_ = std::thread([this] { Serve(); });
  }
  ~LyingKvistd() {
    stop_ = true;
    thread_.join();
  }

 private:
  void Serve() {
    pollfd ready{listening_.get(), POLLIN, 0};
    if (::poll(&ready, 1, 10'000) != 1) return;
    const UniqueFd client(::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    ready.fd = client.get();
    if (::poll(&ready, 1, 10'000) != 1 || !shm::ReceiveFrame(client.get()).ok()) return;
    const UniqueFd doorbell(::eventfd(0, EFD_CLOEXEC)), self(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
    kvist::session::v1::DaemonFrame frame;
    frame.mutable_welcome()->set_space_digest(std::string(32, 'd'));
    const int fds[] = {fd_.get(), doorbell.get(), self.get()};
    if (!shm::SendFrame(client.get(), frame.SerializeAsString(), fds).ok()) return;
    for (uint64_t at = 0; !stop_; ::usleep(100)) {
      shm::Entry& entry = memory_.ring()[at % shm::kEntries];
      if (std::atomic_ref<uint32_t>(entry.turn).load(std::memory_order_acquire) != static_cast<uint32_t>(at + 1)) continue;
      ++at;
      shm::Cell* cell = memory_.cell(entry.cell);
      cell->status = 0;
      cell->copied = answer_.copied;
      cell->skipped = answer_.skipped;
      cell->refused = answer_.refused;
      cell->progress.store(shm::PackProgress(entry.sequence, shm::Phase::kEnded, 0));
      shm::FutexWakeAll(reinterpret_cast<std::atomic<uint32_t>*>(&cell->progress));
    }
  }

  const Answer answer_;
  UniqueFd listening_, fd_;
  shm::SessionMemory memory_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

kvist_options OptionsOf(const std::string& socket) {
  kvist_options options{};
  options.struct_size = sizeof options;
  options.socket = socket.c_str();
  options.instance = "e";
  options.role = KVIST_SCHEDULER;
  static constexpr kvist_space kSpace{sizeof(kvist_space), "m",     nullptr, "u8", nullptr, 1, 16, 16, 256, 1, 0, 0,
                                      KVIST_LAYER_MAJOR,   nullptr, 0};
  options.space = &kSpace;
  options.connect_timeout_us = 10'000'000;
  return options;
}

}  // namespace

TEST_CASE("A lookup finds no more chunks than were asked for, whatever kvistd says") {
  const kvist::test::TempDir dir;
  const std::string path = dir.path() + "/engine.sock";
  LyingKvistd daemon(path, {1000, 1000, 1000});
  kvist::Client client;
  REQUIRE(kvist::Client::Connect(OptionsOf(path), &client).ok());
  REQUIRE(client.connection() == KVIST_CONNECTED);
  const std::vector<kvist_key> keys(3);
  const kvist::Hit at_once = client.Lookup(keys, 0, 10'000'000);
  CHECK(at_once.chunks == 3);
  CHECK(at_once.coming == 3);
  const kvist_op op = client.StartLookup(keys, 0, 10'000'000);
  REQUIRE(op != 0);
  const kvist::Hit hit = client.LookupResult(op, 10'000'000);
  CHECK(hit.status == KVIST_OK);
  CHECK(hit.chunks == 3);
  CHECK(hit.coming == 3);
}

TEST_CASE("A store and a load end with no more chunks than were asked for, whatever kvistd says") {
  struct Case {
    Answer says, means;  // of two chunks
  };
  const Case c = GENERATE(Case{{1000, 1000, 1000}, {2, 0, 0}}, Case{{1, 1000, 1000}, {1, 1, 0}},
                          Case{{0, 1, UINT32_MAX}, {0, 1, 1}}, Case{{1, 0, 1}, {1, 0, 1}});
  const Answer &says = c.says, &means = c.means;
  CAPTURE(says.copied, says.skipped, says.refused);
  constexpr uint32_t kPages = 4, kBytes = 256;
  const kvist::test::TempDir dir;
  const std::string path = dir.path() + "/engine.sock";
  LyingKvistd daemon(path, says);
  const UniqueFd pages_of_engine(::memfd_create("engine", MFD_CLOEXEC));
  REQUIRE(::ftruncate(pages_of_engine.get(), kPages * kBytes) == 0);
  const int memfd = pages_of_engine.get();
  const kvist_layer layer{0, 0};
  kvist_memory memory{};
  memory.struct_size = sizeof memory;
  memory.memfds = &memfd;
  memory.memfd_count = 1;
  memory.layers = &layer;
  memory.layer_count = 1;
  memory.pages = kPages;
  memory.page_stride = kBytes;
  memory.write_page = [](void*, uint32_t, uint32_t, const void*, size_t) { return 0; };
  kvist_options options = OptionsOf(path);
  options.role = KVIST_WORKER;
  options.memory = &memory;
  kvist::Client client;
  const kvist::Status connected = kvist::Client::Connect(options, &client);
  REQUIRE(connected.message == "");
  const std::vector<kvist_key> keys(3);
  const std::vector<uint32_t> pages{0, 1};
  const auto check = [&](kvist_op op) {
    REQUIRE(op != 0);
    const kvist_result result = client.Wait(op, 10'000'000);
    CHECK(result.status == KVIST_OK);
    CHECK(result.chunks_copied == means.copied);
    CHECK(result.chunks_skipped == means.skipped);
    CHECK(result.chunks_refused == means.refused);
  };
  check(client.Store(keys, 1, pages));  // whose first key is only the parent
  check(client.Store(std::span(keys).first(2), 0, pages));
  kvist_load_args load{};
  load.struct_size = sizeof load;
  load.lease = 1;
  load.chunk_count = 2;
  load.pages = pages.data();
  load.page_count = pages.size();
  kvist_op op = 0;
  REQUIRE(kvist_load(client.get(), &load, &op) == KVIST_OK);
  check(op);
}

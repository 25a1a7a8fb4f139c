// The connector and a kvistd that answers what can't be: it is taken for no more than was asked.
#include <kvist/client.h>
#include <poll.h>
#include <sys/eventfd.h>
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

// Welcomes one client, and says to each of its requests that 1,000 chunks were found.
class LyingKvistd {
 public:
  explicit LyingKvistd(const std::string& path) : listening_(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
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
      cell->copied = 1000;
      cell->progress.store(shm::PackProgress(entry.sequence, shm::Phase::kEnded, 0));
      shm::FutexWakeAll(reinterpret_cast<std::atomic<uint32_t>*>(&cell->progress));
    }
  }

  UniqueFd listening_, fd_;
  shm::SessionMemory memory_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace

TEST_CASE("A lookup finds no more chunks than were asked for, whatever kvistd says") {
  const kvist::test::TempDir dir;
  const std::string path = dir.path() + "/engine.sock";
  LyingKvistd daemon(path);
  kvist_options options{};
  options.struct_size = sizeof options;
  options.socket = path.c_str();
  options.instance = "e";
  options.role = KVIST_SCHEDULER;
  options.space = {sizeof(kvist_space), "m", nullptr, "u8", nullptr, 1, 16, 16, 256, 1, 0, 0, KVIST_LAYER_MAJOR, nullptr, 0};
  options.connect_timeout_us = 10'000'000;
  kvist::Client client;
  REQUIRE(kvist::Client::Connect(options, &client).ok());
  REQUIRE(client.connection() == KVIST_CONNECTED);
  const std::vector<kvist_key> keys(3);
  CHECK(client.Lookup(keys, 0, 10'000'000).chunks == 3);
  const kvist_op op = client.StartLookup(keys, 0, 10'000'000);
  REQUIRE(op != 0);
  const kvist::Hit hit = client.LookupResult(op, 10'000'000);
  CHECK(hit.status == KVIST_OK);
  CHECK(hit.chunks == 3);
}

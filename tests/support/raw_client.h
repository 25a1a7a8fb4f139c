#ifndef KVIST_TESTS_SUPPORT_RAW_CLIENT_H_
#define KVIST_TESTS_SUPPORT_RAW_CLIENT_H_

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "proto/session.pb.h"
#include "storage/base/clock.h"
#include "storage/base/shm/frame_socket.h"
#include "storage/base/shm/futex.h"
#include "storage/base/shm/session_memory.h"
#include "tests/support/daemon_process.h"

namespace kvist::test {

// A connection whose every byte is the test's; in tests only, whose requirements it makes.
class RawClient {
 public:
  static constexpr uint32_t kPages = 16, kLayers = 2, kSegmentBytes = 512;

  explicit RawClient(const DaemonProcess& daemon) : RawClient(daemon.socket()) {}
  explicit RawClient(const std::string& path) : socket_(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    REQUIRE(path.size() < sizeof address.sun_path);
    std::strcpy(address.sun_path, path.c_str());
    REQUIRE(::connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    memfd_ = UniqueFd(::memfd_create("raw", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    REQUIRE(::ftruncate(memfd_.get(), kPages * kLayers * kSegmentBytes) == 0);
    REQUIRE(::fcntl(memfd_.get(), F_ADD_SEALS, F_SEAL_SHRINK) == 0);
  }

  static session::v1::ClientFrame GoodHello() {
    session::v1::ClientFrame frame;
    session::v1::Hello& hello = *frame.mutable_hello();
    hello.set_protocol_version(shm::kVersion);
    hello.set_instance("raw");
    hello.set_role(session::v1::Hello::ROLE_WORKER);
    hello.set_probed(true);
    session::v1::Space& space = *hello.mutable_space();
    space.set_model("raw-model");
    space.set_kv_dtype("u8");
    space.set_page_tokens(16);
    space.set_chunk_tokens(32);
    space.set_tensor_parallel(1);
    space.set_pipeline_parallel(1);
    space.set_slot_order(session::v1::Space::SLOT_ORDER_LAYER_MAJOR);
    session::v1::Space::Group& group = *space.add_groups();
    group.set_kind(session::v1::Space::Group::KIND_FULL);
    group.set_layers(kLayers);
    group.set_segments(1);
    group.set_segment_bytes(kSegmentBytes);
    session::v1::KvMemory& memory = *hello.mutable_memory();
    for (uint32_t layer = 0; layer < kLayers; ++layer) memory.add_layers()->set_offset(layer * kPages * kSegmentBytes);
    session::v1::KvMemory::Group& pages = *memory.add_groups();
    pages.set_pages(kPages);
    pages.set_page_stride(kSegmentBytes);
    return frame;
  }

  void SendBytes(const std::string& bytes, std::vector<int> fds) {
    (void)shm::SendFrame(socket_.get(), bytes, fds);  // the daemon may have hung up already
  }
  void Send(const session::v1::ClientFrame& frame) { SendBytes(frame.SerializeAsString(), {memfd_.get()}); }

  // The daemon's answer; nothing when it hung up without one.
  std::unique_ptr<session::v1::DaemonFrame> Receive(std::vector<UniqueFd>* fds = nullptr) {
    pollfd ready{socket_.get(), POLLIN, 0};
    REQUIRE(::poll(&ready, 1, 10'000) == 1);
    auto received = shm::ReceiveFrame(socket_.get());
    if (!received.ok()) return nullptr;
    auto frame = std::make_unique<session::v1::DaemonFrame>();
    REQUIRE(frame->ParseFromString(received->bytes));
    if (fds != nullptr) *fds = std::move(received->fds);
    return frame;
  }

  void Open() { Open(GoodHello(), memfd_.get()); }
  void Open(const session::v1::ClientFrame& hello, int kv_memory) {
    SendBytes(hello.SerializeAsString(), {kv_memory});
    std::vector<UniqueFd> fds;
    const auto answer = Receive(&fds);
    REQUIRE(answer != nullptr);
    INFO(answer->refused().message());
    REQUIRE(answer->has_welcome());
    auto mapped = shm::SessionMemory::Map(fds[0].get());
    REQUIRE(mapped.ok());
    memory = std::move(*mapped);
    doorbell_ = std::move(fds[1]);
  }

  void Submit(const shm::Entry& entry) {
    // As Cell asks of a connector: the answer must change the half that Status sleeps on, which says the same of every ended operation.
    if (entry.cell < shm::kCells) {
      memory.cell(entry.cell)->progress.store(shm::PackProgress(entry.sequence, shm::Phase::kPending, 0));
    }
    memory.ring()[tail_ % shm::kEntries] = entry;
    Announce(1);
    ++tail_;
  }
  // Says that the next `entries` of the ring are there, whatever they hold, and rings the bell.
  void Announce(uint32_t entries) {
    for (uint32_t i = 0; i < entries; ++i) {
      const uint64_t at = tail_ + i;
      std::atomic_ref<uint32_t>(memory.ring()[at % shm::kEntries].turn).store(static_cast<uint32_t>(at + 1));
    }
    const uint64_t one = 1;
    REQUIRE(::write(doorbell_.get(), &one, sizeof one) == sizeof one);
  }
  // The status in a cell once it has ended.
  absl::StatusCode Status(const shm::Entry& entry) {
    shm::Cell* cell = memory.cell(entry.cell);
    const int64_t deadline = MonotonicNanos() + 10'000'000'000;
    cell->waiters.store(1);
    while (true) {
      const uint64_t progress = cell->progress.load();
      if (shm::SequenceOf(progress) == entry.sequence && shm::PhaseOf(progress) == shm::Phase::kEnded) break;
      REQUIRE(MonotonicNanos() < deadline);
      shm::FutexWait(reinterpret_cast<std::atomic<uint32_t>*>(&cell->progress), static_cast<uint32_t>(progress), deadline);
    }
    return static_cast<absl::StatusCode>(cell->status);
  }
  bool HungUp() {
    pollfd ready{socket_.get(), POLLIN, 0};
    while (::poll(&ready, 1, 10'000) == 1) {
      const auto frame = shm::ReceiveFrame(socket_.get());  // a Refused comes first
      if (!frame.ok() && !absl::IsNotFound(frame.status())) return true;
    }
    return false;
  }

  int socket() const { return socket_.get(); }
  int memfd() const { return memfd_.get(); }

  shm::SessionMemory memory;

 private:
  UniqueFd socket_, memfd_, doorbell_;
  uint64_t tail_ = 0;
};

}  // namespace kvist::test

#endif  // KVIST_TESTS_SUPPORT_RAW_CLIENT_H_

#ifndef KVIST_TESTS_UNIT_SESSION_SERVED_H_
#define KVIST_TESTS_UNIT_SESSION_SERVED_H_

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "daemon/core/core.h"
#include "daemon/session/reactor.h"
#include "storage/base/check.h"
#include "storage/base/clock.h"
#include "storage/base/shm/futex.h"
#include "storage/base/shm/ring.h"
#include "storage/pool/slot_allocator.h"

namespace kvist::session {

constexpr auto kHung = std::chrono::seconds(10);  // nobody waits so long but for a lost wake-up

// Whether it comes to hold; the bound is for what never does, and not for what a sanitizer on a busy machine takes for a hundred
// thousand chunks.
template <class Condition>
bool Soon(Condition holds) {
  const auto hung = std::chrono::steady_clock::now() + std::chrono::seconds(120);
  while (!holds()) {
    if (std::chrono::steady_clock::now() > hung) return false;
    std::this_thread::yield();
  }
  return true;
}

class NoCopies final : public cuda::CopyEngine {
 public:
  void Submit(cuda::Copy) override { KVIST_CHECK(false); }
  void Cancel(OpId) override { KVIST_CHECK(false); }
  void Arrived() override {}
  void Look() override {}
};

// A reactor at work over an empty core, whose pool has slots and no memory.
class Served {
 public:
  struct Options {
    size_t words = shm::FutexWordsMax();
    Bytes pool = KiB(64);  // in slabs of 64 KiB
    std::function<uint32_t(int)> region_near = {};
  };
  explicit Served(Options options, cuda::CopyEngine* copies = nullptr)
      : slots_(*pool::SlotAllocator::Create({.regions = {options.pool}, .slab_bytes = KiB(64)})) {
    Reactor::Options of_reactor;
    of_reactor.words = options.words;
    of_reactor.region_near = options.region_near;
    reactor = *Reactor::Create(of_reactor, &core_, [](SlotRef) { return nullptr; });
    reactor->SetCopyEngine(copies != nullptr ? copies : &no_copies_);
    reactor->Start();
  }
  ~Served() { reactor->Stop(); }

  std::unique_ptr<Reactor> reactor;

 private:
  pool::SlotAllocator slots_;
  core::Core core_{{}, &slots_};
  NoCopies no_copies_;
};

// The shared memory and the doorbell of a session that the reactor serves, as its client has them.
struct ClientEnd {
  static constexpr int kNumaNode = 3;  // of a worker's memory, as it is said

  // A scheduler's session; a worker's when there is `memory`.
  ClientEnd(Served& served, uint64_t id, std::shared_ptr<const cuda::KvMemory> kv = nullptr, std::string tenant = {}) {
    auto created = *shm::SessionMemory::Create();
    memory = *shm::SessionMemory::Map(created.fd.get());
    UniqueFd daemons_bell(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    bell = UniqueFd(::dup(daemons_bell.get()));
    Registration registration;
    registration.instance = "engine " + std::to_string(id);
    registration.role = kv == nullptr ? core::Role::kScheduler : core::Role::kWorker;
    registration.space.groups.push_back({.slot_bytes = {KiB(4)}});
    registration.space.tenant = std::move(tenant);
    if (kv != nullptr) registration.numa_node = kNumaNode;
    registration.memory = std::move(kv);
    auto session = std::make_unique<EngineSession>(EngineSession::Identity{SessionId{id}, 0, 0, {}}, std::move(registration),
                                                   std::move(created.memory), std::move(daemons_bell));
    std::atomic<uint32_t> opened{0};
    served.reactor->Open(std::move(session), [&](const absl::Status& status) {
      opened.store(status.ok() ? 1 : 2);
      shm::FutexWakeAll(&opened);
    });
    while (opened.load() == 0) shm::FutexWait(&opened, 0, INT64_MAX);
    KVIST_CHECK(opened.load() == 1);
  }

  shm::SessionMemory memory;
  UniqueFd bell;
};

// A scheduler that looks up nothing.
class Client {
 public:
  Client(Served& served, uint64_t id, std::string tenant = {})
      : end_(served, id, nullptr, std::move(tenant)), ring_(&end_.memory, end_.bell.get()) {}

  // Submits it, said to have been asked for at `asked_nanos`.
  void Ask(int64_t asked_nanos = 0) {
    shm::Cell* cell = end_.memory.cell(0);
    cell->asked_nanos.store(asked_nanos);
    cell->progress.store(shm::PackProgress(++sequence_, shm::Phase::kPending, 0));
    cell->waiters.store(1);
    shm::Entry entry{};
    entry.opcode = shm::Opcode::kLookup;
    entry.sequence = sequence_;
    entry.deadline_nanos = INT64_MAX;
    KVIST_CHECK(ring_.Reserve(0, &entry).has_value());
    ring_.Submit(entry);
  }
  bool Answered() const { return shm::PhaseOf(end_.memory.cell(0)->progress.load()) == shm::Phase::kEnded; }
  // Asks; whether it was answered in time.
  bool Ask(std::chrono::nanoseconds timeout, int64_t asked_nanos = 0) {
    Ask(asked_nanos);
    shm::Cell* cell = end_.memory.cell(0);
    const int64_t deadline = MonotonicNanos() + timeout.count();
    while (true) {
      const uint64_t progress = cell->progress.load();
      if (shm::PhaseOf(progress) == shm::Phase::kEnded) return true;
      if (MonotonicNanos() >= deadline) return false;
      shm::FutexWait(reinterpret_cast<std::atomic<uint32_t>*>(&cell->progress), static_cast<uint32_t>(progress), deadline);
    }
  }
  // Whether the reactor has to be woken to hear of it.
  bool Sleeps() const { return end_.memory.header()->asleep.load() != static_cast<uint32_t>(shm::Asleep::kNo); }
  // Says that the reactor sleeps on this session's word, whether it does or not.
  void Scribble() { end_.memory.header()->asleep.store(static_cast<uint32_t>(shm::Asleep::kOnWord)); }
  // Whether it hears of it by its doorbell only.
  bool Dozes() const { return end_.memory.header()->asleep.load() == static_cast<uint32_t>(shm::Asleep::kOnDoorbell); }

 private:
  ClientEnd end_;
  shm::RingProducer ring_;
  uint32_t sequence_ = 0;
};

}  // namespace kvist::session

#endif  // KVIST_TESTS_UNIT_SESSION_SERVED_H_

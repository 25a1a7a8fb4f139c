#include "daemon/session/reactor.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "daemon/core/core.h"
#include "storage/base/check.h"
#include "storage/base/clock.h"
#include "storage/base/shm/futex.h"
#include "storage/base/shm/ring.h"
#include "storage/pool/slot_allocator.h"

namespace kvist::session {
namespace {

class NoCopies final : public cuda::CopyEngine {
 public:
  void Submit(cuda::Copy) override { KVIST_CHECK(false); }
  void Cancel(OpId) override { KVIST_CHECK(false); }
};

// A reactor over an empty core.
class Served {
 public:
  explicit Served(size_t words) {
    Reactor::Options options;
    options.words = words;
    reactor = *Reactor::Create(options, &core_, [](SlotRef) { return nullptr; });
    reactor->SetCopyEngine(&copies_);
    reactor->Start();
  }
  ~Served() { reactor->Stop(); }

  std::unique_ptr<Reactor> reactor;

 private:
  pool::SlotAllocator slots_ = *pool::SlotAllocator::Create({.regions = {KiB(64)}, .slab_bytes = KiB(64)});
  core::Core core_{{}, &slots_};
  NoCopies copies_;
};

// A scheduler session, its client's end.
class Client {
 public:
  Client(Served& served, uint64_t id) {
    auto created = *shm::SessionMemory::Create();
    memory_ = *shm::SessionMemory::Map(created.fd.get());
    UniqueFd bell(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    bell_ = UniqueFd(::dup(bell.get()));
    ring_ = std::make_unique<shm::RingProducer>(&memory_, bell_.get());
    Registration registration;
    registration.instance = "test";
    registration.space.groups.push_back({.slot_bytes = {KiB(4)}});
    auto session = std::make_unique<EngineSession>(EngineSession::Identity{SessionId{id}, 0, 0, {}}, std::move(registration),
                                                   std::move(created.memory), std::move(bell));
    std::atomic<uint32_t> opened{0};
    served.reactor->Open(std::move(session), [&](const absl::Status& status) {
      opened.store(status.ok() ? 1 : 2);
      shm::FutexWakeAll(&opened);
    });
    while (opened.load() == 0) shm::FutexWait(&opened, 0, INT64_MAX);
    KVIST_CHECK(opened.load() == 1);
  }

  // An empty lookup, said to have been asked for at `asked_nanos`; whether it was answered in time.
  bool Ask(std::chrono::nanoseconds timeout, int64_t asked_nanos = 0) {
    shm::Cell* cell = memory_.cell(0);
    cell->asked_nanos.store(asked_nanos);
    cell->progress.store(shm::PackProgress(++sequence_, shm::Phase::kPending, 0));
    cell->waiters.store(1);
    shm::Entry entry{};
    entry.opcode = shm::Opcode::kLookup;
    entry.sequence = sequence_;
    entry.deadline_nanos = INT64_MAX;
    KVIST_CHECK(ring_->Reserve(0, &entry).has_value());
    ring_->Submit(entry);
    const int64_t deadline = MonotonicNanos() + timeout.count();
    while (true) {
      const uint64_t progress = cell->progress.load();
      if (shm::PhaseOf(progress) == shm::Phase::kEnded) return true;
      if (MonotonicNanos() >= deadline) return false;
      shm::FutexWait(reinterpret_cast<std::atomic<uint32_t>*>(&cell->progress), static_cast<uint32_t>(progress), deadline);
    }
  }

 private:
  shm::SessionMemory memory_;
  UniqueFd bell_;
  std::unique_ptr<shm::RingProducer> ring_;
  uint32_t sequence_ = 0;
};

using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""s;
constexpr auto kHung = 10s;  // nobody waits so long but for a lost wake-up

TEST_CASE("Reactor hears every session, with more of them than it can wait for at once and with fewer") {
  const size_t words = GENERATE(size_t{1}, size_t{3}, shm::FutexWordsMax());
  Served served(words);
  std::vector<std::unique_ptr<Client>> clients;
  for (uint64_t id = 1; id <= 6; ++id) clients.push_back(std::make_unique<Client>(served, id));
  for (int round = 0; round < 50; ++round) {
    for (size_t i = 0; i < clients.size(); ++i) {
      INFO("words " << words << ", round " << round << ", client " << i);
      REQUIRE(clients[i]->Ask(kHung));
      if ((round * i) % 7 == 3) std::this_thread::sleep_for(1ms);  // long enough for it to fall asleep
    }
  }
}

TEST_CASE("Reactor hears a session that was quiet while another keeps it busy") {
  Served served(GENERATE(size_t{1}, shm::FutexWordsMax()));
  Client quiet(served, 1);
  Client busy(served, 2);
  REQUIRE(quiet.Ask(kHung));
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> asked{0};
  std::thread noise([&] {
    while (!stop.load() && busy.Ask(kHung)) asked.fetch_add(1);
  });
  std::this_thread::sleep_for(1100ms);  // past the doze
  const uint64_t before = asked.load();
  CHECK(before > 0);
  CHECK(quiet.Ask(1s));
  stop.store(true);
  noise.join();
}

TEST_CASE("Reactor tells how long requests waited in their ring, and believes no client that says nonsense") {
  Served served(shm::FutexWordsMax());
  const int64_t before = MonotonicNanos();
  Client client(served, 1);
  const auto waits = [&] {
    LatencyHistogram found;
    std::atomic<uint32_t> answered{0};
    served.reactor->Run([&] {
      found = served.reactor->latencies().waits[static_cast<size_t>(Queue::kRing)];
      answered.store(1);
      shm::FutexWakeAll(&answered);
    });
    while (answered.load() == 0) shm::FutexWait(&answered, 0, INT64_MAX);
    return found;
  };
  const int64_t nonsense = GENERATE_COPY(int64_t{0}, int64_t{1}, int64_t{-1}, INT64_MIN, before);
  REQUIRE(client.Ask(kHung, nonsense));
  CHECK(waits().count() == 0);
  REQUIRE(client.Ask(kHung, MonotonicNanos()));
  const LatencyHistogram one = waits();
  CHECK(one.count() == 1);
  CHECK(one.sum_nanos() < uint64_t{10'000'000'000});
  // It dawdles between the call and the ring. Once in a while the reactor loses its core between its look at the clock and its look at the
  // ring, and takes the wait for shorter.
  uint64_t longest = 0;
  for (int attempt = 0; attempt < 100 && longest < 2'900'000; ++attempt) {
    const uint64_t sum = waits().sum_nanos();
    const int64_t asked = MonotonicNanos();
    while (MonotonicNanos() - asked < 3'000'000) {}
    REQUIRE(client.Ask(kHung, asked));
    longest = std::max(longest, waits().sum_nanos() - sum);
  }
  CHECK(longest >= 2'900'000);
  const LatencyHistogram all = waits();
  REQUIRE(client.Ask(kHung, INT64_MAX));  // the future: a wait of nothing
  CHECK(waits().count() == all.count() + 1);
  CHECK(waits().sum_nanos() == all.sum_nanos());
}

TEST_CASE("Reactor runs every task of every thread") {
  Served served(shm::FutexWordsMax());
  std::atomic<uint32_t> ran{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        served.reactor->Run([&] { ran.fetch_add(1); });
        if (i % 50 == 0) std::this_thread::sleep_for(1ms);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::atomic<uint32_t> done{0};
  served.reactor->Run([&] {
    done.store(1);
    shm::FutexWakeAll(&done);
  });
  while (done.load() == 0) shm::FutexWait(&done, 0, INT64_MAX);
  CHECK(ran.load() == 2000);
}

}  // namespace
}  // namespace kvist::session

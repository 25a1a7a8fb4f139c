// Whom the copies' queue wakes, and how often.
#include "cuda/copy_queue.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "cuda/sleepers.h"
#include "cuda/slot_arrival.h"
#include "storage/base/usable_cpus.h"
#include "tests/unit/cuda/kv_world.h"

namespace kvist::cuda {
namespace {

// Within a minute.
template <class Condition>
bool ComesTrue(Condition condition) {
  const absl::Time until = absl::Now() + absl::Minutes(1);
  while (!condition() && absl::Now() < until) absl::SleepFor(absl::Milliseconds(1));
  return condition();
}

void RunOn(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  sched_setaffinity(0, sizeof set, &set);
}

TEST_CASE("Sleepers that ran on another CPU than their caller are called first") {
  const std::vector<int> cpus = UsableCpus();
  if (cpus.size() < 2) {
    WARN("one CPU: every thread has run on its caller's");
    return;
  }
  absl::Mutex mutex;
  Sleepers sleepers;
  std::atomic<int> asleep{0}, called{0}, called_elsewhere{0};
  std::vector<std::thread> threads;
  for (const bool elsewhere : {false, true, false}) {
    threads.emplace_back([&, elsewhere] {
      RunOn(cpus[elsewhere ? 1 : 0]);
      const absl::MutexLock lock(&mutex);
      ++asleep;
      while (!sleepers.Sleep(&mutex, absl::InfiniteDuration())) {}
      called_elsewhere += elsewhere;
      ++called;
    });
    REQUIRE(ComesTrue([&] { return asleep == static_cast<int>(threads.size()); }));
  }
  std::thread caller([&] {
    RunOn(cpus[0]);
    for (const uint64_t some : {uint64_t{1}, UINT64_MAX}) {
      Sleepers::Called beds;
      {
        const absl::MutexLock lock(&mutex);
        beds = sleepers.Call(some);
      }
      Sleepers::Wake(beds);
      if (some == 1) ComesTrue([&] { return called > 0; });
      if (some == 1 && called_elsewhere == 0) called = 100;  // the wrong one: said below
    }
  });
  caller.join();
  for (std::thread& thread : threads) thread.join();
  CHECK(called == 3);
}

TEST_CASE("Sleepers wake by themselves when their time is over, and nobody calls them then") {
  absl::Mutex mutex;
  Sleepers sleepers;
  const absl::MutexLock lock(&mutex);
  CHECK(!sleepers.Sleep(&mutex, absl::Milliseconds(1)));
  CHECK(sleepers.Call(1).empty());
}

TEST_CASE("A copy thread looks when a unit may lack nothing more, not for each slot that comes") {
  constexpr uint32_t kSlots = 6;
  KvWorld world(KnownLayouts()[3], Seal::kShrink, kSlots, 1);
  Rng rng(1);
  std::vector<uint32_t> slots(kSlots);
  for (uint32_t slot = 0; slot < kSlots; ++slot) slots[slot] = slot;
  Copy copy = world.MakeCopy({1, 1}, Direction::kLoad, slots, rng);
  copy.layer_count = 1;
  std::vector<std::shared_ptr<SlotArrival>> arrivals;
  for (uint32_t slot = 0; slot < kSlots; ++slot) arrivals.push_back(std::make_shared<SlotArrival>());
  copy.arrivals = arrivals;
  const auto running = std::make_shared<RunningCopy>(std::move(copy), Verify::kNever);
  REQUIRE(running->units() == 1);
  CHECK(running->Lacks(0) == kSlots);

  CopyQueue queue;
  std::atomic<int> looks{0};
  std::atomic<bool> claimed{false};
  std::thread copier([&] {
    const auto wanted = [&] {
      ++looks;
      return CopyQueue::Wanted{};
    };
    const auto claim = queue.Next(wanted, [] { return absl::InfiniteDuration(); });
    if (!claim.has_value()) return;
    claimed = true;
    if (claim->copy->Run(claim->first)) queue.Forget(claim->copy->op());
  });
  REQUIRE(ComesTrue([&] { return looks > 0; }));
  queue.Submit(running);
  REQUIRE(ComesTrue([&] { return looks > 1; }));
  std::shuffle(arrivals.begin(), arrivals.end(), rng);
  for (uint32_t come = 0; come < kSlots; ++come) {
    CHECK(!claimed);
    CHECK(arrivals[come]->Arrived(1));
    queue.Arrived();
    absl::SleepFor(absl::Milliseconds(2));  // long enough for a thread that is woken
  }
  copier.join();
  CHECK(claimed);
  CHECK(looks <= 4);  // before there was a copy, at its beginning, when all slots had come; and should one wake by itself
  queue.Stop();
}

TEST_CASE("A load that names a slot twice, or one whose read fails, doesn't wait for what never comes") {
  KvWorld world(KnownLayouts()[12], Seal::kShrink, 3, 1);
  Rng rng(3);
  CopyQueue queue;
  for (const bool fails : {false, true}) {
    Copy copy = world.MakeCopy({1, 1}, Direction::kLoad, {0, 1, 2}, rng);
    copy.layer_count = 1;
    const auto once = std::make_shared<SlotArrival>(), other = std::make_shared<SlotArrival>();
    copy.slots[1] = copy.slots[0];
    copy.arrivals = {once, once, other};
    const auto running = std::make_shared<RunningCopy>(std::move(copy), Verify::kNever);
    const uint64_t units = running->units();
    queue.Submit(running);
    std::thread copier([&] {
      for (uint64_t done = 0; done < units;) {
        const auto claim = queue.Next();
        done += claim->count;
        if (claim->skip ? claim->copy->Skip(claim->count) : claim->copy->Run(claim->first)) queue.Forget(claim->copy->op());
        if (claim->copy->stopped()) queue.Look();
      }
    });
    absl::SleepFor(absl::Milliseconds(5));  // it has looked, most likely
    if (other->Arrived(1)) queue.Arrived();
    absl::SleepFor(absl::Milliseconds(5));
    if (!fails && once->Arrived(1)) queue.Arrived();
    if (fails) {
      static_cast<void>(once->End(absl::DataLossError("it isn't what was stored")));
      queue.Look();
    }
    copier.join();
    CHECK(running->Result().status.ok() == !fails);
  }
  queue.Stop();
}

TEST_CASE("No arrival is lost, however looks and arrivals meet") {
  constexpr uint32_t kSlots = 8, kRounds = 200;
  KvWorld world(KnownLayouts()[12], Seal::kShrink, kSlots, 1);
  Rng rng(2);
  std::vector<uint32_t> slots(kSlots);
  for (uint32_t slot = 0; slot < kSlots; ++slot) slots[slot] = slot;
  CopyQueue queue;
  std::atomic<uint32_t> quiet{0};
  std::vector<std::thread> copiers;
  for (int i = 0; i < 2; ++i) {
    copiers.emplace_back([&] {
      while (const auto claim = queue.Next()) {
        const bool last = claim->skip ? claim->copy->Skip(claim->count) : claim->copy->Run(claim->first);
        if (!last) continue;
        queue.Forget(claim->copy->op());
        ++quiet;
      }
    });
  }
  for (uint32_t round = 0; round < kRounds; ++round) {
    // Two loads of the same slots, the second one of fewer layers: it lacks less.
    std::vector<std::shared_ptr<SlotArrival>> arrivals;
    for (uint32_t slot = 0; slot < kSlots; ++slot) arrivals.push_back(std::make_shared<SlotArrival>());
    for (const uint32_t layers : {world.layers(), 1U}) {
      Copy copy = world.MakeCopy({2 * round + (layers == 1), 1}, Direction::kLoad, slots, rng);
      copy.layer_count = layers;
      copy.order = round % 2 == 0 ? Order::kByLayer : Order::kByChunk;
      copy.arrivals = arrivals;
      queue.Submit(std::make_shared<RunningCopy>(std::move(copy), Verify::kNever));
    }
    std::vector<std::thread> readers;
    for (const uint32_t half : {0U, 1U}) {
      readers.emplace_back([&, half] {
        for (uint32_t slot = half; slot < kSlots; slot += 2) {
          for (uint32_t layer = 1; layer <= world.layers(); ++layer) {
            if (arrivals[slot]->Arrived(layer)) queue.Arrived();
          }
        }
      });
    }
    for (std::thread& reader : readers) reader.join();
    REQUIRE(ComesTrue([&] { return quiet == 2 * (round + 1); }));
  }
  queue.Stop();
  for (std::thread& copier : copiers) copier.join();
}

}  // namespace
}  // namespace kvist::cuda

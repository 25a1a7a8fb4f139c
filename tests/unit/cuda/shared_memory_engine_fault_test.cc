// Cancels, engines that end in the middle, and files that are truncated under a copy.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <memory>
#include <thread>
#include <vector>

#include "cuda/shared_memory_engine.h"
#include "tests/support/sanitizers.h"
#include "tests/unit/cuda/kv_world.h"

namespace kvist::cuda {
namespace {

NamedLayout SeveralUnits() {
  NamedLayout named = KnownLayouts()[12];
  REQUIRE(named.name == "layers of several units");
  return named;
}

off_t LengthOf(int fd) {
  struct stat file;
  REQUIRE(::fstat(fd, &file) == 0);
  return file.st_size;
}

TEST_CASE("SharedMemoryEngine leaves out what is not yet claimed when a copy is cancelled") {
  for (const Direction direction : {Direction::kLoad, Direction::kStore}) {
    KvWorld world(SeveralUnits(), Seal::kShrink, 8, 1);
    Rng rng(1);
    Ends ends;
    const auto engine = MakeSharedMemoryEngine({.threads = 1, .cpus = {}}, ends.Listener());
    Copy copy = world.MakeCopy({1, 1}, direction, {0, 1, 2, 3, 4, 5, 6, 7}, rng);
    const auto gate = std::make_shared<Gate>(1);
    copy.progress = gate;
    KvWorld::Image expected = world.Snapshot();
    Copy first_layer = copy;
    first_layer.layer_count = 1;
    world.Apply(first_layer, &expected);
    engine->Submit(std::move(copy));
    gate->WaitUntilReached();
    engine->Cancel({1, 1});
    engine->Cancel({1, 1});  // again, and one that never was: nothing
    engine->Cancel({9, 9});
    gate->Open();
    CHECK(ends.Wait({1, 1}).code() == absl::StatusCode::kCancelled);
    CHECK(gate->layers() == 1);
    CHECK(world.Snapshot() == expected);
    engine->Cancel({1, 1});  // after its end: nothing
  }
}

TEST_CASE("SharedMemoryEngine ends a cancelled copy before what waits ahead of it") {
  KvWorld world(SeveralUnits(), Seal::kShrink, 4, 1);
  Rng rng(1);
  Ends ends;
  const auto engine = MakeSharedMemoryEngine({.threads = 1, .cpus = {}}, ends.Listener());
  const auto gate = std::make_shared<Gate>(1);
  Copy running = world.MakeCopy({1, 1}, Direction::kLoad, {0}, rng);
  running.progress = gate;
  engine->Submit(std::move(running));
  gate->WaitUntilReached();
  engine->Submit(world.MakeCopy({2, 1}, Direction::kLoad, {1}, rng));
  const KvWorld::Image before = world.Snapshot();
  engine->Submit(world.MakeCopy({3, 1}, Direction::kStore, {2}, rng));
  engine->Cancel({3, 1});
  gate->Open();
  ends.WaitForCount(3);
  CHECK(ends.order().front() == OpId{3, 1});
  CHECK(ends.Wait({3, 1}).code() == absl::StatusCode::kCancelled);
  CHECK(world.Snapshot().slots == before.slots);
}

TEST_CASE("SharedMemoryEngine is quiet after the end, cancelled at any moment") {
  const uint64_t seed = std::random_device()();
  INFO("seed " << seed);
  Rng rng(seed);
  KvWorld world(SeveralUnits(), Seal::kShrink, 6, 3);
  Ends ends;
  const auto engine = MakeSharedMemoryEngine({.threads = 3, .cpus = {}}, ends.Listener());
  constexpr uint32_t kRounds = test::kThreadSanitizer ? 18 : 120;  // each compares all the engine's memory: minutes there
  for (uint32_t op = 1; op <= kRounds; ++op) {
    Copy copy = world.MakeCopy({op, 1}, rng() % 2 == 0 ? Direction::kLoad : Direction::kStore, {0, 1, 2, 3, 4, 5}, rng);
    const Copy same = copy;
    // At a third of the rounds once a layer is through, else some instructions after Submit.
    const auto gate = std::make_shared<Gate>(1);
    const bool at_layer = op % 3 == 0;
    if (at_layer) copy.progress = gate;
    engine->Submit(std::move(copy));
    if (at_layer) gate->WaitUntilReached();
    std::atomic<uint64_t> spun{0};
    for (const uint64_t spins = rng() % 200000; spun < spins && !at_layer;) spun = spun + 1;
    engine->Cancel({op, 1});
    gate->Open();
    const absl::Status status = ends.Wait({op, 1});
    if (status.ok()) {
      REQUIRE(world.LayersAreEqual(same, same.layer_count));
    } else {
      REQUIRE(status.code() == absl::StatusCode::kCancelled);
    }
    // From here on the slots may be anybody's: nobody else's bytes may come into them.
    const std::byte mark{static_cast<uint8_t>(op)};
    for (uint32_t s = 0; s < world.slot_count(); ++s) std::fill_n(world.slot(s), 4096 + 100000, mark);
    std::this_thread::yield();
    for (uint32_t s = 0; s < world.slot_count(); ++s) {
      REQUIRE(std::all_of(world.slot(s), world.slot(s) + 4096 + 100000, [&](std::byte b) { return b == mark; }));
    }
  }
  CHECK(ends.order().size() == kRounds);  // each ended once
}

TEST_CASE("SharedMemoryEngine cancels what is in flight when it ends, and waits for quiet") {
  Rng rng(1);
  constexpr uint32_t kCopies = 16;  // each of a slot of its own: two that write one at once would be the owner's mistake
  for (int round = 0; round < 6; ++round) {
    KvWorld world(KnownLayouts()[round % 2 == 0 ? 12 : 13], static_cast<Seal>(round % 4), kCopies, 1);
    Ends ends;
    auto engine = MakeSharedMemoryEngine({.threads = 2, .cpus = {}}, ends.Listener());
    for (uint32_t op = 0; op < kCopies; ++op) {
      engine->Submit(world.MakeCopy({op, 1}, op % 2 == 0 ? Direction::kStore : Direction::kLoad, {op}, rng));
    }
    engine.reset();
    std::vector<OpId> order = ends.order();
    REQUIRE(order.size() == kCopies);
    const KvWorld::Image after = world.Snapshot();
    for (uint32_t op = 0; op < kCopies; ++op) {
      REQUIRE(std::count(order.begin(), order.end(), OpId{op, 1}) == 1);
      const absl::Status status = ends.Wait({op, 1});
      REQUIRE((status.ok() || status.code() == absl::StatusCode::kCancelled));
    }
    REQUIRE(world.Snapshot() == after);
  }
}

TEST_CASE("SharedMemoryEngine says OutOfRange when the file shrinks under a copy, and does not make it longer again") {
  for (const Direction direction : {Direction::kLoad, Direction::kStore}) {
    for (const off_t left : {off_t{0}, off_t{12345}}) {
      KvWorld world(SeveralUnits(), Seal::kNone, 8, 1);
      Rng rng(1);
      Ends ends;
      const auto engine = MakeSharedMemoryEngine({.threads = 1, .cpus = {}}, ends.Listener());
      Copy copy = world.MakeCopy({1, 1}, direction, {0, 1, 2, 3, 4, 5, 6, 7}, rng);
      const auto gate = std::make_shared<Gate>(1);
      copy.progress = gate;
      engine->Submit(std::move(copy));
      gate->WaitUntilReached();
      REQUIRE(::ftruncate(world.fd(0), left) == 0);
      gate->Open();
      CHECK(ends.Wait({1, 1}).code() == absl::StatusCode::kOutOfRange);
      CHECK(gate->layers() == 1);
      CHECK(LengthOf(world.fd(0)) == left);

      Copy late = world.MakeCopy({2, 1}, direction, {0}, rng);
      const auto progress = std::make_shared<Gate>(UINT32_MAX);
      late.progress = progress;
      engine->Submit(std::move(late));
      CHECK(ends.Wait({2, 1}).code() == absl::StatusCode::kOutOfRange);
      CHECK(progress->layers() == 0);
      CHECK(LengthOf(world.fd(0)) == left);
    }
  }
}

TEST_CASE("SharedMemoryEngine outlives a client that keeps truncating its file") {
  KvWorld world(SeveralUnits(), Seal::kNone, 8, 1);
  Rng rng(1);
  Ends ends;
  const auto engine = MakeSharedMemoryEngine({.threads = 2, .cpus = {}}, ends.Listener());
  const off_t length = LengthOf(world.fd(0));
  std::atomic<bool> stop{false};
  std::thread client([&] {
    Rng its_rng(2);
    while (!stop) {
      if (::ftruncate(world.fd(0), static_cast<off_t>(its_rng() % static_cast<uint64_t>(length))) != 0) break;
      if (::ftruncate(world.fd(0), length) != 0) break;
    }
  });
  bool typed = true;
  for (uint32_t op = 1; op <= 60; ++op) {
    engine->Submit(
        world.MakeCopy({op, 1}, op % 2 == 0 ? Direction::kLoad : Direction::kStore, {0, 1, 2, 3, 4, 5, 6, 7}, rng));
    const absl::Status status = ends.Wait({op, 1});
    typed = typed && (status.ok() || status.code() == absl::StatusCode::kOutOfRange);
  }
  stop = true;
  client.join();
  CHECK(typed);
}

TEST_CASE("SharedMemoryEngine reports a file that may no longer be written") {
  KvWorld world(SeveralUnits(), Seal::kNone, 1, 1);
  Rng rng(1);
  // F_SEAL_FUTURE_WRITE leaves the test's own mapping alone.
  REQUIRE(::fcntl(world.fd(0), F_ADD_SEALS, F_SEAL_FUTURE_WRITE) == 0);
  Ends ends;
  const auto engine = MakeSharedMemoryEngine({}, ends.Listener());
  engine->Submit(world.MakeCopy({1, 1}, Direction::kLoad, {0}, rng));
  CHECK(ends.Wait({1, 1}).code() == absl::StatusCode::kPermissionDenied);
  engine->Submit(world.MakeCopy({2, 1}, Direction::kStore, {0}, rng));
  CHECK(ends.Wait({2, 1}) == absl::OkStatus());
}

}  // namespace
}  // namespace kvist::cuda

// Whether sessions that flood the reactor can keep it from one that dozes: counted in its turns, not in time.
#include <catch2/catch.hpp>

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "storage/base/check.h"
#include "storage/base/clock.h"
#include "storage/base/shm/layout.h"
#include "tests/unit/session/served.h"

namespace kvist::session {
namespace {

std::shared_ptr<const cuda::KvMemory> OnePage() {
  auto memory = std::make_shared<cuda::KvMemory>();
  cuda::KvLayout layout;
  layout.layers.resize(1);
  layout.pages = 1;
  layout.page_stride = layout.segment_bytes = Bytes{64};
  layout.segment_offsets = {Bytes{0}};
  layout.pages_per_chunk = 1;
  memory->layouts.push_back(layout);
  return memory;
}

// A worker whose ring is full at every moment at which the reactor looks: of stores of `keys` chunks that nobody has. Not a RingProducer,
// which would wait for room in the arena.
class Flooder {
 public:
  Flooder(Served& served, uint64_t id, uint32_t keys) : pages_(OnePage()), end_(served, id, pages_), id_(id), keys_(keys) {
    for (uint64_t window = 0; window < kWindows; ++window) NewKeys(window);
  }

  bool Owns(const cuda::Copy& copy) const { return copy.memory == pages_; }
  // Fills the ring; the last doubt about whether the reactor hears it is a ring of its bell.
  void Begin() {
    while (tail_ < shm::kEntries) Submit();
    const uint64_t one = 1;
    KVIST_CHECK(::write(end_.bell.get(), &one, sizeof one) == sizeof one);
  }
  // One entry was taken: another takes its place, and the keys of that one are read no more.
  void Refill() {
    NewKeys(taken_++ % kWindows);
    Submit();
  }

 private:
  static constexpr uint64_t kArgumentBytes = shm::kKeysMax * (sizeof(ChunkKey) + sizeof(uint32_t));
  // Arguments that lie beside each other: more than the reactor takes in a turn, so that no two stores of a turn are of the same chunks.
  static constexpr uint64_t kWindows = shm::kArenaBytes.value / kArgumentBytes;
  static_assert(kWindows > EngineSession::Turn{}.entries);

  void NewKeys(uint64_t window) {
    std::byte* keys = end_.memory.arena() + window * kArgumentBytes;  // the pages behind them are all page 0
    for (uint32_t k = 0; k < keys_; ++k) {
      const uint64_t number = id_ << 48 | ++last_key_;
      std::memcpy(keys + k * sizeof(ChunkKey), &number, sizeof number);
    }
  }
  void Submit() {
    shm::Entry entry{};
    entry.opcode = shm::Opcode::kStore;
    entry.cell = static_cast<uint32_t>(tail_ % shm::kCells);
    entry.sequence = static_cast<uint32_t>(tail_ + 1);
    entry.arena = tail_ % kWindows * kArgumentBytes;
    entry.keys = entry.pages = keys_;
    entry.deadline_nanos = INT64_MAX;
    shm::Entry* place = &end_.memory.ring()[tail_ % shm::kEntries];
    *place = entry;
    std::atomic_ref<uint32_t>(place->turn).store(static_cast<uint32_t>(++tail_));
  }

  const std::shared_ptr<const cuda::KvMemory> pages_;
  ClientEnd end_;
  const uint64_t id_;
  const uint32_t keys_;
  uint64_t tail_ = 0, taken_ = 0, last_key_ = 0;
};

// Copies nothing, at once; and has the test's say on the reactor's thread each time that a store begins.
class Hook final : public cuda::CopyEngine {
 public:
  void Submit(cuda::Copy copy) override {
    reactor->CopyDone(copy.op, {absl::OkStatus()});
    begun(copy);
  }
  void Cancel(OpId) override { KVIST_CHECK(false); }
  void Arrived() override {}
  void Look() override {}

  Reactor* reactor = nullptr;
  std::function<void(const cuda::Copy&)> begun;
};

// Returns when the thread that listens to doorbells has heard them all: it sleeps again. A ring of a bell makes it runnable before the
// ring returns, so that its sleep then is no earlier one.
bool BellsHeard() {
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::ifstream(task.path() / "comm") >> name;
    if (name != "kvist-bells") continue;
    return Soon([&] {
      std::string stat;
      std::getline(std::ifstream(task.path() / "stat"), stat);
      const size_t state = stat.rfind(") ");
      return state != std::string::npos && stat[state + 2] == 'S';
    });
  }
  return false;
}

TEST_CASE("Reactor answers a session that dozes within two turns, however others flood it") {
  constexpr uint64_t kWarmTurns = 1;    // before it asks
  constexpr uint64_t kTurnsMost = 2;    // from its bell to its answer: the one that goes on, and the next
  constexpr uint64_t kGiveUpTurns = 8;  // then the flood ends, and the test has failed
  const uint64_t floods = GENERATE(uint64_t{1}, uint64_t{2});
  // A session's turn is over after so many requests, or after the one that is as much work as a turn may be.
  const auto [keys, entries] =
      GENERATE(table<uint32_t, uint32_t>({{16, EngineSession::Turn{}.entries}, {shm::kKeysMax, 1}}));
  const uint64_t per_turn = floods * entries;

  // Before the reactor, which uses them to its end.
  std::vector<std::unique_ptr<Flooder>> flooders;
  std::optional<Client> dozing;
  uint64_t taken = 0, asked_at = 0, answered_at = 0;
  bool heard = false;
  std::atomic<bool> over{false}, broken{false};
  Hook hook;
  hook.begun = [&](const cuda::Copy& copy) {
    if (over) return;
    for (const auto& flooder : flooders) {
      if (flooder->Owns(copy)) flooder->Refill();
    }
    if (++taken == kWarmTurns * per_turn + 1) {
      asked_at = taken;
      dozing->Ask();
      heard = BellsHeard();
    }
    if (asked_at != 0 && dozing->Answered()) answered_at = taken;
    if (answered_at != 0 || taken >= kGiveUpTurns * per_turn) over = true;
  };
  // Room for what begins in a turn and for what was begun in the one before; the rest is evicted.
  Served served({.words = 1, .pool = KiB(4) * (2 * per_turn * keys)}, &hook);
  hook.reactor = served.reactor.get();
  served.reactor->OnBroken([&](SessionId, const absl::Status&) { over = broken = true; });
  dozing.emplace(served, 100);
  REQUIRE(dozing->Ask(kHung));
  REQUIRE(Soon([&] { return dozing->Dozes(); }));
  for (uint64_t id = 1; id <= floods; ++id) flooders.push_back(std::make_unique<Flooder>(served, id, keys));
  // Before the reactor looks at the first of them, so that it takes of all in each turn.
  std::atomic<bool> held{false}, go{false};
  served.reactor->Run([&] {
    held = true;
    KVIST_CHECK(Soon([&] { return go.load(); }));
  });
  REQUIRE(Soon([&] { return held.load(); }));
  for (const auto& flooder : flooders) flooder->Begin();
  REQUIRE(BellsHeard());
  go = true;
  REQUIRE(Soon([&] { return over.load(); }));
  served.reactor->Stop();

  CHECK(!broken);
  CHECK(heard);
  REQUIRE(answered_at != 0);
  std::printf(
      "fairness: %lu sessions flood with stores of %u chunks, one that dozes is answered after %lu of them (asked: at most "
      "%lu)\n",
      floods, keys, answered_at - asked_at, kTurnsMost * per_turn);
  CHECK(answered_at - asked_at <= kTurnsMost * per_turn);
}

}  // namespace
}  // namespace kvist::session

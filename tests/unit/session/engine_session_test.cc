#include "daemon/session/engine_session.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "daemon/core/core.h"
#include "storage/base/shm/ring.h"
#include "storage/pool/slot_allocator.h"

namespace kvist::session {
namespace {

ChunkKey KeyOf(uint32_t n) {
  ChunkKey key;
  std::memcpy(key.bytes.data(), &n, sizeof n);
  return key;
}

std::vector<ChunkKey> Keys(uint32_t count) {
  std::vector<ChunkKey> keys;
  for (uint32_t n = 0; n < count; ++n) keys.push_back(KeyOf(n));
  return keys;
}

// A worker session between a client's ring and a core, without a reactor: what is drained shows in `effects`.
class Fixture {
 public:
  explicit Fixture(uint32_t groups, uint32_t pages_per_chunk = 1, uint32_t all_pages = kPages) {
    auto created = *shm::SessionMemory::Create();
    client_ = *shm::SessionMemory::Map(created.fd.get());
    ring_ = std::make_unique<shm::RingProducer>(&client_, -1);
    Registration registration;
    registration.instance = "test";
    registration.role = core::Role::kWorker;
    registration.space.tenant = "t";
    auto memory = std::make_shared<cuda::KvMemory>();
    cuda::KvLayout layout;
    layout.layers.resize(1);
    layout.pages = all_pages;
    layout.page_stride = KiB(4);
    layout.segment_offsets = {Bytes{0}};
    layout.segment_bytes = KiB(4);
    layout.pages_per_chunk = pages_per_chunk;
    memory->layouts.assign(groups, layout);
    registration.memory = std::move(memory);
    for (uint32_t g = 0; g < groups; ++g) registration.space.groups.push_back({.slot_bytes = {KiB(4)}});
    core.Handle(core::SessionOpened{SessionId{1}, "test", core::Role::kWorker, {}, registration.space}, &effects);
    session = std::make_unique<EngineSession>(EngineSession::Identity{SessionId{1}, 0, 0, {}}, std::move(registration),
                                              std::move(created.memory), UniqueFd());
    session->Accepted(std::get<core::SessionAccepted>(effects.at(0)).space, nullptr);
    effects.clear();
  }

  void Submit(shm::Entry entry, std::span<const ChunkKey> keys = {}, uint32_t pages = 0) {
    entry.deadline_nanos = INT64_MAX;
    entry.keys = static_cast<uint32_t>(keys.size());
    entry.pages = pages;
    const auto arguments = ring_->Reserve(keys.size_bytes() + pages * sizeof(PageId), &entry);
    REQUIRE(arguments.has_value());
    if (!keys.empty()) std::memcpy(arguments->data(), keys.data(), keys.size_bytes());
    for (uint32_t n = 0; n < pages; ++n) std::memcpy(arguments->data() + keys.size_bytes() + n * sizeof n, &n, sizeof n);
    ring_->Submit(entry);
  }
  shm::Entry EntryOf(shm::Opcode opcode, uint32_t cell, uint32_t sequence) {
    shm::Entry entry{};
    entry.opcode = opcode;
    entry.cell = static_cast<decltype(entry.cell)>(cell);
    entry.sequence = sequence;
    return entry;
  }
  // What one turn takes off the ring.
  uint32_t Drain(EngineSession::Turn turn = {}) {
    const auto drained = session->Drain(turn, 0, &core, &effects);
    REQUIRE(drained.ok());
    return *drained;
  }

  absl::StatusCode Status(uint32_t cell) { return static_cast<absl::StatusCode>(client_.cell(cell)->status); }
  const shm::Cell& cell(uint32_t index) { return *client_.cell(index); }

  static constexpr uint32_t kPages = 8;
  core::CoreOptions options;
  pool::SlotAllocator slots = *pool::SlotAllocator::Create({.regions = {KiB(256)}, .slab_bytes = KiB(256)});
  core::Core core{options, &slots};
  core::Effects effects;
  std::unique_ptr<EngineSession> session;

 private:
  shm::SessionMemory client_;
  std::unique_ptr<shm::RingProducer> ring_;
};

TEST_CASE("EngineSession cancels an operation that began in the same turn") {
  Fixture f(1);
  f.Submit(f.EntryOf(shm::Opcode::kStore, 3, 7), Keys(2), 2);
  f.Submit(f.EntryOf(shm::Opcode::kCancel, 3, 6));  // of an earlier one in that cell
  f.Submit(f.EntryOf(shm::Opcode::kCancel, 3, 7));
  REQUIRE(f.Drain() == 3);
  REQUIRE(f.effects.size() == 2);
  const auto& started = std::get<core::CopyStarted>(f.effects[0]);
  CHECK(std::get<core::CopyCancelled>(f.effects[1]).op == started.op);  // after its copy, so that there is one to cancel
}

TEST_CASE("EngineSession cancels nothing when the operation has ended in the same turn") {
  Fixture f(1);
  f.Submit(f.EntryOf(shm::Opcode::kStore, 3, 7), Keys(2), 2);
  REQUIRE(f.Drain() == 1);
  f.effects.clear();
  f.Submit(f.EntryOf(shm::Opcode::kStore, 4, 1), Keys(2), 2);  // all of it is being stored already
  f.Submit(f.EntryOf(shm::Opcode::kCancel, 4, 1));
  REQUIRE(f.Drain() == 2);
  REQUIRE(f.effects.size() == 1);
  CHECK(std::get<core::OpEnded>(f.effects[0]).skipped == 2);
}

TEST_CASE("EngineSession takes reports of prefills, and ends for one that no connector sends") {
  Fixture f(1);
  shm::Entry report = f.EntryOf(shm::Opcode::kPrefill, 0, 0);
  report.first_chunk = 512;
  report.chunks = 256;
  report.took_nanos = 1000;
  f.Submit(report);
  CHECK(f.Drain() == 1);
  CHECK(f.effects.empty());
  const bool tokens = GENERATE(true, false);
  if (tokens) report.chunks = 0;
  if (!tokens) report.took_nanos = -1;
  f.Submit(report);
  CHECK(absl::IsInvalidArgument(f.session->Drain({}, 0, &f.core, &f.effects).status()));
}

TEST_CASE("EngineSession says in the cell where chunks are, and refuses more than it has room for") {
  Fixture f(2);
  f.Submit(f.EntryOf(shm::Opcode::kStore, 3, 7), Keys(2), 2);
  REQUIRE(f.Drain() == 1);
  const OpId op = std::get<core::CopyStarted>(f.effects.at(0)).op;
  f.effects.clear();
  f.core.Handle(core::CopyFinished{op, absl::OkStatus()}, &f.effects);
  f.session->Answer(std::get<core::OpEnded>(f.effects.at(0)));
  f.effects.clear();
  const auto ask = [&](uint32_t cell, uint32_t keys, uint16_t group) {
    shm::Entry entry = f.EntryOf(shm::Opcode::kWhere, cell, 1);
    entry.group = group;
    f.Submit(entry, Keys(keys));
    CHECK(f.Drain() == 1);
    CHECK(f.effects.empty());
    return f.Status(cell);
  };
  CHECK(ask(4, shm::kWhereKeysMax, 0) == absl::StatusCode::kOk);
  CHECK(f.cell(4).copied == 2);
  for (uint32_t k = 0; k < shm::kWhereKeysMax; ++k) CHECK(static_cast<uint8_t>(f.cell(4).message[k]) == (k < 2 ? 1 : 0));
  CHECK(ask(5, 2, 1) == absl::StatusCode::kOk);
  CHECK(f.cell(5).copied == 0);  // another group's
  CHECK(ask(6, 0, 0) == absl::StatusCode::kOk);
  CHECK(ask(7, shm::kWhereKeysMax + 1, 0) == absl::StatusCode::kInvalidArgument);
  CHECK(ask(8, 1, 2) == absl::StatusCode::kInvalidArgument);
  CHECK(f.session->ops_in_flight() == 0);
}

TEST_CASE("EngineSession says a large hint over many turns, none longer than a turn and an event, and what follows waits") {
  constexpr uint32_t kGroups = 64;
  Fixture f(kGroups);
  const std::vector<ChunkKey> keys = Keys(shm::kKeysMax);
  f.Submit(f.EntryOf(shm::Opcode::kHint, 0, 0), keys);
  f.Submit(f.EntryOf(shm::Opcode::kLookup, 1, 1), {keys.data(), 1});
  const uint64_t start = f.core.work();
  uint32_t turns = 0;
  while (f.effects.empty()) {
    REQUIRE(++turns < 1000);
    const uint64_t before = f.core.work();
    CHECK_FALSE(f.session->ring().Empty());  // so the reactor doesn't sleep
    CHECK(f.Drain() > 0);
    CHECK(f.core.work() - before <= EngineSession::Turn{}.work + f.options.EventWorkBound());
  }
  CHECK(f.core.work() - start >= uint64_t{kGroups} * keys.size());
  CHECK(turns > kGroups * keys.size() / (EngineSession::Turn{}.work + f.options.EventWorkBound()));
  CHECK(f.session->requests() == 2);
  CHECK(f.session->ring().Empty());
  CHECK(f.Drain() == 0);
}

TEST_CASE("EngineSession ends a turn after large requests, so that others have theirs") {
  Fixture f(1);
  const std::vector<ChunkKey> keys = Keys(shm::kKeysMax);
  constexpr uint32_t kLarge = 16;
  for (uint32_t n = 0; n < kLarge; ++n) f.Submit(f.EntryOf(shm::Opcode::kLookup, n, 1), keys);
  for (uint32_t n = 0; n < 4; ++n) f.Submit(f.EntryOf(shm::Opcode::kLookup, kLarge + n, 1), {keys.data(), 1});
  // Nothing is found, so it is the arguments that cost most.
  const uint32_t first = f.Drain({.entries = 100, .work = 1024});
  CHECK(first > 1);
  CHECK(first < kLarge);
  CHECK(f.Drain({.entries = 100, .work = 100'000}) == kLarge + 4 - first);
  CHECK(f.effects.size() == kLarge + 4);
}

TEST_CASE("EngineSession keeps page ids of a bounded number of operations, and takes more when some have ended") {
  constexpr uint32_t kPerChunk = shm::kPagesMax / shm::kKeysMax, kFit = 4;
  Fixture f(1, kPerChunk, shm::kPagesMax);
  const auto load = [&](uint32_t cell) {
    shm::Entry entry = f.EntryOf(shm::Opcode::kLoad, cell, 1);
    entry.chunks = shm::kKeysMax;
    f.Submit(entry, {}, shm::kPagesMax);
    REQUIRE(f.Drain() == 1);
  };
  for (uint32_t cell = 0; cell < kFit; ++cell) load(cell);
  REQUIRE(f.effects.size() == kFit);  // the core refuses their lease, which the session has not been told yet
  load(kFit);
  CHECK(f.effects.size() == kFit);
  CHECK(f.Status(kFit) == absl::StatusCode::kResourceExhausted);
  f.session->Answer(std::get<core::OpEnded>(f.effects[0]));
  CHECK(f.Status(0) == absl::StatusCode::kAborted);
  load(0);
  CHECK(f.effects.size() == kFit + 1);
  load(kFit);
  CHECK(f.effects.size() == kFit + 1);
}

}  // namespace
}  // namespace kvist::session

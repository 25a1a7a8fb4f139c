// Rows 30 and 34 of the fault matrix: sessions that write nonsense into the memory that they share with kvistd. It gets a typed error or ends
// the session; kvistd and an honest engine beside it don't notice.
#include <catch2/catch.hpp>

#include <cstdio>
#include <cstring>
#include <random>

#include "proto/session.pb.h"
#include "storage/base/clock.h"
#include "storage/base/shm/ring.h"
#include "tests/support/bystander.h"
#include "tests/support/daemon_process.h"
#include "tests/support/growth.h"
#include "tests/support/raw_client.h"
#include "tests/support/sanitizers.h"
#include "tests/support/temp_dir.h"

namespace session = kvist::session::v1;
namespace shm = kvist::shm;
using kvist::test::Bystander;
using kvist::test::CheckGrowth;
using kvist::test::DaemonProcess;
using kvist::test::kProvoked;
using kvist::test::kSanitized;
using kvist::test::RawClient;
using kvist::test::TempDir;

namespace {

shm::Entry Good(shm::Opcode opcode, uint32_t cell) {
  static uint32_t sequence = 100;
  shm::Entry entry{};
  entry.opcode = opcode;
  entry.cell = cell;
  entry.sequence = ++sequence;
  entry.deadline_nanos = kvist::MonotonicNanos() + 10'000'000'000;
  return entry;
}

// Of the pairs of fields that could be wrong at once; ThreadSanitizer takes a minute for all.
constexpr size_t kStep = kvist::test::kThreadSanitizer ? 11 : 1;

constexpr uint32_t kChunks = 4, kPagesPerChunk = 2;  // of the lease and the allocation that right entries name
constexpr uint32_t kKeysAt = 64 << 10;               // of those chunks, in the arena; elsewhere it holds zeros

// What the session has that an entry may name.
struct Held {
  uint64_t lease = 0, allocation = 0;
};

constexpr shm::Opcode kAnswered[] = {
    shm::Opcode::kLookup, shm::Opcode::kLoad,     shm::Opcode::kStore,   shm::Opcode::kPin,     shm::Opcode::kUnpin,
    shm::Opcode::kFlush,  shm::Opcode::kAllocate, shm::Opcode::kSwapOut, shm::Opcode::kSwapIn,  shm::Opcode::kWhere,
    shm::Opcode{0},       shm::Opcode{16},        shm::Opcode{0xe7},     shm::Opcode{UINT8_MAX}};

bool IsCopy(shm::Opcode opcode) {
  return opcode == shm::Opcode::kLoad || opcode == shm::Opcode::kStore || opcode == shm::Opcode::kSwapOut ||
         opcode == shm::Opcode::kSwapIn;
}
bool HasKeys(shm::Opcode opcode) {
  return opcode == shm::Opcode::kLookup || opcode == shm::Opcode::kStore || opcode == shm::Opcode::kPin ||
         opcode == shm::Opcode::kUnpin || opcode == shm::Opcode::kHint || opcode == shm::Opcode::kWhere;
}

// A right entry of the opcode.
shm::Entry Right(shm::Opcode opcode, uint32_t cell, const Held& held) {
  shm::Entry entry = Good(opcode, cell);
  entry.arena = kKeysAt;
  if (HasKeys(opcode)) entry.keys = kChunks;
  if (IsCopy(opcode)) entry.pages = kChunks * kPagesPerChunk;
  if (opcode == shm::Opcode::kAllocate || (IsCopy(opcode) && opcode != shm::Opcode::kStore)) entry.chunks = kChunks;
  if (IsCopy(opcode)) entry.lease = opcode == shm::Opcode::kLoad ? held.lease : held.allocation;
  if (opcode == shm::Opcode::kPrefill) {
    entry.chunks = 1000;
    entry.took_nanos = 1'000'000;
  }
  return entry;
}

// Whether the entry is one that a connector may send, by what layout.h says of it; page ids are right in all of the arena.
bool WellFormed(const shm::Entry& entry, const Held& held) {
  const bool store = entry.opcode == shm::Opcode::kStore, copy = IsCopy(entry.opcode);
  const uint64_t parent = store && (entry.flags & shm::kHasParent) != 0 ? 1 : 0;
  const uint64_t bytes = uint64_t{entry.keys} * sizeof(kvist_key) + uint64_t{entry.pages} * sizeof(uint32_t);
  if (entry.keys > (HasKeys(entry.opcode) ? shm::kKeysMax + parent : 0)) return false;
  if (entry.pages > (copy ? shm::kPagesMax : 0)) return false;
  if (entry.arena % shm::kArenaBytes.value + bytes > shm::kArenaBytes.value) return false;
  switch (entry.opcode) {
    case shm::Opcode::kLookup:
    case shm::Opcode::kPin:
    case shm::Opcode::kUnpin:
    case shm::Opcode::kFlush: return true;
    case shm::Opcode::kWhere: return entry.group == 0 && entry.keys <= shm::kWhereKeysMax;
    case shm::Opcode::kAllocate: return entry.group == 0 && entry.chunks > 0 && entry.chunks <= shm::kKeysMax;
    default: break;
  }
  if (!copy || entry.group != 0 || (entry.flags & shm::kAfterStream) != 0) return false;  // it has no GPU
  if (store && entry.keys <= parent) return false;
  const uint64_t chunks = store ? entry.keys - parent : entry.chunks;
  if (entry.pages != chunks * kPagesPerChunk) return false;
  if (store) return true;
  return entry.lease == (entry.opcode == shm::Opcode::kLoad ? held.lease : held.allocation) && chunks > 0 &&
         uint64_t{entry.first_chunk} + chunks <= kChunks && entry.layer.first_layer < RawClient::kLayers &&
         uint64_t{entry.layer.first_layer} + entry.layer.layers <= RawClient::kLayers;
}

// One field of an entry, made what it is wrong to be, or only unusual.
struct Twist {
  const char* field;
  uint64_t value;
  void (*set)(shm::Entry* entry, uint64_t value);
};
const std::vector<Twist> kTwists = [] {
  std::vector<Twist> twists;
  const auto add = [&](const char* field, std::initializer_list<uint64_t> values, void (*set)(shm::Entry*, uint64_t)) {
    for (const uint64_t value : values) twists.push_back({field, value, set});
  };
  constexpr uint64_t k31 = uint64_t{1} << 31, k63 = uint64_t{1} << 63;
  add("keys", {0, 1, 2, 4096, 4097, 4098, 1 << 19, k31, UINT32_MAX},
      [](auto* e, uint64_t v) { e->keys = static_cast<uint32_t>(v); });
  add("pages", {0, 1, 2, 4, 8192, 1 << 19, (1 << 19) + 1, k31, UINT32_MAX},
      [](auto* e, uint64_t v) { e->pages = static_cast<uint32_t>(v); });
  add("arena", {0, 1, shm::kArenaBytes.value - 32, shm::kArenaBytes.value - 1, k63, UINT64_MAX},
      [](auto* e, uint64_t v) { e->arena = v; });
  add("flags", {1, 2, 3, 4, UINT8_MAX}, [](auto* e, uint64_t v) { e->flags = static_cast<uint8_t>(v); });
  add("group", {1, 1 << 15, UINT16_MAX}, [](auto* e, uint64_t v) { e->group = static_cast<uint16_t>(v); });
  add("chunks", {0, 1, 2, 4096, 4097, k31, UINT32_MAX}, [](auto* e, uint64_t v) { e->chunks = static_cast<uint32_t>(v); });
  add("first_chunk", {1, 3, 4, k31, UINT32_MAX - 3, UINT32_MAX},
      [](auto* e, uint64_t v) { e->first_chunk = static_cast<uint32_t>(v); });
  add("first_layer", {1, 2, k31, UINT32_MAX}, [](auto* e, uint64_t v) { e->layer.first_layer = static_cast<uint32_t>(v); });
  add("layers", {1, 2, 3, k31, UINT32_MAX}, [](auto* e, uint64_t v) { e->layer.layers = static_cast<uint32_t>(v); });
  add("lease", {0, 1, k63, UINT64_MAX}, [](auto* e, uint64_t v) { e->lease = v; });
  add("deadline", {0, 1, k63, UINT64_MAX, INT64_MAX},
      [](auto* e, uint64_t v) { e->deadline_nanos = static_cast<int64_t>(v); });
  return twists;
}();

// A session that has stored chunks, leased them, and has an allocation.
Held Hold(RawClient* client) {
  uint32_t cell = 0;
  const auto ask = [&](shm::Entry entry) {
    client->Submit(entry);
    REQUIRE(client->Status(entry) == absl::StatusCode::kOk);
    return client->memory.cell(entry.cell)->lease;
  };
  for (uint32_t c = 0; c < kChunks; ++c) client->memory.arena()[kKeysAt + c * sizeof(kvist_key)] = std::byte(c + 1);
  ask(Right(shm::Opcode::kStore, cell++, {}));
  shm::Entry lookup = Right(shm::Opcode::kLookup, cell++, {});
  lookup.lease_nanos = 3'600'000'000'000;
  Held held;
  held.lease = ask(lookup);
  REQUIRE(held.lease != 0);
  held.allocation = ask(Right(shm::Opcode::kAllocate, cell++, {}));
  ask(Right(shm::Opcode::kSwapOut, cell++, held));
  return held;
}

}  // namespace

TEST_CASE("Row 30: lengths and counts of every size in ring entries get a typed error in their cell") {
  TempDir dir;
  std::vector<std::string> settings = kProvoked;
  settings.push_back("lease.max=1h");
  DaemonProcess daemon(dir.path(), settings);
  Bystander bystander(daemon);
  RawClient client(daemon);
  client.Open();
  const Held held = Hold(&client);
  uint32_t refused = 0, cell = 0;
  CheckGrowth(daemon, "ring entries with one or two fields from 0 to 2^64 - 1, each answered", [&] {
    uint32_t entries = 0;
    for (const shm::Opcode opcode : kAnswered) {
      uint32_t taken = 0;
      for (size_t i = 0; i < kTwists.size(); ++i) {
        for (size_t j = i; j < kTwists.size(); j += kStep) {  // i == j: that field only
          shm::Entry entry = Right(opcode, cell++ % shm::kCells, held);
          kTwists[i].set(&entry, kTwists[i].value);
          kTwists[j].set(&entry, kTwists[j].value);
          ++entries;
          client.Submit(entry);
          const absl::StatusCode code = client.Status(entry);
          const bool right = WellFormed(entry, held);
          const auto is = [&](std::initializer_list<absl::StatusCode> codes) {
            return std::find(codes.begin(), codes.end(), code) != codes.end();
          };
          using enum absl::StatusCode;
          const bool late = entry.deadline_nanos <= 1, flush = opcode == shm::Opcode::kFlush;
          const bool as_it_should = !right  ? is({kInvalidArgument, kAborted}) || (late && is({kDeadlineExceeded}))
                                    : late  ? is({kDeadlineExceeded})
                                    : flush ? is({kFailedPrecondition})  // it has no disk
                                    : opcode == shm::Opcode::kAllocate ? is({kOk, kResourceExhausted})
                                                                       : is({kOk});
          if (!as_it_should) {
            FAIL_CHECK("opcode " << static_cast<int>(opcode) << " with " << kTwists[i].field << " = " << kTwists[i].value
                                 << " and " << kTwists[j].field << " = " << kTwists[j].value
                                 << (right ? " is right" : " is wrong") << ", and got code " << static_cast<int>(code));
          }
          refused += !right;
          taken += code == kOk;
          if (code == kOk && opcode == shm::Opcode::kAllocate) {
            shm::Entry free = Good(shm::Opcode::kFree, 0);
            free.lease = client.memory.cell(entry.cell)->lease;
            client.Submit(free);
          }
        }
      }
      INFO("opcode " << static_cast<int>(opcode));
      const bool can_be_taken =
          opcode != shm::Opcode::kFlush && opcode >= shm::Opcode::kLookup && opcode <= shm::Opcode::kWhere;
      CHECK((taken > 0) == can_be_taken);
    }
    return entries;
  });
  std::printf("row 30: %u of these were wrong and refused\n", refused);
  CHECK(refused > 0);
}

TEST_CASE("Row 30: page ids that aren't the session's are refused") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), kProvoked);
  Bystander bystander(daemon);
  RawClient client(daemon);
  client.Open();
  const Held held = Hold(&client);
  uint32_t cell = 100;
  for (const shm::Opcode opcode : {shm::Opcode::kLoad, shm::Opcode::kStore, shm::Opcode::kSwapOut, shm::Opcode::kSwapIn}) {
    for (const uint32_t at : {0u, 3u, kChunks * kPagesPerChunk - 1}) {
      for (const uint32_t id : {0u, RawClient::kPages - 1, RawClient::kPages, 1u << 31, UINT32_MAX - 1, UINT32_MAX}) {
        const shm::Entry entry = Right(opcode, cell++, held);
        std::byte* const where = client.memory.arena() + kKeysAt + entry.keys * sizeof(kvist_key) + at * sizeof(uint32_t);
        uint32_t before;
        std::memcpy(&before, where, sizeof before);
        std::memcpy(where, &id, sizeof id);
        client.Submit(entry);
        const absl::StatusCode code = client.Status(entry);
        std::memcpy(where, &before, sizeof before);
        INFO("opcode " << static_cast<int>(opcode) << ", page " << id << " at " << at);
        // Who loads may leave pages out, who stores may not.
        const bool right = id < RawClient::kPages || (id == UINT32_MAX && opcode != shm::Opcode::kStore);
        CHECK(code == (right ? absl::StatusCode::kOk : absl::StatusCode::kInvalidArgument));
      }
    }
  }
}

TEST_CASE("Row 30: large requests that are refused leave nothing behind") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), kProvoked);
  Bystander bystander(daemon);
  session::ClientFrame hello = RawClient::GoodHello();  // with as many pages a chunk as can be
  hello.mutable_hello()->mutable_space()->set_page_tokens(1);
  hello.mutable_hello()->mutable_space()->set_chunk_tokens(shm::kPagesMax / shm::kKeysMax);
  RawClient client(daemon);
  client.Open(hello, client.memfd());
  std::memset(client.memory.arena(), 0, shm::kArenaBytes.value);  // its own, before it counts
  const auto ask = [&](uint32_t cell) {
    shm::Entry load = Good(shm::Opcode::kLoad, cell);
    load.chunks = shm::kKeysMax;
    load.pages = shm::kPagesMax;
    load.lease = 12345;
    client.Submit(load);
    CHECK(client.Status(load) == absl::StatusCode::kAborted);
  };
  CheckGrowth(daemon, "loads of " + std::to_string(shm::kPagesMax) + " pages, refused", [&] {
    for (uint32_t cell = 0; cell < shm::kCells; ++cell) ask(cell);
    return shm::kCells;
  });
}

TEST_CASE("Row 30: what is wrong in entries without an answer ends their session, and what is right doesn't") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), kProvoked);
  Bystander bystander(daemon);
  uint32_t ended = 0, went_on = 0;
  for (const shm::Opcode opcode :
       {shm::Opcode::kRelease, shm::Opcode::kFree, shm::Opcode::kCancel, shm::Opcode::kHint, shm::Opcode::kPrefill}) {
    for (const Twist& twist : kTwists) {
      RawClient client(daemon);
      client.Open();
      shm::Entry entry = Right(opcode, 0, {});
      twist.set(&entry, twist.value);
      bool right = true;  // releases, frees and cancels of nothing are nothing
      if (opcode == shm::Opcode::kPrefill) right = entry.chunks > 0 && entry.took_nanos > 0;
      if (opcode == shm::Opcode::kHint) {
        right = entry.keys <= shm::kKeysMax &&
                entry.arena % shm::kArenaBytes.value + entry.keys * sizeof(kvist_key) <= shm::kArenaBytes.value &&
                entry.hint.session_ended <= 1 && entry.hint.expected_reuse <= KVIST_REUSE_NEVER &&
                entry.hint.stop_reason <= KVIST_STOP_TOOL_CALL;
      }
      INFO("opcode " << static_cast<int>(opcode) << " with " << twist.field << " = " << twist.value);
      client.Submit(entry);
      if (right) {
        const shm::Entry lookup = Right(shm::Opcode::kLookup, 1, {});
        client.Submit(lookup);
        CHECK(client.Status(lookup) == absl::StatusCode::kOk);
        ++went_on;
      } else {
        CHECK(client.HungUp());
        ++ended;
      }
    }
  }
  std::printf("row 30: %u sessions ended by a wrong entry that has no answer, %u with a right one went on\n", ended,
              went_on);
  CHECK(ended > 0);
  CHECK(went_on > 0);
}

TEST_CASE("Row 30: what can't be answered ends the session of who sent it") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), kProvoked);
  Bystander bystander(daemon);
  for (const uint32_t cell : {shm::kCells, 1u << 31, UINT32_MAX}) {
    RawClient client(daemon);
    client.Open();
    client.Submit(Good(shm::Opcode::kLookup, cell));
    CHECK(client.HungUp());
  }
}

TEST_CASE("Row 34: a client that scribbles over the shared memory hurts itself only") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), kProvoked);
  Bystander bystander(daemon);
  std::mt19937_64 random(3);
  constexpr uint32_t kRounds = 20;
  uint32_t ended = 0;
  for (uint32_t round = 0; round < kRounds; ++round) {
    RawClient client(daemon);
    client.Open();
    auto* words = reinterpret_cast<uint64_t*>(client.memory.ring());
    const size_t count = shm::kEntries * sizeof(shm::Entry) / 8 + shm::kCells * sizeof(shm::Cell) / 8;
    for (size_t i = 0; i < count; ++i) words[i] = random();
    client.Announce(1 + static_cast<uint32_t>(random() % shm::kEntries));
    ended += client.HungUp();
  }
  const bool crashed = daemon.Ended().has_value();
  std::printf("row 34: %u sessions whose shared memory was scribbled over, %u of them ended, kvistd crashed %d\n", kRounds,
              ended, crashed ? 1 : 0);
  CHECK(ended == kRounds);
  REQUIRE(!crashed);
}

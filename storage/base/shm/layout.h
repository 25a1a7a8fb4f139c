#ifndef KVIST_STORAGE_BASE_SHM_LAYOUT_H_
#define KVIST_STORAGE_BASE_SHM_LAYOUT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "storage/base/units.h"

// The memory that one session shares with kvistd, as it lies in the session's memfd. Written by both sides; neither believes the
// other: the daemon copies what it reads once and checks the copy, and what it writes it never reads back.
//
//   0          Header             4 KiB   who sleeps, how far the ring is
//   4 KiB      Entry[kEntries]   64 KiB   submission ring: connector -> daemon
//   68 KiB     Cell[kCells]     256 KiB   board: one cell per operation in flight, the daemon's answer and what the connector says of it meanwhile
//   324 KiB    arena              4 MiB   arguments of the entries in the ring: keys, page tables
//
// There is no completion ring: an operation's cell *is* its completion, so any thread that waits for an operation waits on its own
// word, nobody has to hand completions around, and a slow client can't make the daemon run out of places for them.
namespace kvist::shm {

inline constexpr uint32_t kMagic = 0x7473'766b;  // "kvst"
inline constexpr uint32_t kVersion = 7;          // of this layout and of the handshake (Hello.protocol_version)

inline constexpr uint32_t kEntries = 1024;  // a power of two
inline constexpr uint32_t kCells = 1024;    // operations in flight in one session
// >= the arguments of the largest request: 4,097 keys of 32 bytes and their pages.
inline constexpr Bytes kArenaBytes = MiB(4);
inline constexpr uint32_t kSegmentsMax = 1024;  // of a page in one layer: K and V of 512 heads apart fit
inline constexpr uint32_t kKeysMax = 4096;      // chunks of one request; = core::Core::kKeysMax

enum class Opcode : uint8_t {
  kLookup = 1,   // arena: keys[keys]
  kLoad = 2,     // arena: page_ids[pages]
  kStore = 3,    // arena: keys[keys] (the first is the parent with kHasParent), page_ids[pages]
  kRelease = 4,  // no cell, no answer
  kCancel = 5,   // of the operation (cell, sequence); no answer of its own
  kPin = 6,      // arena: keys[keys]
  kUnpin = 7,    // arena: keys[keys]
  kHint = 8,     // arena: keys[keys]; no cell, no answer
  kAllocate = 9,
  kFree = 10,     // no cell, no answer
  kSwapOut = 11,  // arena: page_ids[pages]
  kSwapIn = 12,   // arena: page_ids[pages]
  kFlush = 13,
  kPrefill = 14,  // no cell, no answer
  kWhere = 15,    // arena: keys[keys], kWhereKeysMax at most
};

// Layers [first_layer, first_layer + layers); 0 layers: all from the first on.
struct LayerSpan {
  uint32_t first_layer, layers;
};

// What an engine knows of chunks; values as in kvist.h.
struct HintBytes {
  uint8_t session_ended, expected_reuse, stop_reason;
};

inline constexpr uint8_t kHasParent = 1;  // store: keys[0] is the chunk before the first
inline constexpr uint8_t kAfterStream =
    2;  // load, store, swap: of no layer before Cell.ready says so; in sessions with GPU memory

// One request. 64 bytes = one cache line, which brings its own news: an entry is there when its `turn` says so, so the daemon needs no
// second line to learn of it.
struct Entry {
  Opcode opcode;
  uint8_t flags;      // of kHasParent, kAfterStream
  uint16_t group;     // cache group; not of lookup, release, cancel, pin, unpin, hint, free, flush
  uint32_t cell;      // where the answer goes; below kCells
  uint32_t sequence;  // of the cell: tells this operation from the cell's earlier ones
  // 1 for the session's first entry, 2 for the second, ...; written last. Only RingProducer and RingConsumer touch it.
  uint32_t turn;
  uint64_t arena;          // position of the arguments; they are contiguous, and the position is taken modulo kArenaBytes
  uint32_t keys;           // count
  uint32_t pages;          // count
  uint64_t lease;          // load, release: the lease; free, swap: the allocation (packed)
  int64_t deadline_nanos;  // monotonic; what comes later is answered with DeadlineExceeded and not begun
  // Load: of the lease; swap: of the allocation; lookup: the engine has those before it; prefill: tokens
  uint32_t first_chunk;
  uint32_t chunks;  // load, allocate, swap: count; prefill: tokens
  union {
    LayerSpan layer;      // load, swap
    int64_t lease_nanos;  // lookup: how long the hit is to be leased; 0: not
    HintBytes hint;       // hint
    int64_t took_nanos;   // prefill
  };
};
static_assert(sizeof(Entry) == 64 && std::is_trivially_copyable_v<Entry>, "one cache line, copied once");

// One operation's answer. The first line is hot, the message is for people.
//
//   progress = | sequence 32 | phase 8 | layers 24 |      the low half is the futex word
//
// The connector sets progress to (its sequence, kPending, 0) before it submits; from then on the daemon writes it, and again the connector when that
// daemon is gone. All other
// fields of the answer are written before the progress that ends the operation.
struct Cell {
  std::atomic<uint64_t> progress;
  std::atomic<uint32_t> waiters;  // connector: threads asleep on the word; the daemon wakes only when there are some
  // connector: it has given a store up and may change the pages: the result must not be published
  std::atomic<uint32_t> abandoned;
  uint32_t status;   // an absl::StatusCode
  uint32_t copied;   // lookup, where: chunks found; pin: pinned; flush: that survive; load, store, swap: chunks copied
  uint32_t skipped;  // lookup: chunks that are coming
  uint32_t refused;
  uint64_t lease;  // lookup: packed LeaseId or 0; allocate: packed AllocationId
  // Connector: when the engine called (monotonic), so that the daemon can tell how long the request waited to be taken; 0: it
  // doesn't say. For figures only.
  std::atomic<int64_t> asked_nanos;
  // The next two are for sessions with GPU memory, whose streams wait for the first and write the second.
  // As progress, but never falls: raised by the daemon, and by the connector when it gives the operation up, so that no stream waits for ever.
  std::atomic<uint64_t> stream_progress;
  std::atomic<uint64_t> ready;  // PackReady: of how many layers the pages may be copied
  char message[192];            // of an error; ends with a zero. Of a where: a byte for each key, TierBits
};
inline constexpr uint32_t kWhereKeysMax = sizeof(Cell::message);
static_assert(sizeof(Cell) == 256 && offsetof(Cell, message) == 64, "four cache lines");
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free &&
                  std::atomic<uint32_t>::is_always_lock_free,
              "shared between processes");

enum class Phase : uint32_t { kPending = 0, kEnded = 1 };

constexpr uint64_t PackProgress(uint32_t sequence, Phase phase, uint32_t layers) {
  return uint64_t{sequence} << 32 | uint64_t{static_cast<uint32_t>(phase)} << 24 | (layers & 0xff'ffff);
}
constexpr uint64_t PackReady(uint32_t sequence, uint32_t layers) { return uint64_t{sequence} << 32 | layers; }
inline constexpr uint64_t kLayersOfAll = 0xff'ffff;  // as many as a progress has room for

// Whether a word that only rises, round and round, has come to `value`: the comparison of the GPU's streams.
constexpr bool HasReached(uint64_t word, uint64_t value) { return static_cast<int64_t>(word - value) >= 0; }
// Raises it to `value`, if it isn't there yet. Bounded: it fails where somebody keeps changing the word, and only who owns it may.
inline void Raise(std::atomic<uint64_t>* word, uint64_t value) {
  uint64_t now = word->load(std::memory_order_relaxed);
  for (int i = 0; i < 64 && !HasReached(now, value); ++i) {
    if (word->compare_exchange_weak(now, value, std::memory_order_acq_rel, std::memory_order_relaxed)) return;
  }
}

constexpr uint32_t SequenceOf(uint64_t progress) { return static_cast<uint32_t>(progress >> 32); }
constexpr Phase PhaseOf(uint64_t progress) { return static_cast<Phase>((progress >> 24) & 0xff); }
constexpr uint32_t LayersOf(uint64_t progress) { return static_cast<uint32_t>(progress & 0xff'ffff); }

// How the daemon wants to be told of a new entry.
enum class Asleep : uint32_t {
  kNo = 0,          // not at all: it looks
  kOnWord = 1,      // it sleeps on Header.asleep: wake the word
  kOnDoorbell = 2,  // it doesn't look at this session any more: write its doorbell
};

struct Header {
  uint32_t magic;
  uint32_t version;
  uint8_t pad0[56];
  // Written by the connector: where the submitting thread ran. The daemon doesn't spin on a core that the client needs.
  std::atomic<uint32_t> client_cpu;
  uint8_t pad1[4];
  // Written by the connector: until when the engine needs its GPU's bus itself (monotonic); 0 from connectors that don't say.
  std::atomic<int64_t> bus_claimed_until_nanos;
  uint8_t pad2[48];
  // Written by the daemon (and asleep also by the connector, to kNo, when it wakes the daemon).
  std::atomic<uint64_t> head;    // entries consumed; their arena bytes are free
  std::atomic<uint32_t> asleep;  // an Asleep
  std::atomic<uint32_t> daemon_cpu;
  uint8_t pad3[3952];
};
static_assert(sizeof(Header) == 4096);

inline constexpr uint64_t kRingOffset = sizeof(Header);
inline constexpr uint64_t kBoardOffset = kRingOffset + kEntries * sizeof(Entry);
inline constexpr uint64_t kArenaOffset = kBoardOffset + kCells * sizeof(Cell);
inline constexpr Bytes kSessionBytes{kArenaOffset + kArenaBytes.value};
static_assert(kArenaOffset % 4096 == 0);
// The largest request: 4,096 chunks, a parent, and 4-byte ids of up to 128 pages a chunk.
inline constexpr uint32_t kPagesMax = kKeysMax * 128;
static_assert(kArenaBytes.value >= (kKeysMax + 1) * 32 + uint64_t{kPagesMax} * 4, "one request must fit the arena");

}  // namespace kvist::shm

#endif  // KVIST_STORAGE_BASE_SHM_LAYOUT_H_

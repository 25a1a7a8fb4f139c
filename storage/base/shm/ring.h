#ifndef KVIST_STORAGE_BASE_SHM_RING_H_
#define KVIST_STORAGE_BASE_SHM_RING_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <span>

#include "storage/base/shm/futex.h"
#include "storage/base/shm/session_memory.h"

namespace kvist::shm {

// The connector's end of the submission ring, with the arena's space.
//
// Lock-free between one producer and one consumer. Writers: the producer writes entries and arena; the consumer `head` and, with
//   the producer, `asleep`. Reclamation: an entry and its arena bytes are free when `head` has passed it. turn: release after the
//   entry and its arguments are written, so that a consumer that acquires it sees them; seq_cst for asleep. head: release after
//   they are copied, so that the producer overwrites them only then. asleep: see Submit and RingConsumer::Sleep: store-then-load on
//   both sides needs seq_cst, or both could miss the other. No fences, which
//     ThreadSanitizer doesn't see: a seq_cst store costs the one locked instruction that a fence would.
// Threads: one at a time (the connector's submission lock).
class RingProducer {
 public:
  // `doorbell`: the daemon's eventfd for this session; borrowed.
  RingProducer(const SessionMemory* memory, int doorbell) : memory_(*memory), doorbell_(doorbell) {}

  // Room for `size` contiguous bytes of arguments and one entry; nothing when ring or arena is full now. Sets entry->arena.
  // Fill it, then Submit the entry, before reserving again.
  std::optional<std::span<std::byte>> Reserve(uint64_t size, Entry* entry);
  // Publishes the entry, and wakes the daemon if it sleeps.
  void Submit(const Entry& entry);
  // Publishes an entry that has time: who sleeps sleeps on, until Wake or the next Submit.
  void Leave(const Entry& entry);
  // Wakes the daemon if it sleeps.
  void Wake();

 private:
  // No optional: its flag would be written as a byte and read as a word, a stall. Never a place: those are multiples of 64.
  static constexpr uint64_t kNowhere = UINT64_MAX;
  // Where arguments of `size` go now, as far as it is known what the daemon has consumed; kNowhere: no room.
  uint64_t Place(uint64_t size) const;
  // Learns what the daemon has consumed.
  void Reclaim();
  void Write(const Entry& entry);
  void Wake(uint32_t asleep);

  const SessionMemory& memory_;
  int doorbell_;
  uint64_t tail_ = 0;
  uint64_t head_seen_ = 0;
  uint64_t arena_begin_ = 0;  // [begin, end) is in use; positions count on over turns of the arena
  uint64_t arena_end_ = 0;
  std::deque<uint64_t> in_ring_;  // where the arguments end of each entry that is not yet known to be consumed
};

// The daemon's end. Trusts nothing: entries and arguments are copied before they are looked at. A client that overwrites entries which
// weren't consumed loses them; nothing it writes can make the daemon read elsewhere.
// Threads: one (the reactor).
class RingConsumer {
 public:
  explicit RingConsumer(const SessionMemory* memory) : memory_(*memory) {}

  // Copies the next entry out, if there is one. Its arguments stay until Consumed.
  bool Next(Entry* entry);
  // Frees the entry that Next gave, and its arguments.
  void Consumed();

  // The arguments at `position`, `size` bytes, if they lie within the arena; to be copied once.
  const std::byte* Arguments(uint64_t position, uint64_t size) const;

  // Announces that this side is going to sleep, and how it is to be woken. False: something has come meanwhile, don't sleep.
  bool Sleep(Asleep how);
  void Awake() { memory_.header()->asleep.store(static_cast<uint32_t>(Asleep::kNo), std::memory_order_relaxed); }
  // Wakes a consumer that sleeps on the session's word, as the producer would; from any thread of its own process. One that has left the session
  // to its doorbell meanwhile isn't waiting here, and must go on being rung.
  static void WakeFromWord(Header* header);
  // What to wait for after Sleep(kOnWord).
  FutexWord word() const { return {&memory_.header()->asleep, static_cast<uint32_t>(Asleep::kOnWord)}; }
  bool Empty() const;

 private:
  const SessionMemory& memory_;
  uint64_t head_ = 0;
};

}  // namespace kvist::shm

#endif  // KVIST_STORAGE_BASE_SHM_RING_H_

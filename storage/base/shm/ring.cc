#include "storage/base/shm/ring.h"

#include <unistd.h>

#include <atomic>
#include <cstring>

#include "storage/base/shm/futex.h"

namespace kvist::shm {
namespace {

// Arguments begin on cache lines.
constexpr uint64_t ArenaBytes(uint64_t size) { return (size + 63) & ~uint64_t{63}; }

std::atomic_ref<uint32_t> TurnOf(Entry* entry) { return std::atomic_ref<uint32_t>(entry->turn); }
constexpr uint32_t Turn(uint64_t position) { return static_cast<uint32_t>(position + 1); }

}  // namespace

void RingProducer::Reclaim() {
  const uint64_t head = memory_.header()->head.load(std::memory_order_acquire);
  if (head > tail_) return;  // the daemon's word makes no sense: nothing more is free
  for (; head_seen_ < head; ++head_seen_) {
    arena_begin_ = in_ring_.front();
    in_ring_.pop_front();
  }
}

// Fits into a core's second-level cache (1 MiB and more on servers).
constexpr uint64_t kNearBytes = MiB(1).value;

uint64_t RingProducer::Place(uint64_t size) const {
  if (tail_ - head_seen_ >= kEntries) return kNowhere;
  if (size > kArenaBytes.value) return kNowhere;
  const uint64_t end = arena_end_ % kArenaBytes.value;
  uint64_t at = arena_end_;
  // Arguments are contiguous: what doesn't fit at the end of the arena goes to its start. So does what is past the part that caches hold, or
  // finds the ring empty: the same lines are used again and again. But what lies behind those entries that aren't known to be consumed is
  // out of reach then until they are, so there must be nearly as much before them.
  const bool empty = tail_ == head_seen_;
  const uint64_t begin = arena_begin_ % kArenaBytes.value;
  const bool again = begin < end && end > kNearBytes && ArenaBytes(size) + kNearBytes / 4 * 3 <= begin;
  if (end != 0 && (empty || again || end + size > kArenaBytes.value)) at += kArenaBytes.value - end;
  const uint64_t in_use_from = empty ? at : arena_begin_;
  if (at + ArenaBytes(size) - in_use_from > kArenaBytes.value) return kNowhere;
  return at;
}

std::optional<std::span<std::byte>> RingProducer::Reserve(uint64_t size, Entry* entry) {
  uint64_t at = Place(size);
  if (at == kNowhere) {
    Reclaim();
    at = Place(size);
  }
  if (at == kNowhere) return std::nullopt;
  entry->arena = at;
  return std::span<std::byte>(memory_.arena() + at % kArenaBytes.value, size);
}

void RingProducer::Write(const Entry& entry) {
  const uint64_t size = uint64_t{entry.keys} * 32 + uint64_t{entry.pages} * 4;
  if (tail_ == head_seen_) arena_begin_ = entry.arena;
  arena_end_ = entry.arena + ArenaBytes(size);
  Entry* place = &memory_.ring()[tail_ % kEntries];
  // All but the turn: until it is written the daemon doesn't read the rest.
  constexpr size_t kBehind = offsetof(Entry, turn) + sizeof(Entry::turn);
  std::memcpy(place, &entry, offsetof(Entry, turn));
  std::memcpy(reinterpret_cast<std::byte*>(place) + kBehind, reinterpret_cast<const std::byte*>(&entry) + kBehind,
              sizeof entry - kBehind);
  // seq_cst, also the load: pairs with RingConsumer::Sleep. Either it sees this entry, or this sees that it sleeps.
  TurnOf(place).store(Turn(tail_++), std::memory_order_seq_cst);
}

void RingProducer::Leave(const Entry& entry) {
  Write(entry);
  in_ring_.push_back(arena_end_);
}

void RingProducer::Submit(const Entry& entry) {
  Write(entry);
  Header* header = memory_.header();
  const uint32_t asleep = header->asleep.load(std::memory_order_seq_cst);
  // What the daemon needs less urgently than the entry.
  in_ring_.push_back(arena_end_);
  if (const uint32_t cpu = CurrentCpu(); header->client_cpu.load(std::memory_order_relaxed) != cpu)
    header->client_cpu.store(cpu, std::memory_order_relaxed);
  Reclaim();  // here, not in Reserve: `head` is beside `asleep`, in a line that the daemon has just written
  Wake(asleep);
}

void RingProducer::Wake() { Wake(memory_.header()->asleep.load(std::memory_order_seq_cst)); }

void RingProducer::Wake(uint32_t asleep) {
  if (asleep == static_cast<uint32_t>(Asleep::kNo)) return;
  Header* header = memory_.header();
  switch (static_cast<Asleep>(header->asleep.exchange(static_cast<uint32_t>(Asleep::kNo), std::memory_order_relaxed))) {
    case Asleep::kNo: return;
    case Asleep::kOnWord: FutexWakeAll(&header->asleep); return;
    case Asleep::kOnDoorbell: break;
  }
  const uint64_t one = 1;
  // Can fail only when the counter is full (2^64 - 2 rings unread) or the daemon is gone; then there is nobody to wake.
  [[maybe_unused]] const ssize_t written = ::write(doorbell_, &one, sizeof one);
}

bool RingConsumer::Empty() const {
  // seq_cst for Sleep; an acquire would do for the others, and is the same instruction.
  return TurnOf(&memory_.ring()[head_ % kEntries]).load(std::memory_order_seq_cst) != Turn(head_);
}

bool RingConsumer::Next(Entry* entry) {
  if (Empty()) return false;
  std::memcpy(entry, &memory_.ring()[head_ % kEntries], sizeof *entry);
  std::atomic_signal_fence(std::memory_order_seq_cst);  // the caller checks its copy: the compiler must not look here again
  return true;
}

void RingConsumer::Consumed() { memory_.header()->head.store(++head_, std::memory_order_release); }

const std::byte* RingConsumer::Arguments(uint64_t position, uint64_t size) const {
  const uint64_t at = position % kArenaBytes.value;
  if (size > kArenaBytes.value - at) return nullptr;
  return memory_.arena() + at;
}

void RingConsumer::WakeFromWord(Header* header) {
  auto on_word = static_cast<uint32_t>(Asleep::kOnWord);
  header->asleep.compare_exchange_strong(on_word, static_cast<uint32_t>(Asleep::kNo), std::memory_order_seq_cst);
  FutexWakeAll(&header->asleep);
}

bool RingConsumer::Sleep(Asleep how) {
  memory_.header()->asleep.store(static_cast<uint32_t>(how), std::memory_order_seq_cst);
  return Empty();
}

}  // namespace kvist::shm

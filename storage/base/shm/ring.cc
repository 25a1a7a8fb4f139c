#include "storage/base/shm/ring.h"

#include <unistd.h>

#include <cstring>

#include "storage/base/shm/futex.h"

namespace kvist::shm {
namespace {

// Arguments begin on cache lines.
constexpr uint64_t ArenaBytes(uint64_t size) { return (size + 63) & ~uint64_t{63}; }

}  // namespace

std::optional<std::span<std::byte>> RingProducer::Reserve(uint64_t size, Entry* entry) {
  const uint64_t head = memory_.header()->head.load(std::memory_order_acquire);
  if (head > tail_) return std::nullopt;  // the daemon's word makes no sense: as good as full
  for (; head_seen_ < head; ++head_seen_) {
    arena_begin_ = in_ring_.front();
    in_ring_.pop_front();
  }
  if (tail_ - head_seen_ >= kEntries) return std::nullopt;
  if (size > kArenaBytes.value) return std::nullopt;
  if (tail_ == head_seen_) arena_begin_ = arena_end_ = 0;  // nothing is in use: begin anew
  uint64_t begin = arena_end_;
  const uint64_t in_turn = begin % kArenaBytes.value;
  if (in_turn + size > kArenaBytes.value) begin += kArenaBytes.value - in_turn;  // arguments are contiguous: skip the end
  if (begin + ArenaBytes(size) - arena_begin_ > kArenaBytes.value) return std::nullopt;
  entry->arena = begin;
  return std::span<std::byte>(memory_.arena() + begin % kArenaBytes.value, size);
}

void RingProducer::Submit(const Entry& entry) {
  Header* header = memory_.header();
  memory_.ring()[tail_ % kEntries] = entry;
  const uint64_t size = uint64_t{entry.keys} * 32 + uint64_t{entry.pages} * 4;
  arena_end_ = entry.arena + ArenaBytes(size);
  in_ring_.push_back(arena_end_);
  header->client_cpu.store(CurrentCpu(), std::memory_order_relaxed);
  header->tail.store(++tail_, std::memory_order_release);
  // Pairs with RingConsumer::Sleep: either it sees this entry, or this sees that it sleeps.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (header->asleep.load(std::memory_order_relaxed) == static_cast<uint32_t>(Asleep::kNo)) return;
  switch (static_cast<Asleep>(header->asleep.exchange(static_cast<uint32_t>(Asleep::kNo), std::memory_order_relaxed))) {
    case Asleep::kNo: return;
    case Asleep::kOnWord: FutexWakeAll(&header->asleep); return;
    case Asleep::kOnDoorbell: break;
  }
  const uint64_t one = 1;
  // Can fail only when the counter is full (2^64 - 2 rings unread) or the daemon is gone; then there is nobody to wake.
  [[maybe_unused]] const ssize_t written = ::write(doorbell_, &one, sizeof one);
}

RingConsumer::Result RingConsumer::Next(Entry* entry) {
  const uint64_t tail = memory_.header()->tail.load(std::memory_order_acquire);
  if (tail == head_) return Result::kEmpty;
  if (tail - head_ > kEntries) return Result::kBroken;
  std::memcpy(entry, &memory_.ring()[head_ % kEntries], sizeof *entry);
  return Result::kEntry;
}

void RingConsumer::Consumed() { memory_.header()->head.store(++head_, std::memory_order_release); }

const std::byte* RingConsumer::Arguments(uint64_t position, uint64_t size) const {
  const uint64_t at = position % kArenaBytes.value;
  if (size > kArenaBytes.value - at) return nullptr;
  return memory_.arena() + at;
}

bool RingConsumer::Sleep(Asleep how) {
  memory_.header()->asleep.store(static_cast<uint32_t>(how), std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return Empty();
}

}  // namespace kvist::shm

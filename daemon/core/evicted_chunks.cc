#include "daemon/core/evicted_chunks.h"

#include <algorithm>

namespace kvist::core {
namespace {

// Adds the entry as the newest. Returns the word of the one that was put first if the set was full, else 0.
uint32_t PutLast(std::array<EvictedChunks::Entry, EvictedChunks::kWays>& entries, EvictedChunks::Entry entry) {
  const auto free = std::ranges::find(entries, 0u, &EvictedChunks::Entry::word);
  if (free != entries.end()) {
    *free = entry;
    return 0;
  }
  const uint32_t gone = entries.front().word;
  std::rotate(entries.begin(), entries.begin() + 1, entries.end());
  entries.back() = entry;
  return gone;
}

}  // namespace

EvictedChunks::EvictedChunks() { segments_.push_back(std::make_unique<Set[]>(kSetsPerSegment)); }

uint32_t EvictedChunks::Put(uint32_t hash, uint32_t word) { return PutLast(Of(hash).entries, {hash, word}); }

uint32_t EvictedChunks::Take(uint32_t hash) {
  auto& entries = Of(hash).entries;
  for (auto entry = entries.begin(); entry != entries.end(); ++entry) {
    if (entry->word == 0) return 0;
    if (entry->hash != hash) continue;
    const uint32_t word = entry->word;
    *entry = {};
    std::rotate(entry, entry + 1, entries.end());
    return word;
  }
  return 0;
}

void EvictedChunks::Split() {
  if (sets_ % kSetsPerSegment == 0) segments_.push_back(std::make_unique<Set[]>(kSetsPerSegment));
  const Set whole = At(sets_ - round_);
  Set& low = At(sets_ - round_) = Set{};
  Set& high = At(sets_) = Set{};
  for (const Entry& entry : whole.entries) {
    if (entry.word != 0) PutLast((entry.hash & round_) != 0 ? high.entries : low.entries, entry);
  }
  if (++sets_ == 2 * round_) round_ *= 2;
}

std::array<uint32_t, EvictedChunks::kWays> EvictedChunks::Merge() {
  if (sets_-- == round_) round_ /= 2;
  std::array<uint32_t, kWays> gone{};
  // What was put first of the two is not known: those of the larger set go first, for it is the younger set.
  const Set low = At(sets_ - round_);
  Set& merged = At(sets_ - round_) = At(sets_);
  size_t n = 0;
  for (const Entry& entry : low.entries) {
    if (entry.word != 0) gone[n++] = PutLast(merged.entries, entry);
  }
  if (sets_ % kSetsPerSegment == 0) segments_.pop_back();
  return gone;
}

}  // namespace kvist::core

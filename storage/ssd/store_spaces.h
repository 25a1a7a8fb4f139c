#ifndef KVIST_STORAGE_SSD_STORE_SPACES_H_
#define KVIST_STORAGE_SSD_STORE_SPACES_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "storage/base/mutex.h"
#include "storage/ssd/catalog_rows.h"

namespace kvist::ssd {

// The spaces that a store has met, and the numbers that name them in its rows. None ever goes: what points to one stays right.
// Threads: any.
class StoreSpaces {
 public:
  // As the catalog has it.
  void Know(const SpaceRow& row) {
    const MutexLock lock(&mutex_);
    if (of_.contains(row.digest) || number_.contains(row.number)) return;
    Add(row);
  }
  // The number of that space; a new one when there is none yet, and then `*made` says so.
  uint32_t NumberOf(const SpaceDigest& digest, std::string description, bool* made) {
    const MutexLock lock(&mutex_);
    const auto it = of_.find(digest);
    *made = it == of_.end();
    if (!*made) return it->second->number;
    Add({next_, digest, std::move(description)});
    return of_.at(digest)->number;
  }
  std::optional<uint32_t> NumberOf(const SpaceDigest& digest) const {
    const MutexLock lock(&mutex_);
    const auto it = of_.find(digest);
    return it == of_.end() ? std::nullopt : std::optional(it->second->number);
  }
  // Null when no space has that number.
  const SpaceRow* Find(uint32_t number) const {
    const MutexLock lock(&mutex_);
    const auto it = number_.find(number);
    return it == number_.end() ? nullptr : it->second;
  }
  std::vector<SpaceRow> All() const {
    const MutexLock lock(&mutex_);
    return {rows_.begin(), rows_.end()};
  }

 private:
  void Add(SpaceRow row) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    next_ = std::max(next_, row.number + 1);
    const SpaceRow& kept = rows_.emplace_back(std::move(row));
    of_[kept.digest] = number_[kept.number] = &kept;
  }

  mutable Mutex mutex_;
  std::deque<SpaceRow> rows_ ABSL_GUARDED_BY(mutex_);  // don't move
  std::map<SpaceDigest, const SpaceRow*> of_ ABSL_GUARDED_BY(mutex_);
  std::map<uint32_t, const SpaceRow*> number_ ABSL_GUARDED_BY(mutex_);
  uint32_t next_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvist::ssd

#endif  // KVIST_STORAGE_SSD_STORE_SPACES_H_

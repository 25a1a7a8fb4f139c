#include "daemon/controller/readers.h"

#include <algorithm>
#include <vector>

#include "storage/base/check.h"

namespace kvist::controller {

Readers::Reader::Reader(Readers* readers) : readers_(*readers) {
  const MutexLock lock(&readers_.mutex_);
  place_ = readers_.places_.emplace(readers_.places_.end());
}

Readers::Reader::~Reader() {
  const MutexLock lock(&readers_.mutex_);
  readers_.places_.erase(place_);
}

Readers::~Readers() {
  Collect();
  const MutexLock lock(&mutex_);
  KVIST_CHECK(places_.empty() && retired_.empty());
}

void Readers::Retire(HolderTable table) {
  const MutexLock lock(&mutex_);
  retired_.push_back({Mark(), table});
}

uint64_t Readers::Oldest() {
  const MutexLock lock(&mutex_);
  // Who begins from here on finds this time or a later one; nothing is given up before it that isn't already.
  uint64_t oldest = time_.load(std::memory_order_seq_cst);
  for (const Reader::Place& place : places_) oldest = std::min(oldest, place.since.load(std::memory_order_seq_cst));
  return oldest;
}

uint64_t Readers::Collect() {
  std::vector<HolderTable> free;
  const uint64_t oldest = Oldest();  // it only rises
  {
    const MutexLock lock(&mutex_);
    while (!retired_.empty() && retired_.front().time < oldest) {
      free.push_back(retired_.front().table);
      retired_.pop_front();
    }
  }
  uint64_t bytes = 0;
  for (const HolderTable table : free) {
    bytes += table.memory_bytes();
    HolderTable::Free(table);
  }
  return bytes;
}

}  // namespace kvist::controller

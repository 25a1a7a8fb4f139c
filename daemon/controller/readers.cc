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
  retired_.push_back({time_.fetch_add(1, std::memory_order_seq_cst), table});
}

uint64_t Readers::Collect() {
  std::vector<HolderTable> free;
  {
    const MutexLock lock(&mutex_);
    uint64_t oldest = kNotReading;
    for (const Reader::Place& place : places_) oldest = std::min(oldest, place.since.load(std::memory_order_seq_cst));
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

#include "cuda/region_mapper.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <system_error>
#include <utility>
#include <variant>

#include "storage/base/clock.h"
#include "storage/base/units.h"

namespace kvist::cuda {
namespace {

constexpr Bytes kPiece = MiB(2);
constexpr size_t kPagesOfPiece = kPiece / kPageOfMemory;
constexpr size_t kPagesAtOnce = 64;  // the call holds the process's memory lock: 20 us
constexpr int kRest = 3;             // times what a piece took

// Of at most a piece. False: the kernel can't.
bool MapResident(std::byte* at, Bytes length) {
  std::array<unsigned char, kPagesOfPiece> resident{};
  if (::mincore(at, length.value, resident.data()) != 0) return false;
  const size_t pages = AlignUp(length, kPageOfMemory) / kPageOfMemory;
  for (size_t page = 0; page < pages;) {
    size_t end = page;
    while (end < pages && end - page < kPagesAtOnce && (resident[end] & 1) != 0) ++end;
    if (end == page) {
      ++page;
      continue;
    }
    // For reading, for which the kernel enters 16 pages at a fault; what is shared and writable is entered writable. Errors but EINVAL
    // are of memory that has gone, or can't be read now: copies will see.
    if (::madvise(at + page * kPageOfMemory.value, (end - page) * kPageOfMemory.value, MADV_POPULATE_READ) != 0 &&
        errno == EINVAL)
      return false;
    page = end;
  }
  return true;
}

}  // namespace

RegionMapper::RegionMapper() {
  try {
    thread_ = std::thread([this] { Run(); });
  } catch (const std::system_error&) {
    const absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
}

RegionMapper::~RegionMapper() {
  {
    const absl::MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.Signal();
  }
  if (thread_.joinable()) thread_.join();
}

void RegionMapper::Add(std::weak_ptr<const KvMemory> memory) {
  const absl::MutexLock lock(&mutex_);
  if (stopping_) return;
  waiting_.push_back(std::move(memory));
  changed_.Signal();
}

void RegionMapper::Run() {
  pthread_setname_np(pthread_self(), "kvist-map");
  while (true) {
    std::weak_ptr<const KvMemory> next;
    {
      const absl::MutexLock lock(&mutex_);
      while (waiting_.empty() && !stopping_) changed_.Wait(&mutex_);
      if (stopping_) return;
      next = std::move(waiting_.front());
      waiting_.pop_front();
    }
    Map(next);
  }
}

void RegionMapper::Map(const std::weak_ptr<const KvMemory>& memory) {
  size_t number = 0;
  Bytes at{};
  absl::Duration took;
  do {
    const std::shared_ptr<const KvMemory> held = memory.lock();  // for a piece: who ends doesn't wait for all
    if (held == nullptr || number == held->regions.size()) return;
    const EngineRegion& region = held->regions[number];
    const auto* const mapped = std::get_if<MappedRegion>(&region.way());
    const absl::Time began = MonotonicNow();
    if (mapped != nullptr && at < region.length()) {
      const Bytes piece = std::min(kPiece, region.length() - at);
      if (!MapResident(mapped->mapping.data() + at.value, piece)) return;
      at += piece;
    } else {
      ++number;
      at = Bytes{};
    }
    took = MonotonicNow() - began;
  } while (Rest(kRest * took));
}

bool RegionMapper::Rest(absl::Duration time) {
  const absl::Time until = MonotonicNow() + time;
  const absl::MutexLock lock(&mutex_);
  // Whoever adds memory wakes this, too.
  while (!stopping_) {
    const absl::Duration left = until - MonotonicNow();
    if (left <= absl::ZeroDuration()) return true;
    changed_.WaitWithTimeout(&mutex_, left);
  }
  return false;
}

}  // namespace kvist::cuda

#include "tests/bench/cold_cache.h"

#include <unistd.h>

#include <algorithm>

namespace kvist::bench {
namespace {

constexpr size_t kLeast = size_t{64} << 20, kMost = size_t{1} << 30;  // the least where the C library doesn't know the cache

}  // namespace

size_t ColdCache::LastCacheBytes() { return static_cast<size_t>(std::max(::sysconf(_SC_LEVEL3_CACHE_SIZE), 0L)); }

ColdCache::ColdCache() : memory_(std::clamp(LastCacheBytes() / 2 * 3, kLeast, kMost)) {}

void ColdCache::Walk() {
  for (std::byte& byte : memory_) byte ^= std::byte{1};  // not memset, which goes past the caches
}

}  // namespace kvist::bench

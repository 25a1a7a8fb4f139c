#include "tests/bench/cold_cache.h"

#include <unistd.h>

#include <algorithm>

namespace kvist::bench {
namespace {

constexpr size_t kLeast = size_t{64} << 20, kMost = size_t{1} << 30;  // the least where the C library doesn't know the cache

size_t WalkedBytes() {
  const long last = std::max(::sysconf(_SC_LEVEL3_CACHE_SIZE), 0L);
  return std::clamp(static_cast<size_t>(last) / 2 * 3, kLeast, kMost);
}

}  // namespace

ColdCache::ColdCache() : memory_(WalkedBytes()) {}

void ColdCache::Walk() {
  for (std::byte& byte : memory_) byte ^= std::byte{1};  // not memset, which goes past the caches
}

}  // namespace kvist::bench

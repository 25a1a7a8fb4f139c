#include "storage/base/shm/probe_pattern.h"

#include <algorithm>
#include <cstring>

#include "storage/base/check.h"

namespace kvist::shm {

void FillProbePattern(uint64_t nonce, LayerIndex layer, PageId page, std::span<std::byte> out, uint64_t from) {
  KVIST_CHECK(from % 8 == 0);
  uint64_t state = nonce ^ (uint64_t{layer.value} << 32 | page.value) * 0x9e3779b97f4a7c15;
  state += from / 8 * 0x9e3779b97f4a7c15;
  for (size_t at = 0; at < out.size(); at += 8) {
    uint64_t z = (state += 0x9e3779b97f4a7c15);  // splitmix64
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    z ^= z >> 31;
    std::memcpy(out.data() + at, &z, std::min<size_t>(8, out.size() - at));
  }
}

}  // namespace kvist::shm

#ifndef KVIST_TESTS_UNIT_CONTROLLER_TELLING_NODE_H_
#define KVIST_TESTS_UNIT_CONTROLLER_TELLING_NODE_H_

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "daemon/controller/feed.h"

namespace kvist::controller {

inline constexpr TierSet kDram = TierSet::Of(RestTier::kDram);
inline constexpr TierSet kSsd = TierSet::Of(RestTier::kSsd);

// The n-th key of the tests.
inline ChunkKey KeyOf(uint64_t n) {
  ChunkKey key;
  for (size_t at = 0; at < key.bytes.size(); at += sizeof n) {
    const uint64_t word = (n + at + 1) * 0x9e3779b97f4a7c15;
    std::memcpy(key.bytes.data() + at, &word, sizeof word);
  }
  return key;
}

inline SpaceDigest DigestOf(uint64_t n) {
  SpaceDigest digest;
  std::memcpy(digest.bytes.data(), &n, sizeof n);
  return digest;
}

inline SpaceIntroduced SpaceOf(uint64_t epoch, SpaceId id, uint64_t digest, std::vector<ReuseRule> groups) {
  return {epoch, id, DigestOf(digest), "tenant", "model", Tokens{256}, std::move(groups)};
}

// A chunk of a node as a plain map knows it: by (space, group, key).
using PlainChunks = std::map<std::tuple<uint32_t, uint16_t, ChunkKey>, uint8_t>;

inline void SetPlain(PlainChunks* chunks, const ChunkState& state) {
  const std::tuple name{state.space.value, state.group.value, state.key};
  if (state.tiers.none()) {
    chunks->erase(name);
  } else {
    (*chunks)[name] = state.tiers.bits;
  }
}

}  // namespace kvist::controller

#endif  // KVIST_TESTS_UNIT_CONTROLLER_TELLING_NODE_H_

#ifndef KVIST_DAEMON_CONTROLLER_TIER_SET_H_
#define KVIST_DAEMON_CONTROLLER_TIER_SET_H_

#include <cstdint>

namespace kvist::controller {

// Where a chunk rests on a node, the quickest first.
enum class RestTier : uint8_t { kDram, kSsd, kRemote };
inline constexpr uint32_t kRestTiers = 3;

// The tiers that a chunk is in on one node, as bits; none: it isn't there.
struct TierSet {
  static constexpr uint8_t kAll = (1u << kRestTiers) - 1;
  uint8_t bits = 0;

  static constexpr TierSet Of(RestTier tier) { return {static_cast<uint8_t>(1u << static_cast<uint8_t>(tier))}; }
  constexpr bool Has(RestTier tier) const { return (bits & Of(tier).bits) != 0; }
  constexpr bool none() const { return bits == 0; }
  constexpr bool valid() const { return bits <= kAll; }
  friend constexpr TierSet operator|(TierSet a, TierSet b) { return {static_cast<uint8_t>(a.bits | b.bits)}; }
  friend constexpr bool operator==(TierSet, TierSet) = default;
};

}  // namespace kvist::controller

#endif  // KVIST_DAEMON_CONTROLLER_TIER_SET_H_

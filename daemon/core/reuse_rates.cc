#include "daemon/core/reuse_rates.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace kvist::core {
namespace {

// What of all evidence is left after a round of Judge (about a quarter of a turnover of the cache).
constexpr double kKept = 0.97;
// A class is believed once all classes together would have had so many hits in its place. They come by whole chains of tens of chunks,
// so these are a few requests: with 8 the result varies by a point from one part of a trace to another, with 500 little is learnt.
constexpr double kHitsToBelieve = 100;
// The same for an age of all classes, beside the age before; where that knows nothing either, hits are rarer with age.
constexpr double kHitsToBelieveAge = 2;
constexpr double kFallPerAge = 0.8;

// Chunks stored while a chunk is at that age.
double Width(uint32_t age) {
  static const std::array<double, ReuseRates::kAges> kWidths = [] {
    std::array<double, ReuseRates::kAges> widths{};
    for (uint32_t a = 0; a < widths.size(); ++a) widths[a] = std::exp2((a + 1) / 2.0) - (a == 0 ? 0 : std::exp2(a / 2.0));
    return widths;
  }();
  return kWidths[age];
}

}  // namespace

uint32_t ReuseRates::AgeOf(uint64_t stored_since) {
  if (stored_since <= 1) return 0;
  const auto octave = static_cast<uint32_t>(std::bit_width(stored_since)) - 1;
  // The upper half of an octave begins at 2^(octave + 1/2); 46341 / 32768 is the root of 2.
  const bool upper = octave < 40 && stored_since * 32768 >= (uint64_t{46341} << octave);
  return std::min(2 * octave + (upper ? 1 : 0), kAges - 1);
}

void ReuseRates::JudgeAll(uint32_t first, uint32_t last) {
  double before = 0;
  for (uint32_t a = first; a <= last; ++a) {
    double hits = 0, waited = 0;
    for (const auto& c : classes_) {
      hits += c->hits[a];
      waited += c->waited[a];
    }
    if (before == 0) { before = waited > 0 && hits > 0 ? hits / waited : 1 / Width(a); }
    const double expected = kFallPerAge * before;
    before = rate_of_all_[a] = (hits + kHitsToBelieveAge) / (waited + kHitsToBelieveAge / expected);
  }
}

void ReuseRates::Judge(uint32_t of_class, uint32_t first, uint32_t last) {
  Class& c = *classes_[of_class];
  double hits = kHitsToBelieve / 2, expected = kHitsToBelieve / 2;
  for (uint32_t a = first; a <= last; ++a) {
    hits += c.hits[a];
    expected += c.waited[a] * rate_of_all_[a];
  }
  const double beside_all = hits / expected;
  // What happens to a chunk of age `a` until it is older: hit with probability `hit[a]`, after `kept[a]` more chunks were stored.
  std::array<double, kAges> hit, kept;
  for (uint32_t a = first; a <= last; ++a) {
    const double rate = (c.hits[a] + kHitsToBelieve) / (c.waited[a] + kHitsToBelieve / (rate_of_all_[a] * beside_all));
    hit[a] = -std::expm1(-rate * Width(a));
    kept[a] = hit[a] / rate;
    c.hits[a] *= kKept;
    c.waited[a] *= kKept;
  }
  for (uint32_t a = first; a <= last; ++a) {
    double waits = 1, hits_until = 0, kept_until = 0, best = 0;
    for (uint32_t until = a; until <= last && waits > 1e-3; ++until) {
      hits_until += waits * hit[until];
      kept_until += waits * kept[until];
      waits *= 1 - hit[until];
      best = std::max(best, hits_until / kept_until);
    }
    c.worth[a] = static_cast<float>(best);
  }
  for (uint32_t a = 0; a < first; ++a) c.worth[a] = c.worth[first];
  for (uint32_t a = last + 1; a < kAges; ++a) c.worth[a] = c.worth[last];
}

}  // namespace kvist::core

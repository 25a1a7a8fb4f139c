#include "storage/ssd/segments.h"

#include <catch2/catch.hpp>
#include <map>
#include <utility>
#include <vector>

#include "tests/sim/prng.h"
#include "tests/unit/ssd/records.h"

namespace kvist::ssd {
namespace {

const StoreId kOwner = DigestOf<StoreId>(1);
using State = Segments::State;

uint32_t Open(Segments* segments) {
  const auto header = segments->Prepare(kOwner, SecretOf(1));
  REQUIRE(header.has_value());
  segments->Ready(header->segment);
  return header->segment;
}

TEST_CASE("Segments appends without gaps and goes on in the next one when a record doesn't fit") {
  Segments segments({.device = 3, .segments = 3, .units = 10});
  CHECK_FALSE(segments.Append(1).has_value());  // none is ready
  const uint32_t first = Open(&segments);
  CHECK(first == 3);
  CHECK(segments.Append(3) == Place{3, 1});
  CHECK(segments.Append(4) == Place{3, 4});
  CHECK(segments.open_units() == 1);
  const auto next = segments.Prepare(kOwner, SecretOf(2));
  REQUIRE(next.has_value());
  CHECK(next->segment == 3 + kDevicesMax);
  CHECK(next->epoch == 2);
  CHECK_FALSE(segments.Append(2).has_value());  // doesn't fit, and the next one isn't ready
  CHECK(segments.state(first) == State::kClosing);
  segments.Ready(next->segment);
  CHECK(segments.Append(8) == Place{next->segment, 1});  // a whole segment
  CHECK(segments.live_units() == 15);
  segments.CheckInvariants();
}

TEST_CASE("Segments releases what is empty, and never what is fenced") {
  Segments segments({.device = 0, .segments = 1, .units = 4});
  Open(&segments);
  const Place place = *segments.Append(2);
  CHECK_FALSE(segments.Append(1).has_value());
  segments.Settled(place.segment);
  CHECK(segments.Candidates(5) == std::vector<uint32_t>{0});
  CHECK_FALSE(segments.Prepare(kOwner, SecretOf(1)).has_value());
  segments.Kill(place, 2);
  segments.Release(place.segment);
  CHECK(segments.free_segments() == 1);
  const auto again = segments.Prepare(kOwner, SecretOf(1));
  CHECK(again->epoch == 2);
  segments.Fence(again->segment);
  segments.Release(again->segment);
  CHECK(segments.state(again->segment) == State::kFenced);
  CHECK_FALSE(segments.Prepare(kOwner, SecretOf(1)).has_value());
  segments.CheckInvariants();
}

TEST_CASE("Segments goes on above the epochs that it finds, and doesn't use what is beyond its capacity") {
  Segments segments({.device = 1, .segments = 2, .units = 10});
  const auto found = [](uint32_t segment, uint64_t epoch) {
    return MakeSegmentHeader(kOwner, segment, 10, epoch, SecretOf(1));
  };
  segments.Restore(found(1, 41), 5);
  segments.Restore(found(1 + 5 * kDevicesMax, 17), 3);
  segments.CheckInvariants();
  CHECK(segments.live_units() == 8);
  CHECK(segments.header(1)->epoch == 41);
  CHECK(segments.header(1 + kDevicesMax) == nullptr);
  CHECK(segments.header(2) == nullptr);  // another device's
  CHECK(segments.Candidates(2) == std::vector<uint32_t>{1 + 5 * kDevicesMax, 1});
  segments.Kill({1 + 5 * kDevicesMax, 1}, 3);
  segments.Release(1 + 5 * kDevicesMax);
  CHECK(segments.Prepare(kOwner, SecretOf(1))->epoch == 42);
  CHECK(segments.free_segments() == 0);
  segments.CheckInvariants();
}

TEST_CASE("Segments agrees with a list of records through any sequence of operations") {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    INFO("seed " << seed);
    sim::Prng prng(seed);
    Segments segments({.device = 2, .segments = prng.Between(1, 6), .units = prng.Between(4, 40)});
    std::vector<std::pair<Place, uint32_t>> live;
    std::map<uint32_t, uint64_t> epochs;
    for (int step = 0; step < 400; ++step) {
      switch (prng.Below(6)) {
        case 0:
          if (!segments.has_prepared()) {
            if (const auto header = segments.Prepare(kOwner, SecretOf(1))) {
              REQUIRE(header->epoch > epochs[header->segment]);
              epochs[header->segment] = header->epoch;
              switch (prng.Below(4)) {
                case 0: segments.Refuse(header->segment); break;
                case 1:
                  if (prng.Percent(5))
                    segments.Fence(header->segment);
                  else
                    segments.Ready(header->segment);
                  break;
                default: segments.Ready(header->segment);
              }
              if (segments.state(header->segment) == State::kPrepared && segments.header(header->segment) == nullptr) FAIL();
            }
          }
          break;
        case 1:
        case 2: {
          const uint32_t units = prng.Between(1, segments.units_max());
          if (const auto place = segments.Append(units)) {
            for (const auto& [other, length] : live) {
              if (other.segment != place->segment) continue;
              REQUIRE((place->unit >= other.unit + length || place->unit + units <= other.unit));
            }
            REQUIRE(place->unit >= 1);
            REQUIRE(place->unit + units < segments.options().units);
            live.push_back({*place, units});
          }
          break;
        }
        case 3:
          if (!live.empty()) {
            const uint32_t at = prng.Below(live.size());
            segments.Kill(live[at].first, live[at].second);
            live.erase(live.begin() + at);
          }
          break;
        default:
          for (uint32_t i = 0; i < segments.options().segments; ++i) {
            const uint32_t segment = i * kDevicesMax + 2;
            if (segments.state(segment) == State::kClosing) segments.Settled(segment);
            if (segments.state(segment) == State::kFull && segments.live_units(segment) == 0) segments.Release(segment);
          }
      }
      uint64_t units = 0;
      for (const auto& [place, length] : live) units += length;
      REQUIRE(units == segments.live_units());
      segments.CheckInvariants();
    }
  }
}

}  // namespace
}  // namespace kvist::ssd

// What is pinned and lies on disk only.
#include <catch2/catch.hpp>
#include <optional>
#include <vector>

#include "tests/unit/core/three_tiers.h"

namespace kvist::core {

TEST_CASE("What is pinned is written again when its room on disk is wanted, however long nobody has used it") {
  CoreFixture::Options options = ThreeTiersOptions();
  options.core.disk->capacity = KiB(48);  // twelve chunks: each written is a period
  ThreeTiers node(options);
  const auto keys = KeysOf({1, 2, 3});
  const auto others = KeysOf({11, 12});
  for (const auto& prompt : {keys, others}) {
    node.Keep(prompt);
    node.Flush();
    REQUIRE(node.Move(Tier::kDram, Tier::kSsd, prompt).chunks == prompt.size());
  }
  uint64_t n = 100;
  const auto age = [&] {
    for (int period = 0; period < 8; ++period) {
      node.Keep({KeyOf(++n)});
      node.Flush();
      node.Move(Tier::kDram, Tier::kSsd, {KeyOf(n)});
    }
  };
  const bool before = GENERATE(false, true);  // it is pinned before they get old, or after
  const auto pin = [&] { node.Do(OperatorPinAsked{SpaceId{0}, RequestTag{1}, "ann", keys}); };
  if (before) pin();
  age();
  if (!before) pin();
  node.Reclaim(others);
  CHECK(node.Hits(others) == 0);
  for (int turnover = 0; turnover < 3; ++turnover) {
    const auto was = node.places;
    node.Reclaim(keys);
    CHECK(node.Hits(keys) == 3);
    for (const ChunkKey& key : keys) CHECK(node.places.at(key) != was.at(key));
    node.Move(Tier::kDram, Tier::kSsd, keys);
    age();
  }
  node.Do(PinRemoved{SpaceId{0}, PinName{"ann", keys.back(), 3, true}});
  node.Rest();
  node.Move(Tier::kDram, Tier::kSsd, keys);
  age();
  node.Reclaim(keys);
  CHECK(node.Hits(keys) == 0);
}

}  // namespace kvist::core

// What is pinned and lies on disk only; and pins and hints that a disk keeps beyond the daemon.
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <utility>
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

namespace {

using Said = std::pair<uint64_t, uint64_t>;  // count, chunks

std::map<PinName, Said> PinsOf(const ThreeTiers& node) {
  std::map<PinName, Said> pins;
  for (const PinRow& row : node.f.core->pins()) pins[row.name] = {row.count, row.chunks};
  return pins;
}
std::map<PinName, Said> NotesOf(const ThreeTiers& node) {
  std::map<PinName, Said> pins;
  for (const auto& [name, note] : node.noted) pins[name] = {note.count, note.keys.size()};
  return pins;
}

// An engine and an operator that pin, unpin, clear and wait; and the daemon is killed, now and then.
class PinsWorld {
 public:
  explicit PinsWorld(uint32_t seed) : random_(seed), node_(Options()) {}

  void Step() {
    switch (Below(12)) {
      case 0:
      case 1: node_.Keep(Path()); break;
      case 2: node_.Flush(); break;
      case 9: node_.Do(Tick{node_.f.now += absl::Seconds(Below(4))}); break;
      case 10:
        if (Below(4) == 0) Clear();
        break;
      case 11:
        if (Below(3) == 0) Restart();
        break;
      default: Wish(); break;
    }
    if (Below(3) != 0) node_.Rest();
    if (!node_.f.core->has_work()) REQUIRE(NotesOf(node_) == PinsOf(node_));
  }

  int restarts = 0, found = 0, shorter = 0, lost = 0, known = 0, over = 0;

 private:
  static CoreFixture::Options Options() {
    CoreFixture::Options options;
    options.core.disk = CoreOptions::Disk{.reserve = Bytes{}};
    options.core.remote = CoreOptions::Remote{};
    options.core.slice_work = 3;
    options.core.pin_share = 1;
    options.slabs = 4;
    return options;
  }
  uint32_t Below(uint32_t n) { return static_cast<uint32_t>(random_() % n); }
  std::vector<ChunkKey> Path() {
    std::vector<ChunkKey> keys;
    const uint32_t length = 1 + Below(4);
    for (uint64_t n = 0; keys.size() < length; n = 2 * n + 1 + Below(2)) keys.push_back(KeyOf(n));
    return keys;
  }
  // Pins, and ends of pins.
  void Wish() {
    const std::vector<ChunkKey> keys = Path();
    switch (Below(6)) {
      case 0:
      case 1: return node_.Do(PinAsked{node_.worker, RequestTag{++tags_}, keys});
      case 2: return node_.Do(UnpinAsked{node_.worker, RequestTag{++tags_}, keys});
      case 3: return Remove();
      default: {
        const absl::Duration lasts = Below(2) == 0 ? absl::InfiniteDuration() : absl::Seconds(1 + Below(9));
        return node_.Do(OperatorPinAsked{SpaceId{0}, RequestTag{++tags_}, "ann", keys, lasts});
      }
    }
  }
  void Remove() {
    const auto pins = PinsOf(node_);
    if (pins.empty()) return;
    const PinName name = std::next(pins.begin(), Below(static_cast<uint32_t>(pins.size())))->first;
    node_.Do(PinRemoved{SpaceId{0}, name});
  }
  void Clear() {
    const JobId job{++jobs_};
    if (Below(2) == 0) return node_.Do(ClearAsked{job, SpaceId{0}});
    const std::vector<ChunkKey> keys = Path();
    node_.Do(PromptClearAsked{job, SpaceId{0}, keys});
  }
  void Restart() {
    node_.Rest();  // what is cleared is durable
    ++restarts;
    std::map<PinName, Said> expected;
    for (const auto& [name, note] : node_.noted) {
      const auto end =
          std::find_if(note.keys.begin(), note.keys.end(), [&](const auto& k) { return !node_.rows.contains(k); });
      if (node_.ends.at(name) > node_.f.now && end != note.keys.begin())
        expected[name] = {note.count, end - note.keys.begin()};
      shorter += end != note.keys.begin() && end != note.keys.end();
      lost += end == note.keys.begin();
    }
    // What happens before it is told of them counts.
    const auto early = [&] {
      for (uint32_t wishes = Below(4); wishes > 0; --wishes) {
        const auto before = NotesOf(node_);
        const auto pinned = PinsOf(node_);
        Wish();
        const auto now = PinsOf(node_);
        for (const auto& [name, said] : before) {
          if (NotesOf(node_).contains(name)) continue;
          expected.erase(name);  // ended, known or not
          ++over;
        }
        for (const auto& [name, said] : now) {
          known += expected.contains(name);
          expected[name] = said;
        }
        for (const auto& [name, said] : pinned) {
          if (!now.contains(name)) expected.erase(name);
        }
      }
    };
    node_.Restart(Options(), early);
    found += static_cast<int>(expected.size());
    REQUIRE(PinsOf(node_) == expected);
    REQUIRE(NotesOf(node_) == expected);
  }

  std::mt19937 random_;
  ThreeTiers node_;
  uint64_t tags_ = 0, jobs_ = 1000;
};

}  // namespace

TEST_CASE(
    "Pins outlive the daemon as they were noted: with their count and time, on what of them is still there, and none that "
    "has ended") {
  int restarts = 0, found = 0, shorter = 0, lost = 0, known = 0, over = 0;
  for (uint32_t seed = 0; seed < 60; ++seed) {
    INFO(seed);
    PinsWorld world(seed);
    for (int step = 0; step < 300; ++step) world.Step();
    restarts += world.restarts;
    found += world.found;
    shorter += world.shorter;
    lost += world.lost;
    known += world.known;
    over += world.over;
  }
  CHECK(restarts > 100);
  CHECK(found > 100);
  CHECK(shorter > 10);
  CHECK(lost > 10);
  CHECK(known > 10);
  CHECK(over > 10);
}

TEST_CASE("A pin of an earlier daemon ends with a clear before it is told of, but for one of a tier alone") {
  ThreeTiers node;
  const auto keys = KeysOf({1, 2});
  node.Keep(keys);
  node.Flush();
  node.Do(OperatorPinAsked{SpaceId{0}, RequestTag{1}, "ann", keys});
  const int how = GENERATE(0, 1, 2);
  node.Restart(ThreeTiersOptions(), [&] {
    if (how == 0) node.Do(ClearAsked{JobId{1}, SpaceId{0}});
    if (how == 1) node.Do(PromptClearAsked{JobId{1}, SpaceId{0}, keys});
    if (how == 2) node.Do(TierClearAsked{.job = JobId{1}, .tier = Tier::kRemote, .space = SpaceId{0}, .keys = {}});
  });
  CHECK(node.f.core->pins().size() == (how == 2 ? 1 : 0));
  CHECK(node.pins_lost.empty());
  CHECK(node.noted.size() == (how == 2 ? 1 : 0));
}

TEST_CASE("What of a pin can't be read just now stays noted for a later daemon") {
  ThreeTiers node;
  const auto keys = KeysOf({1, 2, 3});
  node.Keep(keys);
  node.Flush();
  node.Do(OperatorPinAsked{SpaceId{0}, RequestTag{1}, "ann", keys});
  const auto rows = node.rows;
  const size_t there = GENERATE(0, 2);
  node.rows = {keys.begin(), keys.begin() + static_cast<ptrdiff_t>(there)};
  node.Restart(
      ThreeTiersOptions(), [] {}, /*rows_left=*/true);
  CHECK(PinsOf(node).size() == (there > 0 ? 1 : 0));
  node.rows = rows;
  node.Restart(ThreeTiersOptions());
  REQUIRE(node.f.core->pins().size() == 1);
  CHECK(node.f.core->pins()[0].chunks == 3);
}

TEST_CASE("A pin of an earlier daemon that has no room any more, or nothing left, is said to be lost, and is noted so") {
  CoreFixture::Options options = ThreeTiersOptions();
  options.core.pin_share = 1;
  ThreeTiers node(options);
  const auto keys = KeysOf({1, 2, 3});
  node.Keep(keys);
  node.Do(OperatorPinAsked{SpaceId{0}, RequestTag{1}, "ann", keys});
  REQUIRE(node.noted.size() == 1);
  const bool room = GENERATE(false, true);
  if (!room) {
    node.Flush();
    options.core.pin_share = 0.05;
  }
  node.Restart(options);
  CHECK(node.f.core->pins().empty());
  CHECK(node.noted.empty());
  REQUIRE(node.pins_lost.size() == 1);
  CHECK(node.pins_lost[0].pin.owner == "ann");
  CHECK(node.pins_lost[0].why.code() == (room ? absl::StatusCode::kNotFound : absl::StatusCode::kResourceExhausted));
}

TEST_CASE("What an engine has said of a chunk is known of it after a restart") {
  for (const bool session_ended : {false, true}) {
    for (uint8_t reuse = 0; reuse <= 3; ++reuse) {
      for (uint8_t reason = 0; reason <= kStopReasonMax; ++reason) {
        const Hint hint{session_ended, static_cast<ExpectedReuse>(reuse), static_cast<StopReason>(reason)};
        CHECK(UnpackHint(Pack(hint)) == hint);
      }
    }
  }
  CHECK(UnpackHint(7 << 3).stop_reason == StopReason::kUnknown);

  ThreeTiers node;
  node.Keep(KeysOf({1, 2}));
  const Hint hint{false, ExpectedReuse::kLater, StopReason::kToolCall};
  node.Do(HintAsked{node.worker, KeysOf({2}), hint});
  node.Flush();
  CHECK(node.catalog.at(KeyOf(1)).hint == Hint{});
  CHECK(node.catalog.at(KeyOf(2)).hint == hint);
  // It is written elsewhere with what is known of it, without having been said again.
  node.Restart(ThreeTiersOptions());
  node.catalog.clear();
  node.Do(OperatorPinAsked{SpaceId{0}, RequestTag{1}, "ann", KeysOf({1, 2})});  // else nobody wants it
  node.Reclaim(KeysOf({2}));
  REQUIRE(node.catalog.contains(KeyOf(2)));
  CHECK(node.catalog.at(KeyOf(2)).hint == hint);
}

}  // namespace kvist::core

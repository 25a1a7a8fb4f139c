#include "storage/ssd/pin_rows.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace kvist::ssd {
namespace {

using Rows = std::map<std::string, std::string>;  // keys and values

// A catalog that commits when the test says so.
struct PinRowsWorld {
  struct Sent {
    CatalogBatch batch;
    PinRows::Done then;
  };
  std::deque<Sent> sent;
  size_t batches = 0, most_at_once = 0;
  Rows rows;
  PinRows pins{[this](CatalogBatch batch, PinRows::Done then) {
    sent.push_back({std::move(batch), std::move(then)});
    most_at_once = std::max(most_at_once, sent.size());
  }};

  void Commit(const absl::Status& status = absl::OkStatus()) {
    const Sent one = std::move(sent.front());
    sent.pop_front();
    ++batches;
    for (const CatalogBatch::Change& change : one.batch.list()) {
      if (!status.ok()) continue;
      if (change.erase) {
        rows.erase(std::string(change.row.key()));
      } else {
        rows[std::string(change.row.key())] = std::string(change.row.value());
      }
    }
    one.then(status);
  }
  void CommitAll() {
    while (!sent.empty()) Commit();
  }
  // Where the answer will be.
  std::shared_ptr<std::optional<absl::Status>> Settle() {
    auto heard = std::make_shared<std::optional<absl::Status>>();
    pins.Settle([heard](const absl::Status& status) { *heard = status; });
    return heard;
  }
};

PinChange Noted(const std::string& name, const std::string& words) {
  return {{.space = 1, .name = name, .description = words}};
}
PinChange Ended(const std::string& name) { return {{.space = 1, .name = name, .description = {}}, /*ended=*/true}; }
std::string ValueOf(const PinChange& change) { return std::string(Encode(change.row).value()); }

TEST_CASE("Of a pin that changes faster than it is committed only the last is") {
  PinRowsWorld world;
  world.pins.Note({Noted("a", "first")});
  for (int i = 1; i <= 100; ++i) world.pins.Note({Noted("a", std::to_string(i)), i % 2 == 0 ? Ended("b") : Noted("b", "x")});
  const auto settled = world.Settle();
  world.Commit();
  CHECK_FALSE(settled->has_value());
  world.Commit();
  CHECK(*settled == absl::OkStatus());
  CHECK(world.sent.empty());
  CHECK(world.batches == 2);
  CHECK(world.rows == Rows{{PinKey(1, "a"), ValueOf(Noted("a", "100"))}});
  CHECK(*world.Settle() == absl::OkStatus());  // at once: nothing waits
}

TEST_CASE("Very many pins go in several batches, one at a time; who settles hears when all are there, or why not, once") {
  PinRowsWorld world;
  std::vector<PinChange> changes;
  for (int i = 0; i < 100; ++i) changes.push_back(Noted(std::to_string(i), std::string(100'000, 'x')));
  world.pins.Note(changes);
  const auto settled = world.Settle();
  const int fails = GENERATE(-1, 0, 3);  // which batch
  for (int i = 0; !world.sent.empty(); ++i) {
    REQUIRE_FALSE(settled->has_value());
    world.Commit(i == fails ? absl::UnavailableError("the disk fails") : absl::OkStatus());
  }
  REQUIRE(settled->has_value());
  CHECK((*settled)->ok() == (fails < 0));
  CHECK(world.batches >= 9);
  CHECK(world.most_at_once == 1);
  if (fails < 0) CHECK(world.rows.size() == 100);
  world.pins.Note({Noted("a", "b")});
  const auto again = world.Settle();
  world.Commit();
  CHECK(*again == absl::OkStatus());
}

TEST_CASE("What failed while nobody listened is heard by who settles next, beside what went well since") {
  PinRowsWorld world;
  world.pins.Note({Noted("a", "1")});
  world.Commit(absl::UnavailableError("the disk fails"));
  world.pins.Note({Noted("b", "1")});
  world.Commit();
  CHECK(absl::IsUnavailable(world.Settle()->value()));
  CHECK(*world.Settle() == absl::OkStatus());
}

TEST_CASE(
    "While a disk takes nothing changes of pins cost memory for each name once; where that is too much only ends have "
    "room") {
  PinRowsWorld world;
  const std::string words(1 << 20, 'x');
  for (int i = 0; i < 1000; ++i) world.pins.Note({Noted("same", words)});
  for (int i = 0; i < 200; ++i) world.pins.Note({Noted(std::to_string(i), words)});
  world.pins.Note({Ended("7"), Noted("8", "less")});
  const auto settled = world.Settle();
  world.CommitAll();
  CHECK(absl::IsResourceExhausted(settled->value()));
  CHECK(world.rows.size() > 60);
  CHECK(world.rows.size() <= 65);
  CHECK_FALSE(world.rows.contains(PinKey(1, "7")));
  CHECK(world.rows[PinKey(1, "8")] == ValueOf(Noted("8", "less")));
  // And all of it is to be had again.
  for (int i = 0; i < 60; ++i) world.pins.Note({Noted(std::to_string(i), words)});
  const auto again = world.Settle();
  world.CommitAll();
  CHECK(*again == absl::OkStatus());
}

TEST_CASE("What of pins is committed in the end is what was said last") {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    std::mt19937 random(seed);
    PinRowsWorld world;
    Rows model;
    for (int step = 0; step < 500; ++step) {
      if (random() % 4 == 0 && !world.sent.empty()) world.Commit();
      const std::string name = std::to_string(random() % 20);
      const PinChange change = random() % 3 == 0 ? Ended(name) : Noted(name, std::to_string(step));
      if (change.ended) {
        model.erase(PinKey(1, name));
      } else {
        model[PinKey(1, name)] = ValueOf(change);
      }
      world.pins.Note({change});
    }
    world.CommitAll();
    REQUIRE(world.rows == model);
  }
}

}  // namespace
}  // namespace kvist::ssd

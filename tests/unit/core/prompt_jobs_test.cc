#include "daemon/core/prompt_jobs.h"

#include <catch2/catch.hpp>
#include <vector>

#include "tests/unit/core/core_fixture.h"

namespace kvist::core {
namespace {

const SpaceSpec kModel = SpaceNamed("model", {KiB(4)});

// Ticks until the core has nothing left to do; the job that ended then.
std::optional<JobEnded> LastEnded(CoreFixture& f) {
  std::optional<JobEnded> last;
  while (f.core->has_work()) {
    for (const Effect& effect : f.PassTime(absl::ZeroDuration())) {
      if (const auto* ended = std::get_if<JobEnded>(&effect)) last = *ended;
    }
  }
  return last;
}

TEST_CASE("A prompt that is cleared is no hit at once, goes in slices with what hangs on it, and can be stored again") {
  CoreFixture::Options options;
  options.core.slice_work = GENERATE(1, 4, 512);
  CoreFixture f(options);
  const SessionId worker = f.Worker("engine", kModel), other = f.Worker("other", SpaceNamed("other", {KiB(4)}));
  REQUIRE(f.Keep(worker, KeysOf({1, 2, 3, 4, 5})) == 5);
  REQUIRE(f.Keep(worker, KeysOf({9})) == 1);
  REQUIRE(f.Keep(other, KeysOf({1})) == 1);
  const auto keys = KeysOf({1, 2, 3});
  REQUIRE(f.Do(PromptClearAsked{JobId{1}, SpaceId{0}, keys, "name"}).empty());
  CHECK(f.Lookup(worker, KeysOf({1, 2, 3, 4, 5})).chunks == 0);
  CHECK(f.slots->live_slots() == 7);
  REQUIRE(f.Keep(worker, KeysOf({1})) == 1);
  const auto ended = LastEnded(f);
  REQUIRE(ended.has_value());
  CHECK(ended->how == JobState::kDone);
  CHECK(ended->chunks == 5);
  CHECK(f.core->jobs().OfRequest("name", kModel.digest)->id == JobId{1});
  CHECK(f.slots->live_slots() == 3);
  CHECK(f.Lookup(worker, KeysOf({1, 2})).chunks == 1);
  CHECK(f.Lookup(worker, KeysOf({9})).chunks == 1);
  CHECK(f.Lookup(other, KeysOf({1})).chunks == 1);
}

TEST_CASE("A lease loads what a prompt's clear has hidden, and pins of it end") {
  CoreFixture f;
  const SessionId worker = f.Worker("engine", kModel);
  const auto keys = KeysOf({1, 2, 3});
  REQUIRE(f.Keep(worker, keys) == 3);
  const LeaseId lease = f.Lookup(worker, keys, absl::Seconds(10)).lease;
  f.Do(OperatorPinAsked{SpaceId{0}, RequestTag{1}, "operator", keys});
  REQUIRE(f.core->pins().size() == 1);
  f.Do(PromptClearAsked{JobId{1}, SpaceId{0}, keys});
  REQUIRE(LastEnded(f).has_value());
  CHECK(f.core->pins().empty());
  CHECK(f.slots->live_slots() == 3);
  const auto load = f.Load(worker, lease, 0, 3);
  REQUIRE(load.has_value());
  f.Do(ReleaseAsked{worker, lease});
  f.Finish(load->op);
  CHECK(f.slots->live_slots() == 0);
}

TEST_CASE("A job on a prompt that is cancelled ends at once, and lets go what it has kept") {
  CoreFixture::Options options;
  options.core.slice_work = 1;
  CoreFixture f(options);
  const SessionId worker = f.Worker("engine", kModel);
  const auto keys = KeysOf({1, 2, 3});
  REQUIRE(f.Keep(worker, keys) == 3);
  f.Do(MoveAsked{.job = JobId{1}, .kind = JobKind::kPrefetch, .space = SpaceId{0}, .keys = keys, .keep_source = true});
  f.PassTime(absl::ZeroDuration());
  const Effects effects = f.Do(JobCancelAsked{JobId{1}});
  REQUIRE(effects.size() == 1);
  CHECK(std::get<JobEnded>(effects[0]).how == JobState::kCancelled);
  CHECK_FALSE(LastEnded(f).has_value());
  f.Do(MoveAsked{.job = JobId{2}, .kind = JobKind::kPrefetch, .space = SpaceId{0}, .keys = keys, .keep_source = true});
  REQUIRE(LastEnded(f).has_value());
  CHECK(f.core->jobs().Find(JobId{2})->already == 3);
  for (uint64_t n = 100; n < 150; ++n) REQUIRE(f.Keep(worker, {KeyOf(n)}) == 1);  // nothing is kept any more
}

}  // namespace
}  // namespace kvist::core

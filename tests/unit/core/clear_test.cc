#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tests/unit/core/core_fixture.h"

namespace kvist::core {
namespace {

TEST_CASE("Core makes everything invisible at once when a clear comes, and frees it in slices") {
  CoreFixture::Options options;
  options.core.slice_work = 8;
  CoreFixture f(options);
  const SessionId worker = f.Worker("engine", SpaceNamed("space", {KiB(4)})),
                  other = f.Worker("other", SpaceNamed("other", {KiB(4)}));
  f.Keep(worker, KeysOf({1, 2, 3, 4, 5, 6, 7, 8, 9}));
  f.Keep(other, KeysOf({1, 2}));
  REQUIRE(f.Do(ClearAsked{JobId{7}, SpaceId{0}}).empty());
  REQUIRE(f.Lookup(worker, KeysOf({1, 2})).chunks == 0);
  REQUIRE(f.slots->live_slots() == 11);
  Effects effects;
  uint32_t ticks = 0;
  for (; f.core->has_work(); ++ticks) effects = f.PassTime(absl::ZeroDuration());
  REQUIRE(ticks >= 3);
  REQUIRE(std::get<JobEnded>(effects.at(0)).job == JobId{7});
  REQUIRE(std::get<JobEnded>(effects.at(0)).chunks == 9);
  REQUIRE(f.slots->live_slots() == 2);
  REQUIRE(f.Lookup(other, KeysOf({1, 2})).chunks == 2);
}

TEST_CASE("Core stores anew what a running clear hasn't come to, and keeps that") {
  CoreFixture f;
  const SessionId worker = f.Worker("engine", SpaceNamed("space", {KiB(4)}));
  f.Keep(worker, KeysOf({1, 2, 3}));
  f.Do(ClearAsked{JobId{1}});
  REQUIRE_FALSE(f.Store(worker, KeysOf({3}), KeyOf(2)).has_value());  // its parent is gone
  REQUIRE(f.Keep(worker, KeysOf({1, 2})) == 2);
  REQUIRE(f.Lookup(worker, KeysOf({1, 2, 3})).chunks == 2);
  while (f.core->has_work()) f.PassTime(absl::ZeroDuration());
  REQUIRE(f.Lookup(worker, KeysOf({1, 2, 3})).chunks == 2);
  REQUIRE(f.slots->live_slots() == 2);
}

TEST_CASE("Core lets a lease that a clear has overtaken load, and frees its chunks when it ends") {
  CoreFixture f;
  const SessionId worker = f.Worker("engine", SpaceNamed("space", {KiB(4)}));
  f.Keep(worker, KeysOf({1, 2, 3}));
  const LeaseId lease = f.Lookup(worker, KeysOf({1, 2}), absl::Seconds(1)).lease;
  f.Do(ClearAsked{JobId{1}});
  f.PassTime(absl::ZeroDuration());
  REQUIRE(f.slots->live_slots() == 2);
  const CopyStarted load = *f.Load(worker, lease, 0, 2);
  f.Do(ReleaseAsked{worker, lease});
  REQUIRE(f.Keep(worker, KeysOf({1})) == 1);  // the same key again, beside the old bytes
  REQUIRE(f.slots->live_slots() == 3);
  f.Finish(load.op);
  REQUIRE(f.slots->live_slots() == 1);
  REQUIRE(f.Lookup(worker, KeysOf({1})).chunks == 1);
}

TEST_CASE("Core never shows what was being stored when a clear came") {
  CoreFixture f;
  const SpaceSpec space = SpaceNamed("space", {KiB(4), KiB(4)});
  const SessionId zero = f.Worker("engine", space, 0), one = f.Worker("engine", space, 1);
  const CopyStarted before = *f.Store(zero, KeysOf({1}));
  f.Do(ClearAsked{JobId{1}});
  SECTION("the clear comes to it first") { f.PassTime(absl::ZeroDuration()); }
  SECTION("the other rank comes to it first") {}
  const CopyStarted after = *f.Store(one, KeysOf({1}));
  f.Finish(before.op);
  f.Finish(after.op);
  REQUIRE(f.Lookup(zero, KeysOf({1})).chunks == 0);
  f.Finish(f.Store(zero, KeysOf({1})).value().op);
  REQUIRE(f.Lookup(zero, KeysOf({1})).chunks == 1);
  while (f.core->has_work()) f.PassTime(absl::ZeroDuration());
  REQUIRE(f.slots->live_slots() == 2);
}

TEST_CASE("Core ends a clear of a space that it has not met at once") {
  CoreFixture f;
  const Effects effects = f.Do(ClearAsked{JobId{3}, SpaceId{9}});
  REQUIRE(std::get<JobEnded>(effects.at(0)).chunks == 0);
  REQUIRE_FALSE(f.core->has_work());
}

TEST_CASE("Core stops a cancelled clear where it is: what it hasn't freed is no hit, and is evicted when room is needed") {
  CoreFixture::Options options;
  options.core.slice_work = 8;
  options.slabs = 1;  // of 16 slots
  CoreFixture f(options);
  const SessionId worker = f.Worker("engine", SpaceNamed("space", {KiB(4)}));
  f.Keep(worker, KeysOf({1, 2, 3, 4, 5, 6, 7, 8, 9, 10}));
  f.Do(ClearAsked{JobId{1}});
  f.PassTime(absl::ZeroDuration());
  const Job* job = f.core->jobs().Find(JobId{1});
  REQUIRE(job->state == JobState::kRunning);
  REQUIRE(job->done == 4);
  REQUIRE(job->total == 10);

  const Effects effects = f.Do(JobCancelAsked{JobId{1}});
  REQUIRE(std::get<JobEnded>(effects.at(0)).how == JobState::kCancelled);
  REQUIRE(std::get<JobEnded>(effects.at(0)).chunks == 4);
  REQUIRE_FALSE(f.core->has_work());
  REQUIRE(f.core->jobs().Find(JobId{1})->state == JobState::kCancelled);
  REQUIRE(f.Do(JobCancelAsked{JobId{1}}).empty());
  REQUIRE(f.Do(JobCancelAsked{JobId{2}}).empty());
  REQUIRE(f.Lookup(worker, KeysOf({1, 2, 3, 4, 5, 6, 7, 8, 9, 10})).chunks == 0);
  REQUIRE(f.slots->live_slots() > 0);

  std::vector<ChunkKey> fresh;
  for (uint64_t i = 0; i < 16; ++i) fresh.push_back(KeyOf(100 + i));
  REQUIRE(f.Keep(worker, fresh) == 16);
  REQUIRE(f.Lookup(worker, fresh).chunks == 16);
  REQUIRE(f.core->status().evictions > 0);
}

TEST_CASE("Core frees with the next clear what a cancelled one has left") {
  CoreFixture f;
  const SessionId worker = f.Worker("engine", SpaceNamed("space", {KiB(4)}));
  f.Keep(worker, KeysOf({1, 2, 3}));
  f.Do(ClearAsked{JobId{1}});
  f.Do(JobCancelAsked{JobId{1}});
  REQUIRE(f.slots->live_slots() == 3);
  f.Do(ClearAsked{JobId{2}});
  f.PassTime(absl::ZeroDuration());
  REQUIRE(f.core->jobs().Find(JobId{2})->chunks == 3);
  REQUIRE(f.slots->live_slots() == 0);
}

TEST_CASE("Core frees a long chain in slices, too, and what is left of it serves a store that needs the room") {
  CoreFixture::Options options;
  options.core.slice_work = 20;
  options.slabs = 4;  // of 16 slots
  CoreFixture f(options);
  const SessionId worker = f.Worker("engine", SpaceNamed("space", {KiB(4)}));
  std::vector<ChunkKey> chain, fresh;
  for (uint64_t i = 0; i < 64; ++i) chain.push_back(KeyOf(i));
  for (uint64_t i = 0; i < 64; ++i) fresh.push_back(KeyOf(1000 + i));
  REQUIRE(f.Keep(worker, chain) == 64);
  f.Do(ClearAsked{JobId{1}});
  for (uint32_t before = 64; f.core->has_work();) {
    f.PassTime(absl::ZeroDuration());
    const auto now = static_cast<uint32_t>(f.slots->live_slots());
    REQUIRE(before - now <= 20 + Placement::kCollectMax);
    before = now;
    if (now > 0 && now < 40) break;
  }
  SECTION("to the end") {
    while (f.core->has_work()) f.PassTime(absl::ZeroDuration());
    REQUIRE(f.slots->live_slots() == 0);
    REQUIRE(f.core->jobs().Find(JobId{1})->chunks == 64);
  }
  SECTION("by a store") {
    REQUIRE(f.slots->live_slots() > 0);
    REQUIRE(f.Keep(worker, fresh) == 64);
    REQUIRE(f.core->status().evictions == 0);
    REQUIRE(f.Lookup(worker, fresh).chunks == 64);
  }
}

TEST_CASE("Core goes on with the next clear when the one before it is cancelled") {
  CoreFixture f;
  const SessionId worker = f.Worker("engine", SpaceNamed("space", {KiB(4)}));
  f.Keep(worker, KeysOf({1, 2, 3}));
  for (const uint64_t job : {1, 2, 3}) f.Do(ClearAsked{JobId{job}});
  f.Do(JobCancelAsked{JobId{1}});
  f.Do(JobCancelAsked{JobId{3}});
  const Effects effects = f.PassTime(absl::ZeroDuration());
  REQUIRE(effects.size() == 1);
  REQUIRE(std::get<JobEnded>(effects[0]).job == JobId{2});
  REQUIRE(std::get<JobEnded>(effects[0]).chunks == 3);
}

TEST_CASE("Jobs lists what runs and what ended last, and finds a request's") {
  Jobs jobs;
  REQUIRE_FALSE(jobs.busy());
  REQUIRE(jobs.current() == nullptr);
  for (uint64_t i = 1; i <= Jobs::kRunningMax; ++i) {
    REQUIRE_FALSE(jobs.full());
    jobs.Start({.id = JobId{i}, .request = i % 2 == 0 ? std::string() : "request " + std::to_string(i)});
  }
  REQUIRE(jobs.full());
  REQUIRE(jobs.OfRequest("request 3")->id == JobId{3});
  REQUIRE(jobs.OfRequest("request 4") == nullptr);
  REQUIRE(jobs.OfRequest("") == nullptr);
  REQUIRE(jobs.End(JobId{3}, JobState::kCancelled, {})->state == JobState::kCancelled);
  REQUIRE(jobs.End(JobId{3}, JobState::kDone, {}) == nullptr);
  REQUIRE(jobs.OfRequest("request 3")->state == JobState::kCancelled);
  REQUIRE(jobs.current()->id == JobId{1});

  uint64_t next = 1000;
  for (size_t i = 0; i < Jobs::kEndedKept; ++i) {
    const JobId id = jobs.current()->id;
    jobs.End(id, JobState::kDone, {});
    jobs.Start({.id = JobId{++next}});
  }
  REQUIRE(jobs.Find(JobId{3}) == nullptr);  // so many have ended since
  REQUIRE(jobs.Find(JobId{1})->state == JobState::kDone);
  size_t listed = 0;
  jobs.ForEach([&](const Job&) { ++listed; });
  REQUIRE(listed == Jobs::kRunningMax - 1 + Jobs::kEndedKept);
}

}  // namespace
}  // namespace kvist::core

#include "storage/remote/guarded_store.h"

#include <catch2/catch.hpp>

#include "storage/base/mutex.h"
#include "tests/unit/remote/asked.h"

namespace kvist::remote {
namespace {

// Keeps batches until the test says what comes of them. What is left when it ends is Cancelled.
class HeldStore final : public RemoteStore {
 public:
  ~HeldStore() override {
    while (held() > 0) End(absl::CancelledError("closed"));
  }
  absl::Status Submit(Batch batch, Done done) override {
    MutexLock lock(&mutex_);
    if (refuse) return absl::InvalidArgumentError("refused");
    held_.emplace_back(std::move(batch), std::move(done));
    return absl::OkStatus();
  }
  Load load() const override { return {}; }
  size_t held() const {
    MutexLock lock(&mutex_);
    return held_.size();
  }
  absl::Time deadline() const {
    MutexLock lock(&mutex_);
    return held_.front().first.deadline;
  }
  // The oldest one.
  void End(const absl::Status& status) {
    std::pair<Batch, Done> one;
    {
      MutexLock lock(&mutex_);
      one = std::move(held_.front());
      held_.erase(held_.begin());
    }
    std::vector<Outcome> outcomes(one.first.operations.size());
    for (Outcome& outcome : outcomes) outcome.status = status;
    one.second(std::move(outcomes));
  }
  std::atomic<bool> refuse = false;

 private:
  mutable Mutex mutex_;
  std::vector<std::pair<Batch, Done>> held_;
};

struct Guarded {
  explicit Guarded(const GuardOptions& options) {
    auto owned = std::make_unique<HeldStore>();
    held = owned.get();
    guard = *GuardedStore::Create(std::move(owned), options);
  }
  absl::Status Submit(Answer<Outcome> answer, size_t bytes = 0, absl::Duration time = absl::Seconds(10)) {
    return guard->Submit({Kind::kPut, {PutOf("a", {}, std::span(body).first(bytes))}, In(time)}, answer.Done());
  }
  std::vector<std::byte> body = std::vector<std::byte>(1 << 20);
  HeldStore* held;
  std::unique_ptr<GuardedStore> guard;
};

TEST_CASE("GuardedStore refuses at once what is beyond its limits, and takes it again later") {
  GuardOptions options;
  options.limits = {2, Bytes{1000}};
  Guarded guarded(options);
  Answer<Outcome> first;
  Answer<Outcome> second;
  CHECK(guarded.Submit(first, 600).ok());
  CHECK(absl::IsResourceExhausted(guarded.Submit(second, 401)));
  CHECK(guarded.Submit(second, 400).ok());
  CHECK(absl::IsResourceExhausted(guarded.Submit({}, 0)));
  CHECK(guarded.guard->load().bytes == 1000);
  guarded.held->End(absl::OkStatus());
  CHECK(first.there());
  CHECK(guarded.guard->load().bytes == 400);
  CHECK(guarded.Submit({}, 600).ok());
  CHECK(guarded.guard->figures().refused_full == 2);
  guarded.guard = nullptr;
  CHECK(absl::IsCancelled(second.Wait()[0].status));
}

TEST_CASE("GuardedStore refuses wrong names, no operations and what is too late") {
  Guarded guarded({});
  const auto submit = [&](std::vector<Operation> operations, absl::Duration time) {
    return guarded.guard->Submit({Kind::kExists, std::move(operations), In(time)}, [](const auto&) {});
  };
  for (const std::string name : {"", "a/b", ".a", "..", "a b", "a\n", "a{b}", "a\xff"})
    CHECK(absl::IsInvalidArgument(submit({Named(name)}, absl::Seconds(1))));
  CHECK(absl::IsInvalidArgument(submit({Named(std::string(129, 'a'))}, absl::Seconds(1))));
  CHECK(absl::IsInvalidArgument(submit({}, absl::Seconds(1))));
  CHECK(absl::IsDeadlineExceeded(submit({Named("a")}, -absl::Seconds(1))));
  CHECK(guarded.guard->load().operations == 0);
}

TEST_CASE("GuardedStore leaves a store alone that fails, probes it, and takes it back") {
  GuardOptions options;
  options.breaker = {2, absl::Seconds(3), absl::Seconds(3)};  // longer than this thread is away between two lines
  Guarded guarded(options);
  const auto open = [&] { return guarded.guard->figures().breaker != Breaker::State::kClosed; };
  const auto fail = [&](const absl::Status& status, absl::Duration time = absl::Seconds(10)) {
    Answer<Outcome> answer;
    REQUIRE(guarded.Submit(answer, 0, time).ok());
    guarded.held->End(status);
  };
  // Neither a deadline that was too short, nor being ended, nor a full store say that it doesn't answer.
  for (int i = 0; i < 5; ++i) {
    fail(absl::DeadlineExceededError(""), absl::Milliseconds(50));
    fail(absl::CancelledError(""));
    fail(absl::ResourceExhaustedError(""));
  }
  CHECK(!open());
  fail(absl::UnavailableError(""));
  fail(absl::DeadlineExceededError(""));
  CHECK(open());
  CHECK(absl::IsUnavailable(guarded.Submit({})));
  CHECK(guarded.guard->load().operations == 0);
  CHECK(guarded.guard->figures().refused_open == 1);
  // The one probe; the others are refused until it is answered.
  Answer<Outcome> probe;
  const absl::Time until = In(absl::Seconds(10));
  while (!guarded.Submit(probe).ok()) {
    REQUIRE(MonotonicNow() < until);
    absl::SleepFor(absl::Milliseconds(1));
  }
  CHECK(absl::IsUnavailable(guarded.Submit({})));
  guarded.held->End(absl::OkStatus());
  CHECK(!open());
  CHECK(guarded.Submit({}).ok());
}

TEST_CASE("GuardedStore has a batch wait for the rate, in its turn, until its deadline") {
  GuardOptions options;
  options.rate = {Bytes{100'000}, Bytes{100'000}};
  Guarded guarded(options);
  Answer<Outcome> first;
  Answer<Outcome> waits;
  Answer<Outcome> late;
  const absl::Time start = MonotonicNow();
  CHECK(guarded.Submit(first, 400'000).ok());  // leaves a debt of 300,000: 3 s
  CHECK(guarded.Submit(waits, 1000).ok());
  CHECK(guarded.Submit(late, 1000, absl::Milliseconds(200)).ok());
  CHECK(guarded.held->held() == 1);
  // A question waits for nobody's bytes.
  std::vector<std::byte> room(1000);
  CHECK(guarded.guard->Submit({Kind::kGet, {GetOf("a", {}, room)}, In(absl::Seconds(10))}, [](const auto&) {}).ok());
  CHECK(guarded.held->held() == 2);
  CHECK(absl::IsDeadlineExceeded(late.Wait()[0].status));
  const absl::Time until = In(absl::Seconds(10));
  while (guarded.held->held() < 3 && MonotonicNow() < until) absl::SleepFor(absl::Milliseconds(1));
  CHECK(guarded.held->held() == 3);
  CHECK(MonotonicNow() - start >= absl::Milliseconds(2900));
  CHECK(!waits.there());
  Answer<Outcome> never;
  CHECK(guarded.Submit(never, 1'000'000).ok());
  guarded.guard = nullptr;
  CHECK(absl::IsCancelled(never.Wait()[0].status));
  CHECK(absl::IsCancelled(waits.Wait()[0].status));
}

TEST_CASE("GuardedStore refuses what waits for the rate when its breaker opens") {
  GuardOptions options;
  options.rate = {Bytes{100'000}, Bytes{100'000}};
  options.breaker = {1, absl::Seconds(30), absl::Seconds(30)};
  Guarded guarded(options);
  Answer<Outcome> first;
  Answer<Outcome> waits;
  REQUIRE(guarded.Submit(first, 1'000'000).ok());  // leaves a debt: 0.9 s
  REQUIRE(guarded.Submit(waits, 1000, absl::Seconds(20)).ok());
  guarded.held->End(absl::UnavailableError(""));
  CHECK(absl::IsUnavailable(waits.Wait()[0].status));
  CHECK(guarded.held->held() == 0);
  CHECK(guarded.guard->load().operations == 0);
}

TEST_CASE("GuardedStore gives no batch longer than its time, and hands on what the store refuses") {
  GuardOptions options;
  options.time_max = absl::Seconds(5);
  options.rate = {Bytes{4000}, Bytes{1000}};
  Guarded guarded(options);
  REQUIRE(guarded.Submit({}, 12'000, absl::Hours(1)).ok());  // leaves a debt: 2.75 s
  CHECK(guarded.held->deadline() <= In(absl::Seconds(5)));
  guarded.held->refuse = true;
  Answer<Outcome> waits;
  REQUIRE(guarded.Submit(waits, 1000).ok());  // for the rate, and is refused behind it
  CHECK(absl::IsInvalidArgument(waits.Wait()[0].status));
  CHECK(absl::IsInvalidArgument(guarded.Submit({}, 0)));
  CHECK(guarded.guard->load().operations == 1);
}

TEST_CASE("GuardedStore refuses what is submitted while it is destroyed") {
  Guarded guarded({});
  DestroyWhileSubmitting(std::move(guarded.guard), Named("a"), 20);
  GuardOptions options;
  options.rate = {Bytes{1}, Bytes{1}};  // nearly all wait for it
  Guarded slow(options);
  std::vector<std::byte> room(1);
  DestroyWhileSubmitting(std::move(slow.guard), GetOf("a", {}, room), 20);
}

TEST_CASE("GuardedStore refuses options that make no sense") {
  const auto refused = [](const GuardOptions& options) {
    return absl::IsInvalidArgument(GuardedStore::Create(std::make_unique<HeldStore>(), options).status());
  };
  GuardOptions options;
  options.limits.operations = 0;
  CHECK(refused(options));
  options = {};
  options.breaker.pause_max = absl::Milliseconds(1);
  CHECK(refused(options));
  options = {};
  options.rate.burst = {};
  CHECK(refused(options));
  CHECK(!refused({}));
}

}  // namespace
}  // namespace kvist::remote

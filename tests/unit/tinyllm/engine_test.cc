#include "examples/tinyllm/engine.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <functional>
#include <utility>

#include "examples/tinyllm/record.h"
#include "tests/support/fake_kvist.h"
#include "tests/unit/tinyllm/small_model.h"

namespace tinyllm {
namespace {

constexpr int kAnswerTokens = 20;

std::unique_ptr<Engine> NewEngine(Engine::Options options) {
  options.threads = 2;
  return *Engine::Create(SmallModel(), options);
}

Engine::Options WithKvist() {
  fake_kvist::Reset();
  return {.kvist = KvistCache::Options{}};
}

// Until kvist has nothing under way any more.
void PollToTheEnd(Engine& engine) {
  for (int polls = 0; fake_kvist::observed().ops > 0; ++polls) {
    REQUIRE(polls < 1000);
    engine.kvist()->Poll();
  }
}

// Prompts of which some share beginnings.
std::vector<std::vector<Token>> Prompts() {
  std::vector<std::vector<Token>> prompts;
  for (const auto [shared, own, seed] :
       {std::array<uint32_t, 3>{300, 37, 1}, {300, 64, 2}, {128, 1, 3}, {0, 90, 4}, {300, 5, 5}, {0, 1, 6}}) {
    prompts.push_back(RandomTokens(shared, 100));
    const std::vector<Token> tail = RandomTokens(own, seed);
    prompts.back().insert(prompts.back().end(), tail.begin(), tail.end());
  }
  return prompts;
}

// All at once; answers in order of the prompts.
std::vector<Answer> Ask(Engine& engine) {
  for (const std::vector<Token>& prompt : Prompts()) REQUIRE(engine.Submit(prompt, kAnswerTokens).ok());
  std::vector<Answer> answers = engine.Run();
  std::ranges::sort(answers, {}, &Answer::id);
  return answers;
}

// Each alone, in an engine that has room and no past.
const std::vector<Answer>& Expected() {
  static const std::vector<Answer> expected = [] {
    std::vector<Answer> answers;
    for (const std::vector<Token>& prompt : Prompts()) {
      std::unique_ptr<Engine> engine = NewEngine({});
      (void)engine->Submit(prompt, kAnswerTokens);
      answers.push_back(engine->Run().at(0));
    }
    return answers;
  }();
  return expected;
}

void CheckAsExpected(const std::vector<Answer>& answers) {
  REQUIRE(answers.size() == Expected().size());
  for (size_t i = 0; i < answers.size(); ++i) {
    INFO("request " << i);
    CHECK(answers[i].tokens == Expected()[i].tokens);
    CHECK(SameBits(answers[i].logits, Expected()[i].logits));
  }
}

template <class Count>
Count Sum(const std::vector<Answer>& answers, Count Answer::*member) {
  Count sum{};
  for (const Answer& answer : answers) sum += answer.*member;
  return sum;
}

TEST_CASE("Engine gives the same answers alone, together, in small chunks, and from shared pages") {
  for (const int batch_tokens : {1, 7, 64, 512}) {
    INFO("batches of " << batch_tokens);
    std::unique_ptr<Engine> engine = NewEngine({.batch_tokens = batch_tokens});
    CheckAsExpected(Ask(*engine));
    CHECK(engine->pool().in_use() == 0);
    const std::vector<Answer> again = Ask(*engine);
    CheckAsExpected(again);
    CHECK(Sum(again, &Answer::local_tokens) > 1000);
    CHECK(engine->pool().in_use() == 0);
    engine->ForgetLocalPages();
    CHECK(Sum(Ask(*engine), &Answer::local_tokens) < 1000);
  }
}

TEST_CASE("Engine preempts when pages run out and still gives the same answers") {
  // 24 pages hold one of the long prompts and its answer, or several short ones until their answers grow.
  std::unique_ptr<Engine> engine = NewEngine({.kv_tokens = 24 * kPageTokens});
  CheckAsExpected(Ask(*engine));
  CHECK(engine->pool().in_use() == 0);

  std::unique_ptr<Engine> crowded = NewEngine({.kv_tokens = 8 * kPageTokens});
  for (uint32_t seed = 0; seed < 4; ++seed) REQUIRE(crowded->Submit(RandomTokens(30, seed), 60).ok());
  std::vector<Answer> answers = crowded->Run();
  CHECK(crowded->stats().preemptions > 0);
  std::ranges::sort(answers, {}, &Answer::id);
  for (uint32_t seed = 0; seed < 4; ++seed) {
    std::unique_ptr<Engine> alone = NewEngine({});
    REQUIRE(alone->Submit(RandomTokens(30, seed), 60).ok());
    CHECK(SameBits(alone->Run().at(0).logits, answers[seed].logits));
  }
}

TEST_CASE("Engine refuses options that leave it nothing to work with, and names the one and its value") {
  const auto refusal = [](const Engine::Options& options) {
    const absl::Status status = Engine::Create(SmallModel(), options).status();
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  CHECK(refusal({.kv_tokens = 8}) == "kv_tokens is 8, at least 16 is needed");
  CHECK(refusal({.batch_tokens = 0}) == "batch_tokens is 0, at least 1 is needed");
  CHECK(refusal({.sequences_max = -1}) == "sequences_max is -1, at least 1 is needed");
  CHECK(refusal({.threads = -1}) == "threads is -1, at least 0 is needed");
}

TEST_CASE("Engine refuses what it has no room for") {
  std::unique_ptr<Engine> engine = NewEngine({.kv_tokens = 64});
  CHECK_FALSE(engine->Submit({}, 1).ok());
  CHECK_FALSE(engine->Submit({1, 2}, 0).ok());
  CHECK_FALSE(engine->Submit({1, kVocabulary}, 1).ok());
  CHECK_FALSE(engine->Submit(RandomTokens(60, 1), 5).ok());
  CHECK(engine->Submit(RandomTokens(60, 1), 4).ok());
  CHECK(engine->Run().size() == 1);
}

TEST_CASE("Engine describes its memory to kvist as it uses it") {
  std::unique_ptr<Engine> engine = NewEngine(WithKvist());
  CHECK(fake_kvist::observed().probes_found == 2 * static_cast<size_t>(SmallModel()->config().layers));
  CHECK(fake_kvist::observed().probes_missed == 0);
}

TEST_CASE("Engine stores to kvist and gives the same answers from what it loads") {
  for (const int polls : {1, 4}) {
    const Engine::Options options = WithKvist();
    fake_kvist::behaviour().polls_until_end = polls;
    std::unique_ptr<Engine> engine = NewEngine(options);
    CheckAsExpected(Ask(*engine));
    engine->ForgetLocalPages();
    const std::vector<Answer> warm = Ask(*engine);
    CheckAsExpected(warm);
    CHECK(Sum(warm, &Answer::kvist_tokens) > 400);
    engine->ForgetLocalPages();
    PollToTheEnd(*engine);  // of cancelled ones
    CHECK(engine->pool().in_use() == 0);
    CHECK(fake_kvist::observed().leases == 0);
    CHECK(fake_kvist::observed().changed_under_store == 0);

    std::unique_ptr<Engine> restarted = NewEngine(options);
    const std::vector<Answer> answers = Ask(*restarted);
    CheckAsExpected(answers);
    CHECK(Sum(answers, &Answer::kvist_tokens) > 400);
    CHECK(restarted->stats().prompt_tokens_computed < engine->stats().prompt_tokens_computed / 2);
  }
}

TEST_CASE("Engine notices one flipped bit in a loaded page") {
  Engine::Options options = WithKvist();
  CheckAsExpected(Ask(*NewEngine(options)));
  bool spoiled = false;
  options.on_loaded = [&](const PagedMemory& memory, std::span<const PageId> pages) {
    if (!std::exchange(spoiled, true)) *memory.Value(0, pages[pages.size() / 2], 3) ^= 0x8000;
  };
  const std::vector<Answer> answers = Ask(*NewEngine(options));
  REQUIRE(spoiled);
  CHECK_FALSE(SameBits(answers[0].logits, Expected()[0].logits));
}

TEST_CASE("Engine computes what a failed load doesn't bring and leaves its pages alone until they are released") {
  const Engine::Options options = WithKvist();
  CheckAsExpected(Ask(*NewEngine(options)));
  fake_kvist::behaviour().polls_until_end = 2;
  for (const kvist_status status : {KVIST_DEADLINE_EXCEEDED, KVIST_UNAVAILABLE, KVIST_DATA_LOSS, KVIST_ABORTED}) {
    for (const int late : {0, 10}) {
      fake_kvist::behaviour().load_result = status;
      fake_kvist::behaviour().polls_until_release = late;
      std::unique_ptr<Engine> engine = NewEngine(options);
      const size_t loads = fake_kvist::observed().loads;
      CheckAsExpected(Ask(*engine));
      CHECK(fake_kvist::observed().loads > loads);
      PollToTheEnd(*engine);
      CHECK(engine->pool().in_use() == 0);
      CHECK(fake_kvist::observed().leases == 0);
    }
  }
  fake_kvist::behaviour() = {.refuse_loads = true};
  CheckAsExpected(Ask(*NewEngine(options)));
  CHECK(fake_kvist::observed().leases == 0);
}

TEST_CASE("Engine goes on while kvist is away") {
  const Engine::Options options = WithKvist();
  std::unique_ptr<Engine> engine = NewEngine(options);
  fake_kvist::behaviour().away = true;
  CheckAsExpected(Ask(*engine));
  CHECK(fake_kvist::observed().chunks == 0);
  fake_kvist::behaviour().away = false;
  engine->ForgetLocalPages();
  CheckAsExpected(Ask(*engine));
  engine->ForgetLocalPages();
  CHECK(fake_kvist::observed().chunks > 0);
}

TEST_CASE("Engine under pressure swaps what is in no full chunk, and computes less for it") {
  Engine::Options options = WithKvist();
  options.kv_tokens = 24 * kPageTokens;
  options.swap = Engine::Options::Swap::kAlways;
  uint64_t computed[2] = {};
  for (const bool no_room : {true, false}) {
    fake_kvist::Reset();
    fake_kvist::behaviour().no_room = no_room;
    std::unique_ptr<Engine> engine = NewEngine(options);
    CheckAsExpected(Ask(*engine));
    REQUIRE(engine->stats().preemptions > 0);
    CHECK((fake_kvist::observed().swaps_in > 0) == !no_room);
    CHECK(engine->kvist()->stats().swaps_out == fake_kvist::observed().swaps_out);
    computed[no_room ? 0 : 1] = engine->stats().prompt_tokens_computed + engine->stats().answer_tokens_computed;
    engine->ForgetLocalPages();
    CHECK(engine->pool().in_use() == 0);
    CHECK(fake_kvist::observed().allocations == 0);
    CHECK(fake_kvist::observed().prefills > 0);
    CHECK(fake_kvist::observed().changed_under_store == 0);
  }
  CHECK(computed[1] < computed[0]);
}

TEST_CASE("Engine under pressure swaps only while that is cheaper than computing again, by what both have taken") {
  // How long a batch and a swap take: between two looks at the clock passes what comes next.
  struct Costs {
    absl::Duration batch, swap;
  };
  const auto swaps = [](Costs costs, Engine::Options::Swap when) {
    Engine::Options options = WithKvist();
    options.kv_tokens = 24 * kPageTokens;
    options.swap = when;
    absl::Time now = absl::UnixEpoch();
    absl::Duration next = costs.batch;
    options.now = options.kvist->now = [&] { return now += std::exchange(next, costs.batch); };
    fake_kvist::behaviour().on_swap_out = [&] { next = costs.swap; };
    fake_kvist::behaviour().chunks_max = 0;  // so that each round computes, and preempts, as the first
    std::unique_ptr<Engine> engine = NewEngine(options);
    for (int round = 0; round < 4; ++round) {
      CheckAsExpected(Ask(*engine));
      engine->ForgetLocalPages();
    }
    REQUIRE(engine->stats().preemptions > 1);
    CHECK(fake_kvist::observed().allocations == 0);
    fake_kvist::behaviour().on_swap_out = {};
    return engine->kvist()->stats().swaps_out;
  };
  using enum Engine::Options::Swap;
  const Costs cheap_swaps{absl::Seconds(1), absl::Microseconds(1)}, dear_swaps{absl::Seconds(1), absl::Hours(1)},
      cheap_computing{absl::Nanoseconds(1), absl::Microseconds(1)};
  const uint64_t all = swaps(cheap_swaps, kAlways);
  REQUIRE(all > 1);
  CHECK(swaps(cheap_swaps, kWhenCheaper) == all);
  CHECK(swaps(dear_swaps, kWhenCheaper) == 1);       // the first shows what they cost
  CHECK(swaps(cheap_computing, kWhenCheaper) == 0);  // what a first one would take is known well enough
}

TEST_CASE(
    "Engine under pressure ends though every load and swap fails") {  // it went round in circles: preempted, loaded in vain, preempted
  Engine::Options options = WithKvist();
  options.kv_tokens = 24 * kPageTokens;
  options.swap = Engine::Options::Swap::kAlways;
  for (const kvist_status status : {KVIST_DEADLINE_EXCEEDED, KVIST_ABORTED}) {
    for (const int late : {0, 10}) {
      fake_kvist::Reset();
      fake_kvist::behaviour() = {.polls_until_end = 1, .load_result = status, .polls_until_release = late};
      std::unique_ptr<Engine> engine = NewEngine(options);
      for (const std::vector<Token>& prompt : Prompts()) REQUIRE(engine->Submit(prompt, kAnswerTokens).ok());
      int steps = 0;
      while (steps < 2000 && engine->Step()) ++steps;
      REQUIRE(steps < 2000);
      std::vector<Answer> answers = engine->TakeAnswers();
      std::ranges::sort(answers, {}, &Answer::id);
      CheckAsExpected(answers);
      CHECK(engine->kvist()->stats().swaps_in == 0);
      PollToTheEnd(*engine);
      engine->ForgetLocalPages();
      CHECK(engine->pool().in_use() == 0);
      CHECK(fake_kvist::observed().allocations == 0);
    }
  }
}

TEST_CASE("Engine under pressure never reuses a page that a store still reads") {
  Engine::Options options = WithKvist();
  options.kv_tokens = 24 * kPageTokens;
  for (const int polls : {1, 3, 50}) {
    fake_kvist::behaviour().polls_until_end = polls;
    std::unique_ptr<Engine> engine = NewEngine(options);
    CheckAsExpected(Ask(*engine));
    engine->ForgetLocalPages();
    CHECK(engine->pool().in_use() == 0);
    CHECK(fake_kvist::observed().changed_under_store == 0);
  }
  CHECK(fake_kvist::observed().cancelled > 0);
}

}  // namespace
}  // namespace tinyllm

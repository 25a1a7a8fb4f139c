// The engine in twenty lines that the README shows, as it stands there: with a real kvistd, with one that hangs, and with none.
#include <catch2/catch.hpp>

#include <signal.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "readme_example.inc"  // by CMake: the README's C++
#include "tests/support/ctl.h"
#include "tests/support/daemon_process.h"
#include "tests/support/fake_engine.h"
#include "tests/support/temp_dir.h"

using kvist::test::DaemonProcess;
using kvist::test::Eventually;
using kvist::test::FakeEngine;
using kvist::test::TempDir;

namespace {

constexpr uint32_t kChunk = FakeEngine::kChunkTokens;
constexpr uint32_t kPages = FakeEngine::kPagesPerChunk;

// A prompt in an engine's pages. Its last chunk may be one that isn't full.
struct Prompt {
  Prompt(FakeEngine& in, uint32_t number, uint32_t chunks, uint32_t more_tokens = 0)
      : engine(in),
        keys(in.Keys(number, chunks)),
        tokens(FakeEngine::Tokens(number, chunks)),
        pages(in.Pages(0, chunks + 1)) {
    tokens.resize(tokens.size() + more_tokens, 7);
  }

  // Whether the example came to its end; `computed_from` is then the token from which it computed.
  bool Prefill();
  std::span<const uint32_t> ChunkPages(size_t chunk) const { return std::span(pages).subspan(chunk * kPages, kPages); }
  std::string Wrong() const {
    std::string wrong;
    for (size_t c = 0; c < keys.size() && wrong.empty(); ++c) wrong = engine.Check(0, keys[c], ChunkPages(c));
    return wrong;
  }

  FakeEngine& engine;
  std::vector<kvist_key> keys;
  std::vector<uint32_t> tokens, pages;
  kvist_op load = 0;
  size_t computed_from = SIZE_MAX;
};

Prompt* computing = nullptr;

bool Prompt::Prefill() {
  computing = this;
  computed_from = SIZE_MAX;
  engine.Poison(0, pages);
  return ::Prefill(kChunk, kPages, tokens, pages, &load);
}

// The example's own two sessions, over the fake engine's pages; they end before it.
struct Started {
  explicit Started(FakeEngine& engine) : asks(engine.SchedulerOptions()), moves(engine.WorkerOptions(0)) {
    asks.instance = moves.instance = "readme";
    well = ::Start(asks, moves);
  }
  ~Started() {
    scheduler = {};
    worker = {};
  }
  kvist_options asks, moves;
  bool well = false;
};

}  // namespace

void Compute(Ids tokens, Ids, size_t from) {
  REQUIRE(from < tokens.size());  // there are no logits without a token
  REQUIRE(from % kChunk == 0);
  computing->computed_from = from;
  for (size_t c = from / kChunk; c < computing->keys.size(); ++c)
    computing->engine.Fill(0, computing->keys[c], computing->ChunkPages(c));
}

TEST_CASE("The README's engine loads what there is and computes at least the last token") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), {"pool.bytes=64MiB"});
  FakeEngine engine(FakeEngine::On(daemon.socket()));
  REQUIRE(engine.status.message == "");
  const auto [chunks, more, warm_from] = GENERATE(std::tuple{5u, 0u, 4 * kChunk},  // the last token ends the last chunk
                                                  std::tuple{5u, 1u, 5 * kChunk},  // and is behind it
                                                  std::tuple{0u, 9u, 0u});         // no chunk at all
  const Started started(engine);
  REQUIRE(started.well);
  Prompt prompt(engine, 1000 + more, chunks, more);
  REQUIRE(prompt.Prefill());
  CHECK(prompt.computed_from == 0);
  REQUIRE(prompt.Prefill());
  CHECK(prompt.computed_from == warm_from);
  CHECK(prompt.Wrong() == "");
  Prompt longer(engine, 1000 + more, chunks + 2);  // the same prefix
  REQUIRE(longer.Prefill());
  CHECK(longer.computed_from == chunks * kChunk);
  CHECK(longer.Wrong() == "");
}

TEST_CASE("The README's engine computes all without a kvistd, and with one that hangs, whose pages it gets back") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), {"pool.bytes=64MiB"});
  FakeEngine::Options options = FakeEngine::On(daemon.socket());
  options.deadline_us = 1'000'000;  // less than it waits
  FakeEngine engine(options);
  REQUIRE(engine.status.message == "");
  const Started started(engine);
  REQUIRE(started.well);
  Prompt prompt(engine, 1000, 5);
  REQUIRE(prompt.Prefill());

  daemon.Signal(SIGSTOP);
  REQUIRE(prompt.Prefill());  // the lookup is a miss, and the store is over by its deadline
  CHECK(prompt.computed_from == 0);
  CHECK(prompt.Wrong() == "");
  daemon.Signal(SIGCONT);
  CHECK(Eventually([&] { return prompt.Prefill() && prompt.computed_from == 4 * kChunk; }));

  daemon.Kill();
  REQUIRE(prompt.Prefill());
  CHECK(prompt.computed_from == 0);
  CHECK(prompt.Wrong() == "");
}

#ifndef KVIST_TESTS_BENCH_FULL_INDEX_H_
#define KVIST_TESTS_BENCH_FULL_INDEX_H_

#include <kvist/client.h>

#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/bench/daemon_under_test.h"
#include "tests/bench/engine_memory.h"

namespace kvist::bench {

// A daemon whose index holds as many chunks as one wants: of a pool without memory, where slots have numbers and copies end when they are
// submitted. Below it is a tier that is never written to, so that the core goes about with chunks as where there is an SSD. Chains of
// kChainChunks random keys are stored by a worker, and a scheduler may look them up. They grow side by side, kTurnChunks at a time, as those of
// many conversations: what one chain has lies apart.
//
// Threads: one.
class FullIndex {
 public:
  static constexpr uint32_t kChainChunks = 512;
  static constexpr uint32_t kTurnChunks = 8;      // 2,048 tokens: a question and its answer
  static constexpr uint64_t kChunks = 1'000'000;  // that figures are asked for
  static constexpr uint64_t kQuickChunks = 20 * kChainChunks;

  // With room for `chunks`, and none in it. `reactor_cpu`: as in the daemon's options. Errors: those of the daemon and the connector.
  static absl::StatusOr<std::unique_ptr<FullIndex>> Create(uint64_t chunks, int reactor_cpu = -1);

  // Stores chains until so many chunks are there that weren't: at least `chunks`, whole chains. Errors: Internal  one was refused or evicted.
  absl::Status Fill(uint64_t chunks);
  // Those of the last Fill.
  std::span<const std::vector<kvist_key>> chains() const { return chains_; }

  DaemonUnderTest& daemon() { return *daemon_; }
  kvist::Client& scheduler() { return scheduler_; }

 private:
  absl::Status AwaitAll(std::span<const kvist_op> stores);

  std::unique_ptr<EngineMemory> memory_;
  std::unique_ptr<DaemonUnderTest> daemon_;
  kvist::Client scheduler_, worker_;
  std::mt19937_64 random_{1};
  std::vector<std::vector<kvist_key>> chains_;
};

}  // namespace kvist::bench

#endif  // KVIST_TESTS_BENCH_FULL_INDEX_H_

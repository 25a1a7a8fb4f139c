#ifndef KVIST_TESTS_SUPPORT_ENGINE_PLAYS_H_
#define KVIST_TESTS_SUPPORT_ENGINE_PLAYS_H_

#include <array>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tests/support/fake_engine.h"

namespace kvist::test {

// One of several threads of an engine, each of which does what engines do with prompts that all of them share, at random.
//
// Threads: one; those of one engine have pages apart, kPlayedChunks chunks each.
struct Player {
  static constexpr uint32_t kPrompts = 12, kPlayedChunks = 16;
  static constexpr int64_t kTimeoutMicros = 20'000'000;

  FakeEngine& engine;
  uint32_t pages_from;  // its pages, in chunks
  std::mt19937 random;
  uint64_t hits = 0, wrong = 0;  // chunks that were loaded; prompts
  std::string first_wrong = {};

  uint32_t Number() { return 1000 * static_cast<uint32_t>(random() % kPrompts); }
  std::vector<kvist_key> Prompt() { return engine.Keys(Number(), 1 + static_cast<uint32_t>(random() % kPlayedChunks)); }
  void Load(const std::vector<kvist_key>& keys);
};

// What players do, in equal parts.
struct Play {
  const char* name;
  void (*play)(Player&);
};
extern const std::array<Play, 8> kPlays;

}  // namespace kvist::test

#endif  // KVIST_TESTS_SUPPORT_ENGINE_PLAYS_H_

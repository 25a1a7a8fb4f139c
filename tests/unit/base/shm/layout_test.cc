#include "storage/base/shm/layout.h"

#include <catch2/catch.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "storage/base/shm/probe_pattern.h"

namespace shm = kvist::shm;

TEST_CASE("Progress packs sequence, phase and layers without loss") {
  for (const uint32_t sequence : {0u, 1u, 0x7fff'ffffu, UINT32_MAX}) {
    for (const uint32_t layers : {0u, 1u, 1024u, 0xff'ffffu}) {
      for (const shm::Phase phase : {shm::Phase::kPending, shm::Phase::kEnded}) {
        const uint64_t progress = shm::PackProgress(sequence, phase, layers);
        CHECK(shm::SequenceOf(progress) == sequence);
        CHECK(shm::PhaseOf(progress) == phase);
        CHECK(shm::LayersOf(progress) == layers);
      }
    }
  }
}

TEST_CASE("The layout is what connectors of this version were built against") {
  // Golden: a change here is a new shm::kVersion.
  CHECK(shm::kVersion == 7);
  CHECK(shm::kRingOffset == 4096);
  CHECK(shm::kBoardOffset == 69632);
  CHECK(shm::kArenaOffset == 331776);
  CHECK(shm::kSessionBytes.value == 4526080);
  CHECK(offsetof(shm::Header, client_cpu) == 64);
  CHECK(offsetof(shm::Header, bus_claimed_until_nanos) == 72);
  CHECK(offsetof(shm::Header, head) == 128);
  CHECK(offsetof(shm::Header, asleep) == 136);
  CHECK(offsetof(shm::Entry, flags) == 1);
  CHECK(offsetof(shm::Entry, turn) == 12);
  CHECK(offsetof(shm::Entry, arena) == 16);
  CHECK(offsetof(shm::Entry, lease) == 32);
  CHECK(offsetof(shm::Entry, layer) == 56);
  CHECK(offsetof(shm::Cell, waiters) == 8);
  CHECK(offsetof(shm::Cell, status) == 16);
  CHECK(offsetof(shm::Cell, lease) == 32);
  CHECK(offsetof(shm::Cell, asked_nanos) == 40);      // 0 from connectors that don't know of it
  CHECK(offsetof(shm::Cell, stream_progress) == 48);  // a GPU's streams wait for and write 8 aligned bytes
  CHECK(offsetof(shm::Cell, ready) == 56);
}

TEST_CASE("Words that streams wait for only rise, through every turn of a cell's sequence") {
  std::atomic<uint64_t> word{0};
  uint64_t last = 0;
  for (const uint32_t sequence : {1u, 2u, 0x7fff'ffffu, 0x8000'0000u, 0xffff'fffeu, 0xffff'ffffu, 0u, 1u}) {
    CAPTURE(sequence);
    for (const uint64_t next :
         {shm::PackProgress(sequence, shm::Phase::kPending, 0), shm::PackProgress(sequence, shm::Phase::kPending, 3),
          shm::PackProgress(sequence, shm::Phase::kEnded, 0),
          shm::PackProgress(sequence, shm::Phase::kEnded, static_cast<uint32_t>(shm::kLayersOfAll))}) {
      CHECK_FALSE(shm::HasReached(word, next));
      shm::Raise(&word, next);
      CHECK(word == next);
      shm::Raise(&word, last);  // late
      CHECK(word == next);
      CHECK(shm::HasReached(word, last));
      last = next;
    }
    // What releases a stream does so whatever it waits for.
    CHECK(shm::HasReached(word, shm::PackProgress(sequence, shm::Phase::kPending, 0xff'ffff)));
    CHECK_FALSE(shm::HasReached(word, shm::PackProgress(sequence + 1, shm::Phase::kPending, 0)));
    CHECK(shm::HasReached(shm::PackReady(sequence, UINT32_MAX), shm::PackReady(sequence, 80)));
    CHECK_FALSE(shm::HasReached(shm::PackReady(sequence, 79), shm::PackReady(sequence, 80)));
    CHECK_FALSE(shm::HasReached(shm::PackReady(sequence, UINT32_MAX), shm::PackReady(sequence + 1, 1)));
  }
}

TEST_CASE("Raising a word that several raise at once leaves the highest") {
  std::atomic<uint64_t> word{0};
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t i = 0; i < 20'000; ++i) shm::Raise(&word, i * 4 + t);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(word == 19'999 * 4 + 3);
}

TEST_CASE("Probe patterns differ by nonce, layer and page, and are the same everywhere") {
  using kvist::LayerIndex;
  using kvist::PageId;
  const auto pattern = [](uint64_t nonce, uint32_t layer, uint32_t page) {
    std::vector<std::byte> bytes(61);
    shm::FillProbePattern(nonce, LayerIndex{layer}, PageId{page}, bytes);
    return bytes;
  };
  CHECK(pattern(1, 2, 3) == pattern(1, 2, 3));
  CHECK(pattern(1, 2, 3) != pattern(2, 2, 3));
  CHECK(pattern(1, 2, 3) != pattern(1, 3, 3));
  CHECK(pattern(1, 2, 3) != pattern(1, 2, 4));
  const std::vector<std::byte> whole = pattern(1, 2, 3);
  std::vector<std::byte> rest(whole.size() - 24);
  shm::FillProbePattern(1, LayerIndex{2}, PageId{3}, rest, 24);
  CHECK(rest == std::vector<std::byte>(whole.begin() + 24, whole.end()));
}

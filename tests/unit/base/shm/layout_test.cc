#include "storage/base/shm/layout.h"

#include <catch2/catch.hpp>

#include <cstddef>
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
  CHECK(shm::kVersion == 6);
  CHECK(shm::kRingOffset == 4096);
  CHECK(shm::kBoardOffset == 69632);
  CHECK(shm::kArenaOffset == 331776);
  CHECK(shm::kSessionBytes.value == 4526080);
  CHECK(offsetof(shm::Header, client_cpu) == 64);
  CHECK(offsetof(shm::Header, head) == 128);
  CHECK(offsetof(shm::Header, asleep) == 136);
  CHECK(offsetof(shm::Entry, turn) == 12);
  CHECK(offsetof(shm::Entry, arena) == 16);
  CHECK(offsetof(shm::Entry, lease) == 32);
  CHECK(offsetof(shm::Entry, layer) == 56);
  CHECK(offsetof(shm::Cell, waiters) == 8);
  CHECK(offsetof(shm::Cell, status) == 16);
  CHECK(offsetof(shm::Cell, lease) == 32);
  CHECK(offsetof(shm::Cell, asked_nanos) == 40);  // 0 from connectors that don't know of it
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
}

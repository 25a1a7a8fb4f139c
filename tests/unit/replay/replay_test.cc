#include "examples/replay/replay.h"

#include <catch2/catch.hpp>
#include <cstdint>
#include <fstream>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "tests/support/fake_kvist.h"
#include "tests/support/stderr_to.h"
#include "tests/support/temp_dir.h"

namespace kvist::replay {
namespace {

using fake_kvist::Lie;

constexpr uint64_t kBlockBytes = 4096;
constexpr uint64_t kPieceBytes = kBlockBytes / kPiecesPerBlock;

Request Prompt(uint64_t blocks, uint64_t partial = 0) {
  Request request;
  request.hash_ids.resize(blocks + partial);
  std::iota(request.hash_ids.begin(), request.hash_ids.end(), 100);
  request.full_blocks = blocks;
  return request;
}

std::unique_ptr<Replay> NewReplay(uint64_t block_bytes = kBlockBytes) {
  auto replay = Replay::Create({"unused", block_bytes, 5000});
  REQUIRE(replay.ok());
  return *std::move(replay);
}

}  // namespace

TEST_CASE("Replay stores what it misses and loads it next time") {
  fake_kvist::Reset();
  const auto replay = NewReplay();
  replay->Run(Prompt(10, 1));
  CHECK(replay->outcome().stored_blocks == 10);
  CHECK(replay->outcome().hit_blocks == 0);
  replay->Run(Prompt(12));
  CHECK(replay->outcome().stored_blocks == 12);
  CHECK(replay->outcome().hit_blocks == 10);
  CHECK(replay->outcome().blocks == 23);
  CHECK(replay->outcome().load.bytes() == 10 * kBlockBytes);
  CHECK(replay->outcome().store.bytes() == 12 * kBlockBytes);
  CHECK(replay->outcome().fine());
  CHECK(fake_kvist::observed().leases == 0);
}

TEST_CASE("Replay tells why the answer before a prompt ended, where the trace does") {
  fake_kvist::Reset();
  const auto replay = NewReplay();
  Request prompt = Prompt(10);
  replay->Run(prompt);
  CHECK(fake_kvist::observed().hinted == 0);
  prompt.stop = KVIST_STOP_TOOL_CALL;
  replay->Run(prompt);
  CHECK(fake_kvist::observed().hinted == 10);
  CHECK(fake_kvist::observed().stop_reason == KVIST_STOP_TOOL_CALL);
  CHECK(replay->outcome().fine());
}

TEST_CASE("Replay works in batches when a request is longer than its page memory") {
  fake_kvist::Reset();
  const auto replay = NewReplay(uint64_t{4} << 20);  // 8 of them fill the memory
  replay->Run(Prompt(20));
  replay->Run(Prompt(20));
  CHECK(replay->outcome().stored_blocks == 20);
  CHECK(replay->outcome().hit_blocks == 20);
  CHECK(replay->outcome().store.calls() == 3);
  CHECK(replay->outcome().load.calls() == 3);
  CHECK(replay->outcome().fine());
}

TEST_CASE("Replay leaves the blocks that no lookup may ask for") {
  fake_kvist::Reset();
  const auto replay = NewReplay();
  replay->Run(Prompt(5000));
  replay->Run(Prompt(5000));
  CHECK(replay->outcome().stored_blocks == 4096);
  CHECK(replay->outcome().hit_blocks == 4096);
  CHECK(replay->outcome().full_blocks == 10000);
  CHECK(replay->outcome().fine());
}

TEST_CASE("Replay sees every kind of wrong byte") {
  fake_kvist::Reset();
  const auto replay = NewReplay();
  replay->Run(Prompt(3));
  const auto [lie, wrong_min, wrong_max] = GENERATE(table<Lie, uint64_t, uint64_t>({
      {Lie::kFlippedByte, 1, 1},
      {Lie::kMissingPiece, kPieceBytes * 9 / 10, kPieceBytes},        // poison meets the right byte here and there
      {Lie::kOtherChunk, 2 * kBlockBytes * 6 / 10, 2 * kBlockBytes},  // the first chunk is right; names have bytes in common
      {Lie::kNotOneByte, 3 * kBlockBytes * 9 / 10, 3 * kBlockBytes},
  }));
  fake_kvist::behaviour().lie = lie;
  replay->Run(Prompt(3));
  CHECK(replay->outcome().hit_blocks == 3);
  CHECK(replay->outcome().wrong_bytes >= wrong_min);
  CHECK(replay->outcome().wrong_bytes <= wrong_max);
  CHECK_FALSE(replay->outcome().fine());
}

TEST_CASE("Replay says where wrong bytes are, how many, and whose bytes lie there, of the first ten pieces") {
  fake_kvist::Reset();
  const auto replay = NewReplay();
  replay->Run(Prompt(3));
  const auto said = [&](Lie lie) {
    fake_kvist::behaviour().lie = lie;
    const test::TempDir dir;
    {
      const test::StderrTo file(dir / "said");
      replay->Run(Prompt(3));
    }
    std::ifstream file(dir / "said");
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    return lines;
  };
  CHECK(said(Lie::kNone).empty());
  const std::string piece = "block 0 (hash id 100), page 0, layer 0, segment 0";
  CHECK(said(Lie::kFlippedByte) == std::vector<std::string>{"request 3: 1 wrong bytes in " + piece +
                                                            "; what lies there: " + piece + ", with 1 damaged bytes"});
  const std::vector<std::string> poisoned = said(Lie::kMissingPiece);
  REQUIRE(poisoned.size() == 1);
  CHECK_THAT(poisoned[0], Catch::StartsWith("request 4: ") &&
                              Catch::EndsWith(" wrong bytes in " + piece + "; what lies there: never written"));
  const std::vector<std::string> exchanged = said(Lie::kOtherChunk);
  REQUIRE(exchanged.size() == 8);  // all ten with the two before
  CHECK_THAT(
      exchanged[0],
      Catch::StartsWith("request 5: ") &&
          Catch::EndsWith(" wrong bytes in block 1 (hash id 101), page 0, layer 0, segment 0; what lies there: " + piece));
}

TEST_CASE("Replay loads a hit that gets no lease in parts") {
  fake_kvist::Reset({.lease_chunks_max = 30});
  const auto replay = NewReplay();
  replay->Run(Prompt(100));
  replay->Run(Prompt(100));
  CHECK(replay->outcome().hit_blocks == 100);
  CHECK(replay->outcome().skipped_blocks == 0);
  CHECK(replay->outcome().stored_blocks == 100);
  CHECK(replay->outcome().fine());
}

TEST_CASE("Replay takes refused chunks for no failure and stops storing there") {
  fake_kvist::Reset({.chunks_max = 10});
  const auto replay = NewReplay(uint64_t{4} << 20);
  replay->Run(Prompt(40));
  CHECK(replay->outcome().stored_blocks == 10);
  CHECK(replay->outcome().refused_blocks == 6);  // the second batch of 8 is the last one
  CHECK(replay->outcome().fine());
}

TEST_CASE("Replay counts hooks that fail and goes on") {
  fake_kvist::Reset();
  const auto replay = NewReplay();
  replay->Run(Prompt(2));
  SECTION("lookup") { fake_kvist::behaviour().lookup = KVIST_UNAVAILABLE; }
  SECTION("load") { fake_kvist::behaviour().load_result = KVIST_ABORTED; }
  replay->Run(Prompt(2));
  CHECK(replay->outcome().failed_hooks == 1);
  CHECK(replay->outcome().hit_blocks == 0);
  CHECK(replay->outcome().skipped_blocks == 2);
  fake_kvist::behaviour() = {.store_call = KVIST_RESOURCE_EXHAUSTED};
  replay->Run(Prompt(3));
  CHECK(replay->outcome().failed_hooks == 2);
  CHECK(replay->outcome().hit_blocks == 2);
  CHECK(fake_kvist::observed().chunks == 2);
  CHECK(fake_kvist::observed().leases == 0);
  CHECK_FALSE(replay->outcome().fine());
}

}  // namespace kvist::replay

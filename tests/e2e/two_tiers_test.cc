// What kvist-replay finds with a kvistd and a disk, beside the model of kvist-bench policy: the same core above a disk that takes no time.
#include <catch2/catch.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/core/core_options.h"
#include "examples/replay/trace.h"
#include "tests/bench/policy_replay.h"
#include "tests/bench/traces.h"
#include "tests/support/campaign.h"
#include "tests/support/daemon_process.h"

namespace {

using kvist::bench::PolicyOutcome;
using kvist::bench::PolicyRequest;

constexpr uint64_t kKeysMax = 4096;  // of a request that kvist-replay asks for

// Hits of all blocks that are listed, in %, of `dram` slots and a disk for `ssd`.
double ModelHits(const kvist::replay::Trace& trace, uint64_t dram, uint64_t ssd) {
  std::vector<PolicyRequest> requests;
  for (const kvist::replay::Request& request : trace.requests) {
    PolicyRequest& asked = requests.emplace_back();
    asked.blocks.assign(request.hash_ids.begin(),
                        request.hash_ids.begin() + static_cast<ptrdiff_t>(std::min(request.full_blocks, kKeysMax)));
    asked.stop = static_cast<kvist::core::StopReason>(request.stop);
  }
  const PolicyOutcome outcome = kvist::bench::ReplayPolicy(requests, dram, kvist::core::CoreOptions{}.eviction, 1, ssd);
  return 100.0 * static_cast<double>(outcome.hits) / static_cast<double>(trace.blocks);
}

nlohmann::json Replay(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), kvist::test::BinDir() + "/kvist-replay");
  arguments.emplace_back("--json");
  std::string out;
  const int status = kvist::test::RunProgram(arguments, &out, std::chrono::minutes(20));
  REQUIRE(status == 0);
  return nlohmann::json::parse(out);
}

}  // namespace

TEST_CASE("Agents with 1 % of their blocks in memory and 10 % on disk hit what the model says") {
  const auto folder = kvist::bench::TraceFolder();
  if (!folder.ok()) {
    WARN(folder.status().message());
    return;
  }
  const int requests = kvist::test::Campaign("KVIST_TWO_TIERS_REQUESTS", 3000, 23'312);
  const std::string path = (*folder / "weka_cc_dev.jsonl.gz").string();
  // Memory and disk for shares of the whole trace also where only its beginning is replayed: prompts are as long beside them.
  const auto whole = kvist::replay::ReadTrace(path, UINT64_MAX);
  const auto trace = kvist::replay::ReadTrace(path, static_cast<uint64_t>(requests));
  REQUIRE(whole.ok());
  REQUIRE(trace.ok());
  const uint64_t dram = whole->unique_full_blocks / 100, ssd = whole->unique_full_blocks / 10;
  const auto fraction = [&](uint64_t blocks) {  // of which kvist-replay makes as many again
    return absl::StrCat((static_cast<double>(blocks) + 0.5) / static_cast<double>(trace->unique_full_blocks));
  };
  const double expected = ModelHits(*trace, dram, ssd);
  // What is stored while the disk hasn't written what would have to go isn't kept. Where others keep it busy, an engine has to be as slow as real
  // ones are for it to keep up.
  double hits = 0;
  for (const int rate : {2'000'000, 500'000, 125'000}) {
    const nlohmann::json found =
        Replay({"--trace", path, "--limit", absl::StrCat(requests), "--dram-fraction", fraction(dram), "--ssd-fraction",
                fraction(ssd), "--block-bytes", "16KiB", "--prefill-rate", absl::StrCat(rate)});
    hits = 100 * found["hit_ratio"].get<double>();
    std::printf(
        "agents in two tiers: %d requests, %.2f %% of blocks hit at %d tokens/s, %.2f %% in the model, wrong bytes %s\n",
        requests, hits, rate, expected, found["wrong_bytes"].dump().c_str());
    CHECK(found["wrong_bytes"] == 0);
    if (hits > expected - 1) break;
  }
  CHECK(std::abs(hits - expected) < 1);
}

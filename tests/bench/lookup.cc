// A lookup of 512 chunks, all there, in an index of a million, through a real session; and the key chain beside plain SHA-256.
//
// The index is filled by stores of a pool without memory: slots have numbers, copies end when they are submitted. Chains are looked up
// at random, so that neither their keys nor their chunks are in the processor's cache.
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "storage/base/check.h"
#include "storage/base/chunk_key.h"
#include "storage/base/status.h"
#include "tests/bench/daemon_under_test.h"
#include "tests/bench/engine_memory.h"
#include "tests/bench/random_keys.h"
#include "tests/bench/slices.h"
#include "tests/bench/subcommands.h"

namespace kvist::bench {
namespace {

constexpr uint32_t kChainChunks = 512;
constexpr uint64_t kIndexChunks = 1'000'000;
constexpr int kSliceLookups = 64;
constexpr double kAskedMicros = 100;  // above an empty round trip
constexpr int64_t kLeaseUs = 10'000'000;

constexpr size_t kTokens = 131'072;
constexpr size_t kChunkTokens = 256;

// Copies nothing: there is no memory.
class InstantCopies final : public cuda::CopyEngine {
 public:
  explicit InstantCopies(Done done) : done_(std::move(done)) {}
  void Submit(cuda::Copy copy) override { done_(copy.op, {absl::OkStatus()}); }
  void Cancel(OpId) override {}

 private:
  const Done done_;
};

using Chains = std::vector<std::vector<kvist_key>>;

absl::StatusOr<Chains> FillIndex(uint64_t chunks, kvist::Client& worker, std::mt19937_64& random) {
  Chains chains((chunks + kChainChunks - 1) / kChainChunks);
  const std::vector<uint32_t> pages(kChainChunks, 0);
  for (std::vector<kvist_key>& chain : chains) {
    chain = RandomKeys(random, kChainChunks);
    const kvist_op op = worker.Store(chain, 0, pages);
    if (op == 0) return absl::InternalError(absl::StrCat("a store did not start: ", kvist_error()));
    const kvist_result result = worker.Wait(op, 10'000'000);
    if (result.status != KVIST_OK || result.chunks_copied != kChainChunks) {
      return absl::InternalError(
          absl::StrCat("a store of ", kChainChunks, " chunks copied ", result.chunks_copied, ": ", kvist_error()));
    }
  }
  return chains;
}

absl::Status MeasureLookup(const Settings& settings, Report* report) {
  const uint64_t chunks = settings.quick ? 20 * kChainChunks : kIndexChunks;
  KVIST_ASSIGN_OR_RETURN(const std::unique_ptr<EngineMemory> memory, EngineMemory::Create({.page_bytes = 4096}));
  daemon::Options options;
  options.pool.bytes = AlignUp(cuda::SlotBytesFor({4096}) * (chunks + kChainChunks) + MiB(64), MiB(64));
  options.pool.slab_bytes = MiB(64);
  options.lease.share = 1;
  daemon::Parts parts;
  parts.pool_without_memory = true;
  parts.copy_engine = [](cuda::CopyEngine::Done done) { return std::make_unique<InstantCopies>(std::move(done)); };
  KVIST_ASSIGN_OR_RETURN(const std::unique_ptr<DaemonUnderTest> daemon, DaemonUnderTest::Start(options, std::move(parts)));
  KVIST_ASSIGN_OR_RETURN(kvist::Client scheduler, memory->Connect(daemon->socket(), KVIST_SCHEDULER));
  KVIST_ASSIGN_OR_RETURN(kvist::Client worker, memory->Connect(daemon->socket(), KVIST_WORKER));
  std::mt19937_64 random(1);
  KVIST_ASSIGN_OR_RETURN(const Chains chains, FillIndex(chunks, worker, random));
  KVIST_ASSIGN_OR_RETURN(const rpc::NodeStatus status, daemon->Status());
  if (status.spaces.empty() || status.spaces[0].chunks < chunks || status.evictions != 0) {
    return absl::InternalError(absl::StrCat("the index was to have ", chunks, " chunks, and nothing evicted"));
  }

  std::vector<double> lookups, empties;  // seconds of each
  const Slice product = [&]() -> absl::StatusOr<double> {
    std::vector<double> seconds;
    for (int i = 0; i < kSliceLookups; ++i) {
      const std::vector<kvist_key>& chain = chains[random() % chains.size()];
      const double start = Now();
      const kvist::Hit hit = scheduler.Lookup(chain, kLeaseUs);
      seconds.push_back(Now() - start);
      if (hit.chunks != kChainChunks || !hit.lease) {
        return absl::InternalError(absl::StrCat("a lookup found ", hit.chunks, " chunks",
                                                hit.lease ? "" : " without a lease", ": ", kvist_error()));
      }
    }
    lookups.insert(lookups.end(), seconds.begin(), seconds.end());
    return Quantile(std::move(seconds), 0.5);
  };
  const std::vector<kvist_key> unknown = RandomKeys(random, 1);
  const Slice limit = [&]() -> absl::StatusOr<double> {
    std::vector<double> seconds;
    for (int i = 0; i < kSliceLookups; ++i) {
      const double start = Now();
      const kvist::Hit hit = scheduler.Lookup(unknown, kLeaseUs);
      seconds.push_back(Now() - start);
      if (hit.status != KVIST_OK || hit.chunks != 0)
        return absl::InternalError(absl::StrCat("an empty lookup: ", kvist_error()));
    }
    empties.insert(empties.end(), seconds.begin(), seconds.end());
    return Quantile(std::move(seconds), 0.5);
  };
  KVIST_RETURN_IF_ERROR(Alternate(0.1 * settings.time, product, limit).status());  // warm
  lookups.clear();
  empties.clear();
  KVIST_ASSIGN_OR_RETURN(const std::vector<Pair> pairs, Alternate(0.6 * settings.time, product, limit));
  const Pair middle = MedianByDifference(pairs);
  report->cases.push_back(
      {"512 chunks above empty, p50", (middle.product - middle.limit) * 1e6, "us", kAskedMicros, Better::kLower, 1});
  for (const auto& [name, q] : {std::pair{"512 chunks, p50", 0.5}, std::pair{"512 chunks, p99", 0.99}}) {
    report->cases.push_back(
        {name, Quantile(lookups, q) * 1e6, "us", Quantile(empties, q) * 1e6, Better::kLower, std::nullopt});
  }
  return absl::OkStatus();
}

// SHA-256 as the chain has it: a fetched digest and one context for all.
class Sha256 {
 public:
  Sha256() : digest_(EVP_MD_fetch(nullptr, "SHA256", nullptr)), context_(EVP_MD_CTX_new()) {
    KVIST_CHECK(digest_ != nullptr);
  }
  ~Sha256() {
    EVP_MD_CTX_free(context_);
    EVP_MD_free(digest_);
  }
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void Hash(const void* data, size_t size) {
    unsigned length = 0;
    KVIST_CHECK(EVP_DigestInit_ex2(context_, digest_, nullptr) == 1 && EVP_DigestUpdate(context_, data, size) == 1 &&
                EVP_DigestFinal_ex(context_, out_.data(), &length) == 1);
  }

 private:
  EVP_MD* const digest_;
  EVP_MD_CTX* const context_;
  std::array<unsigned char, 32> out_{};
};

absl::Status MeasureChain(const Settings& settings, Report* report) {
  std::mt19937 random(1);
  std::vector<uint32_t> tokens(kTokens);
  std::ranges::generate(tokens, [&] { return random() % 150'000; });
  // As many bytes as the chain hashes: 32 bytes of parent before each chunk's tokens.
  std::vector<char> messages(kTokens / kChunkTokens * (sizeof(ChunkKey) + kChunkTokens * sizeof(uint32_t)));
  std::ranges::generate(messages, [&] { return static_cast<char>(random()); });
  Sha256 sha256;

  // A slice is one run, about 300 us: short enough that most are not interrupted.
  const auto timed = [](auto work) -> Slice {
    return [work]() -> absl::StatusOr<double> {
      const double start = Now();
      work();
      return Now() - start;
    };
  };
  const Slice chain = timed([&] {
    KeyChain keys(Tokens{kChunkTokens}, {});
    keys.Append(tokens);
    KVIST_CHECK(keys.keys().size() == kTokens / kChunkTokens);
  });
  const Slice same_bytes = timed([&] { sha256.Hash(messages.data(), messages.size()); });
  const Slice tokens_alone = timed([&] { sha256.Hash(tokens.data(), tokens.size() * sizeof(uint32_t)); });
  KVIST_ASSIGN_OR_RETURN(const std::vector<Pair> pairs, Alternate(0.15 * settings.time, chain, same_bytes));
  const Pair middle = MedianByRatio(pairs);
  report->cases.push_back({"chain of 131,072 tokens", middle.product * 1e6, "us", middle.limit * 1e6, Better::kLower, 1.1});
  KVIST_ASSIGN_OR_RETURN(const std::vector<Pair> token_pairs, Alternate(0.15 * settings.time, chain, tokens_alone));
  const Pair beside_tokens = MedianByRatio(token_pairs);
  report->cases.push_back({"chain beside the tokens alone", beside_tokens.product * 1e6, "us", beside_tokens.limit * 1e6,
                           Better::kLower, std::nullopt});
  return absl::OkStatus();
}

}  // namespace

absl::Status RunLookup(const Settings& settings, Report* report) {
  KVIST_RETURN_IF_ERROR(MeasureLookup(settings, report));
  return MeasureChain(settings, report);
}

}  // namespace kvist::bench

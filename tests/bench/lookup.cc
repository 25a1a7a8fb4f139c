// A lookup of 512 chunks, all there, in an index of a million, through a real session; the key chain beside plain SHA-256; and the
// lookup in an index of ten millions beside that of a million.
//
// Chains are looked up at random, so that neither their keys nor their chunks are in the processor's cache; where the last one is larger than the
// index that is said, and in any case what it costs when it has been driven out of all of them, with its page tables and the code.
#include <openssl/evp.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
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
#include "tests/bench/cold_cache.h"
#include "tests/bench/full_index.h"
#include "tests/bench/random_keys.h"
#include "tests/bench/slices.h"
#include "tests/bench/subcommands.h"

namespace kvist::bench {
namespace {

constexpr uint64_t kLargeFactor = 10;
constexpr double kLargeGoal = 1.5;        // of the p50 in the small index
constexpr double kAskedIndexBytes = 128;  // beside the data, of everything that grows with chunks
constexpr double kAskedMicrosPerChunk =
    1;  // of the core (DESIGN.md section 4); here of a whole store, its way there included
constexpr int kSliceLookups = 64;
constexpr double kAskedHitMicros = 100;  // above an empty round trip
constexpr int64_t kLeaseUs = 10'000'000;

constexpr size_t kTokens = 131'072;
constexpr size_t kChunkTokens = 256;

// Memory of this process that is there, in bytes.
absl::StatusOr<uint64_t> ResidentBytes() {
  uint64_t pages = 0, resident = 0;
  if (!(std::ifstream("/proc/self/statm") >> pages >> resident)) return absl::InternalError("can't read /proc/self/statm");
  return resident * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

// Seconds of each of some lookups of random chains, which must all be there.
absl::StatusOr<std::vector<double>> LookUp(FullIndex& index, std::mt19937_64& random) {
  std::vector<double> seconds;
  for (int i = 0; i < kSliceLookups; ++i) {
    const std::vector<kvist_key>& chain = index.chains()[random() % index.chains().size()];
    const double start = Now();
    const kvist::Hit hit = index.scheduler().Lookup(chain, kLeaseUs);
    seconds.push_back(Now() - start);
    if (hit.chunks != FullIndex::kChainChunks || !hit.lease) {
      return absl::InternalError(
          absl::StrCat("a lookup found ", hit.chunks, " chunks", hit.lease ? "" : " without a lease", ": ", kvist_error()));
    }
  }
  return seconds;
}

absl::Status MeasureLookup(FullIndex& index, const Settings& settings, Report* report) {
  std::mt19937_64 random(4);             // not the seed of the index
  std::vector<double> lookups, empties;  // seconds of each
  const Slice product = [&]() -> absl::StatusOr<double> {
    KVIST_ASSIGN_OR_RETURN(std::vector<double> seconds, LookUp(index, random));
    lookups.insert(lookups.end(), seconds.begin(), seconds.end());
    return Quantile(std::move(seconds), 0.5);
  };
  const std::vector<kvist_key> unknown = RandomKeys(random, 1);
  const Slice limit = [&]() -> absl::StatusOr<double> {
    std::vector<double> seconds;
    for (int i = 0; i < kSliceLookups; ++i) {
      const double start = Now();
      const kvist::Hit hit = index.scheduler().Lookup(unknown, kLeaseUs);
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
  KVIST_ASSIGN_OR_RETURN(const std::vector<Pair> pairs, Alternate(0.35 * settings.time, product, limit));
  const Pair middle = MedianByDifference(pairs);
  report->cases.push_back(
      {"512 chunks above empty, p50", (middle.product - middle.limit) * 1e6, "us", kAskedHitMicros, Better::kLower, 1});
  for (const auto& [name, q] : {std::pair{"512 chunks, p50", 0.5}, std::pair{"512 chunks, p99", 0.99}}) {
    report->cases.push_back(
        {name, Quantile(lookups, q) * 1e6, "us", Quantile(empties, q) * 1e6, Better::kLower, std::nullopt});
  }
  ColdCache cache;
  std::vector<double> cold;
  for (const double end = Now() + absl::ToDoubleSeconds(0.05 * settings.time); cold.empty() || Now() < end;) {
    cache.Walk();
    KVIST_ASSIGN_OR_RETURN(const std::vector<double> seconds, LookUp(index, random));
    cold.insert(cold.end(), seconds.begin(), seconds.end());
  }
  report->cases.push_back({"512 chunks above empty from cold caches, p50", (Quantile(cold, 0.5) - middle.limit) * 1e6, "us",
                           kAskedHitMicros, Better::kLower, 1});
  return absl::OkStatus();
}

// An index of ten times as many chunks: what filling costs, what it takes in memory, and how a lookup there compares.
absl::Status MeasureLarge(FullIndex& index, const Settings& settings, Report* report) {
  const uint64_t chunks = (settings.quick ? FullIndex::kQuickChunks : FullIndex::kChunks) * kLargeFactor;
  KVIST_ASSIGN_OR_RETURN(const std::unique_ptr<FullIndex> large, FullIndex::Create(chunks));
  KVIST_ASSIGN_OR_RETURN(const uint64_t before, ResidentBytes());
  const double start = Now();
  KVIST_RETURN_IF_ERROR(large->Fill(chunks));
  const double filled = Now() - start;
  KVIST_ASSIGN_OR_RETURN(const uint64_t after, ResidentBytes());
  const uint64_t stored = large->chains().size() * FullIndex::kChainChunks;
  const uint64_t keys = stored * sizeof(kvist_key) + large->chains().size() * sizeof(std::vector<kvist_key>);
  report->cases.push_back({"fill 10 M, each chunk", filled * 1e6 / static_cast<double>(stored), "us", kAskedMicrosPerChunk,
                           Better::kLower, std::nullopt});
  report->cases.push_back({"memory at 10 M, each chunk",
                           (static_cast<double>(after) - static_cast<double>(before + keys)) / static_cast<double>(stored),
                           "bytes", kAskedIndexBytes, Better::kLower, 1});

  std::mt19937_64 random(2);
  const auto median_of = [&random](FullIndex& which) -> Slice {
    return [&which, &random]() -> absl::StatusOr<double> {
      KVIST_ASSIGN_OR_RETURN(std::vector<double> seconds, LookUp(which, random));
      return Quantile(std::move(seconds), 0.5);
    };
  };
  KVIST_RETURN_IF_ERROR(Alternate(0.05 * settings.time, median_of(*large), median_of(index)).status());  // warm
  KVIST_ASSIGN_OR_RETURN(const std::vector<Pair> pairs,
                         Alternate(0.25 * settings.time, median_of(*large), median_of(index)));
  const Pair middle = MedianByRatio(pairs);
  report->cases.push_back(
      {"512 chunks at 10 M beside 1 M, p50", middle.product * 1e6, "us", middle.limit * 1e6, Better::kLower, kLargeGoal});
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
  KVIST_ASSIGN_OR_RETURN(const std::vector<Pair> pairs, Alternate(0.1 * settings.time, chain, same_bytes));
  const Pair middle = MedianByRatio(pairs);
  report->cases.push_back({"chain of 131,072 tokens", middle.product * 1e6, "us", middle.limit * 1e6, Better::kLower, 1.1});
  KVIST_ASSIGN_OR_RETURN(const std::vector<Pair> token_pairs, Alternate(0.1 * settings.time, chain, tokens_alone));
  const Pair beside_tokens = MedianByRatio(token_pairs);
  report->cases.push_back({"chain beside the tokens alone", beside_tokens.product * 1e6, "us", beside_tokens.limit * 1e6,
                           Better::kLower, std::nullopt});
  return absl::OkStatus();
}

}  // namespace

absl::Status RunLookup(const Settings& settings, Report* report) {
  const uint64_t chunks = settings.quick ? FullIndex::kQuickChunks : FullIndex::kChunks;
  KVIST_ASSIGN_OR_RETURN(const std::unique_ptr<FullIndex> index, FullIndex::Create(chunks));
  KVIST_RETURN_IF_ERROR(index->Fill(chunks));
  const double index_bytes = static_cast<double>(chunks) * kAskedIndexBytes;
  if (const double cached = static_cast<double>(ColdCache::LastCacheBytes()); cached > index_bytes) {
    std::fprintf(stderr, "the last cache, of %.0f MiB, is larger than the index of some %.0f MiB\n", cached / (1 << 20),
                 index_bytes / (1 << 20));
  }
  KVIST_RETURN_IF_ERROR(MeasureLookup(*index, settings, report));
  KVIST_RETURN_IF_ERROR(MeasureChain(settings, report));
  return MeasureLarge(*index, settings, report);
}

}  // namespace kvist::bench

// The controller's directory: lookups of 512 chunks among 64 nodes with a million chunks each, alone and while nodes tell changes and snapshots
// as fast as they can; what it takes in memory; how many changes a second it takes. With three ways to overlap (told_directory.h).
//
// The limit is what the memory can do: as many reads, or changes, of random cache lines in an array as large as the directory, independent of
// each other.
#include <malloc.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "daemon/controller/directory_search.h"
#include "storage/base/check.h"
#include "storage/base/status.h"
#include "tests/bench/pinning.h"
#include "tests/bench/slices.h"
#include "tests/bench/subcommands.h"
#include "tests/bench/told_directory.h"

namespace kvist::bench {
namespace {

constexpr double kAskedLookupMicros = 1000;  // p99
constexpr double kAskedPairBytes = 64;
constexpr int kLookups = 256;           // of a slice
constexpr uint32_t kBatch = 256;        // changes
constexpr uint32_t kBatches = 64;       // of a slice
constexpr uint64_t kLineOfMemory = 64;  // bytes
constexpr int kSweepsASlice = 5;        // of a snapshot: a round takes less time than one

absl::StatusOr<uint64_t> ResidentNow() {
  uint64_t pages = 0, resident = 0;
  if (!(std::ifstream("/proc/self/statm") >> pages >> resident)) return absl::InternalError("can't read /proc/self/statm");
  return resident * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

// As much memory as a directory has, in pages as small, and nothing but random reads and writes of it.
class BareLines {
 public:
  explicit BareLines(uint64_t bytes) : lines_(bytes / kLineOfMemory), bytes_(lines_ * kLineOfMemory) {
    void* memory = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    KVIST_CHECK(memory != MAP_FAILED);
    memory_ = static_cast<char*>(memory);
    for (uint64_t at = 0; at < bytes_; at += 4096) memory_[at] = 1;
  }
  ~BareLines() { ::munmap(memory_, bytes_); }
  BareLines(const BareLines&) = delete;
  BareLines& operator=(const BareLines&) = delete;

  // Seconds for as many independent reads. The places are drawn before.
  double Read(uint32_t count, std::mt19937_64& random) {
    Draw(count, random);
    const double start = Now();
    uint64_t sum = 0;
    for (const uint64_t at : places_) sum += static_cast<unsigned char>(memory_[at]);
    sink_.store(sum, std::memory_order_relaxed);
    return Now() - start;
  }
  double Write(uint32_t count, std::mt19937_64& random) {
    Draw(count, random);
    const double start = Now();
    for (const uint64_t at : places_) ++memory_[at];
    return Now() - start;
  }

 private:
  void Draw(uint32_t count, std::mt19937_64& random) {
    places_.resize(count);
    for (uint64_t& at : places_) at = random() % lines_ * kLineOfMemory;
  }

  const uint64_t lines_;
  const uint64_t bytes_;
  char* memory_ = nullptr;
  std::vector<uint64_t> places_;
  std::atomic<uint64_t> sink_ = 0;
};

class Lookups {
 public:
  explicit Lookups(ToldDirectory* told) : told_(*told), search_(&told->directory()) {}

  // How often this thread had to leave its processor to another one that is ready. Not when it waits for a lock or memory.
  static long Switches() {
    rusage usage{};
    ::getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nivcsw;
  }
  // Lookups that were left out, for then they tell of the other processes of this machine; in parts of all.
  double left_out() const { return static_cast<double>(left_out_) / static_cast<double>(all_); }

  // Seconds of each of some lookups of random chains that are there; `whole`: nobody changes anything, so all of it must be found.
  absl::Status Run(bool whole, std::vector<double>* seconds) {
    for (int i = 0; i < kLookups; ++i) {
      const ToldDirectory::Chain chain = told_.Any(random_);
      const std::vector<ChunkKey> keys = told_.KeysOf(chain.number);
      const long switched = Switches();
      const double start = Now();
      const auto found = search_.Find(told_.space(), keys);
      const double took = Now() - start;
      KVIST_RETURN_IF_ERROR(found.status());
      ++all_;
      if (Switches() == switched) {
        seconds->push_back(took);
      } else {
        ++left_out_;
      }
      const bool there = std::ranges::any_of(*found, [&](const controller::Holding& holding) {
        return holding.node == told_.node(chain.node) && holding.chunks == keys.size();
      });
      if (whole && !there) return absl::InternalError("a chain that a node has told isn't found");
    }
    return absl::OkStatus();
  }
  // The same of chains that nobody has.
  absl::Status RunUnknown(std::vector<double>* seconds) {
    for (int i = 0; i < kLookups; ++i) {
      const std::vector<ChunkKey> keys = told_.UnknownKeys(random_);
      const double start = Now();
      const auto found = search_.Find(told_.space(), keys);
      seconds->push_back(Now() - start);
      KVIST_RETURN_IF_ERROR(found.status());
      if (!found->empty()) return absl::InternalError("a chain that no node has told is found");
    }
    return absl::OkStatus();
  }

 private:
  ToldDirectory& told_;
  controller::DirectorySearch search_;
  std::mt19937_64 random_{7};
  uint64_t all_ = 0, left_out_ = 0;
};

// Tells as fast as it can until it goes: changes of all nodes in turn, or one snapshot after the other.
class Teller {
 public:
  enum class What { kChanges, kSnapshots };
  Teller(ToldDirectory* told, uint32_t nodes, What what, int cpu)
      : thread_([this, told, nodes, what, cpu] {
          const Pinned pinned(cpu);
          std::mt19937_64 random(11);
          for (uint32_t node = 0; !over_ && status_.ok(); node = (node + 1) % nodes) {
            status_ = what == What::kChanges ? Change(told, node, random) : Snapshot(told, node);
          }
        }) {}
  ~Teller() { Stop().IgnoreError(); }

  absl::Status Stop() {
    over_ = true;
    if (thread_.joinable()) thread_.join();
    return status_.code() == absl::StatusCode::kCancelled ? absl::OkStatus() : status_;
  }
  uint64_t told() const { return told_; }

 private:
  absl::Status Change(ToldDirectory* told, uint32_t node, std::mt19937_64& random) {
    for (int i = 0; i < 2; ++i) {  // out and back
      const controller::ChangeBatch batch = told->NextChanges(node, kBatch, random);
      KVIST_RETURN_IF_ERROR(told->directory().Hear(told->node(node), batch));
      told_ += kBatch;
    }
    return absl::OkStatus();
  }
  absl::Status Snapshot(ToldDirectory* told, uint32_t node) {
    return told->TellAll(node, [&] {
      told_ += ToldDirectory::kSliceChunks;
      for (int i = 0; i < kSweepsASlice; ++i) told->directory().Tick(absl::InfinitePast());
    });
  }

  std::atomic<bool> over_ = false;
  std::atomic<uint64_t> told_ = 0;
  absl::Status status_;
  std::thread thread_;
};

void ReportLatencies(const std::string& name, const std::vector<double>& seconds, double limit_p50, Report* report) {
  report->cases.push_back(
      {absl::StrCat(name, ", p50"), Quantile(seconds, 0.5) * 1e6, "us", limit_p50 * 1e6, Better::kLower, {}});
  report->cases.push_back(
      {absl::StrCat(name, ", p99"), Quantile(seconds, 0.99) * 1e6, "us", kAskedLookupMicros, Better::kLower, 1});
  report->cases.push_back(
      {absl::StrCat(name, ", max"), Quantile(seconds, 1) * 1e6, "us", kAskedLookupMicros, Better::kLower, std::nullopt});
}

absl::Status Measure(const std::string& how, const ToldDirectory::Shape& shape, absl::Duration time, Report* report) {
  const std::vector<int> cpus = UsableCpus();
  const Pinned pinned(cpus[0]);
  ::malloc_trim(0);
  KVIST_ASSIGN_OR_RETURN(const uint64_t before, ResidentNow());
  const double start = Now();
  KVIST_ASSIGN_OR_RETURN(const std::unique_ptr<ToldDirectory> told, ToldDirectory::Create(shape));
  const double filled = Now() - start;
  KVIST_ASSIGN_OR_RETURN(const uint64_t after, ResidentNow());
  const auto pairs = static_cast<double>(told->pairs());
  const uint64_t tables = told->directory().memory_bytes();
  // Whichever counts more: what is there, or what was asked of the system for it.
  const auto bytes = static_cast<double>(std::max(after - std::min(before, after), tables));
  report->cases.push_back(
      {absl::StrCat(how, ": a (chunk, node)"), bytes / pairs, "bytes", kAskedPairBytes, Better::kLower, 1});
  report->cases.push_back({absl::StrCat(how, ": snapshots"), pairs / filled / 1e6, "M/s", 1, Better::kHigher, std::nullopt});

  BareLines bare(tables);
  std::mt19937_64 random(3);
  Lookups lookups(told.get());
  std::vector<double> alone, misses;
  const Slice product = [&]() -> absl::StatusOr<double> {
    KVIST_RETURN_IF_ERROR(lookups.Run(true, &alone));
    return 0;
  };
  const Slice limit = [&]() -> absl::StatusOr<double> {
    for (int i = 0; i < kLookups; ++i) misses.push_back(bare.Read(ToldDirectory::kChainChunks, random));
    return 0;
  };
  KVIST_RETURN_IF_ERROR(Alternate(0.02 * time, product, limit).status());  // warm
  alone.clear();
  KVIST_RETURN_IF_ERROR(Alternate(0.1 * time, product, limit).status());
  const double missing = Quantile(misses, 0.5);
  ReportLatencies(absl::StrCat(how, ": 512 chunks"), alone, missing, report);
  std::vector<double> unknown;
  KVIST_RETURN_IF_ERROR(lookups.RunUnknown(&unknown));
  report->cases.push_back({absl::StrCat(how, ": 512 unknown chunks, p50"), Quantile(unknown, 0.5) * 1e6, "us", missing * 1e6,
                           Better::kLower, std::nullopt});

  const Slice changes = [&]() -> absl::StatusOr<double> {
    double seconds = 0;
    for (uint32_t i = 0; i < kBatches; ++i) {
      const auto node = static_cast<uint32_t>(i / 2 % shape.nodes);
      const controller::ChangeBatch batch = told->NextChanges(node, kBatch, random);
      const double begin = Now();
      KVIST_RETURN_IF_ERROR(told->directory().Hear(told->node(node), batch));
      seconds += Now() - begin;
    }
    return kBatches * kBatch / seconds;
  };
  const Slice writes = [&]() -> absl::StatusOr<double> {
    double seconds = 0;
    for (uint32_t i = 0; i < kBatches; ++i) seconds += bare.Write(kBatch, random);
    return kBatches * kBatch / seconds;
  };
  KVIST_ASSIGN_OR_RETURN(const std::vector<Pair> changed, Alternate(0.05 * time, changes, writes));
  const Pair middle = MedianByRatio(changed);
  report->cases.push_back(
      {absl::StrCat(how, ": changes"), middle.product / 1e6, "M/s", middle.limit / 1e6, Better::kHigher, std::nullopt});

  const std::pair<Teller::What, const char*> tellers[] = {{Teller::What::kChanges, "changes"},
                                                          {Teller::What::kSnapshots, "snapshots"}};
  for (const auto& [what, name] : tellers) {
    std::vector<double> beside;
    Teller teller(told.get(), shape.nodes, what, cpus[cpus.size() > 1 ? 1 : 0]);
    const double begin = Now();
    const uint64_t told_before = teller.told();
    while (Now() - begin < 0.08 * absl::ToDoubleSeconds(time)) KVIST_RETURN_IF_ERROR(lookups.Run(false, &beside));
    const auto count = static_cast<double>(teller.told() - told_before);
    const double seconds = Now() - begin;
    KVIST_RETURN_IF_ERROR(teller.Stop());
    ReportLatencies(absl::StrCat(how, ": 512 chunks beside ", name), beside, missing, report);
    report->cases.push_back({absl::StrCat(how, ": ", name, " beside lookups"), count / seconds / 1e6, "M/s",
                             middle.limit / 1e6, Better::kHigher, std::nullopt});
  }
  absl::StrAppend(&report->notes, how, ": ", absl::StrFormat("%.2f", lookups.left_out() * 100),
                  " % of the lookups were left out, for another process took the processor meanwhile.\n");
  return absl::OkStatus();
}

}  // namespace

absl::Status RunDirectory(const Settings& settings, Report* report) {
  const std::pair<Sharing, const char*> ways[] = {
      {Sharing::kNone, "nothing shared"}, {Sharing::kSome, "some shared"}, {Sharing::kAll, "all shared"}};
  for (const auto& [sharing, name] : ways) {
    ToldDirectory::Shape shape{.nodes = 64, .chunks = 1'000'000, .sharing = sharing};
    if (settings.quick) shape = {.nodes = 8, .chunks = 20 * ToldDirectory::kChainChunks, .sharing = sharing};
    KVIST_RETURN_IF_ERROR(Measure(name, shape, settings.time, report));
  }
  return absl::OkStatus();
}

}  // namespace kvist::bench

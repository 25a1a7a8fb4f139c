#ifndef KVIST_TESTS_SUPPORT_FAKE_ENGINE_H_
#define KVIST_TESTS_SUPPORT_FAKE_ENGINE_H_

#include <kvist/client.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tests/support/test_gpu.h"

namespace kvist::test {

// An engine without a model: paged memory whose bytes are a function of what they stand for, so that a wrong byte is seen and its
// owner named. One scheduler session and `ranks` worker sessions of one instance, all in this process or as many as it is told.
//
// Layout of a rank's memory: [page][layer][K, V][segment]: pages interleave layers, so strides matter.
class FakeEngine {
 public:
  struct Options {
    std::string socket;
    std::string instance = "fake";
    std::string model = "fake-model";
    std::string revision = "", kv_dtype = "u8",
                layout = "";  // what its KV is, beside its sizes; of bf16 all values are finite
    uint32_t ranks = 1;
    uint32_t first_rank = 0, end_rank = UINT32_MAX;  // those of this process: [first_rank, end_rank) of them
    uint32_t pages = 64;
    uint32_t layers = 3;
    uint32_t segment_bytes = 1024;  // of K or V of one page in one layer
    bool sealed = true;             // the memfd can't shrink, so kvistd maps it
    bool in_process = false;        // no memfd at all: kvistd goes through the process
    bool on_gpu = false;            // nor the host's: memory of a GPU
    bool scheduler = true;
    bool half_empty = false;    // the second half of each segment is zero, so that it can be encoded in fewer bytes
    bool wrong_stride = false;  // describes its memory wrongly, on purpose
    bool by_layer = false;      // its loads are waited for layer by layer
    bool ask_again = false;     // goes on asking a kvistd that refuses it
    int64_t connect_timeout_us = 5'000'000;
    // Of every call that names none. The connector's default, 1 s, a busy machine may miss.
    int64_t deadline_us = 10'000'000;
  };
  static constexpr uint32_t kPageTokens = 16;
  static constexpr uint32_t kChunkTokens = 64;
  static constexpr uint32_t kPagesPerChunk = kChunkTokens / kPageTokens;

  // Of an engine at this socket; and of one whose prompts keep kvistd busy for a while: 24 MiB in 1,024 pages.
  static Options On(const std::string& socket, const std::string& instance = "fake");
  static Options LargeOn(const std::string& socket, const std::string& instance);

  explicit FakeEngine(Options options);
  ~FakeEngine();

  Status status;  // of connecting; everything below needs ok()

  // The tokens of prompt `prompt`, `chunks` chunks of them, and their keys. Prompts with equal number / 1000 share their first two chunks.
  static std::vector<uint32_t> Tokens(uint32_t prompt, uint32_t chunks);
  std::vector<kvist_key> Keys(uint32_t prompt, uint32_t chunks) const;

  // Writes what `key`'s chunk holds on `rank` into these pages; or returns "" when their first `layers` layers hold it, else what is wrong.
  void Fill(uint32_t rank, const kvist_key& key, std::span<const uint32_t> pages);
  std::string Check(uint32_t rank, const kvist_key& key, std::span<const uint32_t> pages,
                    uint32_t layers = UINT32_MAX) const;
  void Poison(uint32_t rank, std::span<const uint32_t> pages);

  // Fills pages and stores keys[first..) from all ranks, waits; the worst status. Threads that share an engine use pages apart:
  // Pages(pages_from, ..).
  kvist_result StoreAll(std::span<const kvist_key> keys, uint32_t first = 0, int64_t timeout_us = 10'000'000,
                        uint32_t pages_from = 0);
  // Looks up, loads all hits on all ranks into poisoned pages, checks. Returns the hit; `wrong` gets the first wrong page.
  uint32_t LoadAll(std::span<const kvist_key> keys, std::string* wrong, int64_t timeout_us = 10'000'000,
                   uint32_t pages_from = 0);

  TestGpu& gpu() { return *gpu_; }
  Client& scheduler() { return scheduler_; }
  Client& worker(uint32_t rank) { return workers_[rank]; }
  int memfd(uint32_t rank) const { return memories_[rank].fd; }
  // All of a rank's memory; a GPU's is only an address here.
  std::span<std::byte> memory(uint32_t rank) const { return {memories_[rank].data, memories_[rank].size}; }
  // Between that memory and the host.
  void Put(std::byte* to, const void* from, size_t size);
  void Get(void* to, const std::byte* from, size_t size) const;
  kvist_options SchedulerOptions() const;
  kvist_options WorkerOptions(uint32_t rank);
  // Page ids [first, first + chunks * kPagesPerChunk), scattered over the memory in a fixed way.
  std::vector<uint32_t> Pages(uint32_t first_chunk, uint32_t chunks) const;
  std::byte* Segment(uint32_t rank, uint32_t page, uint32_t layer, uint32_t segment) const;
  const Options& options() const { return options_; }

 private:
  struct Memory {
    int fd = -1;
    std::byte* data = nullptr;
    size_t size = 0;
  };
  struct ProbeContext {
    FakeEngine* engine;
    uint32_t rank;
  };
  static int WritePage(void* context, uint32_t layer, uint32_t page, const void* bytes, size_t size);
  uint64_t WordOf(uint64_t owner, uint32_t i) const;
  kvist_space Space() const;
  kvist_options CommonOptions() const;
  uint32_t end_rank() const { return std::min(options_.ranks, options_.end_rank); }

  Options options_;
  const kvist_space space_ = Space();
  uint64_t salt_;
  std::vector<Memory> memories_;
  std::vector<ProbeContext> contexts_;
  std::vector<kvist_process_region> process_regions_;
  std::unique_ptr<TestGpu> gpu_;
  std::vector<kvist_cuda_region> cuda_regions_;
  std::vector<kvist_layer> layers_;
  std::vector<kvist_dim> dims_;
  std::vector<kvist_memory> descriptions_;
  Client scheduler_;
  std::vector<Client> workers_;
};

}  // namespace kvist::test

#endif  // KVIST_TESTS_SUPPORT_FAKE_ENGINE_H_

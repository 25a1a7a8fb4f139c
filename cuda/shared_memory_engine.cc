#include "cuda/shared_memory_engine.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cuda/copy_queue.h"
#include "cuda/running_copy.h"
#include "storage/base/check.h"
#include "storage/base/usable_cpus.h"

namespace kvist::cuda {
namespace {

constexpr uint32_t kThreadsMax = 256;

// Threads that claim units of the queue's copies; everything else about a unit happens outside its mutex.
class SharedMemoryEngine final : public CopyEngine {
 public:
  SharedMemoryEngine(const SharedMemoryEngineOptions& options, Done done) : done_(std::move(done)), verify_(options.verify) {
    threads_.reserve(options.threads);
    for (uint32_t i = 0; i < options.threads; ++i) {
      threads_.emplace_back([this] { Work(); });
      pthread_setname_np(threads_.back().native_handle(), "kvist-copy");
      if (!options.cpus.empty()) Pin(threads_.back(), options.cpus[i % options.cpus.size()]);
    }
  }

  ~SharedMemoryEngine() override {
    queue_.Stop();
    for (std::thread& thread : threads_) thread.join();
  }

  void Submit(Copy copy) override { queue_.Submit(std::make_shared<RunningCopy>(std::move(copy), verify_)); }
  void Arrived() override { queue_.Arrived(); }
  void Look() override { queue_.Look(); }
  void Cancel(OpId op) override { queue_.Cancel(op); }

 private:
  static void Pin(std::thread& thread, int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    KVIST_CHECK(pthread_setaffinity_np(thread.native_handle(), sizeof set, &set) == 0);  // Validate has asked for the CPU
  }

  void Work() {
    while (std::optional<CopyQueue::Claim> claim = queue_.Next()) {
      RunningCopy& copy = *claim->copy;
      const bool quiet = claim->skip ? copy.Skip(claim->count) : copy.Run(claim->first);
      if (quiet) {
        End(copy);
      } else if (!claim->skip && copy.streams() && copy.stopped()) {
        Look();  // what is left of it has only to end
      }
    }
  }

  void End(RunningCopy& copy) {
    const OpId op = copy.op();
    CopyEnd end = copy.Result();
    queue_.Forget(op);
    done_(op, std::move(end));
  }

  const Done done_;
  const Verify verify_;
  CopyQueue queue_;
  std::vector<std::thread> threads_;  // last: they use all of the above
};

}  // namespace

absl::Status SharedMemoryEngineOptions::Validate() const {
  if (threads == 0 || threads > kThreadsMax) {
    return absl::InvalidArgumentError(absl::StrCat("copy threads: ", threads, ", allowed are 1 to ", kThreadsMax));
  }
  if (cpus.empty()) return absl::OkStatus();
  const std::vector<int> allowed = UsableCpus();
  for (const int cpu : cpus) {
    if (!std::binary_search(allowed.begin(), allowed.end(), cpu)) {
      return absl::InvalidArgumentError(
          absl::StrCat("copy.cpus: this process may not run on CPU ", cpu, ", only on ", PrintRanges(allowed)));
    }
  }
  return absl::OkStatus();
}

std::unique_ptr<CopyEngine> MakeSharedMemoryEngine(SharedMemoryEngineOptions options, CopyEngine::Done done) {
  KVIST_CHECK(options.Validate().ok());
  return std::make_unique<SharedMemoryEngine>(options, std::move(done));
}

}  // namespace kvist::cuda

#ifndef KVIST_STORAGE_POOL_PINNED_REGION_H_
#define KVIST_STORAGE_POOL_PINNED_REGION_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "storage/base/units.h"

namespace kvist::pool {

// The pool's memory on one NUMA node: reserved at once, usable at once, touched in the background.
//
// Lifecycle: Create reserves, prefers the node (its neighbours serve when it is full, so that nothing is killed for it), asks for
//   huge pages (hugetlb when the system has enough free ones, else transparent ones) and for mlock (on fault, so that it costs
//   nothing now), and keeps the region out of core dumps; it returns before any page is touched. Threads at the lowest priority
//   (normal before Linux 6.4) then touch it from front to back without changing a byte; the region serves meanwhile (a page that is
//   needed earlier is touched by its first copy). The destructor stops them within a page and unmaps.
// Threads: Create and destroy on one; data(), touched() from any. The content is zero until somebody writes, but in a file that held something.
class PinnedRegion {
 public:
  struct Options {
    Bytes length{};      // rounded up to 2 MiB
    int numa_node = -1;  // -1: wherever the kernel puts it
    int file = -1;       // a file of memory (memory_file.h) that it lies in, at least as long; else it ends with the process
    uint32_t touch_threads = 1;  // 0: don't pre-touch
    bool lock = true;            // mlock when RLIMIT_MEMLOCK or CAP_IPC_LOCK allow
  };
  // What the region got, in words for the log. `warnings` name the limit to raise (each one sentence); empty when all was granted.
  struct Report {
    Bytes page_size{};  // 4 KiB, or 2 MiB when huge pages were granted (transparent ones: asked for, not promised)
    bool huge_pages_guaranteed = false;
    bool locked = false;  // or can't be swapped out anyway
    std::vector<std::string> warnings;
  };

  // Errors: InvalidArgument    length is 0, or numa_node isn't one of this machine.
  //         ResourceExhausted  the address space or memory limit doesn't allow it (message names pool.bytes and the limit).
  static absl::StatusOr<std::unique_ptr<PinnedRegion>> Create(Options options);
  ~PinnedRegion();
  PinnedRegion(const PinnedRegion&) = delete;
  PinnedRegion& operator=(const PinnedRegion&) = delete;

  std::byte* data() const { return data_; }
  Bytes length() const { return length_; }
  const Report& report() const { return report_; }
  Bytes touched() const { return {touched_.load(std::memory_order_relaxed)}; }
  // Calls `done` once all of it has been touched: now, or on a touching thread. Not when nobody touches it. Once.
  void OnTouched(std::function<void()> done);
  // Ends the touching, within a page. Nothing is called any more when this returns.
  void StopTouching();
  bool fully_touched() const { return touched() == length_; }

 private:
  PinnedRegion() = default;
  bool MapHugeTlb(const Options& options);
  absl::Status MapTransparent();
  absl::Status MapFile(int file);
  absl::Status Reserve();
  void TakeHugePages(bool are_there, absl::string_view mend);
  void PreferNode(int node);
  void Lock();
  void StartTouching(const Options& options);
  void Touch(int node);

  std::byte* data_ = nullptr;
  Bytes length_{};
  Report report_;
  std::atomic<uint64_t> next_{0};     // next byte to be claimed by a touching thread
  std::atomic<uint64_t> touched_{0};  // bytes touched so far
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
  absl::Mutex done_mutex_;
  std::function<void()> done_ ABSL_GUARDED_BY(done_mutex_);
};

// NUMA nodes with memory that this process may use, ascending; {-1} when the machine has no NUMA.
std::vector<int> UsableNumaNodes();

}  // namespace kvist::pool

#endif  // KVIST_STORAGE_POOL_PINNED_REGION_H_

#ifndef KVIST_STORAGE_POOL_PINNED_REGION_H_
#define KVIST_STORAGE_POOL_PINNED_REGION_H_

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/base/units.h"

namespace kvist::pool {

// The pool's memory on one NUMA node: reserved at once, usable at once, touched in the background.
//
// Lifecycle: Create reserves, binds to the node, asks for huge pages (hugetlb when the system has enough free ones, else
//   transparent ones) and for mlock (on fault, so that it costs nothing now); it returns before any page is touched.
//   Threads at the lowest priority then touch it from front to back; the region serves meanwhile (a page that is needed earlier
//   is touched by its first copy). The destructor stops them and unmaps.
// Threads: Create and destroy on one; data() from any.
class PinnedRegion {
 public:
  struct Options {
    Bytes length{};                // rounded up to 2 MiB
    int numa_node = -1;            // -1: wherever the kernel puts it
    uint32_t touch_threads = 1;    // 0: don't pre-touch
    bool lock = true;              // mlock when RLIMIT_MEMLOCK or CAP_IPC_LOCK allow
  };
  // What the region got, in words for the log. `warnings` name the limit to raise (each one sentence); empty when all was granted.
  struct Report {
    Bytes page_size{};             // 4 KiB, or 2 MiB when huge pages were granted (transparent ones: asked for, not promised)
    bool huge_pages_guaranteed = false;
    bool locked = false;
    std::vector<std::string> warnings;
  };

  // Errors: ResourceExhausted  the address space or memory limit doesn't allow it (message names pool.bytes and the limit).
  static absl::StatusOr<std::unique_ptr<PinnedRegion>> Create(Options options);
  ~PinnedRegion();
  PinnedRegion(const PinnedRegion&) = delete;
  PinnedRegion& operator=(const PinnedRegion&) = delete;

  std::byte* data() const { return data_; }
  Bytes length() const { return length_; }
  const Report& report() const { return report_; }
  Bytes touched() const { return {touched_.load(std::memory_order_relaxed)}; }
  bool fully_touched() const { return touched() == length_; }

 private:
  PinnedRegion() = default;
  void Touch();

  std::byte* data_ = nullptr;
  Bytes length_{};
  Report report_;
  std::atomic<uint64_t> next_{0};     // next byte to be claimed by a touching thread
  std::atomic<uint64_t> touched_{0};  // bytes touched so far
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

// NUMA nodes with memory that this process may use, ascending; {-1} when the machine has no NUMA.
std::vector<int> UsableNumaNodes();

}  // namespace kvist::pool

#endif  // KVIST_STORAGE_POOL_PINNED_REGION_H_

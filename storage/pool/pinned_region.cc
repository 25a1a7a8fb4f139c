#include "storage/pool/pinned_region.h"

#include <linux/magic.h>
#include <linux/mman.h>
#include <numa.h>
#include <numaif.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/vfs.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>

#include "absl/base/attributes.h"
#include "absl/base/const_init.h"
#include "absl/strings/str_cat.h"
#include "storage/base/status.h"
#include "storage/pool/huge_pages.h"
#include "storage/pool/memory_limit.h"

namespace kvist::pool {
namespace {

constexpr Bytes kTouchPiece = MiB(64);  // what a thread claims at once: far apart enough that threads don't meet

// Since 6.4 a page fault takes the lock of its mapping only. Before, it took the process's: a thread at the lowest priority that is
// preempted inside a fault then keeps every mmap of the process waiting until it runs again.
bool FaultsLockOneMapping() {
  utsname name;
  int major = 0;
  int minor = 0;
  return uname(&name) == 0 && std::sscanf(name.release, "%d.%d", &major, &minor) == 2 &&
         std::pair(major, minor) >= std::pair(6, 4);
}

// Makes the page writable and present and changes none of its bytes, also while somebody else writes them: where the byte is 0 it
// stays 0, where it isn't nothing is written. (Not an OR with 0: compilers may turn that into a load. No load before it: that would
// fault the page in read-only first.)
//
// To C++ this is a race with whoever writes to the page meanwhile, to the processor one locked instruction that changes no byte. Hence
// the compiler's builtin, in a function that ThreadSanitizer leaves alone: it would see into std::atomic_ref.
__attribute__((no_sanitize("thread"))) void TouchPage(std::byte* page) {
  auto* byte = reinterpret_cast<uint8_t*>(page);
  uint8_t zero = 0;
  __atomic_compare_exchange_n(byte, &zero, uint8_t{0}, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

absl::Status NoMemory(Bytes length, std::string_view limit) {
  return absl::ResourceExhaustedError(absl::StrCat("the pool needs ", length.value, " bytes on one node, which ",
                                                   absl::string_view(limit.data(), limit.size()),
                                                   " doesn't allow: lower pool.bytes or raise that limit"));
}

// libnuma keeps what it has read of a node for itself, without a lock of its own.
void RunOnNode(int node) {
  ABSL_CONST_INIT static absl::Mutex mutex(absl::kConstInit);
  const absl::MutexLock lock(&mutex);
  numa_run_on_node(node);
}

}  // namespace

absl::StatusOr<std::unique_ptr<PinnedRegion>> PinnedRegion::Create(Options options) {
  if (options.length.value == 0) return absl::InvalidArgumentError("pool.bytes must be positive");
  if (options.numa_node >= 0 && (numa_available() < 0 || options.numa_node > numa_max_node())) {
    return absl::InvalidArgumentError(absl::StrCat("numa_node: this machine has no NUMA node ", options.numa_node));
  }
  KVIST_RETURN_IF_ERROR(CheckMemoryLimit(options.length));

  std::unique_ptr<PinnedRegion> region(new PinnedRegion);
  region->length_ = AlignUp(options.length, kHugePage);
  if (options.file >= 0) {
    KVIST_RETURN_IF_ERROR(region->MapFile(options.file));
  } else if (!region->MapHugeTlb(options)) {
    KVIST_RETURN_IF_ERROR(region->MapTransparent());
  }
  if (options.numa_node >= 0) region->PreferNode(options.numa_node);
  madvise(region->data_, region->length_.value, MADV_DONTDUMP);  // secrets of users, and gigabytes
  if (options.lock) region->Lock();
  region->StartTouching(options);
  return region;
}

PinnedRegion::~PinnedRegion() {
  StopTouching();
  if (data_ != nullptr) munmap(data_, length_.value);
}

void PinnedRegion::StopTouching() {
  stop_.store(true, std::memory_order_relaxed);
  for (std::thread& thread : threads_) {
    // On a busy machine a thread at the lowest priority would notice late. Without the right to raise it we wait for its turn.
    const sched_param normal{};
    pthread_setschedparam(thread.native_handle(), SCHED_OTHER, &normal);
    thread.join();
  }
  threads_.clear();
}

void PinnedRegion::OnTouched(std::function<void()> done) {
  {
    const absl::MutexLock lock(&done_mutex_);
    if (!fully_touched()) {
      done_ = std::move(done);
      return;
    }
  }
  done();
}

bool PinnedRegion::MapHugeTlb(const Options& options) {
  if (FreeHugeTlb(options.numa_node) < length_) return false;
  void* at =
      mmap(nullptr, length_.value, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | MAP_HUGE_2MB, -1, 0);
  if (at == MAP_FAILED) return false;  // somebody was faster
  data_ = static_cast<std::byte*>(at);
  report_.page_size = kHugePage;
  report_.huge_pages_guaranteed = true;
  return true;
}

absl::Status PinnedRegion::MapTransparent() {
  KVIST_RETURN_IF_ERROR(Reserve());
  TakeHugePages(TransparentHugePages(), "write madvise to /sys/kernel/mm/transparent_hugepage/enabled");
  return absl::OkStatus();
}

absl::Status PinnedRegion::MapFile(int file) {
  struct stat status {};
  if (fstat(file, &status) != 0) return ErrnoStatus("fstat of a file of memory for the pool", errno);
  if (Bytes{static_cast<uint64_t>(status.st_size)} < length_)
    return absl::InvalidArgumentError("the file of memory for the pool is shorter than the pool");
  KVIST_RETURN_IF_ERROR(Reserve());
  void* const at = mmap(data_, length_.value, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0);
  if (at == MAP_FAILED) return ErrnoStatus("mmap of a file of memory for the pool", errno);
  struct statfs file_system {};
  report_.huge_pages_guaranteed = fstatfs(file, &file_system) == 0 && file_system.f_type == HUGETLBFS_MAGIC;
  if (report_.huge_pages_guaranteed) {
    report_.page_size = kHugePage;
  } else {
    TakeHugePages(TransparentHugePagesInFiles(), "write advise to /sys/kernel/mm/transparent_hugepage/shmem_enabled");
  }
  return absl::OkStatus();
}

// Memory of our own, which starts where a huge page can.
absl::Status PinnedRegion::Reserve() {
  const uint64_t reserved = length_.value + kHugePage.value;
  void* at = mmap(nullptr, reserved, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return NoMemory(length_, "RLIMIT_AS (ulimit -v), RLIMIT_DATA (ulimit -d) or vm.overcommit_memory");
  auto* start = static_cast<std::byte*>(at);
  const uint64_t before = -reinterpret_cast<uintptr_t>(start) & (kHugePage.value - 1);
  data_ = start + before;
  if (before > 0) munmap(start, before);
  munmap(data_ + length_.value, kHugePage.value - before);
  return absl::OkStatus();
}

void PinnedRegion::TakeHugePages(bool are_there, absl::string_view mend) {
  if (are_there && madvise(data_, length_.value, MADV_HUGEPAGE) == 0) {
    report_.page_size = kHugePage;
  } else {
    report_.page_size = kPageOfMemory;
    if (TransparentHugePagesForbidden()) mend = "this process was started with prctl(PR_SET_THP_DISABLE); start it without";
    report_.warnings.push_back(absl::StrCat("the pool has no huge pages, copies will be slower: ", mend));
  }
}

void PinnedRegion::PreferNode(int node) {
  bitmask* nodes = numa_allocate_nodemask();
  numa_bitmask_setbit(nodes, static_cast<unsigned>(node));
  // Preferred, not bound: a bound page that its node can't give ends in the OOM killer, or in SIGBUS for hugetlb.
  if (mbind(data_, length_.value, MPOL_PREFERRED, nodes->maskp, nodes->size + 1, 0) != 0) {
    report_.warnings.push_back(absl::StrCat("the pool isn't placed on NUMA node ", node, ": mbind: ", std::strerror(errno),
                                            ": allow the node (systemd: AllowedMemoryNodes) and the system call mbind"));
  }
  numa_bitmask_free(nodes);
}

void PinnedRegion::Lock() {
  if (report_.huge_pages_guaranteed || mlock2(data_, length_.value, MLOCK_ONFAULT) == 0) {
    report_.locked = true;  // hugetlb pages are never swapped out
    return;
  }
  const int error = errno;
  rlimit limit{};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  report_.warnings.push_back(absl::StrCat("the pool may be swapped out: mlock of ", length_.value,
                                          " bytes: ", std::strerror(error), ", RLIMIT_MEMLOCK is ", limit.rlim_cur,
                                          ": raise it (systemd: LimitMEMLOCK=infinity; shell: ulimit -l unlimited)"));
}

void PinnedRegion::StartTouching(const Options& options) {
  const uint64_t pieces = (length_ + kTouchPiece - Bytes{1}) / kTouchPiece;
  const uint64_t count = std::min<uint64_t>(options.touch_threads, pieces);
  // Signals are for the threads that the process has for them.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    threads_.reserve(count);
    for (uint64_t i = 0; i < count; ++i) threads_.emplace_back(&PinnedRegion::Touch, this, options.numa_node);
  } catch (const std::system_error& error) {
    report_.warnings.push_back(absl::StrCat("the pool is pre-touched by ", threads_.size(), " threads instead of ", count,
                                            ": ", error.what(),
                                            ": raise RLIMIT_NPROC (ulimit -u) or the cgroup's pids.max"));
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

// Page by page with plain faults rather than MADV_POPULATE_WRITE, which holds the process's memory lock all the while: with busy
// cores an mmap beside it took up to 48 s (SCHED_IDLE, 64 MiB a call), 3 s (2 MiB a call), 52 ms at normal priority, and 0.8 ms
// beside this loop at SCHED_IDLE. Alone, it is no slower on huge pages. (Linux 6.18, 2 cores.)
void PinnedRegion::Touch(int node) {
  pthread_setname_np(pthread_self(), "kvist-touch");
  if (FaultsLockOneMapping() && !stop_.load(std::memory_order_relaxed)) {
    const sched_param lowest{};
    sched_setscheduler(0, SCHED_IDLE, &lowest);
  }
  if (node >= 0) RunOnNode(node);  // zeroes its own memory faster; a node without cores is touched from anywhere
  while (true) {
    const uint64_t piece = next_.fetch_add(kTouchPiece.value, std::memory_order_relaxed);
    const uint64_t end = std::min(piece + kTouchPiece.value, length_.value);
    for (uint64_t at = piece; at < end; at += kHugePage.value) {
      for (uint64_t page = at; page < at + kHugePage.value; page += kPageOfMemory.value) {
        if (stop_.load(std::memory_order_relaxed)) return;
        TouchPage(data_ + page);
      }
      const uint64_t before = touched_.fetch_add(kHugePage.value, std::memory_order_acq_rel);
      if (before + kHugePage.value < length_.value) continue;
      std::function<void()> done;
      {
        const absl::MutexLock lock(&done_mutex_);  // OnTouched sees that all is touched, or we see what it has left
        done.swap(done_);
      }
      if (done) done();
    }
    if (end == length_.value) return;
  }
}

std::vector<int> UsableNumaNodes() {
  if (numa_available() < 0) return {-1};
  std::vector<int> nodes;
  bitmask* allowed = numa_get_mems_allowed();
  for (int node = 0; node <= numa_max_node(); ++node) {
    if (numa_bitmask_isbitset(allowed, static_cast<unsigned>(node)) != 0 && numa_node_size64(node, nullptr) > 0)
      nodes.push_back(node);
  }
  numa_bitmask_free(allowed);
  if (nodes.empty()) nodes.push_back(-1);
  return nodes;
}

}  // namespace kvist::pool

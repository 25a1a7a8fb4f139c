#ifndef KVIST_CUDA_GPU_H_
#define KVIST_CUDA_GPU_H_

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/call_once.h"
#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "cuda/driver/driver.h"
#include "storage/base/unique_fd.h"
#include "storage/base/units.h"

namespace kvist::cuda {

class Gpu;

// An engine's allocation, mapped into this process through CUDA IPC. While it is held the GPU keeps that memory, even of an engine that has
// died: whoever holds it lets go as soon as its copies are quiet.
struct ImportedMemory {
  driver::Address address = 0;  // here
  Bytes length;                 // of the whole allocation
};

// How an engine names its memory.
struct DeviceAllocation {
  driver::IpcMemHandle handle;
  int32_t pid_there = 0;  // what the engine's process takes for its own number; in a container another than here
};

// One GPU as the daemon uses it, from its first registration on: the primary context, and the allocations that are mapped. Engines share an
// allocation's mapping: the driver gives a process only one.
//
// Lifecycle: opened at the first registration on this device; lives until all that it has given out is gone.
// Threads: any. What the driver may take long for (closing a mapping waits for the device) is done by a thread of its own, at once when the
//   last owner has let go.
class Gpu {
 public:
  // Errors: those of the driver: no memory for a context, a device that is lost or exclusively another process's.
  static absl::StatusOr<std::unique_ptr<Gpu>> Open(std::shared_ptr<const driver::Driver> driver, const driver::Uuid& uuid);
  ~Gpu();

  // Maps an allocation for the process behind `pidfd`, or shares the mapping that living processes have.
  // Errors: FailedPrecondition  the driver can't open it; says why, where that is known, and what to do.
  //         Unavailable         the device is lost; or a mapping under the same name, of processes that have ended, isn't closed yet: their
  //                             number may have gone to this one, so it is not given out; try again soon.
  absl::StatusOr<std::shared_ptr<const ImportedMemory>> Import(const DeviceAllocation& allocation, int pidfd);

  // Copies device memory to `out`, waiting for it; for probe pages. Errors: those of the driver.
  absl::Status Read(driver::Address from, std::byte* out, Bytes length) const;

  const driver::Driver& driver() const { return *driver_; }
  driver::Context context() const { return context_; }
  driver::Device device() const { return device_; }
  // Whether pinned host memory has the same addresses there as here.
  bool has_host_addresses() const { return has_host_addresses_; }
  // The host's NUMA node that is nearest to it; -1: there is but one, or the driver doesn't say.
  int numa_node() const { return numa_node_; }
  const driver::Uuid& uuid() const { return uuid_; }
  const std::string& name() const { return name_; }  // e.g. "NVIDIA H100 80GB HBM3 GPU-1f..."
  // Of engines' memory that is mapped here now. Waits for nobody, as lost().
  Bytes imported() const { return Bytes{imported_.load(std::memory_order_relaxed)}; }

  // GPU memory of kvistd's own here (StagingRing), without what a context takes.
  Bytes own() const { return Bytes{own_.load(std::memory_order_relaxed)}; }
  void AddOwn(Bytes bytes) { own_.fetch_add(bytes.value, std::memory_order_relaxed); }
  void SubtractOwn(Bytes bytes) { own_.fetch_sub(bytes.value, std::memory_order_relaxed); }

  // The device is lost to this process: what it is asked from now on fails with this.
  void Lose(const absl::Status& why);
  absl::Status lost() const {  // OK: it isn't
    return is_lost_.load(std::memory_order_acquire) ? lost_ : absl::OkStatus();
  }

 private:
  // Who has imported an allocation, as long as what it was given is held.
  struct Owner {
    UniqueFd pidfd;
    std::shared_ptr<const ImportedMemory> memory;
  };
  struct MappedAllocation {
    DeviceAllocation of;
    std::vector<std::weak_ptr<const Owner>> owners;  // some may have let go
    std::weak_ptr<const ImportedMemory> memory;
    ImportedMemory mapped;
  };
  using Place = std::list<MappedAllocation>::iterator;
  Gpu(std::shared_ptr<const driver::Driver> driver, driver::Device device, const driver::Uuid& uuid);
  static std::shared_ptr<const ImportedMemory> OwnedBy(UniqueFd pidfd, std::shared_ptr<const ImportedMemory> memory,
                                                       MappedAllocation* mapped);
  absl::Status OpenFailed(driver::Result result, const DeviceAllocation& allocation) const;
  void Close();  // the closing thread

  const std::shared_ptr<const driver::Driver> driver_;
  const driver::Device device_;
  const driver::Uuid uuid_;
  std::string name_;
  driver::Context context_ = nullptr;
  bool has_host_addresses_ = false;
  int numa_node_ = -1;

  std::atomic<uint64_t> imported_{0};
  std::atomic<uint64_t> own_{0};
  std::atomic<bool> is_lost_{false};
  absl::once_flag loses_;
  absl::Status lost_;  // written before is_lost_

  absl::Mutex mutex_;  // held while the driver opens a mapping: never on a thread that copies or serves
  std::list<MappedAllocation> imports_ ABSL_GUARDED_BY(mutex_);
  absl::Mutex unused_mutex_;
  absl::CondVar wake_;
  std::vector<Place> unused_ ABSL_GUARDED_BY(unused_mutex_);  // to be closed
  bool stopping_ ABSL_GUARDED_BY(unused_mutex_) = false;
  std::thread closing_;  // last: it uses all of the above
};

}  // namespace kvist::cuda

#endif  // KVIST_CUDA_GPU_H_

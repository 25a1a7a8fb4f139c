#ifndef KVIST_TESTS_SUPPORT_FAKE_CUDA_FAKE_MEMORY_H_
#define KVIST_TESTS_SUPPORT_FAKE_CUDA_FAKE_MEMORY_H_

#include <cstdint>
#include <map>
#include <mutex>

#include "cuda/driver/api.h"

namespace kvist::fake_cuda {

namespace driver = ::kvist::cuda::driver;

// Device memory as memfds, handles of it for other processes, and which host memory is pinned. Threads: any.
class FakeMemory {
 public:
  driver::Result Allocate(int device, size_t size, driver::Address* address);
  driver::Result Free(driver::Address address);
  driver::Result RangeOf(driver::Address address, driver::Address* base, size_t* size);
  driver::Result Handle(driver::Address base, driver::IpcMemHandle* handle);
  driver::Result Open(const driver::IpcMemHandle& handle, driver::Address* address);
  driver::Result Close(driver::Address address);
  driver::Result Register(void* memory, size_t size);
  driver::Result Unregister(void* memory);

  void ForbidIpc(driver::Address address);
  bool IpcCapable(driver::Address address);
  int DeviceOf(driver::Address address);  // -1: none of its memory
  // Whether all of it lies in one allocation, or in one piece of pinned host memory.
  bool Pinned(driver::Address address, size_t size);
  bool Registered(const void* memory);

  uint64_t registered_bytes();
  uint64_t imported_bytes();
  uint64_t imports();

 private:
  struct Allocation {
    size_t size = 0;
    int device = 0;
    int fd = -1;       // -1: another process's
    uint64_t id = 0;   // of the exporter's
    int exporter = 0;  // its process
    bool forbidden = false;
  };
  std::map<driver::Address, Allocation>::iterator Containing(driver::Address address);

  std::mutex mutex_;
  std::map<driver::Address, Allocation> allocations_;
  std::map<driver::Address, size_t> registered_;
  uint64_t next_id_ = 1;
  uint64_t imports_ = 0;
};

}  // namespace kvist::fake_cuda

#endif  // KVIST_TESTS_SUPPORT_FAKE_CUDA_FAKE_MEMORY_H_

#ifndef KVIST_EXAMPLES_TINYLLM_DEVICE_PAGES_H_
#define KVIST_EXAMPLES_TINYLLM_DEVICE_PAGES_H_

#include <kvist/kvist.h>

#include <cstddef>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/tinyllm/paged_memory.h"

namespace tinyllm {

// The engine's pages on a GPU (--device cuda): there kvistd finds them and puts them. tinyllm computes on the CPU, on a PagedMemory of the same
// layout; so a page is written to the GPU before it is stored, on a stream, and read back after it was loaded. An engine that computes on the GPU
// needs neither: it gives kvist the stream that it computes on.
//
// Uses libcuda.so.1, loaded when it is wanted.
// Threads: one. What fails fails for good: then nothing is loaded or stored any more.
class DevicePages {
 public:
  // Pages for `host`, which outlives them. Errors: Unavailable: no driver, no GPU, or not enough memory on it.
  static absl::StatusOr<std::unique_ptr<DevicePages>> Create(const PagedMemory& host);
  ~DevicePages();
  DevicePages(const DevicePages&) = delete;
  DevicePages& operator=(const DevicePages&) = delete;

  const PagedMemory& host() const { return host_; }
  kvist_cuda_region region() const;
  void* stream() const { return stream_; }

  // Gives the stream copies of these pages to the GPU; they don't change before it has come to that.
  bool Write(std::span<const PageId> pages);
  // Waits until these pages are as on the GPU.
  bool Read(std::span<const PageId> pages);
  bool Synchronize();

 private:
  struct Driver;
  explicit DevicePages(const PagedMemory& host);
  absl::Status Open();
  bool Copy(std::span<const PageId> pages, bool to_device);

  const PagedMemory& host_;
  std::unique_ptr<Driver> driver_;
  void* context_ = nullptr;
  void* stream_ = nullptr;
  uint64_t memory_ = 0;
  bool pinned_ = false;
};

}  // namespace tinyllm

#endif  // KVIST_EXAMPLES_TINYLLM_DEVICE_PAGES_H_

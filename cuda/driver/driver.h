#ifndef KVIST_CUDA_DRIVER_DRIVER_H_
#define KVIST_CUDA_DRIVER_DRIVER_H_

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cuda/driver/api.h"

namespace kvist::cuda::driver {

// What dlopen is given for the driver of this machine: the name under which NVIDIA installs it.
inline constexpr char kLibrary[] = "libcuda.so.1";

// The driver of this machine, loaded at run time: one program starts with and without it. Never unloaded, as the driver wants it.
//
//   driver->MemFree(address);  driver.Check(driver->EventRecord(event, stream), "cuEventRecord")
//
// Threads: any; which context is current is each thread's own (Current).
class Driver {
 public:
  // Errors: NotFound            there is no such library: no NVIDIA driver here.
  //         FailedPrecondition  one that lacks calls (it is older than CUDA 12.0), or that can't start; says why.
  static absl::StatusOr<std::shared_ptr<const Driver>> Load(const std::string& library = kLibrary);

  const Calls* operator->() const { return &calls_; }
  int version() const { return version_; }  // 13000: CUDA 13.0

  // OK, or what the driver's answer to `call` means:
  //   ResourceExhausted  out of device memory.  InvalidArgument  a value or handle that it doesn't take.
  //   FailedPrecondition  not here, not in this context.  Unavailable  the device is lost to this process (IsLost).
  absl::Status Check(Result result, std::string_view call) const;
  // Whether nothing will ever work again in the context that answered so.
  static bool IsLost(Result result);

  // The device with this UUID. Errors: NotFound  says which there are.
  absl::StatusOr<Device> Find(const Uuid& uuid) const;

 private:
  Driver() = default;

  Calls calls_;
  int version_ = 0;
};

// Makes a context current on this thread, for as long as it lives, and lets it do what a capture of a CUDA graph on another thread would forbid.
// Where the driver won't (it has ended before this process, the device is lost) the calls that follow say so.
class Current {
 public:
  Current(const Driver& driver, Context context);
  ~Current();
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  const Driver& driver_;
  bool pushed_ = false;
  int capture_mode_ = kCaptureModeRelaxed;  // the one before
};

// GPU-6a6f1c..., as nvidia-smi shows it.
std::string ToText(const Uuid& uuid);

}  // namespace kvist::cuda::driver

#endif  // KVIST_CUDA_DRIVER_DRIVER_H_

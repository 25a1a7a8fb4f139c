#include "cuda/copy_kernel.h"

#include <algorithm>

#include "storage/base/check.h"
#include "storage/base/status.h"

namespace kvist::cuda {

absl::StatusOr<std::unique_ptr<CopyKernel>> CopyKernel::Load(const Gpu* gpu) {
  if (KernelImage().empty()) return absl::UnimplementedError("kvist was built without nvcc, so it has no kernels");
  const driver::Driver& driver = gpu->driver();
  if (!gpu->has_host_addresses())
    return absl::UnimplementedError("this GPU has other addresses for pinned memory than the host");
  auto kernel = std::unique_ptr<CopyKernel>(new CopyKernel(gpu));
  KVIST_RETURN_IF_ERROR(driver.Check(driver->ModuleLoadData(&kernel->module_, KernelImage().data()), "cuModuleLoadData"));
  KVIST_RETURN_IF_ERROR(
      driver.Check(driver->ModuleGetFunction(&kernel->function_, kernel->module_, kCopyExtents), "cuModuleGetFunction"));
  return kernel;
}

CopyKernel::~CopyKernel() {
  if (module_ != nullptr) (void)gpu_->driver()->ModuleUnload(module_);
}

absl::StatusOr<std::unique_ptr<CopyKernel::Extents>> CopyKernel::MakeExtents() const {
  auto extents = std::unique_ptr<Extents>(new Extents(gpu_));
  const driver::Driver& driver = gpu_->driver();
  KVIST_RETURN_IF_ERROR(driver.Check(
      driver->MemHostRegister(extents->data(), kExtentsMax * sizeof(KernelExtent), driver::kHostRegisterDeviceMap),
      "cuMemHostRegister"));
  extents->pinned_ = true;
  KVIST_RETURN_IF_ERROR(
      driver.Check(driver->MemHostGetDevicePointer(&extents->address_, extents->data(), 0), "cuMemHostGetDevicePointer"));
  return extents;
}

CopyKernel::Extents::~Extents() {
  if (pinned_) (void)gpu_->driver()->MemHostUnregister(extents_.data());
}

absl::Status CopyKernel::Launch(driver::Stream stream, const Extents& extents, uint32_t count) const {
  KVIST_CHECK(count <= kExtentsMax);
  uint64_t largest = 1;
  for (uint32_t i = 0; i < count; ++i) largest = std::max(largest, extents.extents_[i].size);
  auto parts = static_cast<uint32_t>((largest + kKernelPartBytes - 1) / kKernelPartBytes);
  driver::Address address = extents.address_;
  void* parameters[] = {&address, &count, &parts};
  const driver::Driver& driver = gpu_->driver();
  return driver.Check(driver->LaunchKernel(function_, kBlocks, 1, 1, kThreads, 1, 1, 0, stream, parameters, nullptr),
                      "cuLaunchKernel");
}

}  // namespace kvist::cuda

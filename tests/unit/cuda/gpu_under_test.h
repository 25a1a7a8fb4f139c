#ifndef KVIST_TESTS_UNIT_CUDA_GPU_UNDER_TEST_H_
#define KVIST_TESTS_UNIT_CUDA_GPU_UNDER_TEST_H_

#include <dlfcn.h>

#include <catch2/catch.hpp>
#include <memory>
#include <string>

#include "cuda/gpu.h"
#include "tests/support/fake_cuda/fake_cuda.h"

namespace kvist::cuda {

// The fake driver, loaded, and what only it has.
class FakeDriver {
 public:
  static const FakeDriver& Get() {
    static const FakeDriver* const fake = new FakeDriver;
    return *fake;
  }
  const std::shared_ptr<const driver::Driver>& driver() const { return driver_; }
  void Plan(const FakeCudaPlan& plan) const { plan_(&plan); }
  FakeCudaFigures figures() const {
    FakeCudaFigures figures;
    figures_(&figures);
    return figures;
  }
  void ForbidIpc(driver::Address address) const { forbid_(address); }
  driver::Uuid uuid(int ordinal) const {
    driver::Uuid uuid;
    REQUIRE((*driver_)->DeviceGetUuid(&uuid, ordinal) == driver::Result::kSuccess);
    return uuid;
  }
  std::unique_ptr<Gpu> OpenGpu(int ordinal = 0) const { return Gpu::Open(driver_, uuid(ordinal)).value(); }

 private:
  FakeDriver() {
    const std::string path = std::string(KVIST_FAKE_CUDA_DIR) + "/libcuda.so.1";
    driver_ = driver::Driver::Load(path).value();
    void* handle = ::dlopen(path.c_str(), RTLD_NOW);
    plan_ = reinterpret_cast<decltype(plan_)>(::dlsym(handle, "fakecuda_plan"));
    figures_ = reinterpret_cast<decltype(figures_)>(::dlsym(handle, "fakecuda_figures"));
    forbid_ = reinterpret_cast<decltype(forbid_)>(::dlsym(handle, "fakecuda_forbid_ipc"));
    REQUIRE((plan_ != nullptr && figures_ != nullptr && forbid_ != nullptr));
  }

  std::shared_ptr<const driver::Driver> driver_;
  void (*plan_)(const FakeCudaPlan*) = nullptr;
  void (*figures_)(FakeCudaFigures*) = nullptr;
  void (*forbid_)(uint64_t) = nullptr;
};

}  // namespace kvist::cuda

#endif  // KVIST_TESTS_UNIT_CUDA_GPU_UNDER_TEST_H_

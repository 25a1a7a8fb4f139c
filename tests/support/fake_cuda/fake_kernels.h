#ifndef KVIST_TESTS_SUPPORT_FAKE_CUDA_FAKE_KERNELS_H_
#define KVIST_TESTS_SUPPORT_FAKE_CUDA_FAKE_KERNELS_H_

#include <functional>
#include <string_view>

namespace kvist::fake_cuda {

// One of kvist's kernels as a host function. `bind` copies the launch's parameters, as a launch does, and gives what the stream is to run.
struct KernelOnHost {
  std::string_view name;
  std::function<void()> (*bind)(void** parameters);
};

// Null: there is no such kernel.
const KernelOnHost* FindKernel(std::string_view name);

}  // namespace kvist::fake_cuda

#endif  // KVIST_TESTS_SUPPORT_FAKE_CUDA_FAKE_KERNELS_H_

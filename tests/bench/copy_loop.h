#ifndef KVIST_TESTS_BENCH_COPY_LOOP_H_
#define KVIST_TESTS_BENCH_COPY_LOOP_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

namespace kvist::bench {

// One page's way.
struct Move {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
};

// Copies pages of `size` bytes, a multiple of 512; both sides aligned to 64.
using CopyPages = void (*)(std::span<const Move> moves, size_t size);

struct PageKernel {
  std::string_view name;
  CopyPages copy;
  // So much a thread takes at a time: little, so that one which the system stops doesn't hold up the others
  size_t claim_bytes = 512 << 10;
};
// The hand-written kernels that this processor can run: non-temporal stores, with several ways of fetching ahead. None of the product's.
std::vector<PageKernel> NontemporalKernels();
// memcpy of the C library.
PageKernel PlainKernel();
// The system's copies between processes, here between this one and itself, a page a piece: process_vm_readv as a store needs it, and
// process_vm_writev as a load does; with calls of several sizes.
std::vector<PageKernel> ProcessVmReadKernels();
std::vector<PageKernel> ProcessVmWriteKernels();

// The limit of a copy: threads that do nothing but a list of moves with one kernel.
//
// Threads: one calls; `threads - 1` of its own are kept ready: they spin from Ready to the end of the Run that follows, and sleep
//   otherwise. moves_, size_ and kernel_ are written before round_ (release) and read after it (acquire); next_ is claimed from by
//   all; each thread ends its part with a store fence and counts itself out of running_ (release), which the caller awaits
//   (acquire).
class CopyLoop {
 public:
  explicit CopyLoop(uint32_t threads);
  ~CopyLoop();
  CopyLoop(const CopyLoop&) = delete;
  CopyLoop& operator=(const CopyLoop&) = delete;

  // Wakes the threads; returns when all of them spin.
  void Ready();
  // Copies all moves, each of `size` bytes. Ready first, else it counts the waking, too.
  void Run(std::span<const Move> moves, size_t size, const PageKernel& kernel);

 private:
  void Work();
  void Thread();

  std::span<const Move> moves_;
  size_t size_ = 0;
  PageKernel kernel_{};
  std::atomic<bool> stop_{false};
  std::atomic<uint32_t> awake_{0};  // Ready was called so many times
  std::atomic<uint32_t> spinning_{0};
  alignas(64) std::atomic<uint32_t> round_{0};
  alignas(64) std::atomic<size_t> next_{0};
  alignas(64) std::atomic<uint32_t> running_{0};
  std::vector<std::thread> threads_;
};

}  // namespace kvist::bench

#endif  // KVIST_TESTS_BENCH_COPY_LOOP_H_

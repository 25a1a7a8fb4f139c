#ifndef KVIST_TESTS_SUPPORT_FAKE_CUDA_FAKE_CUDA_H_
#define KVIST_TESTS_SUPPORT_FAKE_CUDA_FAKE_CUDA_H_

#include <cstdint>

// A CUDA driver without a GPU: libcuda.so.1 with the calls that kvist uses, on host memory. Tests load it by its path, or put its folder
// (KVIST_FAKE_CUDA_DIR) into LD_LIBRARY_PATH of the processes that they start.
//
//   device memory    memfds, mapped; an IPC handle names the exporter's descriptor, so importers map the same bytes, and keep them when the
//                    exporter dies, as on a GPU. One mapping of an allocation in a process; a handle isn't opened by its exporter's number.
//   streams          a thread each, in order; what they do takes a random time; a batch's copies come in any order
//   wait, write      of 64-bit words in memory, as the hardware's: polled, cyclic comparison
//   host memory      that isn't pinned: a copy to it ends before the call does, however asynchronous; one from it may end after a call that isn't
//   kernels          kvist's, as host functions found by name
//   faults           by plan: copies that are refused, a device that is lost in the middle, no memory
//
// What the real one refuses is refused here: calls without a current context, addresses it doesn't know as pinned are counted.
//
// $KVIST_FAKE_CUDA is the plan of a process, e.g. "seed=7,delay_us=30,devices=2"; names as below.
struct FakeCudaPlan {
  uint64_t seed = 1;
  uint32_t devices = 2;
  uint32_t delay_us = 0;      // each operation of a stream takes up to that, and a third of them nothing
  uint32_t refuse_every = 0;  // every so many calls for an asynchronous copy are refused (out of memory); 0: none
  uint32_t lose_after = 0;    // so many copies later the device is lost: nothing works any more; 0: never
  uint32_t no_batches = 0;    // 1: a driver of before CUDA 12.8
  uint32_t no_register = 0;   // 1: host memory can't be registered
  uint32_t no_open = 0;       // 1: handles of other processes can't be opened
  uint32_t entry_us = 0;      // each copy of a batch takes so long
  uint32_t launch_us = 0;     // each kernel takes so long
  uint32_t no_launch = 0;     // 1: no kernel can be launched
  uint32_t no_memory = 0;     // 1: no device memory is left
  uint32_t call_us = 0;       // each call for an asynchronous copy takes the caller so long
};

struct FakeCudaFigures {
  uint64_t copies = 0;  // entries of asynchronous copies
  uint64_t copy_calls = 0;
  uint64_t pageable_copies = 0;  // to or from host memory that isn't registered
  uint64_t registered_bytes = 0;
  uint64_t imported_bytes = 0;
  uint64_t imports = 0;   // calls that opened a handle
  uint32_t contexts = 0;  // devices whose primary context is retained
  uint64_t kernels = 0;
};

extern "C" {
// Both are found by dlsym in the loaded library.
void fakecuda_plan(const FakeCudaPlan* plan);
void fakecuda_figures(FakeCudaFigures* figures);
// As memory of expandable segments that weren't created exportable: it has no IPC handle.
void fakecuda_forbid_ipc(uint64_t address);
}

#endif  // KVIST_TESTS_SUPPORT_FAKE_CUDA_FAKE_CUDA_H_

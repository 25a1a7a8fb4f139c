#ifndef KVIST_CONNECTOR_SRC_ENGINE_GPU_H_
#define KVIST_CONNECTOR_SRC_ENGINE_GPU_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cuda/driver/driver.h"
#include "storage/base/mutex.h"
#include "storage/base/shm/session_memory.h"

namespace kvist::connector {

// The GPU on which an engine has its KV memory, in the engine's own (primary) context. Nothing is allocated there, nothing launched and nothing
// waited for; the engine's streams wait for words of a session's board, and write them.
//
// Threads: any.
class EngineGpu {
 public:
  // The GPU of this address. Errors: FailedPrecondition  no driver in this process.  InvalidArgument  it is no GPU's memory.
  static absl::StatusOr<std::shared_ptr<EngineGpu>> Of(const void* address);
  ~EngineGpu();

  // What [address, address + length) is called in other processes.
  struct Region {
    cuda::driver::Uuid device;
    cuda::driver::IpcMemHandle allocation;
    uint64_t offset = 0;  // in it
    uint64_t length = 0;
  };
  // Errors: InvalidArgument  it isn't in one allocation of this GPU.  FailedPrecondition  memory that can't be given to other processes; says
  //   what makes such memory, and what to do.
  absl::StatusOr<Region> Describe(const void* address, uint64_t length) const;

  // Waits for a copy to the host. Errors: those of the driver.
  absl::Status Read(const std::byte* from, std::byte* out, size_t size) const;

  // A session's memory as this GPU's streams reach it. Lives as long as a stream may still come to what it was given: after the session, too.
  class Board;
  // Errors: those of the driver, of pinning it.
  static absl::StatusOr<std::shared_ptr<Board>> MakeBoard(const std::shared_ptr<EngineGpu>& gpu,
                                                          std::shared_ptr<const shm::SessionMemory> memory);

 private:
  EngineGpu() = default;
  // Errors: FailedPrecondition  it is being captured. The context is current.
  absl::Status NotCapturing(cuda::driver::Stream stream) const;

  std::shared_ptr<const cuda::driver::Driver> driver_;
  cuda::driver::Device device_ = 0;
  cuda::driver::Uuid uuid_;
  cuda::driver::Context context_ = nullptr;
};

class EngineGpu::Board {
 public:
  // Whether a stream can be given anything. Errors: FailedPrecondition  it captures a graph; the driver's.
  absl::Status MayGive(cuda::driver::Stream stream);
  // Has a stream wait until `word` (of the session's memory) has come to `value`, or write it there when it comes to this: it was asked whether it may be given
  // anything. Block while the stream's queue is full. Errors: the driver's.
  absl::Status Wait(cuda::driver::Stream stream, const std::atomic<uint64_t>& word, uint64_t value);
  absl::Status Write(cuda::driver::Stream stream, std::atomic<uint64_t>* word, uint64_t value);

  // The session has ended, and all that streams wait for is there: lives on, in this process's care, until they are past it.
  static void Retire(std::shared_ptr<Board> board);
  ~Board();

 private:
  friend class EngineGpu;
  Board() = default;
  // Notes that a stream was given something.
  void Given(cuda::driver::Stream stream) ABSL_LOCKS_EXCLUDED(mutex_);
  void ForgetPassed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Passed();
  cuda::driver::Address AddressOf(const std::atomic<uint64_t>& word) const;

  std::shared_ptr<EngineGpu> gpu_;
  std::shared_ptr<const shm::SessionMemory> memory_;
  bool pinned_ = false;
  cuda::driver::Address address_ = 0;  // of its first byte, for the GPU
  Mutex mutex_;
  std::vector<cuda::driver::Event> given_
      ABSL_GUARDED_BY(mutex_);                    // behind each thing that a stream was given and may not have passed
  bool unknown_ ABSL_GUARDED_BY(mutex_) = false;  // something was given that no event follows: it may never go
};

}  // namespace kvist::connector

#endif  // KVIST_CONNECTOR_SRC_ENGINE_GPU_H_

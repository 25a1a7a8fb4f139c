#ifndef KVIST_CUDA_ENGINE_PROCESS_H_
#define KVIST_CUDA_ENGINE_PROCESS_H_

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "storage/base/unique_fd.h"

namespace kvist::cuda {

// A process whose memory is read and written where it lies, by process_vm_readv and process_vm_writev.
//
// These name the process by its pid, which the kernel gives to another one some time after the process has ended. So a copy counts only
//   if the pidfd says afterwards that the process still runs: then the pid was its own all the time. A write asks before, too, for it
//   can't be taken back; what remains is a pid that comes round again while one system call runs.
// Trust: the process has this daemon's uid, so it could stop the daemon anyway; memory that it makes wait (userfaultfd) keeps a
//   copy waiting.
// Threads: any.
class EngineProcess {
 public:
  // `pidfd` is that of `pid`.
  EngineProcess(pid_t pid, UniqueFd pidfd) : pid_(pid), pidfd_(std::move(pidfd)) {}

  // Copy from or to `theirs`, addresses in the process, all of it; both sides have the same length, at most IOV_MAX pieces each, and
  // are used up.
  // Errors: OutOfRange  an address isn't mapped there, or not for writing.  Unavailable  the process has ended.  PermissionDenied  the
  //   kernel doesn't let this daemon.  Unimplemented  the kernel can't. In any case a part may have been copied.
  absl::Status Read(std::span<iovec> theirs, std::span<iovec> ours) const;
  absl::Status Write(std::span<iovec> theirs, std::span<iovec> ours) const;

  // The NUMA node on which the page at `address` there lies; -1 where there is none, or the kernel doesn't say.
  int NumaNode(std::byte* address) const;

 private:
  template <auto transfer, bool writes>
  absl::Status TransferAll(const char* name, std::span<iovec> theirs, std::span<iovec> ours) const;
  absl::Status StillRuns() const;

  const pid_t pid_;
  const UniqueFd pidfd_;
};

}  // namespace kvist::cuda

#endif  // KVIST_CUDA_ENGINE_PROCESS_H_

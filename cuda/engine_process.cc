#include "cuda/engine_process.h"

#include <numaif.h>
#include <poll.h>

#include <cerrno>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "cuda/region_file.h"
#include "storage/base/status.h"

namespace kvist::cuda {

absl::Status EngineProcess::StillRuns() const {
  pollfd ended{pidfd_.get(), POLLIN, 0};
  if (::poll(&ended, 1, 0) == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("the engine's process ", pid_, " has ended"));
}

template <auto transfer, bool writes>
absl::Status EngineProcess::TransferAll(const char* name, std::span<iovec> theirs, std::span<iovec> ours) const {
  while (!theirs.empty()) {
    if constexpr (writes) KVIST_RETURN_IF_ERROR(StillRuns());  // before each: it can't be taken back
    const ssize_t count = transfer(pid_, ours.data(), ours.size(), theirs.data(), theirs.size(), 0);
    if (count > 0) {  // perhaps up to a page that isn't there: the next call says so
      theirs = AfterTransfer(theirs, static_cast<size_t>(count));
      ours = AfterTransfer(ours, static_cast<size_t>(count));
      continue;
    }
    const int error = count < 0 ? errno : EFAULT;
    KVIST_RETURN_IF_ERROR(StillRuns());
    if (error == ESRCH) return absl::UnavailableError(absl::StrCat("the engine's process ", pid_, " is ending"));
    if (error == EFAULT) {
      return absl::OutOfRangeError(absl::StrCat("the engine's memory at 0x",
                                                absl::Hex(reinterpret_cast<uintptr_t>(theirs.front().iov_base)),
                                                " isn't mapped in process ", pid_, ", or not for reading and writing"));
    }
    return ErrnoStatus(absl::StrCat(name, " of engine process ", pid_), error);
  }
  return StillRuns();
}

absl::Status EngineProcess::Read(std::span<iovec> theirs, std::span<iovec> ours) const {
  return TransferAll<::process_vm_readv, false>("process_vm_readv", theirs, ours);
}

absl::Status EngineProcess::Write(std::span<iovec> theirs, std::span<iovec> ours) const {
  return TransferAll<::process_vm_writev, true>("process_vm_writev", theirs, ours);
}

int EngineProcess::NumaNode(std::byte* address) const {
  void* page = address;
  int node = -1;  // or an errno below 0, of a page that isn't there
  return ::move_pages(pid_, 1, &page, nullptr, &node, 0) == 0 && node >= 0 ? node : -1;
}

}  // namespace kvist::cuda

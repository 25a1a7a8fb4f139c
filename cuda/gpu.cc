#include "cuda/gpu.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/check.h"
#include "storage/base/status.h"

namespace kvist::cuda {
namespace {

using driver::Current;
using driver::Result;

bool HasEnded(int pidfd) {
  pollfd process{pidfd, POLLIN, 0};
  return ::poll(&process, 1, 0) > 0;
}

}  // namespace

Gpu::Gpu(std::shared_ptr<const driver::Driver> driver, driver::Device device, const driver::Uuid& uuid)
    : driver_(std::move(driver)), device_(device), uuid_(uuid) {}

absl::StatusOr<std::unique_ptr<Gpu>> Gpu::Open(std::shared_ptr<const driver::Driver> driver, const driver::Uuid& uuid) {
  KVIST_ASSIGN_OR_RETURN(const driver::Device device, driver->Find(uuid));
  auto gpu = std::unique_ptr<Gpu>(new Gpu(driver, device, uuid));
  std::array<char, 128> name{};
  KVIST_RETURN_IF_ERROR(
      driver->Check((*driver)->DeviceGetName(name.data(), static_cast<int>(name.size()), device), "cuDeviceGetName"));
  gpu->name_ = absl::StrCat(name.data(), " ", driver::ToText(uuid));
  KVIST_RETURN_IF_ERROR(
      driver->Check((*driver)->DevicePrimaryCtxRetain(&gpu->context_, device), "cuDevicePrimaryCtxRetain"));
  int same = 0;
  KVIST_RETURN_IF_ERROR(
      driver->Check((*driver)->DeviceGetAttribute(&same, driver::kDeviceAttributeHostPointerForRegistered, device),
                    "cuDeviceGetAttribute"));
  gpu->has_host_addresses_ = same != 0;
  int node = -1;
  if ((*driver)->DeviceGetAttribute(&node, driver::kDeviceAttributeHostNumaId, device) == driver::Result::kSuccess)
    gpu->numa_node_ = node;
  gpu->closing_ = std::thread([raw = gpu.get()] { raw->Close(); });
  ::pthread_setname_np(gpu->closing_.native_handle(), "kvist-gpu-close");
  return gpu;
}

Gpu::~Gpu() {
  if (closing_.joinable()) {
    {
      absl::MutexLock lock(&unused_mutex_);
      stopping_ = true;
      wake_.SignalAll();
    }
    closing_.join();
    absl::MutexLock lock(&mutex_);
    KVIST_CHECK(imports_.empty());
  }
  if (context_ != nullptr) (void)(*driver_)->DevicePrimaryCtxRelease(device_);
}

absl::StatusOr<std::shared_ptr<const ImportedMemory>> Gpu::Import(const DeviceAllocation& allocation, int pidfd) {
  UniqueFd process(::fcntl(pidfd, F_DUPFD_CLOEXEC, 3));
  if (!process) return ErrnoStatus("another descriptor of the engine's process", errno);
  absl::MutexLock lock(&mutex_);
  KVIST_RETURN_IF_ERROR(lost());
  const auto found = std::find_if(imports_.begin(), imports_.end(),
                                  [&](const MappedAllocation& mapped) { return mapped.of.handle == allocation.handle; });
  if (found != imports_.end()) {
    // Of a living process it is the same memory; of dead ones only the name is.
    std::erase_if(found->owners, [](const std::weak_ptr<const Owner>& of) {
      const std::shared_ptr<const Owner> owner = of.lock();
      return owner == nullptr || HasEnded(owner->pidfd.get());
    });
    std::shared_ptr<const ImportedMemory> memory = found->memory.lock();
    if (found->owners.empty() || memory == nullptr) {
      return absl::UnavailableError(
          "an earlier mapping of GPU memory under the same name, of a process that has ended, isn't closed yet: try again");
    }
    return OwnedBy(std::move(process), std::move(memory), &*found);
  }
  MappedAllocation mapped{allocation, {}, {}, {}};
  const Current current(*driver_, context_);
  const driver::Driver& driver = *driver_;
  if (const Result result =
          driver->IpcOpenMemHandle(&mapped.mapped.address, allocation.handle, driver::kIpcMemLazyEnablePeerAccess);
      result != Result::kSuccess) {
    return OpenFailed(result, allocation);
  }
  size_t length = 0;
  if (absl::Status status =
          driver.Check(driver->MemGetAddressRange(nullptr, &length, mapped.mapped.address), "cuMemGetAddressRange");
      !status.ok()) {
    (void)driver->IpcCloseMemHandle(mapped.mapped.address);
    return status;
  }
  mapped.mapped.length = Bytes{length};
  imported_.fetch_add(length, std::memory_order_relaxed);
  const auto place = imports_.insert(imports_.end(), std::move(mapped));
  auto memory = std::shared_ptr<const ImportedMemory>(&place->mapped, [this, place](const ImportedMemory*) {
    absl::MutexLock at_end(&unused_mutex_);
    unused_.push_back(place);
    wake_.SignalAll();
  });
  place->memory = memory;
  return OwnedBy(std::move(process), std::move(memory), &*place);
}

// Its descriptor goes with what is returned, so that a client can't have more of them open than it has memory registered.
std::shared_ptr<const ImportedMemory> Gpu::OwnedBy(UniqueFd pidfd, std::shared_ptr<const ImportedMemory> memory,
                                                   MappedAllocation* mapped) {
  const auto owner = std::make_shared<const Owner>(Owner{std::move(pidfd), std::move(memory)});
  mapped->owners.push_back(owner);
  return {owner, owner->memory.get()};
}

absl::Status Gpu::OpenFailed(Result result, const DeviceAllocation& allocation) const {
  const absl::Status status = driver_->Check(result, "cuIpcOpenMemHandle");
  if (absl::IsUnavailable(status)) return status;
  std::string why;
  if (allocation.pid_there == ::getpid()) {
    why = absl::StrCat(
        ": the engine's process has number ", allocation.pid_there,
        " in its container, as kvistd in its own, and the driver takes the two for one: give both one PID namespace "
        "(hostPID), or start one of them again");
  }
  return absl::FailedPreconditionError(
      absl::StrCat("the engine's GPU memory can't be opened here: ", status.message(), why));
}

void Gpu::Close() {
  for (;;) {
    Place unused;
    {
      absl::MutexLock lock(&unused_mutex_);
      while (unused_.empty() && !stopping_) wake_.Wait(&unused_mutex_);
      if (unused_.empty()) return;
      unused = unused_.back();
      unused_.pop_back();
    }
    {
      const Current current(*driver_, context_);  // it may wait for the device
      (void)(*driver_)->IpcCloseMemHandle(unused->mapped.address);
    }
    imported_.fetch_sub(unused->mapped.length.value, std::memory_order_relaxed);
    absl::MutexLock lock(&mutex_);
    imports_.erase(unused);
  }
}

absl::Status Gpu::Read(driver::Address from, std::byte* out, Bytes length) const {
  KVIST_RETURN_IF_ERROR(lost());
  const Current current(*driver_, context_);
  return driver_->Check((*driver_)->MemcpyDtoH(out, from, length.value), "cuMemcpyDtoH");
}

void Gpu::Lose(const absl::Status& why) {
  absl::call_once(loses_, [&] {
    lost_ = why;
    is_lost_.store(true, std::memory_order_release);
  });
}

}  // namespace kvist::cuda

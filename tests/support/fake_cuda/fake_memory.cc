#include "tests/support/fake_cuda/fake_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <string>

namespace kvist::fake_cuda {
namespace {

using driver::Address;
using driver::Result;

// What an IpcMemHandle holds.
struct HandleBytes {
  uint64_t magic;
  uint64_t id;
  uint64_t size;
  int32_t pid;
  int32_t fd;
  int32_t device;
};
constexpr uint64_t kMagic = 0x6461'7563'656b'6166;
static_assert(sizeof(HandleBytes) <= sizeof(driver::IpcMemHandle));

std::string NameOf(int pid, uint64_t id) { return "fake-cuda-" + std::to_string(pid) + "-" + std::to_string(id); }

void* Map(int fd, size_t size) { return ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0); }

}  // namespace

std::map<Address, FakeMemory::Allocation>::iterator FakeMemory::Containing(Address address) {
  auto found = allocations_.upper_bound(address);
  if (found == allocations_.begin()) return allocations_.end();
  --found;
  return address - found->first < found->second.size ? found : allocations_.end();
}

Result FakeMemory::Allocate(int device, size_t size, Address* address) {
  const std::lock_guard lock(mutex_);
  const uint64_t id = next_id_++;
  const int fd = ::memfd_create(NameOf(::getpid(), id).c_str(), MFD_CLOEXEC);
  if (size == 0) return Result::kInvalidValue;
  if (fd < 0 || ::ftruncate(fd, static_cast<off_t>(size)) != 0) return Result::kOutOfMemory;
  void* data = Map(fd, size);
  if (data == MAP_FAILED) return Result::kOutOfMemory;
  *address = reinterpret_cast<Address>(data);
  allocations_[*address] = {size, device, fd, id, ::getpid()};
  return Result::kSuccess;
}

Result FakeMemory::Free(Address address) {
  const std::lock_guard lock(mutex_);
  const auto found = allocations_.find(address);
  if (found == allocations_.end() || found->second.fd < 0) return Result::kInvalidValue;
  ::munmap(reinterpret_cast<void*>(address), found->second.size);
  ::close(found->second.fd);
  allocations_.erase(found);
  return Result::kSuccess;
}

Result FakeMemory::RangeOf(Address address, Address* base, size_t* size) {
  const std::lock_guard lock(mutex_);
  const auto found = Containing(address);
  if (found == allocations_.end()) return Result::kInvalidValue;
  if (base != nullptr) *base = found->first;
  if (size != nullptr) *size = found->second.size;
  return Result::kSuccess;
}

Result FakeMemory::Handle(Address base, driver::IpcMemHandle* handle) {
  const std::lock_guard lock(mutex_);
  const auto found = allocations_.find(base);
  if (found == allocations_.end() || found->second.fd < 0 || found->second.forbidden) return Result::kInvalidValue;
  const Allocation& of = found->second;
  const HandleBytes bytes{kMagic, of.id, of.size, ::getpid(), of.fd, of.device};
  *handle = {};
  std::memcpy(handle->bytes.data(), &bytes, sizeof bytes);
  return Result::kSuccess;
}

Result FakeMemory::Open(const driver::IpcMemHandle& handle, Address* address) {
  HandleBytes bytes{};
  std::memcpy(&bytes, handle.bytes.data(), sizeof bytes);
  if (bytes.magic != kMagic) return Result::kInvalidValue;
  if (bytes.pid == ::getpid()) return Result::kInvalidContext;
  const std::lock_guard lock(mutex_);
  for (const auto& [at, of] : allocations_) {
    if (of.fd < 0 && of.exporter == bytes.pid && of.id == bytes.id) return Result::kAlreadyMapped;
  }
  const std::string path = "/proc/" + std::to_string(bytes.pid) + "/fd/" + std::to_string(bytes.fd);
  char target[128]{};
  if (::readlink(path.c_str(), target, sizeof target - 1) < 0) return Result::kInvalidValue;
  if (std::string(target).find(NameOf(bytes.pid, bytes.id)) == std::string::npos) return Result::kInvalidValue;
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return Result::kInvalidValue;
  void* data = Map(fd, bytes.size);
  ::close(fd);
  if (data == MAP_FAILED) return Result::kMapFailed;
  *address = reinterpret_cast<Address>(data);
  allocations_[*address] = {bytes.size, bytes.device, -1, bytes.id, bytes.pid};
  ++imports_;
  return Result::kSuccess;
}

Result FakeMemory::Close(Address address) {
  const std::lock_guard lock(mutex_);
  const auto found = allocations_.find(address);
  if (found == allocations_.end() || found->second.fd >= 0) return Result::kInvalidValue;
  ::munmap(reinterpret_cast<void*>(address), found->second.size);
  allocations_.erase(found);
  return Result::kSuccess;
}

Result FakeMemory::Register(void* memory, size_t size) {
  const std::lock_guard lock(mutex_);
  const auto from = reinterpret_cast<Address>(memory);
  for (const auto& [at, length] : registered_) {
    if (from < at + length && at < from + size) return Result::kHostMemoryAlreadyRegistered;
  }
  registered_[from] = size;
  return Result::kSuccess;
}

Result FakeMemory::Unregister(void* memory) {
  const std::lock_guard lock(mutex_);
  return registered_.erase(reinterpret_cast<Address>(memory)) == 1 ? Result::kSuccess : Result::kInvalidValue;
}

void FakeMemory::ForbidIpc(Address address) {
  const std::lock_guard lock(mutex_);
  if (const auto found = Containing(address); found != allocations_.end()) found->second.forbidden = true;
}

bool FakeMemory::IpcCapable(Address address) {
  const std::lock_guard lock(mutex_);
  const auto found = Containing(address);
  return found != allocations_.end() && !found->second.forbidden;
}

int FakeMemory::DeviceOf(Address address) {
  const std::lock_guard lock(mutex_);
  const auto found = Containing(address);
  return found == allocations_.end() ? -1 : found->second.device;
}

bool FakeMemory::Pinned(Address address, size_t size) {
  const std::lock_guard lock(mutex_);
  if (const auto found = Containing(address); found != allocations_.end())
    return size <= found->second.size - (address - found->first);
  auto found = registered_.upper_bound(address);
  if (found == registered_.begin()) return false;
  --found;
  return address - found->first < found->second && size <= found->second - (address - found->first);
}

bool FakeMemory::Registered(const void* memory) {
  const std::lock_guard lock(mutex_);
  const auto at = reinterpret_cast<Address>(memory);
  auto found = registered_.upper_bound(at);
  if (found == registered_.begin()) return false;
  --found;
  return at - found->first < found->second;
}

uint64_t FakeMemory::registered_bytes() {
  const std::lock_guard lock(mutex_);
  uint64_t sum = 0;
  for (const auto& [at, size] : registered_) sum += size;
  return sum;
}

uint64_t FakeMemory::imported_bytes() {
  const std::lock_guard lock(mutex_);
  uint64_t sum = 0;
  for (const auto& [at, of] : allocations_) sum += of.fd < 0 ? of.size : 0;
  return sum;
}

uint64_t FakeMemory::imports() {
  const std::lock_guard lock(mutex_);
  return imports_;
}

}  // namespace kvist::fake_cuda

#include "examples/tinyllm/device_pages.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"

namespace tinyllm {

// What of the driver is used, under its own names; its handles are pointers, its addresses integers, its errors numbers.
struct DevicePages::Driver {
  void* library = nullptr;
  int (*GetProcAddress)(const char* name, void** call, int version, uint64_t flags, int* status) = nullptr;
  int (*Init)(unsigned flags) = nullptr;
  int (*DeviceGet)(int* device, int ordinal) = nullptr;
  int (*DevicePrimaryCtxRetain)(void** context, int device) = nullptr;
  int (*DevicePrimaryCtxRelease)(int device) = nullptr;
  int (*CtxPushCurrent)(void* context) = nullptr;
  int (*CtxPopCurrent)(void** context) = nullptr;
  int (*MemAlloc)(uint64_t* address, size_t size) = nullptr;
  int (*MemFree)(uint64_t address) = nullptr;
  int (*MemHostRegister)(void* memory, size_t size, unsigned flags) = nullptr;
  int (*MemHostUnregister)(void* memory) = nullptr;
  int (*MemcpyAsync)(uint64_t to, uint64_t from, size_t size, void* stream) = nullptr;
  int (*StreamCreateWithPriority)(void** stream, unsigned flags, int priority) = nullptr;
  int (*StreamDestroy)(void* stream) = nullptr;
  int (*StreamSynchronize)(void* stream) = nullptr;
  int device = 0;

  absl::Status Load() {
    library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return absl::UnavailableError(absl::StrCat("no CUDA driver: ", ::dlerror()));
    GetProcAddress = reinterpret_cast<decltype(GetProcAddress)>(::dlsym(library, "cuGetProcAddress_v2"));
    if (GetProcAddress == nullptr) return absl::UnavailableError("the CUDA driver is older than CUDA 12");
    absl::Status status;
    const auto find = [&](const char* name, auto* call) {
      constexpr int kCuda12 = 12000;
      int found = 0;
      if (GetProcAddress(name, reinterpret_cast<void**>(call), kCuda12, 0, &found) != 0 || *call == nullptr)
        status.Update(absl::UnavailableError(absl::StrCat("the CUDA driver has no ", name)));
    };
    find("cuInit", &Init);
    find("cuDeviceGet", &DeviceGet);
    find("cuDevicePrimaryCtxRetain", &DevicePrimaryCtxRetain);
    find("cuDevicePrimaryCtxRelease", &DevicePrimaryCtxRelease);
    find("cuCtxPushCurrent", &CtxPushCurrent);
    find("cuCtxPopCurrent", &CtxPopCurrent);
    find("cuMemAlloc", &MemAlloc);
    find("cuMemFree", &MemFree);
    find("cuMemHostRegister", &MemHostRegister);
    find("cuMemHostUnregister", &MemHostUnregister);
    find("cuMemcpyAsync", &MemcpyAsync);
    find("cuStreamCreateWithPriority", &StreamCreateWithPriority);
    find("cuStreamDestroy", &StreamDestroy);
    find("cuStreamSynchronize", &StreamSynchronize);
    return status;
  }

  // The context is the calling thread's while this lives.
  struct Current {
    Current(const Driver& of, void* context) : driver(of) { (void)driver.CtxPushCurrent(context); }
    ~Current() {
      void* popped = nullptr;
      (void)driver.CtxPopCurrent(&popped);
    }
    const Driver& driver;
  };
};

namespace {

absl::Status Check(int result, const char* call) {
  if (result == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(call, ": CUDA error ", result));
}

}  // namespace

DevicePages::DevicePages(const PagedMemory& host) : host_(host), driver_(std::make_unique<Driver>()) {}

absl::StatusOr<std::unique_ptr<DevicePages>> DevicePages::Create(const PagedMemory& host) {
  std::unique_ptr<DevicePages> pages(new DevicePages(host));
  if (absl::Status status = pages->Open(); !status.ok()) return status;
  return pages;
}

absl::Status DevicePages::Open() {
  Driver& d = *driver_;
  if (absl::Status status = d.Load(); !status.ok()) return status;
  if (absl::Status status = Check(d.Init(0), "cuInit"); !status.ok()) return status;
  if (absl::Status status = Check(d.DeviceGet(&d.device, 0), "cuDeviceGet"); !status.ok()) return status;
  if (absl::Status status = Check(d.DevicePrimaryCtxRetain(&context_, d.device), "cuDevicePrimaryCtxRetain"); !status.ok())
    return status;
  const Driver::Current current(d, context_);
  constexpr unsigned kNonBlocking = 1;
  if (absl::Status status = Check(d.StreamCreateWithPriority(&stream_, kNonBlocking, 0), "cuStreamCreate"); !status.ok())
    return status;
  if (absl::Status status = Check(d.MemAlloc(&memory_, host_.bytes()), "cuMemAlloc of the KV memory"); !status.ok())
    return status;
  // Only faster: what isn't pinned is copied, too.
  pinned_ = d.MemHostRegister(host_.Key(0, 0, 0), host_.bytes(), 0) == 0;
  return absl::OkStatus();
}

DevicePages::~DevicePages() {
  const Driver& d = *driver_;
  if (context_ != nullptr) {
    const Driver::Current current(d, context_);
    if (stream_ != nullptr) (void)d.StreamSynchronize(stream_);
    if (pinned_) (void)d.MemHostUnregister(host_.Key(0, 0, 0));
    if (memory_ != 0) (void)d.MemFree(memory_);
    if (stream_ != nullptr) (void)d.StreamDestroy(stream_);
  }
  if (context_ != nullptr) (void)d.DevicePrimaryCtxRelease(d.device);
}

kvist_cuda_region DevicePages::region() const { return {reinterpret_cast<void*>(memory_), host_.bytes()}; }

bool DevicePages::Copy(std::span<const PageId> pages, bool to_device) {
  const Driver& d = *driver_;
  const Driver::Current current(d, context_);
  const auto base = reinterpret_cast<uint64_t>(host_.Key(0, 0, 0));
  for (int layer = 0; layer < host_.layers(); ++layer) {
    for (const PageId page : pages) {
      const auto here = reinterpret_cast<uint64_t>(host_.Key(layer, page, 0));
      const uint64_t there = memory_ + (here - base);
      const int result = to_device ? d.MemcpyAsync(there, here, host_.page_bytes(), stream_)
                                   : d.MemcpyAsync(here, there, host_.page_bytes(), stream_);
      if (result != 0) return false;
    }
  }
  return true;
}

bool DevicePages::Write(std::span<const PageId> pages) { return Copy(pages, /*to_device=*/true); }

bool DevicePages::Read(std::span<const PageId> pages) {
  const bool given = Copy(pages, /*to_device=*/false);
  return Synchronize() && given;  // also after an error: some may be under way
}

bool DevicePages::Synchronize() {
  const Driver::Current current(*driver_, context_);
  return driver_->StreamSynchronize(stream_) == 0;
}

}  // namespace tinyllm

#include "tests/support/test_gpu.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

namespace kvist::test {
namespace {

namespace driver = cuda::driver;
using driver::Current;

void Must(driver::Result result, const char* call) {
  if (result == driver::Result::kSuccess) return;
  std::fprintf(stderr, "test GPU: %s: error %d\n", call, static_cast<int>(result));
  std::abort();
}
#define MUST(call) Must(call, #call)

driver::Address At(const void* pointer) { return reinterpret_cast<driver::Address>(pointer); }

}  // namespace

TestGpu::TestGpu(int ordinal) : words_(new std::atomic<uint64_t>[kWords] {}) {
  auto loaded = driver::Driver::Load();
  if (!loaded.ok()) {
    std::fprintf(stderr, "test GPU: %s\n", std::string(loaded.status().message()).c_str());
    std::abort();
  }
  driver_ = *loaded;
  const driver::Driver& d = *driver_;
  MUST(d->DeviceGet(&device_, ordinal));
  MUST(d->DevicePrimaryCtxRetain(&context_, device_));
  const Current current(d, context_);
  MUST(d->MemHostRegister(words_.get(), kWords * sizeof words_[0],
                          driver::kHostRegisterPortable | driver::kHostRegisterDeviceMap));
  MUST(d->MemHostGetDevicePointer(&words_there_, words_.get(), 0));
}

TestGpu::~TestGpu() {
  const driver::Driver& d = *driver_;
  {
    const Current current(d, context_);
    MUST(d->MemHostUnregister(words_.get()));
  }
  MUST(d->DevicePrimaryCtxRelease(device_));
}

std::byte* TestGpu::Allocate(size_t size) {
  const Current current(*driver_, context_);
  driver::Address address = 0;
  MUST((*driver_)->MemAlloc(&address, size));
  return reinterpret_cast<std::byte*>(address);
}

void TestGpu::Free(std::byte* memory) {
  const Current current(*driver_, context_);
  MUST((*driver_)->MemFree(At(memory)));
}

TestGpu::Name TestGpu::NameOf(std::byte* memory) const {
  const Current current(*driver_, context_);
  Name name;
  MUST((*driver_)->DeviceGetUuid(&name.gpu, device_));
  MUST((*driver_)->IpcGetMemHandle(&name.allocation, At(memory)));
  return name;
}

void TestGpu::Write(std::byte* to, const void* from, size_t size) {
  const Current current(*driver_, context_);
  MUST((*driver_)->MemcpyHtoD(At(to), from, size));
  MUST((*driver_)->StreamSynchronize(nullptr));  // from memory that isn't pinned the call returns before the bytes are there
}

void TestGpu::Read(void* to, const std::byte* from, size_t size) {
  const Current current(*driver_, context_);
  MUST((*driver_)->MemcpyDtoH(to, At(from), size));
}

void TestGpu::Pin(void* memory, size_t size) {
  const Current current(*driver_, context_);
  MUST((*driver_)->MemHostRegister(memory, size, driver::kHostRegisterPortable | driver::kHostRegisterDeviceMap));
}

void TestGpu::Unpin(void* memory) {
  const Current current(*driver_, context_);
  MUST((*driver_)->MemHostUnregister(memory));
}

driver::Stream TestGpu::MakeStream() {
  const Current current(*driver_, context_);
  driver::Stream stream = nullptr;
  MUST((*driver_)->StreamCreateWithPriority(&stream, driver::kStreamNonBlocking, 0));
  return stream;
}

void TestGpu::End(driver::Stream stream) {
  const Current current(*driver_, context_);
  MUST((*driver_)->StreamDestroy(stream));
}

void TestGpu::Copy(driver::Stream stream, void* to, const void* from, size_t size) {
  const Current current(*driver_, context_);
  MUST((*driver_)->MemcpyAsync(At(to), At(from), size, stream));
}

void TestGpu::AwaitWord(driver::Stream stream, uint32_t word, uint64_t value) {
  const Current current(*driver_, context_);
  MUST((*driver_)->StreamWaitValue64(stream, words_there_ + word * 8, value, driver::kWaitValueGeq));
}

void TestGpu::Synchronize(driver::Stream stream) {
  const Current current(*driver_, context_);
  MUST((*driver_)->StreamSynchronize(stream));
}

bool TestGpu::Idle(driver::Stream stream) const {
  const Current current(*driver_, context_);
  return (*driver_)->StreamQuery(stream) == driver::Result::kSuccess;
}

bool TestGpu::IdleSoon(driver::Stream stream, int64_t within_us) const {
  const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(within_us);
  while (!Idle(stream)) {
    if (std::chrono::steady_clock::now() >= until) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

}  // namespace kvist::test

#include "tests/support/fake_cuda/fake_cuda.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/fake_cuda/fake_kernels.h"
#include "tests/support/fake_cuda/fake_memory.h"
#include "tests/support/fake_cuda/fake_stream.h"

namespace kvist::fake_cuda {
namespace {

using namespace driver;

struct FakeDevice {
  int ordinal = 0;
  DeviceState state;
  uint32_t retained = 0;
  std::unique_ptr<FakeStream> default_stream;
  std::vector<std::pair<Address, std::vector<std::byte>>> staged;  // on its way; under the world's mutex
};

// All of it. Never destroyed: the driver outlives main.
struct World {
  std::mutex mutex;
  FakeCudaPlan plan;
  std::vector<std::unique_ptr<FakeDevice>> devices;
  std::map<Stream, std::shared_ptr<FakeStream>> streams;
  std::map<Event, std::shared_ptr<FakeEvent>> events;
  uint64_t next_handle = 1;
  std::mt19937_64 random{1};
  FakeMemory memory;
  std::atomic<uint64_t> copies{0}, copy_calls{0}, pageable_copies{0}, kernels{0};
};

FakeCudaPlan PlanOfEnvironment() {
  FakeCudaPlan plan;
  const char* text = std::getenv("KVIST_FAKE_CUDA");
  const std::string all = text == nullptr ? "" : text;
  const auto number = [&](const std::string& name, auto* out) {
    const size_t at = ("," + all).find("," + name + "=");
    if (at != std::string::npos)
      *out = static_cast<std::remove_reference_t<decltype(*out)>>(
          std::strtoull(all.c_str() + at + name.size() + 1, nullptr, 10));
  };
  number("seed", &plan.seed);
  number("devices", &plan.devices);
  number("delay_us", &plan.delay_us);
  number("refuse_every", &plan.refuse_every);
  number("lose_after", &plan.lose_after);
  number("no_batches", &plan.no_batches);
  number("no_register", &plan.no_register);
  number("no_open", &plan.no_open);
  number("entry_us", &plan.entry_us);
  number("launch_us", &plan.launch_us);
  number("no_launch", &plan.no_launch);
  number("no_memory", &plan.no_memory);
  number("call_us", &plan.call_us);
  return plan;
}

World& TheWorld() {
  static World* const world = [] {
    auto* made = new World;
    made->plan = PlanOfEnvironment();
    made->random.seed(made->plan.seed);
    for (uint32_t i = 0; i < made->plan.devices; ++i) {
      made->devices.push_back(std::make_unique<FakeDevice>());
      made->devices.back()->ordinal = static_cast<int>(i);
    }
    return made;
  }();
  return *world;
}

thread_local std::vector<FakeDevice*> current;

FakeDevice* Current() { return current.empty() ? nullptr : current.back(); }

// Of the calls that need a context: what they answer before they look at anything else.
Result Ready() {
  if (Current() == nullptr) return Result::kInvalidContext;
  return Current()->state.lost ? Result::kLaunchFailed : Result::kSuccess;
}
#define FAKE_NEEDS_CONTEXT() \
  if (const Result ready = Ready(); ready != Result::kSuccess) return ready

std::shared_ptr<FakeStream> Find(Stream stream) {
  World& w = TheWorld();
  const std::lock_guard lock(w.mutex);
  if (stream == nullptr) {
    FakeDevice* device = Current();
    if (device->default_stream == nullptr)
      device->default_stream = std::make_unique<FakeStream>(&device->state, w.random(), w.plan.delay_us);
    return {std::shared_ptr<void>(), device->default_stream.get()};
  }
  const auto found = w.streams.find(stream);
  return found == w.streams.end() ? nullptr : found->second;
}

// What an NVIDIA driver does at some time or other. Never by itself here: who doesn't wait for it is wrong each time.
void BringStaged() {
  World& w = TheWorld();
  const std::lock_guard lock(w.mutex);
  for (const auto& [to, bytes] : Current()->staged) std::memcpy(reinterpret_cast<void*>(to), bytes.data(), bytes.size());
  Current()->staged.clear();
}

std::shared_ptr<FakeEvent> Find(Event event) {
  World& w = TheWorld();
  const std::lock_guard lock(w.mutex);
  const auto found = w.events.find(event);
  return found == w.events.end() ? nullptr : found->second;
}

template <class T>
T NewHandle(World& w) {
  return reinterpret_cast<T>(w.next_handle++ << 4);
}

bool Valid(int device) { return device >= 0 && static_cast<size_t>(device) < TheWorld().devices.size(); }

// ---- Devices and contexts -----------------------------------------------------------------------------------------------------

Result Init(unsigned) { return TheWorld().devices.empty() ? Result::kNoDevice : Result::kSuccess; }
Result DriverGetVersion(int* version) {
  *version = TheWorld().plan.no_batches != 0 ? 12040 : 13000;
  return Result::kSuccess;
}
Result GetErrorName(Result error, const char** name) {
  switch (error) {
    case Result::kInvalidValue: *name = "CUDA_ERROR_INVALID_VALUE"; break;
    case Result::kOutOfMemory: *name = "CUDA_ERROR_OUT_OF_MEMORY"; break;
    case Result::kNoDevice: *name = "CUDA_ERROR_NO_DEVICE"; break;
    case Result::kInvalidContext: *name = "CUDA_ERROR_INVALID_CONTEXT"; break;
    case Result::kAlreadyMapped: *name = "CUDA_ERROR_ALREADY_MAPPED"; break;
    case Result::kLaunchFailed: *name = "CUDA_ERROR_LAUNCH_FAILED"; break;
    default: *name = "CUDA_ERROR_OF_THE_FAKE"; break;
  }
  return Result::kSuccess;
}
Result DeviceGetCount(int* count) {
  *count = static_cast<int>(TheWorld().devices.size());
  return Result::kSuccess;
}
Result DeviceGet(Device* device, int ordinal) {
  if (!Valid(ordinal)) return Result::kInvalidDevice;
  *device = ordinal;
  return Result::kSuccess;
}
Result DeviceGetName(char* name, int size, Device device) {
  if (!Valid(device) || size < 1) return Result::kInvalidDevice;
  std::strncpy(name, "Fake GPU", static_cast<size_t>(size));
  name[size - 1] = '\0';
  return Result::kSuccess;
}
Result DeviceGetUuid(Uuid* uuid, Device device) {
  if (!Valid(device)) return Result::kInvalidDevice;
  *uuid = {};
  std::memcpy(uuid->bytes.data(), "fake cuda gpu ", 14);
  uuid->bytes[15] = static_cast<std::byte>(device);
  return Result::kSuccess;
}
Result DeviceGetAttribute(int* value, int attribute, Device device) {
  if (!Valid(device)) return Result::kInvalidDevice;
  *value = attribute == kDeviceAttributeHostPointerForRegistered ? 1 : attribute == kDeviceAttributeHostNumaId ? device : 0;
  return Result::kSuccess;
}
Result DevicePrimaryCtxRetain(Context* context, Device device) {
  if (!Valid(device)) return Result::kInvalidDevice;
  World& w = TheWorld();
  const std::lock_guard lock(w.mutex);
  ++w.devices[static_cast<size_t>(device)]->retained;
  *context = reinterpret_cast<Context>(w.devices[static_cast<size_t>(device)].get());
  return Result::kSuccess;
}
Result DevicePrimaryCtxRelease(Device device) {
  World& w = TheWorld();
  const std::lock_guard lock(w.mutex);
  if (!Valid(device) || w.devices[static_cast<size_t>(device)]->retained == 0) return Result::kInvalidContext;
  --w.devices[static_cast<size_t>(device)]->retained;
  return Result::kSuccess;
}
Result CtxPushCurrent(Context context) {
  if (context == nullptr) return Result::kInvalidContext;
  current.push_back(reinterpret_cast<FakeDevice*>(context));
  return Result::kSuccess;
}
Result CtxPopCurrent(Context* context) {
  if (current.empty()) return Result::kInvalidContext;
  *context = reinterpret_cast<Context>(current.back());
  current.pop_back();
  return Result::kSuccess;
}
thread_local int capture_mode = 0;
Result ThreadExchangeStreamCaptureMode(int* mode) {
  std::swap(*mode, capture_mode);
  return Result::kSuccess;
}
Result StreamIsCapturing(Stream, int* status) {
  *status = 0;
  return Result::kSuccess;
}
Result CtxGetStreamPriorityRange(int* least, int* greatest) {
  FAKE_NEEDS_CONTEXT();
  *least = 0;
  *greatest = -5;
  return Result::kSuccess;
}

// ---- Memory ---------------------------------------------------------------------------------------------------------------------

Result MemGetInfo(size_t* free, size_t* total) {
  FAKE_NEEDS_CONTEXT();
  *total = size_t{8} << 30;
  *free = *total;
  return Result::kSuccess;
}
Result MemAlloc(Address* address, size_t size) {
  FAKE_NEEDS_CONTEXT();
  if (TheWorld().plan.no_memory != 0) return Result::kOutOfMemory;
  return TheWorld().memory.Allocate(Current()->ordinal, size, address);
}
Result MemFree(Address address) {
  FAKE_NEEDS_CONTEXT();
  BringStaged();
  return TheWorld().memory.Free(address);
}
Result MemGetAddressRange(Address* base, size_t* size, Address address) {
  FAKE_NEEDS_CONTEXT();
  return TheWorld().memory.RangeOf(address, base, size);
}
Result PointerGetAttribute(void* value, int attribute, Address address) {
  FakeMemory& memory = TheWorld().memory;
  int found = memory.DeviceOf(address);
  if (found < 0) return Result::kInvalidValue;
  if (attribute == kPointerAttributeIsLegacyIpcCapable) {
    const bool capable = memory.IpcCapable(address);
    std::memcpy(value, &capable, sizeof capable);
    return Result::kSuccess;
  }
  if (attribute != kPointerAttributeDeviceOrdinal) return Result::kInvalidValue;
  std::memcpy(value, &found, sizeof found);
  return Result::kSuccess;
}
Result MemHostRegister(void* host, size_t size, unsigned) {
  FAKE_NEEDS_CONTEXT();
  if (TheWorld().plan.no_register != 0) return Result::kNotSupported;
  return TheWorld().memory.Register(host, size);
}
Result MemHostUnregister(void* host) {
  if (Current() == nullptr) return Result::kInvalidContext;
  return TheWorld().memory.Unregister(host);
}
Result MemHostGetDevicePointer(Address* address, void* host, unsigned) {
  FAKE_NEEDS_CONTEXT();
  if (!TheWorld().memory.Registered(host)) return Result::kInvalidValue;
  *address = reinterpret_cast<Address>(host);
  return Result::kSuccess;
}
Result IpcGetMemHandle(IpcMemHandle* handle, Address address) {
  FAKE_NEEDS_CONTEXT();
  return TheWorld().memory.Handle(address, handle);
}
Result IpcOpenMemHandle(Address* address, IpcMemHandle handle, unsigned) {
  FAKE_NEEDS_CONTEXT();
  if (TheWorld().plan.no_open != 0) return Result::kNotSupported;
  return TheWorld().memory.Open(handle, address);
}
Result IpcCloseMemHandle(Address address) {
  if (Current() == nullptr) return Result::kInvalidContext;
  return TheWorld().memory.Close(address);
}

// ---- Copies and streams ---------------------------------------------------------------------------------------------------------

// From memory that isn't pinned: over when the bytes are staged, which says nothing of the device.
Result MemcpyHtoD(Address to, const void* from, size_t size) {
  FAKE_NEEDS_CONTEXT();
  if (TheWorld().memory.DeviceOf(to) < 0 || !TheWorld().memory.Pinned(to, size)) return Result::kInvalidValue;
  const auto* bytes = static_cast<const std::byte*>(from);
  const std::lock_guard lock(TheWorld().mutex);
  Current()->staged.emplace_back(to, std::vector<std::byte>(bytes, bytes + size));
  return Result::kSuccess;
}
Result MemcpyDtoH(void* to, Address from, size_t size) {
  FAKE_NEEDS_CONTEXT();
  if (TheWorld().memory.DeviceOf(from) < 0 || !TheWorld().memory.Pinned(from, size)) return Result::kInvalidValue;
  BringStaged();
  std::memcpy(to, reinterpret_cast<const void*>(from), size);
  return Result::kSuccess;
}

struct Entry {
  Address to, from;
  size_t size;
};

Result Enqueue(std::vector<Entry> entries, Stream on) {
  FAKE_NEEDS_CONTEXT();
  World& w = TheWorld();
  const std::shared_ptr<FakeStream> stream = Find(on);
  if (stream == nullptr) return Result::kInvalidHandle;
  const uint64_t calls = ++w.copy_calls;
  if (w.plan.call_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(w.plan.call_us));
  if (w.plan.refuse_every != 0 && calls % w.plan.refuse_every == 0) return Result::kOutOfMemory;
  bool waits = false;
  for (const Entry& entry : entries) {
    waits |= !w.memory.Pinned(entry.to, entry.size);
    if (waits || !w.memory.Pinned(entry.from, entry.size)) ++w.pageable_copies;
  }
  const uint64_t done = w.copies += entries.size();
  if (w.plan.lose_after != 0 && done > w.plan.lose_after) Current()->state.lost = true;
  uint64_t seed = 0;
  {
    const std::lock_guard lock(w.mutex);
    seed = w.random();
  }
  FakeDevice* device = Current();
  const uint64_t takes = entries.size() * w.plan.entry_us;
  stream->Push([entries = std::move(entries), seed, device, takes]() mutable {
    if (takes > 0) std::this_thread::sleep_for(std::chrono::microseconds(takes));
    std::mt19937_64 random(seed);
    std::shuffle(entries.begin(), entries.end(), random);  // nothing says in which order a batch's copies come
    for (const Entry& entry : entries) {
      if (device->state.lost) return;
      std::memcpy(reinterpret_cast<void*>(entry.to), reinterpret_cast<const void*>(entry.from), entry.size);
    }
  });
  if (waits) stream->Synchronize();  // to memory that isn't pinned it isn't asynchronous
  return Result::kSuccess;
}

Result MemcpyAsync(Address to, Address from, size_t size, Stream stream) { return Enqueue({{to, from, size}}, stream); }

Result MemcpyBatchAsync(Address* to, Address* from, size_t* sizes, size_t count, MemcpyAttributes* attributes,
                        size_t* starts, size_t attribute_count, size_t*, Stream stream) {
  if (count == 0 || stream == nullptr || attributes == nullptr || attribute_count != 1 || starts[0] != 0)
    return Result::kInvalidValue;
  std::vector<Entry> entries;
  for (size_t i = 0; i < count; ++i) entries.push_back({to[i], from[i], sizes[i]});
  return Enqueue(std::move(entries), stream);
}

Result StreamCreateWithPriority(Stream* stream, unsigned, int) {
  FAKE_NEEDS_CONTEXT();
  World& w = TheWorld();
  const std::lock_guard lock(w.mutex);
  *stream = NewHandle<Stream>(w);
  w.streams[*stream] = std::make_shared<FakeStream>(&Current()->state, w.random(), w.plan.delay_us);
  return Result::kSuccess;
}
Result StreamDestroy(Stream stream) {
  World& w = TheWorld();
  std::shared_ptr<FakeStream> gone;
  const std::lock_guard lock(w.mutex);
  const auto found = w.streams.find(stream);
  if (found == w.streams.end()) return Result::kInvalidHandle;
  gone = std::move(found->second);
  w.streams.erase(found);
  return Result::kSuccess;
}
Result StreamQuery(Stream stream) {
  FAKE_NEEDS_CONTEXT();
  const std::shared_ptr<FakeStream> found = Find(stream);
  if (found == nullptr) return Result::kInvalidHandle;
  return found->idle() ? Result::kSuccess : Result::kNotReady;
}
Result StreamSynchronize(Stream stream) {
  FAKE_NEEDS_CONTEXT();
  if (stream == nullptr) {
    BringStaged();
    // Made for those who use it: a process that is forked later would have it without its thread.
    if (Current()->default_stream == nullptr) return Ready();
  }
  const std::shared_ptr<FakeStream> found = Find(stream);
  if (found == nullptr) return Result::kInvalidHandle;
  found->Synchronize();
  return Ready();
}
Result StreamWaitValue64(Stream stream, Address address, uint64_t value, unsigned flags) {
  FAKE_NEEDS_CONTEXT();
  const std::shared_ptr<FakeStream> found = Find(stream);
  if (found == nullptr) return Result::kInvalidHandle;
  if (flags != kWaitValueGeq || address % 8 != 0 || !TheWorld().memory.Pinned(address, 8)) return Result::kInvalidValue;
  found->Push([raw = found.get(), address, value] {
    auto* word = reinterpret_cast<std::atomic<uint64_t>*>(address);
    while (static_cast<int64_t>(word->load(std::memory_order_acquire) - value) < 0 && !raw->ended())
      std::this_thread::sleep_for(std::chrono::microseconds(5));
  });
  return Result::kSuccess;
}
Result StreamWriteValue64(Stream stream, Address address, uint64_t value, unsigned) {
  FAKE_NEEDS_CONTEXT();
  const std::shared_ptr<FakeStream> found = Find(stream);
  if (found == nullptr) return Result::kInvalidHandle;
  if (address % 8 != 0 || !TheWorld().memory.Pinned(address, 8)) return Result::kInvalidValue;
  found->Push(
      [address, value] { reinterpret_cast<std::atomic<uint64_t>*>(address)->store(value, std::memory_order_release); });
  return Result::kSuccess;
}

Result EventCreate(Event* event, unsigned) {
  FAKE_NEEDS_CONTEXT();
  World& w = TheWorld();
  const std::lock_guard lock(w.mutex);
  *event = NewHandle<Event>(w);
  w.events[*event] = std::make_shared<FakeEvent>();
  return Result::kSuccess;
}
Result EventDestroy(Event event) {
  World& w = TheWorld();
  const std::lock_guard lock(w.mutex);
  return w.events.erase(event) == 1 ? Result::kSuccess : Result::kInvalidHandle;
}
Result EventRecord(Event event, Stream stream) {
  FAKE_NEEDS_CONTEXT();
  const std::shared_ptr<FakeEvent> found = Find(event);
  const std::shared_ptr<FakeStream> on = Find(stream);
  if (found == nullptr || on == nullptr) return Result::kInvalidHandle;
  const uint64_t turn = ++found->recorded;
  on->Push([found, turn] {
    found->at_nanos.store(std::chrono::steady_clock::now().time_since_epoch().count());
    found->passed.store(turn);
  });
  return Result::kSuccess;
}
Result StreamWaitEvent(Stream stream, Event event, unsigned flags) {
  FAKE_NEEDS_CONTEXT();
  const std::shared_ptr<FakeEvent> found = Find(event);
  const std::shared_ptr<FakeStream> on = Find(stream);
  if (found == nullptr || on == nullptr) return Result::kInvalidHandle;
  if (flags != 0) return Result::kInvalidValue;
  on->Push([found, turn = found->recorded.load(), raw = on.get()] {
    while (found->passed.load() < turn && !raw->ended()) std::this_thread::sleep_for(std::chrono::microseconds(5));
  });
  return Result::kSuccess;
}
Result EventElapsedTime(float* milliseconds, Event from, Event to) {
  FAKE_NEEDS_CONTEXT();
  const std::shared_ptr<FakeEvent> first = Find(from), last = Find(to);
  if (first == nullptr || last == nullptr || first->recorded == 0 || last->recorded == 0) return Result::kInvalidHandle;
  if (first->passed < first->recorded || last->passed < last->recorded) return Result::kNotReady;
  *milliseconds = static_cast<float>(static_cast<double>(last->at_nanos - first->at_nanos) * 1e-6);
  return Result::kSuccess;
}
Result EventQuery(Event event) {
  FAKE_NEEDS_CONTEXT();
  const std::shared_ptr<FakeEvent> found = Find(event);
  if (found == nullptr) return Result::kInvalidHandle;
  return found->passed.load() >= found->recorded.load() ? Result::kSuccess : Result::kNotReady;
}

// ---- Kernels --------------------------------------------------------------------------------------------------------------------

Result ModuleLoadData(Module* module, const void* image) {
  FAKE_NEEDS_CONTEXT();
  if (image == nullptr) return Result::kInvalidValue;
  *module = NewHandle<Module>(TheWorld());
  return Result::kSuccess;
}
Result ModuleUnload(Module) { return Result::kSuccess; }
Result ModuleGetFunction(Function* function, Module, const char* name) {
  const KernelOnHost* found = FindKernel(name);
  if (found == nullptr) return Result::kNotFound;
  *function = reinterpret_cast<Function>(const_cast<KernelOnHost*>(found));
  return Result::kSuccess;
}
Result LaunchKernel(Function function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream on,
                    void** parameters, void**) {
  FAKE_NEEDS_CONTEXT();
  const std::shared_ptr<FakeStream> stream = Find(on);
  if (stream == nullptr) return Result::kInvalidHandle;
  if (TheWorld().plan.no_launch != 0) return Result::kOutOfMemory;
  ++TheWorld().kernels;
  stream->Push([run = reinterpret_cast<const KernelOnHost*>(function)->bind(parameters), takes = TheWorld().plan.launch_us,
                device = Current()] {
    if (takes > 0) std::this_thread::sleep_for(std::chrono::microseconds(takes));
    if (!device->state.lost) run();
  });
  return Result::kSuccess;
}

const std::map<std::string, void*>& CallsByName() {
  static const auto* const calls = new std::map<std::string, void*>{
#define FAKE_ENTRY(name, parameters) {"cu" #name, reinterpret_cast<void*>(&name)},
      KVIST_CUDA_CALLS(FAKE_ENTRY)
#undef FAKE_ENTRY
  };
  return *calls;
}

}  // namespace
}  // namespace kvist::fake_cuda

using kvist::fake_cuda::TheWorld;

extern "C" {

__attribute__((visibility("default"))) int cuGetProcAddress_v2(const char* symbol, void** found, int version, uint64_t,
                                                               int* why_not) {
  *found = nullptr;
  *why_not = 0;
  if (std::string(symbol) == "cuMemcpyBatchAsync") {
    if (TheWorld().plan.no_batches == 0 && version >= kvist::cuda::driver::kVersionOfBatches)
      *found = reinterpret_cast<void*>(&kvist::fake_cuda::MemcpyBatchAsync);
  } else if (const auto at = kvist::fake_cuda::CallsByName().find(symbol); at != kvist::fake_cuda::CallsByName().end()) {
    *found = at->second;
  }
  if (*found != nullptr) return 0;
  *why_not = 1;
  return static_cast<int>(kvist::cuda::driver::Result::kNotFound);
}

__attribute__((visibility("default"))) void fakecuda_plan(const FakeCudaPlan* plan) {
  auto& w = TheWorld();
  const std::lock_guard lock(w.mutex);
  const uint32_t devices = w.plan.devices;
  w.plan = *plan;
  w.plan.devices = devices;  // they are there
  w.random.seed(plan->seed);
  for (const auto& device : w.devices) device->state.lost = false;
}

__attribute__((visibility("default"))) void fakecuda_figures(FakeCudaFigures* figures) {
  auto& w = TheWorld();
  *figures = {};
  figures->copies = w.copies;
  figures->copy_calls = w.copy_calls;
  figures->pageable_copies = w.pageable_copies;
  figures->kernels = w.kernels;
  figures->registered_bytes = w.memory.registered_bytes();
  figures->imported_bytes = w.memory.imported_bytes();
  figures->imports = w.memory.imports();
  const std::lock_guard lock(w.mutex);
  for (const auto& device : w.devices) figures->contexts += device->retained > 0 ? 1 : 0;
}

__attribute__((visibility("default"))) void fakecuda_forbid_ipc(uint64_t address) { TheWorld().memory.ForbidIpc(address); }
}

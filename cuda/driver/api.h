#ifndef KVIST_CUDA_DRIVER_API_H_
#define KVIST_CUDA_DRIVER_API_H_

#include <array>
#include <cstddef>
#include <cstdint>

// The part of the CUDA driver's ABI that kvist uses, declared here so that kvist builds and starts where there is no CUDA. Names are the
// driver's without its prefix; tests/unit/cuda/driver_abi_test.cc compares them with cuda.h where that is installed.
namespace kvist::cuda::driver {

enum class Result : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kDeinitialized = 4,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidContext = 201,  // also: an IPC handle that comes from a process with the opener's own number
  kMapFailed = 205,
  kAlreadyMapped = 208,
  kEccUncorrectable = 214,
  kInvalidHandle = 400,
  kNotFound = 500,
  kNotReady = 600,
  kIllegalAddress = 700,
  kLaunchFailed = 719,
  kHostMemoryAlreadyRegistered = 712,
  kNotSupported = 801,
  kUnknown = 999,
};

using Device = int;        // an ordinal's handle
using Address = uint64_t;  // CUdeviceptr
using Context = struct ContextOfDriver*;
using Stream = struct StreamOfDriver*;  // null: the context's default stream
using Event = struct EventOfDriver*;
using Module = struct ModuleOfDriver*;
using Function = struct FunctionOfDriver*;

struct Uuid {
  std::array<std::byte, 16> bytes{};
  friend bool operator==(const Uuid&, const Uuid&) = default;
};
// Names an allocation to other processes.
struct IpcMemHandle {
  std::array<std::byte, 64> bytes{};
  friend bool operator==(const IpcMemHandle&, const IpcMemHandle&) = default;
};

// CUmemcpyAttributes, of cuMemcpyBatchAsync.
struct MemLocation {
  int type = 0;
  int id = 0;
};
struct MemcpyAttributes {
  int src_access_order = 1;  // CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
  MemLocation src_hint, dst_hint;
  unsigned flags = 0;
};
static_assert(sizeof(MemcpyAttributes) == 24);

inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr unsigned kEventTimed = 0;
inline constexpr unsigned kWaitValueGeq = 0;  // cyclic: (int64_t)(*address - value) >= 0
inline constexpr unsigned kIpcMemLazyEnablePeerAccess = 1;
inline constexpr unsigned kHostRegisterPortable = 1;
inline constexpr unsigned kHostRegisterDeviceMap = 2;
inline constexpr int kPointerAttributeIsLegacyIpcCapable = 10;
inline constexpr int kPointerAttributeDeviceOrdinal = 9;
inline constexpr int kDeviceAttributeHostPointerForRegistered = 91;
inline constexpr int kDeviceAttributeHostNumaId = 134;  // older drivers don't know it
inline constexpr int kCaptureModeRelaxed = 2;
inline constexpr int kVersionWanted = 12000;     // of the calls below
inline constexpr int kVersionOfBatches = 12080;  // of cuMemcpyBatchAsync

// X(name, parameters); the name is the driver's without "cu".
#define KVIST_CUDA_CALLS(X)                                                                                    \
  X(Init, (unsigned flags))                                                                                    \
  X(DriverGetVersion, (int* version))                                                                          \
  X(GetErrorName, (Result error, const char** name))                                                           \
  X(DeviceGetCount, (int* count))                                                                              \
  X(DeviceGet, (Device * device, int ordinal))                                                                 \
  X(DeviceGetName, (char* name, int size, Device device))                                                      \
  X(DeviceGetUuid, (Uuid * uuid, Device device))                                                               \
  X(DeviceGetAttribute, (int* value, int attribute, Device device))                                            \
  X(DevicePrimaryCtxRetain, (Context * context, Device device))                                                \
  X(DevicePrimaryCtxRelease, (Device device))                                                                  \
  X(CtxPushCurrent, (Context context))                                                                         \
  X(CtxPopCurrent, (Context * context))                                                                        \
  X(ThreadExchangeStreamCaptureMode, (int* mode))                                                              \
  X(StreamIsCapturing, (Stream stream, int* status))                                                           \
  X(CtxGetStreamPriorityRange, (int* least, int* greatest))                                                    \
  X(MemGetInfo, (size_t * free, size_t * total))                                                               \
  X(MemAlloc, (Address * address, size_t size))                                                                \
  X(MemFree, (Address address))                                                                                \
  X(MemGetAddressRange, (Address * base, size_t * size, Address address))                                      \
  X(PointerGetAttribute, (void* value, int attribute, Address address))                                        \
  X(MemHostRegister, (void* memory, size_t size, unsigned flags))                                              \
  X(MemHostUnregister, (void* memory))                                                                         \
  X(MemHostGetDevicePointer, (Address * address, void* memory, unsigned flags))                                \
  X(IpcGetMemHandle, (IpcMemHandle * handle, Address address))                                                 \
  X(IpcOpenMemHandle, (Address * address, IpcMemHandle handle, unsigned flags))                                \
  X(IpcCloseMemHandle, (Address address))                                                                      \
  X(MemcpyHtoD, (Address to, const void* from, size_t size))                                                   \
  X(MemcpyDtoH, (void* to, Address from, size_t size))                                                         \
  X(MemcpyAsync, (Address to, Address from, size_t size, Stream stream))                                       \
  X(StreamCreateWithPriority, (Stream * stream, unsigned flags, int priority))                                 \
  X(StreamDestroy, (Stream stream))                                                                            \
  X(StreamQuery, (Stream stream))                                                                              \
  X(StreamSynchronize, (Stream stream))                                                                        \
  X(StreamWaitEvent, (Stream stream, Event event, unsigned flags))                                             \
  X(StreamWaitValue64, (Stream stream, Address address, uint64_t value, unsigned flags))                       \
  X(StreamWriteValue64, (Stream stream, Address address, uint64_t value, unsigned flags))                      \
  X(EventCreate, (Event * event, unsigned flags))                                                              \
  X(EventDestroy, (Event event))                                                                               \
  X(EventRecord, (Event event, Stream stream))                                                                 \
  X(EventQuery, (Event event))                                                                                 \
  X(EventElapsedTime, (float* milliseconds, Event from, Event to))                                             \
  X(ModuleLoadData, (Module * module, const void* image))                                                      \
  X(ModuleUnload, (Module module))                                                                             \
  X(ModuleGetFunction, (Function * function, Module module, const char* name))                                 \
  X(LaunchKernel,                                                                                              \
    (Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, \
     unsigned block_z, unsigned shared_bytes, Stream stream, void** parameters, void** extra))

// One pointer for each call, all set.
struct Calls {
#define KVIST_CUDA_POINTER(name, parameters) Result(*name) parameters = nullptr;
  KVIST_CUDA_CALLS(KVIST_CUDA_POINTER)
#undef KVIST_CUDA_POINTER
  // Null where the driver is older than kVersionOfBatches.
  Result (*MemcpyBatchAsync)(Address* to, Address* from, size_t* sizes, size_t count, MemcpyAttributes* attributes,
                             size_t* attribute_starts, size_t attribute_count, size_t* failed, Stream stream) = nullptr;
};

}  // namespace kvist::cuda::driver

#endif  // KVIST_CUDA_DRIVER_API_H_

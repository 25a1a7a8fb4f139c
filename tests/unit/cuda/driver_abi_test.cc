// What cuda/driver/api.h declares, against the driver's own header. All of it is settled when this compiles.
#include <cuda.h>
#include <cudaTypedefs.h>

#include <catch2/catch.hpp>
#include <type_traits>

#include "cuda/driver/driver.h"

namespace kvist::cuda::driver {
namespace {

#define SAME_ERROR(ours, theirs) static_assert(static_cast<int>(Result::ours) == theirs)
SAME_ERROR(kSuccess, CUDA_SUCCESS);
SAME_ERROR(kInvalidValue, CUDA_ERROR_INVALID_VALUE);
SAME_ERROR(kOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY);
SAME_ERROR(kNotInitialized, CUDA_ERROR_NOT_INITIALIZED);
SAME_ERROR(kDeinitialized, CUDA_ERROR_DEINITIALIZED);
SAME_ERROR(kNoDevice, CUDA_ERROR_NO_DEVICE);
SAME_ERROR(kInvalidDevice, CUDA_ERROR_INVALID_DEVICE);
SAME_ERROR(kInvalidContext, CUDA_ERROR_INVALID_CONTEXT);
SAME_ERROR(kMapFailed, CUDA_ERROR_MAP_FAILED);
SAME_ERROR(kAlreadyMapped, CUDA_ERROR_ALREADY_MAPPED);
SAME_ERROR(kEccUncorrectable, CUDA_ERROR_ECC_UNCORRECTABLE);
SAME_ERROR(kInvalidHandle, CUDA_ERROR_INVALID_HANDLE);
SAME_ERROR(kNotFound, CUDA_ERROR_NOT_FOUND);
SAME_ERROR(kNotReady, CUDA_ERROR_NOT_READY);
SAME_ERROR(kIllegalAddress, CUDA_ERROR_ILLEGAL_ADDRESS);
SAME_ERROR(kLaunchFailed, CUDA_ERROR_LAUNCH_FAILED);
SAME_ERROR(kHostMemoryAlreadyRegistered, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
SAME_ERROR(kNotSupported, CUDA_ERROR_NOT_SUPPORTED);
SAME_ERROR(kUnknown, CUDA_ERROR_UNKNOWN);

static_assert(sizeof(Address) == sizeof(CUdeviceptr) && sizeof(Device) == sizeof(CUdevice));
static_assert(sizeof(Uuid) == sizeof(CUuuid) && sizeof(IpcMemHandle) == sizeof(CUipcMemHandle));
static_assert(sizeof(MemcpyAttributes) == sizeof(CUmemcpyAttributes) &&
              offsetof(MemcpyAttributes, flags) == offsetof(CUmemcpyAttributes, flags) &&
              offsetof(MemcpyAttributes, src_hint) == offsetof(CUmemcpyAttributes, srcLocHint));
static_assert(MemcpyAttributes{}.src_access_order == CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
static_assert(kStreamNonBlocking == CU_STREAM_NON_BLOCKING && kEventDisableTiming == CU_EVENT_DISABLE_TIMING);
static_assert(kCaptureModeRelaxed == CU_STREAM_CAPTURE_MODE_RELAXED && CU_STREAM_CAPTURE_STATUS_NONE == 0);
static_assert(kWaitValueGeq == CU_STREAM_WAIT_VALUE_GEQ);
static_assert(kIpcMemLazyEnablePeerAccess == CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
static_assert(kHostRegisterPortable == CU_MEMHOSTREGISTER_PORTABLE &&
              kHostRegisterDeviceMap == CU_MEMHOSTREGISTER_DEVICEMAP);
static_assert(kDeviceAttributeHostNumaId == CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID);
static_assert(kDeviceAttributeHostPointerForRegistered == CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM);
static_assert(kPointerAttributeIsLegacyIpcCapable == CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE &&
              kPointerAttributeDeviceOrdinal == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);

// A parameter is passed alike when both are numbers, or both pointers, of one size; or structs of one size.
template <class A, class B>
inline constexpr bool kAlike =
    sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B>&& std::is_class_v<A> == std::is_class_v<B>;
template <class A, class B>
inline constexpr bool kSameCall = false;
template <class RA, class RB, class... A, class... B>
requires(sizeof...(A) == sizeof...(B)) inline constexpr bool kSameCall<RA (*)(A...), RB (*)(B...)> = kAlike<RA, RB> &&
                                                                                                     (kAlike<A, B> && ...);

#define SAME_CALL(name, version) static_assert(kSameCall<decltype(Calls::name), PFN_cu##name##_v##version>)
SAME_CALL(Init, 2000);
SAME_CALL(DriverGetVersion, 2020);
SAME_CALL(GetErrorName, 6000);
SAME_CALL(DeviceGetCount, 2000);
SAME_CALL(DeviceGet, 2000);
SAME_CALL(DeviceGetName, 2000);
SAME_CALL(DeviceGetUuid, 11040);
SAME_CALL(DeviceGetAttribute, 2000);
SAME_CALL(DevicePrimaryCtxRetain, 7000);
SAME_CALL(DevicePrimaryCtxRelease, 11000);
SAME_CALL(CtxPushCurrent, 4000);
SAME_CALL(CtxPopCurrent, 4000);
SAME_CALL(CtxGetStreamPriorityRange, 5050);
SAME_CALL(ThreadExchangeStreamCaptureMode, 10010);
SAME_CALL(StreamIsCapturing, 10000);
SAME_CALL(MemGetInfo, 3020);
SAME_CALL(MemAlloc, 3020);
SAME_CALL(MemFree, 3020);
SAME_CALL(MemGetAddressRange, 3020);
SAME_CALL(PointerGetAttribute, 4000);
SAME_CALL(MemHostRegister, 6050);
SAME_CALL(MemHostUnregister, 4000);
SAME_CALL(MemHostGetDevicePointer, 3020);
SAME_CALL(IpcGetMemHandle, 4010);
SAME_CALL(IpcOpenMemHandle, 11000);
SAME_CALL(IpcCloseMemHandle, 4010);
SAME_CALL(MemcpyHtoD, 3020);
SAME_CALL(MemcpyDtoH, 3020);
SAME_CALL(MemcpyAsync, 4000);
SAME_CALL(StreamCreateWithPriority, 5050);
SAME_CALL(StreamDestroy, 4000);
SAME_CALL(StreamQuery, 2000);
SAME_CALL(StreamSynchronize, 2000);
SAME_CALL(StreamWaitValue64, 11070);
SAME_CALL(StreamWriteValue64, 11070);
SAME_CALL(EventCreate, 2000);
SAME_CALL(EventDestroy, 4000);
SAME_CALL(EventRecord, 2000);
SAME_CALL(EventQuery, 2000);
SAME_CALL(ModuleLoadData, 2000);
SAME_CALL(ModuleUnload, 2000);
SAME_CALL(ModuleGetFunction, 2000);
SAME_CALL(LaunchKernel, 4000);
SAME_CALL(MemcpyBatchAsync, 12080);

TEST_CASE("kvist's declarations of the CUDA driver are those of cuda.h") { SUCCEED(); }

}  // namespace
}  // namespace kvist::cuda::driver

#include "cuda/driver/driver.h"

#include <dlfcn.h>

#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "storage/base/status.h"

namespace kvist::cuda::driver {
namespace {

// cuGetProcAddress_v2: finds a call by the driver's plain name, in the form that it had in a version.
using GetProcAddress = Result (*)(const char* symbol, void** found, int version, uint64_t flags, int* why_not);

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace

absl::StatusOr<std::shared_ptr<const Driver>> Driver::Load(const std::string& library) {
  void* handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return absl::NotFoundError(absl::StrCat("no CUDA driver: ", ::dlerror()));
  const auto find = reinterpret_cast<GetProcAddress>(::dlsym(handle, "cuGetProcAddress_v2"));
  const auto old = [&](absl::string_view call) {
    return absl::FailedPreconditionError(
        absl::StrCat("the CUDA driver ", library, " has no ", call, ": kvist needs one of CUDA 12.0 (525) or later"));
  };
  if (find == nullptr) return old("cuGetProcAddress_v2");
  auto driver = std::shared_ptr<Driver>(new Driver);
  const auto get = [&](const char* call, int version, auto** pointer) {
    void* found = nullptr;
    int why_not = 0;
    if (find(call, &found, version, 0, &why_not) != Result::kSuccess) return false;
    *pointer = reinterpret_cast<std::remove_reference_t<decltype(*pointer)>>(found);
    return found != nullptr;
  };
#define KVIST_CUDA_GET(name, parameters) \
  if (!get("cu" #name, kVersionWanted, &driver->calls_.name)) return old("cu" #name);
  KVIST_CUDA_CALLS(KVIST_CUDA_GET)
#undef KVIST_CUDA_GET
  (void)get("cuMemcpyBatchAsync", kVersionOfBatches, &driver->calls_.MemcpyBatchAsync);
  if (const Result result = driver->calls_.Init(0); result != Result::kSuccess) {
    return absl::FailedPreconditionError(
        absl::StrCat("the CUDA driver doesn't start: ", driver->Check(result, "cuInit").message()));
  }
  KVIST_RETURN_IF_ERROR(driver->Check(driver->calls_.DriverGetVersion(&driver->version_), "cuDriverGetVersion"));
  return driver;
}

bool Driver::IsLost(Result result) {
  const int code = static_cast<int>(result);
  // 700 to 720 but for those about registering memory and peers that say nothing of the context.
  const bool failed_on_device = code == 700 || code == 702 || code == 709 || code == 710 || (code >= 714 && code <= 719);
  return failed_on_device || result == Result::kEccUncorrectable || code == 219 || code == 220 || code == 226 ||
         result == Result::kDeinitialized || result == Result::kUnknown;
}

absl::Status Driver::Check(Result result, std::string_view call) const {
  if (result == Result::kSuccess) return absl::OkStatus();
  const char* name = nullptr;
  if (calls_.GetErrorName(result, &name) != Result::kSuccess || name == nullptr) name = "an error without a name";
  const std::string message = absl::StrCat(View(call), ": ", name, " (", static_cast<int>(result), ")");
  if (IsLost(result)) return absl::UnavailableError(absl::StrCat("the GPU is lost to this process: ", message));
  switch (result) {
    case Result::kOutOfMemory: return absl::ResourceExhaustedError(message);
    case Result::kInvalidValue:
    case Result::kInvalidHandle: return absl::InvalidArgumentError(message);
    default: return absl::FailedPreconditionError(message);
  }
}

absl::StatusOr<Device> Driver::Find(const Uuid& uuid) const {
  int count = 0;
  KVIST_RETURN_IF_ERROR(Check(calls_.DeviceGetCount(&count), "cuDeviceGetCount"));
  std::vector<std::string> there;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    Device device = 0;
    Uuid found;
    KVIST_RETURN_IF_ERROR(Check(calls_.DeviceGet(&device, ordinal), "cuDeviceGet"));
    KVIST_RETURN_IF_ERROR(Check(calls_.DeviceGetUuid(&found, device), "cuDeviceGetUuid"));
    if (found == uuid) return device;
    there.push_back(ToText(found));
  }
  return absl::NotFoundError(absl::StrCat("this process sees no GPU ", ToText(uuid), ", only [", absl::StrJoin(there, ", "),
                                          "]: see CUDA_VISIBLE_DEVICES and the container's devices"));
}

Current::Current(const Driver& driver, Context context) : driver_(driver) {
  pushed_ = driver_->CtxPushCurrent(context) == Result::kSuccess;
  (void)driver_->ThreadExchangeStreamCaptureMode(&capture_mode_);
}

Current::~Current() {
  (void)driver_->ThreadExchangeStreamCaptureMode(&capture_mode_);
  Context context = nullptr;
  if (pushed_) (void)driver_->CtxPopCurrent(&context);
}

std::string ToText(const Uuid& uuid) {
  const std::string hex = absl::BytesToHexString({reinterpret_cast<const char*>(uuid.bytes.data()), uuid.bytes.size()});
  return absl::StrCat("GPU-", hex.substr(0, 8), "-", hex.substr(8, 4), "-", hex.substr(12, 4), "-", hex.substr(16, 4), "-",
                      hex.substr(20));
}

}  // namespace kvist::cuda::driver

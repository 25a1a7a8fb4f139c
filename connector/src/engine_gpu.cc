#include "connector/src/engine_gpu.h"

#include <iterator>
#include <list>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/status.h"

namespace kvist::connector {
namespace {

namespace driver = cuda::driver;
using driver::Current;

driver::Address AddressOf(const void* pointer) { return reinterpret_cast<driver::Address>(pointer); }

}  // namespace

absl::StatusOr<std::shared_ptr<EngineGpu>> EngineGpu::Of(const void* address) {
  auto gpu = std::shared_ptr<EngineGpu>(new EngineGpu);
  absl::StatusOr<std::shared_ptr<const driver::Driver>> loaded = driver::Driver::Load();
  if (!loaded.ok()) return absl::FailedPreconditionError(absl::StrCat("memory.cuda_regions: ", loaded.status().message()));
  gpu->driver_ = *std::move(loaded);
  const driver::Driver& driver = *gpu->driver_;
  int ordinal = 0;
  if (driver->PointerGetAttribute(&ordinal, driver::kPointerAttributeDeviceOrdinal, AddressOf(address)) !=
      driver::Result::kSuccess) {
    return absl::InvalidArgumentError(
        absl::StrCat("memory.cuda_regions: ", absl::Hex(AddressOf(address)), " is no GPU memory of this process"));
  }
  KVIST_RETURN_IF_ERROR(driver.Check(driver->DeviceGet(&gpu->device_, ordinal), "cuDeviceGet"));
  KVIST_RETURN_IF_ERROR(driver.Check(driver->DeviceGetUuid(&gpu->uuid_, gpu->device_), "cuDeviceGetUuid"));
  KVIST_RETURN_IF_ERROR(
      driver.Check(driver->DevicePrimaryCtxRetain(&gpu->context_, gpu->device_), "cuDevicePrimaryCtxRetain"));
  return gpu;
}

EngineGpu::~EngineGpu() {
  if (context_ != nullptr) (void)(*driver_)->DevicePrimaryCtxRelease(device_);
}

absl::StatusOr<EngineGpu::Region> EngineGpu::Describe(const void* address, uint64_t length) const {
  const driver::Driver& driver = *driver_;
  const Current current(driver, context_);
  driver::Address base = 0;
  size_t size = 0;
  int ordinal = 0;
  if (driver->PointerGetAttribute(&ordinal, driver::kPointerAttributeDeviceOrdinal, AddressOf(address)) !=
          driver::Result::kSuccess ||
      driver->MemGetAddressRange(&base, &size, AddressOf(address)) != driver::Result::kSuccess) {
    return absl::InvalidArgumentError(
        absl::StrCat("memory.cuda_regions: ", absl::Hex(AddressOf(address)), " is no GPU memory of this process"));
  }
  driver::Device device = 0;
  KVIST_RETURN_IF_ERROR(driver.Check(driver->DeviceGet(&device, ordinal), "cuDeviceGet"));
  if (device != device_)
    return absl::InvalidArgumentError("memory.cuda_regions are on several GPUs: connect a client for each");
  Region region{uuid_, {}, AddressOf(address) - base, length};
  if (length == 0 || region.offset > size || length > size - region.offset) {
    return absl::InvalidArgumentError(absl::StrCat("memory.cuda_regions: [", absl::Hex(AddressOf(address)), ", +", length,
                                                   ") isn't within one allocation (this one ends after ",
                                                   size - region.offset, " bytes)"));
  }
  int capable = 0;
  const bool known = driver->PointerGetAttribute(&capable, driver::kPointerAttributeIsLegacyIpcCapable,
                                                 AddressOf(address)) == driver::Result::kSuccess;
  absl::Status status;
  if (!known || (capable & 0xff) != 0)
    status = driver.Check(driver->IpcGetMemHandle(&region.allocation, base), "cuIpcGetMemHandle");
  if ((known && (capable & 0xff) == 0) || !status.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "this GPU memory can't be given to another process (", status.ok() ? "it is mapped by cuMemMap" : status.message(),
        "): expandable segments and sleep mode make such memory; allocate the KV cache without them "
        "(PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False, no --enable-sleep-mode)"));
  }
  return region;
}

absl::Status EngineGpu::Read(const std::byte* from, std::byte* out, size_t size) const {
  const Current current(*driver_, context_);
  return driver_->Check((*driver_)->MemcpyDtoH(out, AddressOf(from), size), "cuMemcpyDtoH");
}

absl::StatusOr<std::shared_ptr<EngineGpu::Board>> EngineGpu::MakeBoard(const std::shared_ptr<EngineGpu>& gpu,
                                                                       std::shared_ptr<const shm::SessionMemory> memory) {
  auto board = std::shared_ptr<Board>(new Board);
  board->gpu_ = gpu;
  board->memory_ = std::move(memory);
  const driver::Driver& driver = *gpu->driver_;
  const Current current(driver, gpu->context_);
  void* first = board->memory_->header();
  KVIST_RETURN_IF_ERROR(driver.Check(driver->MemHostRegister(first, shm::kSessionBytes.value,
                                                             driver::kHostRegisterPortable | driver::kHostRegisterDeviceMap),
                                     "cuMemHostRegister"));
  board->pinned_ = true;
  KVIST_RETURN_IF_ERROR(
      driver.Check(driver->MemHostGetDevicePointer(&board->address_, first, 0), "cuMemHostGetDevicePointer"));
  return board;
}

absl::Status EngineGpu::NotCapturing(driver::Stream stream) const {
  int capturing = 0;
  KVIST_RETURN_IF_ERROR(driver_->Check((*driver_)->StreamIsCapturing(stream, &capturing), "cuStreamIsCapturing"));
  if (capturing == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "the stream captures a graph, which can't hold what differs in each replay: call this outside of it");
}

// ---- Board ------------------------------------------------------------------------------------------------------------------

EngineGpu::Board::~Board() {
  const driver::Driver& driver = *gpu_->driver_;
  const Current current(driver, gpu_->context_);
  for (const driver::Event event : given_) (void)driver->EventDestroy(event);
  if (pinned_) (void)driver->MemHostUnregister(memory_->header());
}

driver::Address EngineGpu::Board::AddressOf(const std::atomic<uint64_t>& word) const {
  return address_ + static_cast<uint64_t>(reinterpret_cast<const std::byte*>(&word) -
                                          reinterpret_cast<const std::byte*>(memory_->header()));
}

absl::Status EngineGpu::Board::MayGive(driver::Stream stream) {
  const Current current(*gpu_->driver_, gpu_->context_);
  return gpu_->NotCapturing(stream);
}

absl::Status EngineGpu::Board::Wait(driver::Stream stream, const std::atomic<uint64_t>& word, uint64_t value) {
  const driver::Driver& driver = *gpu_->driver_;
  const Current current(driver, gpu_->context_);
  KVIST_RETURN_IF_ERROR(
      driver.Check(driver->StreamWaitValue64(stream, AddressOf(word), value, driver::kWaitValueGeq), "cuStreamWaitValue64"));
  Given(stream);
  return absl::OkStatus();
}

absl::Status EngineGpu::Board::Write(driver::Stream stream, std::atomic<uint64_t>* word, uint64_t value) {
  const driver::Driver& driver = *gpu_->driver_;
  const Current current(driver, gpu_->context_);
  KVIST_RETURN_IF_ERROR(
      driver.Check(driver->StreamWriteValue64(stream, AddressOf(*word), value, 0), "cuStreamWriteValue64"));
  Given(stream);
  return absl::OkStatus();
}

// The context is current. An event for each: streams come and go, and their handles are given again.
void EngineGpu::Board::Given(driver::Stream stream) {
  const driver::Driver& driver = *gpu_->driver_;
  driver::Event event = nullptr;
  const bool made = driver->EventCreate(&event, driver::kEventDisableTiming) == driver::Result::kSuccess;
  // Without the mutex: it blocks while the stream's queue is full.
  const bool follows = made && driver->EventRecord(event, stream) == driver::Result::kSuccess;
  MutexLock lock(&mutex_);
  ForgetPassed();
  if (made) given_.push_back(event);
  unknown_ |= !follows;
}

void EngineGpu::Board::ForgetPassed() {
  const driver::Driver& driver = *gpu_->driver_;
  std::erase_if(given_, [&](driver::Event event) {
    if (driver->EventQuery(event) == driver::Result::kNotReady) return false;
    (void)driver->EventDestroy(event);
    return true;
  });
}

bool EngineGpu::Board::Passed() {
  const Current current(*gpu_->driver_, gpu_->context_);
  MutexLock lock(&mutex_);
  ForgetPassed();
  return given_.empty() && !unknown_;
}

void EngineGpu::Board::Retire(std::shared_ptr<Board> board) {
  static Mutex* const mutex = new Mutex;
  static auto* const retired = new std::list<std::shared_ptr<Board>>;
  std::list<std::shared_ptr<Board>> passed;  // they end outside the mutex
  MutexLock lock(mutex);
  retired->push_back(std::move(board));
  for (auto it = retired->begin(); it != retired->end();) {
    const auto next = std::next(it);
    if ((*it)->Passed()) passed.splice(passed.end(), *retired, it);
    it = next;
  }
}

}  // namespace kvist::connector

#include "cuda/gpus.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "storage/base/status.h"

namespace kvist::cuda {

Gpus::Gpus(std::string library, Log log)
    : library_(std::move(library)),
      log_(std::move(log)),
      pins_([this](const absl::Status& status, Bytes pinned, absl::Duration took) {
        const std::string what =
            absl::StrCat(pinned / MiB(1), " MiB of the pool pinned for GPUs in ", absl::FormatDuration(took));
        if (status.ok()) return log_(false, what);
        log_(true, absl::StrCat(what, ", no more (", status.message(),
                                "): copies to and from the rest are slow; see the memlock limit (LimitMEMLOCK=infinity)"));
      }) {}

absl::StatusOr<Gpu*> Gpus::Use(const driver::Uuid& uuid) {
  absl::MutexLock opening(&opening_);
  if (driver_ == nullptr) {
    absl::StatusOr<std::shared_ptr<const driver::Driver>> loaded = driver::Driver::Load(library_);
    if (!loaded.ok()) {
      return absl::FailedPreconditionError(
          absl::StrCat("this kvistd can't serve GPU memory: ", loaded.status().message(),
                       "; give it the driver and the GPUs (kvistd-gpu.service, or a container "
                       "with the same GPUs as the engine's)"));
    }
    driver_ = *std::move(loaded);
    log_(false, absl::StrCat("CUDA driver ", driver_->version() / 1000, ".", driver_->version() % 1000 / 10, " loaded"));
  }
  {
    absl::MutexLock lock(&mutex_);
    for (const std::unique_ptr<Gpu>& gpu : gpus_) {
      if (gpu->uuid() == uuid) return gpu.get();
    }
  }
  KVIST_ASSIGN_OR_RETURN(std::unique_ptr<Gpu> gpu, Gpu::Open(driver_, uuid));
  log_(false, absl::StrCat("GPU ", gpu->name(), " is used from now on"));
  absl::MutexLock lock(&mutex_);
  gpus_.push_back(std::move(gpu));
  if (gpus_.size() == 1) pins_.Begin(gpus_.front().get());
  return gpus_.back().get();
}

Gpus::Figures Gpus::figures() const {
  absl::MutexLock lock(&mutex_);
  Figures figures{{}, pins_.pinned()};
  for (const std::unique_ptr<Gpu>& gpu : gpus_)
    figures.gpus.push_back({gpu->name(), gpu->imported(), gpu->own(), gpu->lost()});
  return figures;
}

}  // namespace kvist::cuda

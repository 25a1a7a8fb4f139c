#ifndef KVIST_STORAGE_SSD_STEPPED_DEVICE_H_
#define KVIST_STORAGE_SSD_STEPPED_DEVICE_H_

#include <functional>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "storage/ssd/device.h"

namespace kvist::ssd {

// Tests only: a device that says before each write and each sync that it begins, so that a crash can come there.
class SteppedDevice final : public Device {
 public:
  SteppedDevice(std::unique_ptr<Device> device, std::function<void(std::string_view step)> before)
      : Device(device->report()), device_(std::move(device)), before_(std::move(before)) {}

  void Submit(const Io& io) override {
    if (io.kind == Io::Kind::kWrite) before_("device: write");
    if (io.kind == Io::Kind::kSync) before_("device: sync");
    device_->Submit(io);
  }
  void Kick() override { device_->Kick(); }
  void Wait(absl::Time until, std::vector<Completion>* ended) override { device_->Wait(until, ended); }
  bool HasNews() const override { return device_->HasNews(); }
  void Wake() override { device_->Wake(); }
  uint32_t depth() const override { return device_->depth(); }
  void Remove(uint32_t segment) override { device_->Remove(segment); }
  absl::Status Register(std::span<std::byte> piece) override { return device_->Register(piece); }

 private:
  const std::unique_ptr<Device> device_;
  const std::function<void(std::string_view step)> before_;
};

}  // namespace kvist::ssd

#endif  // KVIST_STORAGE_SSD_STEPPED_DEVICE_H_

// A kvistd whose disk fails some reads (fault_plan.h).
//
// usage: KVIST_FAULT_PLAN=FILE kvistd_faulty [--set SECTION.KEY=VALUE]...      prints READY; ends by SIGTERM
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "storage/base/status.h"
#include "storage/ssd/device.h"
#include "tests/support/fault_plan.h"
#include "tests/support/kvistd_main.h"
#include "tests/support/shared_file.h"

namespace {

using kvist::ssd::Completion;
using kvist::ssd::Device;
using kvist::ssd::Io;

class FaultyDevice final : public Device {
 public:
  FaultyDevice(std::unique_ptr<Device> device, kvist::test::FaultPlan* plan)
      : Device(device->report()), device_(std::move(device)), plan_(plan) {}

  void Submit(const Io& io) override {
    const uint32_t one_in = plan_->one_in.load();
    if (io.kind != Io::Kind::kRead || one_in == 0 || ++reads_ % one_in != 0) return device_->Submit(io);
    ++plan_->injected;
    failed_.push_back({io.tag, EIO});
  }
  void Kick() override { device_->Kick(); }
  void Wait(absl::Time until, std::vector<Completion>* ended) override {
    device_->Wait(failed_.empty() ? until : absl::InfinitePast(), ended);
    ended->insert(ended->end(), failed_.begin(), failed_.end());
    failed_.clear();
  }
  void Wake() override { device_->Wake(); }
  uint32_t depth() const override { return device_->depth(); }
  void Remove(uint32_t segment) override { device_->Remove(segment); }
  absl::Status Register(std::span<std::byte> piece) override { return device_->Register(piece); }

 private:
  const std::unique_ptr<Device> device_;
  kvist::test::FaultPlan* const plan_;
  uint64_t reads_ = 0;
  std::vector<Completion> failed_;
};

}  // namespace

int main(int argc, char** argv) {
  const char* plan_file = std::getenv("KVIST_FAULT_PLAN");
  if (plan_file == nullptr) return 2;
  auto* const plan = kvist::test::SharedFile<kvist::test::FaultPlan>(plan_file);
  kvist::daemon::Parts parts;
  parts.ssd_device = [plan](const kvist::ssd::DeviceOptions& options) -> absl::StatusOr<std::unique_ptr<Device>> {
    KVIST_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, kvist::ssd::OpenDevice(options));
    return std::make_unique<FaultyDevice>(std::move(device), plan);
  };
  return kvist::test::RunKvistd("kvistd_faulty", std::span(argv, static_cast<size_t>(argc)).subspan(1), std::move(parts));
}

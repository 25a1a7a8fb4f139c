#include "cuda/running_copy.h"

#include <algorithm>
#include <utility>

#include "cuda/nontemporal_copy.h"
#include "cuda/region_copy.h"
#include "storage/base/check.h"
#include "storage/base/status.h"

namespace kvist::cuda {
namespace {

UnitPlan PlanFor(const Copy& copy) {
  KVIST_CHECK(copy.memory != nullptr);
  const KvLayout& layout = copy.layout();
  KVIST_CHECK(uint64_t{copy.first_layer} + copy.layer_count <= layout.layers.size());
  KVIST_CHECK(copy.page_table.size() == copy.slots.size() * layout.pages_per_chunk);
  return UnitPlan(copy.layer_count, PiecesPerLayer(copy), layout.segment_bytes.value);
}

}  // namespace

RunningCopy::RunningCopy(Copy copy)
    : copy_(std::move(copy)),
      plan_(PlanFor(copy_)),
      pages_absent_(std::ranges::find(copy_.page_table, kNoPage) != copy_.page_table.end()),
      step_left_(new std::atomic<uint32_t>[plan_.steps()]) {
  for (uint32_t step = 0; step < plan_.steps(); ++step)
    step_left_[step].store(plan_.units_per_step(), std::memory_order_relaxed);
}

bool RunningCopy::Run(uint64_t index) {
  const Unit unit = plan_.At(index);
  absl::Status status = CopyUnit(unit);
  FenceNontemporal();
  if (status.ok()) {
    step_left_[unit.step].fetch_sub(1, std::memory_order_release);
  } else if (!failed_.exchange(true, std::memory_order_relaxed)) {  // relaxed: Settle publishes error_
    error_ = std::move(status);
    Stop();
  }
  return Settle(1);
}

bool RunningCopy::Skip(uint64_t count) {
  skipped_.store(true, std::memory_order_relaxed);  // relaxed: Settle publishes it
  return Settle(count);
}

absl::Status RunningCopy::CopyUnit(const Unit& unit) const {
  for (uint32_t layer = 0; layer < unit.layer_count; ++layer) {
    const LayerIndex at{copy_.first_layer + unit.first_layer + layer};
    KVIST_RETURN_IF_ERROR(CopyPieces(copy_, at, unit.pieces));
    if (copy_.direction == Direction::kStore && pages_absent_) ZeroAbsent(copy_, at, unit.pieces);
  }
  return absl::OkStatus();
}

bool RunningCopy::Settle(uint64_t units) {
  if (arriving_.fetch_add(units, std::memory_order_acq_rel) != 0) return false;
  for (uint64_t arrived = units;;) {
    Report();
    settled_ += arrived;
    if (settled_ == plan_.units()) return true;  // nobody is left who could arrive
    arrived = arriving_.fetch_sub(arrived, std::memory_order_acq_rel) - arrived;
    if (arrived == 0) return false;
  }
}

void RunningCopy::Report() {
  while (steps_done_ < plan_.steps() && step_left_[steps_done_].load(std::memory_order_acquire) == 0) ++steps_done_;
  const uint32_t layers = plan_.LayersAfter(steps_done_);
  if (layers == layers_reported_) return;
  layers_reported_ = layers;
  if (copy_.progress != nullptr) copy_.progress->LayersDone(layers);
}

absl::Status RunningCopy::Result() {
  copy_.progress.reset();
  copy_.memory.reset();
  if (failed_.load(std::memory_order_relaxed)) return std::move(error_);
  return skipped_.load(std::memory_order_relaxed) ? absl::CancelledError("the copy was cancelled") : absl::OkStatus();
}

}  // namespace kvist::cuda

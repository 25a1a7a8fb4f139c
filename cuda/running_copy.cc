#include "cuda/running_copy.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "cuda/extents.h"
#include "cuda/nontemporal_copy.h"
#include "cuda/region_copy.h"
#include "cuda/slot_checksums.h"
#include "storage/base/check.h"
#include "storage/base/clock.h"
#include "storage/base/status.h"

namespace kvist::cuda {
namespace {

uint64_t PiecesOfChunk(const Copy& copy, Verify verify) {
  KVIST_CHECK(copy.memory != nullptr);
  return verify == Verify::kAlways ? 1 : PiecesPerChunk(copy.layout());
}

bool SlotsDiffer(const Copy& copy) {
  absl::flat_hash_set<const SlotArrival*> seen;
  return std::ranges::all_of(copy.arrivals,
                             [&](const auto& arrival) { return arrival == nullptr || seen.insert(arrival.get()).second; });
}

bool Streams(const Copy& copy) { return !copy.arrivals.empty() || copy.pages_ready != nullptr; }

UnitPlan PlanFor(const Copy& copy, uint64_t pieces_per_chunk) {
  const KvLayout& layout = copy.layout();
  KVIST_CHECK(uint64_t{copy.first_layer} + copy.layer_count <= layout.layers.size());
  KVIST_CHECK(copy.page_table.size() == copy.slots.size() * layout.pages_per_chunk);
  KVIST_CHECK(copy.arrivals.empty() || copy.arrivals.size() == copy.slots.size());
  const uint64_t piece_bytes = layout.layer_bytes().value / std::max<uint64_t>(pieces_per_chunk, 1);
  if (copy.order == Order::kByChunk)
    return UnitPlan::ByChunk(copy.layer_count, copy.slots.size(), pieces_per_chunk, piece_bytes);
  const uint64_t pieces = copy.slots.size() * pieces_per_chunk;
  // A layer that is there needn't wait for the next one to come.
  return Streams(copy) ? UnitPlan::Streamed(copy.layer_count, pieces, piece_bytes)
                       : UnitPlan(copy.layer_count, pieces, piece_bytes);
}

}  // namespace

RunningCopy::RunningCopy(Copy copy, Verify verify)
    : copy_(std::move(copy)),
      verify_(verify),
      streams_(Streams(copy_)),
      slots_differ_(SlotsDiffer(copy_)),
      pieces_per_chunk_(PiecesOfChunk(copy_, verify)),
      plan_(PlanFor(copy_, pieces_per_chunk_)),
      pages_absent_(std::ranges::find(copy_.page_table, kNoPage) != copy_.page_table.end()),
      step_left_(new std::atomic<uint32_t>[plan_.steps()]) {
  for (uint32_t step = 0; step < plan_.steps(); ++step)
    step_left_[step].store(plan_.units_per_step(), std::memory_order_relaxed);
}

void RunningCopy::BeganNow() {
  if (began_nanos_.load(std::memory_order_relaxed) != 0) return;
  int64_t none = 0;
  began_nanos_.compare_exchange_strong(none, MonotonicNanos(), std::memory_order_relaxed);
}

bool RunningCopy::Run(uint64_t index) {
  BeganNow();
  const Unit unit = plan_.At(index);
  CopyEnd end = CopyUnit(unit);
  FenceNontemporal();
  return Ended(unit, std::move(end));
}

bool RunningCopy::Ended(const Unit& unit, CopyEnd end) {
  if (end.status.ok()) {
    step_left_[unit.step].fetch_sub(1, std::memory_order_release);
  } else if (!failed_.exchange(true, std::memory_order_relaxed)) {  // relaxed: Settle publishes error_
    error_ = std::move(end);
    Stop();
  }
  return Settle(1);
}

CopyEnd RunningCopy::Begin(uint64_t index) {
  BeganNow();
  const Unit unit = plan_.At(index);
  if (absl::Status status = ReadFailure(unit); !status.ok()) return {std::move(status)};
  std::vector<uint32_t> corrupt;
  for (uint32_t l = 0; l < unit.layer_count; ++l) {
    const LayerIndex layer{copy_.first_layer + unit.first_layer + l};
    if (copy_.direction == Direction::kStore && pages_absent_) ZeroAbsent(copy_, layer, PiecesOf(unit));
    if (copy_.direction == Direction::kStore || verify_ == Verify::kNever) continue;
    for (uint64_t chunk = unit.pieces.first; chunk < unit.pieces.end; ++chunk) {
      if (!ChecksumMatches(copy_.slots[chunk], copy_.layout(), layer)) corrupt.push_back(static_cast<uint32_t>(chunk));
    }
  }
  return OfCorrupt(std::move(corrupt));
}

PieceRange RunningCopy::PiecesOf(const Unit& unit) const {
  if (verify_ == Verify::kNever) return unit.pieces;
  const uint64_t pieces = PiecesPerChunk(copy_.layout());
  return {unit.pieces.first * pieces, unit.pieces.end * pieces};
}

bool RunningCopy::Copied(uint64_t index, CopyEnd end) {
  const Unit unit = plan_.At(index);
  for (uint32_t l = 0; end.status.ok() && l < unit.layer_count; ++l) {
    if (copy_.direction == Direction::kLoad || verify_ == Verify::kNever) break;
    for (uint64_t chunk = unit.pieces.first; chunk < unit.pieces.end; ++chunk)
      WriteChecksum(copy_.slots[chunk], copy_.layout(), {copy_.first_layer + unit.first_layer + l});
  }
  return Ended(unit, std::move(end));
}

bool RunningCopy::Skip(uint64_t count) {
  skipped_.store(true, std::memory_order_relaxed);  // relaxed: Settle publishes it
  return Settle(count);
}

PieceRange RunningCopy::ChunksOf(PieceRange pieces) const {
  return {pieces.first / pieces_per_chunk_, (pieces.end + pieces_per_chunk_ - 1) / pieces_per_chunk_};
}

uint32_t RunningCopy::Lacks(uint64_t index) const {
  const Unit unit = plan_.At(index);
  const uint32_t layers = copy_.first_layer + unit.first_layer + unit.layer_count;
  if (copy_.pages_ready != nullptr && !copy_.pages_ready->LayersReady(unit.first_layer + unit.layer_count)) return 1;
  if (copy_.arrivals.empty()) return 0;
  const PieceRange chunks = ChunksOf(unit.pieces);
  uint32_t lacks = 0;
  for (uint64_t chunk = chunks.first; chunk < chunks.end; ++chunk) {
    SlotArrival* const arrival = copy_.arrivals[chunk].get();
    if (arrival == nullptr) continue;
    if (arrival->failed()) return 0;
    lacks += !arrival->SettledOrLacked(layers);
  }
  return slots_differ_ ? lacks : std::min(lacks, 1U);  // each says once that it has what is lacked
}

absl::Status RunningCopy::ReadFailure(const Unit& unit) const {
  const PieceRange chunks = ChunksOf(unit.pieces);
  for (uint64_t chunk = chunks.first; !copy_.arrivals.empty() && chunk < chunks.end; ++chunk) {
    if (copy_.arrivals[chunk] == nullptr) continue;
    if (absl::Status status = copy_.arrivals[chunk]->status(); !status.ok()) return status;
  }
  return absl::OkStatus();
}

CopyEnd RunningCopy::CopyUnit(const Unit& unit) const {
  if (absl::Status status = ReadFailure(unit); !status.ok()) return {std::move(status)};
  std::vector<uint32_t> corrupt;
  for (uint32_t l = 0; l < unit.layer_count; ++l) {
    const LayerIndex layer{copy_.first_layer + unit.first_layer + l};
    absl::Status status =
        verify_ == Verify::kNever ? CopyRange(layer, unit.pieces) : CopyChecked(layer, unit.pieces, &corrupt);
    if (!status.ok()) return {std::move(status)};
  }
  return OfCorrupt(std::move(corrupt));
}

CopyEnd RunningCopy::OfCorrupt(std::vector<uint32_t> corrupt) {
  if (corrupt.empty()) return {absl::OkStatus()};
  std::sort(corrupt.begin(), corrupt.end());
  corrupt.erase(std::unique(corrupt.begin(), corrupt.end()), corrupt.end());
  return {absl::DataLossError(absl::StrCat(corrupt.size(),
                                           corrupt.size() == 1 ? " chunk in DRAM isn't" : " chunks in DRAM aren't",
                                           " what was stored (checksum) and will not be served again: compute instead")),
          std::move(corrupt)};
}

absl::Status RunningCopy::CopyRange(LayerIndex layer, PieceRange pieces) const {
  KVIST_RETURN_IF_ERROR(CopyPieces(copy_, layer, pieces));
  if (copy_.direction == Direction::kStore && pages_absent_) ZeroAbsent(copy_, layer, pieces);
  return absl::OkStatus();
}

// Chunk by chunk, so that what was just read for its checksum, or is about to be, is still in the cache.
absl::Status RunningCopy::CopyChecked(LayerIndex layer, PieceRange chunks, std::vector<uint32_t>* corrupt) const {
  const KvLayout& layout = copy_.layout();
  const uint64_t pieces = PiecesPerChunk(layout);
  for (uint64_t chunk = chunks.first; chunk < chunks.end; ++chunk) {
    std::byte* slot = copy_.slots[chunk];
    if (copy_.direction == Direction::kLoad && !ChecksumMatches(slot, layout, layer)) {
      corrupt->push_back(static_cast<uint32_t>(chunk));
      continue;
    }
    KVIST_RETURN_IF_ERROR(CopyRange(layer, {chunk * pieces, (chunk + 1) * pieces}));
    if (copy_.direction == Direction::kStore) WriteChecksum(slot, layout, layer);
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

CopyEnd RunningCopy::Result() {
  copy_.progress.reset();
  copy_.memory.reset();
  copy_.arrivals.clear();
  copy_.pages_ready.reset();
  CopyEnd end{absl::OkStatus()};
  if (skipped_.load(std::memory_order_relaxed)) {
    end.status = late_.load(std::memory_order_relaxed) ? absl::DeadlineExceededError("the pages weren't ready in time")
                                                       : absl::CancelledError("the copy was cancelled");
  }
  if (failed_.load(std::memory_order_relaxed)) end = std::move(error_);
  end.began_nanos = began_nanos_.load(std::memory_order_relaxed);
  return end;
}

}  // namespace kvist::cuda

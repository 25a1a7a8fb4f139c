#include "tests/sim/copy_engine.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace kvist::sim {
namespace {

constexpr size_t kFinishedKept = 32;

}  // namespace

void CopyEngine::Start(OpId op, core::Direction direction, std::vector<ShardId> shards) {
  Copy copy{op, direction, std::move(shards)};
  copy.lost = faults_ && prng_.Percent(3);
  copies_.push_back(std::move(copy));
}

void CopyEngine::Cancel(OpId op) {
  for (Copy& copy : copies_) {
    if (copy.op == op) copy.cancelled = true;
  }
}

bool CopyEngine::Advance(Copy& copy) {
  const ShardId shard = copy.shards[copy.next_shard];
  if (copy.direction == core::Direction::kStore) {
    memory_.WritePage(shard, copy.next_page);
  } else {
    memory_.ReadPage(shard, copy.next_page);
  }
  if (++copy.next_page < memory_[shard].pages) return false;
  copy.next_page = 0;
  return ++copy.next_shard == copy.shards.size();
}

core::CopyFinished CopyEngine::Finish(size_t at, absl::Status status) {
  const Copy copy = std::move(copies_[at]);
  copies_.erase(copies_.begin() + static_cast<std::ptrdiff_t>(at));
  for (const ShardId shard : copy.shards) {
    if (copy.direction == core::Direction::kStore) {
      memory_.EndStore(shard, status.ok());
    } else {
      memory_.EndLoad(shard);
    }
  }
  if (finished_.size() < kFinishedKept) {
    finished_.push_back(copy.op);
  } else {
    prng_.Pick(finished_) = copy.op;
  }
  return {copy.op, std::move(status)};
}

bool CopyEngine::StepSlots() {
  for (uint32_t pages = prng_.Between(1, 24); pages > 0 && next_slot_ < slot_copies_.size(); --pages) {
    const Memory::SlotCopy& copy = slot_copies_[next_slot_];
    memory_.CopyPage(copy, next_slot_page_);
    if (++next_slot_page_ < memory_[copy.to].pages) continue;
    next_slot_page_ = 0;
    memory_.EndStore(copy.to, true);
    ++next_slot_;
  }
  return copies_slots() && next_slot_ == slot_copies_.size();
}

void CopyEngine::EndSlots(const std::vector<SlotRef>& taken) {
  for (const Memory::SlotCopy& slot_copy : slot_copies_) {
    if (std::find(taken.begin(), taken.end(), memory_[slot_copy.to].slot) == taken.end()) {
      memory_.EndStore(slot_copy.to, false);
      continue;
    }
    memory_.Take(slot_copy);
    for (Copy& copy : copies_) {
      if (copy.direction == core::Direction::kLoad)
        std::replace(copy.shards.begin(), copy.shards.end(), slot_copy.of, slot_copy.to);
    }
  }
  slot_copies_.clear();
  next_slot_ = next_slot_page_ = 0;
}

void CopyEngine::CheckReads() const {
  for (const Copy& copy : copies_) {
    if (copy.direction != core::Direction::kLoad) continue;
    for (const ShardId shard : copy.shards) memory_.CheckRead(shard);
  }
}

void CopyEngine::LoseAll() {
  EndSlots({});
  for (Copy& copy : copies_) {
    if (copy.direction == core::Direction::kLoad) {
      for (const ShardId shard : copy.shards) memory_.EndLoad(shard);
    } else {
      late_.push_back(std::move(copy));
    }
  }
  copies_.clear();
  finished_.clear();
}

void CopyEngine::EndLate() {
  for (const Copy& copy : late_) {
    for (const ShardId shard : copy.shards) memory_.EndStore(shard, false);
  }
  late_.clear();
}

std::optional<core::CopyFinished> CopyEngine::Step() {
  if (!late_.empty()) {
    Copy& copy = prng_.Pick(late_);
    if (copy.next_shard < copy.shards.size()) Advance(copy);
  }
  if (faults_ && !finished_.empty() && prng_.Percent(4)) {
    return core::CopyFinished{prng_.Pick(finished_),
                              prng_.Percent(50) ? absl::OkStatus() : absl::DataLossError("said again")};
  }
  if (copies_.empty()) return {};
  const size_t at = prng_.Below(copies_.size());
  Copy& copy = copies_[at];
  if (faults_ && copy.lost && !copy.cancelled) return {};
  for (uint32_t pages = prng_.Between(1, 24); pages > 0; --pages) {
    if (faults_ && copy.cancelled && prng_.Percent(20)) return Finish(at, absl::CancelledError("cancelled"));
    if (faults_ && prng_.Percent(1)) return Finish(at, absl::DataLossError("the engine's file has shrunk"));
    if (Advance(copy)) {
      // What failed at the very end has written every byte, and still doesn't count.
      if (faults_ && prng_.Percent(4)) return Finish(at, absl::DataLossError("checksum"));
      return Finish(at, absl::OkStatus());
    }
  }
  return {};
}

}  // namespace kvist::sim

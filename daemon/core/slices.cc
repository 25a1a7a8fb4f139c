// What the core does a slice at a time, by the clock: jobs, and the end of what is over.

#include <algorithm>
#include <optional>
#include <span>

#include "daemon/core/core.h"

namespace kvist::core {

void Core::On(const Tick& event, Effects* out) {
  const bool awaited = AwaitsRemote(), soon = placement_.SlabComesSoon();
  now_ = std::max(now_, event.now);
  const uint64_t until = chunks_.work() + options_.slice_work;
  placement_.SpendUntil(until, now_);
  if ((awaited && !AwaitsRemote()) || (soon && !placement_.SlabComesSoon())) EndJobsWait();
  EndWhatIsOver(until, out);
  if (placement_.MakesRoom()) placement_.MakeRoom();
  ForgetAgain(until, out);
  Reap(until);
  BeginWaiting(out);
  GoOnFlushing(until, out);
  while (chunks_.work() < until && (JobWork() || !placement_.rest().empty())) {
    if (!placement_.rest().empty()) {
      placement_.CollectRest(until);
      continue;
    }
    GoOnWithJob(until, out);
  }
}

// One at a time, whatever it keeps: a lease or an allocation is charged for all its chunks, and goes whole, for its budget is free
// when they are. So does a load.
void Core::EndWhatIsOver(uint64_t until, Effects* out) {
  const auto more = [&] { return chunks_.work() < until; };
  while (more()) {
    LeaseId over = leases_.OfClosed();
    if (!over) over = leases_.Expired(now_);
    if (!over) break;
    chunks_.Charge(1);
    EndLease(over);
  }
  if (placement_.in_doubt() > 0) {
    if (!doubt_until_.has_value()) doubt_until_ = now_ + options_.doubt;
    while (more() && placement_.in_doubt() > 0 && now_ >= *doubt_until_) placement_.EndDoubt();
  }
  while (more() && pins_.Due(now_)) {
    chunks_.Charge(1);
    if (const auto over = pins_.NextDue()) EndPin(over->space, over->name);
  }
  for (; more() && !given_up_.empty(); given_up_.pop_front()) {
    chunks_.Charge(1);
    if (ops_.Find(given_up_.front()) != nullptr) EndWaiting(given_up_.front(), SessionWasClosed(), out);
  }
  for (; more() && !let_go_.empty(); let_go_.pop_back()) KeepNoLonger({&let_go_.back(), 1});
  while (more() && allocations_.OfClosed()) {
    chunks_.Charge(1);
    EndAllocation(allocations_.OfClosed());
  }
  while (more() && !cleared_pins_.empty()) {
    auto& [space, pins] = cleared_pins_.front();
    chunks_.Charge(1);
    const Pins::OfSpace::node_type ended = pins.extract(pins.begin());
    pins_.Forget(ended.mapped());
    KeepNoLonger(ended.mapped().kept);
    // Unless it was pinned anew since the clear.
    if (pins_.Find(space, ended.key()) == nullptr) NotePinEnded(space, ended.key());
    if (pins.empty()) cleared_pins_.pop_front();
  }
  for (; more() && arrivals_.has_leftovers(); arrivals_.DropLeftover()) chunks_.Charge(1);
  ForgetCleared(until);
  UsePinned(until);
}

// What is pinned counts as used in each period anew: when its room on disk is wanted it is written again.
void Core::UsePinned(uint64_t until) {
  while (chunks_.work() < until && pins_used_to_.has_value()) {
    const Pins::Page page = pins_.After(*pins_used_to_, 1);
    chunks_.Charge(1);
    for (const auto& [space, named] : page.pins) UseOnDisk(named->second.kept);
    pins_used_to_ = page.next == 0 ? std::nullopt : std::optional(page.next);
  }
}

void Core::UseOnDisk(std::span<const ChunkIndex> kept) {
  for (const ChunkIndex last : kept) {
    for (ChunkIndex i = last; i != kNoChunk; i = chunks_[i].parent) {
      chunks_.Charge(1);
      Use(i);
    }
  }
}

// Half stores that were left to be ended, those that are late, and those of dead ranks.
void Core::Reap(uint64_t until) {
  while (chunks_.work() < until && !quiet_.empty()) {
    const auto [chunk, serial] = quiet_.front();
    quiet_.pop_front();
    // It may have ended since, and another half store of the same chunk have begun.
    if (const Fill* fill = fills_.Find(chunk); fill != nullptr && fill->serial == serial) Abandon(chunk);
    chunks_.Charge(1);
  }
  while (chunks_.work() < until && fills_.Due(now_)) {
    chunks_.Charge(1);
    Doom(fills_.TakeDue());
  }
  while (chunks_.work() < until && !reap_.empty()) {
    const DeadWriter& writer = reap_.front();
    chunks_.Charge(1);
    if (const ChunkIndex chunk = fills_.TakeOf(writer.instance, writer.serial); chunk != kNoChunk) {
      Doom(chunk);
    } else {
      reap_.pop_front();
    }
  }
}

}  // namespace kvist::core

#include "tests/support/delayed_tier.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/time/clock.h"

namespace kvist::test {

DelayedTier::DelayedTier(absl::Duration read_delay, Ear* ear)
    : read_delay_(read_delay), ear_(ear), thread_([this] { Loop(); }) {
  ear_->Say(core::DiskWritable{true});
}

DelayedTier::~DelayedTier() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void DelayedTier::Write(const core::SpaceSpec&, core::WriteStarted write, Slots slots) {
  At(absl::Now(), [this, write = std::move(write), slots = std::move(slots)] {
    core::WriteFinished finished{write.chunk, absl::OkStatus()};
    {
      const std::lock_guard lock(mutex_);
      for (const std::span<std::byte> slot : slots) {
        finished.places.push_back({1, ++units_});
        bytes_[units_].assign(slot.begin(), slot.end());
      }
    }
    ear_->Say(std::move(finished));
  });
}

void DelayedTier::Read(std::vector<ChunkToRead> chunks) {
  for (ChunkToRead& chunk : chunks) ReadOne(std::move(chunk.read), std::move(chunk.slots));
}

void DelayedTier::ReadOne(core::ReadStarted read, Slots slots) {
  At(absl::Now() + read_delay_, [this, read = std::move(read), slots = std::move(slots)] {
    core::ReadFinished finished{read.chunk, absl::OkStatus()};
    {
      const std::lock_guard lock(mutex_);
      for (size_t shard = 0; shard < slots.size(); ++shard) {
        const auto found = bytes_.find(read.places[shard].unit);
        if (found == bytes_.end()) {
          finished.status = absl::DataLossError("nothing is there");
        } else {
          std::copy(found->second.begin(), found->second.end(), slots[shard].begin());
        }
      }
    }
    ear_->Say(std::move(finished));
  });
}

void DelayedTier::Free(core::PlacesFreed freed) {
  const std::lock_guard lock(mutex_);
  for (const core::PlacesFreed::Chunk& chunk : freed.chunks) {
    for (const DiskPlace place : chunk.places) bytes_.erase(place.unit);
  }
}

// It survives nothing, so no clear needs to.
void DelayedTier::Clear(const core::SpaceSpec*, core::SpaceCleared cleared) { ear_->Say(core::ClearKept{cleared.job}); }

void DelayedTier::Hide(const core::SpaceSpec&, core::ChunksHidden hidden) { ear_->Say(core::ClearKept{hidden.job}); }

void DelayedTier::At(absl::Time when, std::function<void()> what) {
  {
    const std::lock_guard lock(mutex_);
    due_.emplace(when, std::move(what));
  }
  changed_.notify_one();
}

void DelayedTier::Loop() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (due_.empty()) {
      changed_.wait(lock);
      continue;
    }
    const absl::Time first = due_.begin()->first;
    if (const absl::Duration left = first - absl::Now(); left > absl::ZeroDuration()) {
      changed_.wait_for(lock, absl::ToChronoNanoseconds(left));
      continue;
    }
    const std::function<void()> what = std::move(due_.extract(due_.begin()).mapped());
    lock.unlock();
    what();
    lock.lock();
  }
}

}  // namespace kvist::test

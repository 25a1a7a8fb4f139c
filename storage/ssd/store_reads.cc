// What is read from a store.
#include <cerrno>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/ssd/store_state.h"

namespace kvist::ssd {

absl::Status Store::State::CheckRead(const ChunkToRead& chunk) const {
  if (closing_) return StatusOf(ECANCELED);
  if (spaces_.Find(chunk.id.space) == nullptr || chunk.places.empty() || chunk.places.size() != chunk.slots.size())
    return absl::InvalidArgumentError("a read needs its space's number, and a slot for each place");
  for (const Place place : chunk.places) {
    if (!place || ssd::DeviceOf(place.segment) >= devices_.size()) return absl::DataLossError("there is no such place");
  }
  for (const std::span<std::byte> slot : chunk.slots) {
    if (!HoldsRecord(slot, chunk.shape))
      return absl::InvalidArgumentError("a slot is too short, or not on a 4 KiB boundary");
  }
  return absl::OkStatus();
}

void Store::State::Read(std::vector<ChunkToRead> chunks) {
  // What one device is asked for at once.
  std::map<std::pair<uint32_t, Reader::Order>, std::vector<Reader::Shard>> shards;
  for (ChunkToRead& chunk : chunks) {
    if (const absl::Status why = CheckRead(chunk); !why.ok()) {
      keeper_->Post([this, ticket = chunk.ticket, why] { owner_->Read(ticket, why); });
      continue;
    }
    OneRead read{chunk.ticket, static_cast<uint32_t>(chunk.places.size()), absl::OkStatus(), nullptr};
    const bool raw = chunk.shape.codec == Codec::kRaw;
    if (chunk.arrived && raw)
      read.arrived = std::make_shared<const std::function<void(uint32_t, uint32_t)>>(std::move(chunk.arrived));
    uint64_t number = 0;
    {
      const absl::MutexLock lock(&mutex_);
      number = next_read_++;
      reads_[number] = std::move(read);
    }
    const SpaceDigest& digest = spaces_.Find(chunk.id.space)->digest;
    for (size_t shard = 0; shard < chunk.places.size(); ++shard) {
      const Place place = chunk.places[shard];
      shards[{ssd::DeviceOf(place.segment), chunk.by_layer ? Reader::Order::kByLayer : Reader::Order::kWhole}].push_back(
          {.ticket = number << kShardBits | shard,
           .slot = chunk.slots[shard].data(),
           .place = place,
           .identity = {digest, chunk.id.key, {chunk.id.group}, {static_cast<uint16_t>(shard)}},
           .codec = chunk.shape.codec,
           .runs = chunk.shape.runs(),
           .run_bytes = raw ? chunk.shape.layer_bytes : chunk.shape.encoded});
    }
  }
  for (auto& [where, to_read] : shards) {
    devices_[where.first]->Post(
        [order = where.second, to_read = std::move(to_read)](StoreDevice& device) { device.Read(to_read, order); });
  }
}

void Store::State::ShardRead(const Reader::Progress& progress) {
  const uint64_t number = progress.ticket >> kShardBits;
  const auto shard = static_cast<uint32_t>(progress.ticket & ((1U << kShardBits) - 1));
  const bool good = progress.error == 0 && progress.verdict == Verdict::kGood;
  if (good) {
    std::shared_ptr<const std::function<void(uint32_t, uint32_t)>> arrived;
    {
      const absl::MutexLock lock(&mutex_);
      arrived = reads_.at(number).arrived;
    }
    if (arrived != nullptr) (*arrived)(shard, progress.runs);
  }
  if (!progress.ended) return;
  OneRead done;
  {
    const absl::MutexLock lock(&mutex_);
    const auto it = reads_.find(number);
    OneRead& read = it->second;
    if (read.status.ok() && progress.error != 0) {
      read.status = progress.error == ECANCELED
                        ? StatusOf(ECANCELED)
                        : absl::UnavailableError(absl::StrCat("the SSD tier's disk fails: errno ", progress.error));
    } else if (read.status.ok() && !good) {
      read.status = absl::DataLossError(absl::StrCat("what lies there isn't what was stored: ", NameOf(progress.verdict)));
    }
    if (--read.waiting > 0) return;
    done = std::move(read);
    reads_.erase(it);
  }
  owner_->Read(done.ticket, done.status);
}

}  // namespace kvist::ssd

// What is written to a store, and freed.
#include <algorithm>
#include <cerrno>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/status.h"
#include "storage/ssd/store_state.h"

namespace kvist::ssd {
namespace {

constexpr size_t kWritesMax = 4096;  // chunks on their way

}  // namespace

absl::Status Store::State::StatusOf(int error) {
  if (error == ECANCELED) return absl::CancelledError("the store was closed");
  if (MeansNoSpace(error)) return absl::ResourceExhaustedError("the SSD tier has no room for it now");
  return absl::UnavailableError(absl::StrCat("the SSD tier's disk fails: ", ErrnoStatus("writing", error).message()));
}

bool Store::State::HoldsRecord(std::span<std::byte> slot, const ShardShape& shape) {
  return slot.size() >= (kUnit * shape.units()).value && reinterpret_cast<uintptr_t>(slot.data()) % kUnit.value == 0;
}

void Store::State::Write(ChunkToWrite chunk) {
  keeper_->Post([this, chunk = std::move(chunk)]() mutable { BeginWrite(std::move(chunk)); });
}

absl::Status Store::State::WhyNot(const ChunkToWrite& chunk, const SpaceRow* space) const {
  if (closing_) return StatusOf(ECANCELED);
  if (!commits_->broken().ok()) return absl::UnavailableError(commits_->broken().message());
  if (!commits_->full().ok()) return commits_->full();
  if (writes_.size() >= kWritesMax) return absl::ResourceExhaustedError("as many chunks wait for the disk as may");
  if (space == nullptr) return absl::InvalidArgumentError(absl::StrCat("no space has the number ", chunk.id.space));
  if (chunk.slots.empty() || chunk.slots.size() > kShardsMax)
    return absl::InvalidArgumentError(absl::StrCat("a chunk has 1 to ", kShardsMax, " shards, not ", chunk.slots.size()));
  const Bytes payload = chunk.shape.payload();
  if (chunk.shape.codec != Codec::kRaw && payload >= chunk.shape.decoded())
    return absl::InvalidArgumentError("an encoded shard isn't smaller than it is decoded");
  if (chunk.shape.layers == 0 || chunk.shape.layers > kLayersMax || payload.value == 0 || payload > kPayloadMax ||
      chunk.shape.units() + UnitsFor({space->description.size()}) > segment_units() - 2)
    return absl::InvalidArgumentError(absl::StrCat("a shard of ", chunk.shape.layers, " layers and ", payload.value,
                                                   " bytes doesn't fit into a segment of ", options_.segment.value,
                                                   ": begin a tier with a larger ssd.capacity in an empty directory"));
  for (const std::span<std::byte> slot : chunk.slots) {
    if (!HoldsRecord(slot, chunk.shape))
      return absl::InvalidArgumentError("a slot is too short, or not on a 4 KiB boundary");
  }
  return absl::OkStatus();
}

void Store::State::BeginWrite(ChunkToWrite chunk) {
  const SpaceRow* const space = spaces_.Find(chunk.id.space);
  if (const absl::Status why = WhyNot(chunk, space); !why.ok()) {
    owner_->Written(chunk.ticket, why, {});
    return;
  }
  const uint64_t number = next_write_++;
  const auto shards = static_cast<uint32_t>(chunk.slots.size());
  RecordHeader header{};
  header.kind = RecordKind::kShard;
  header.codec = chunk.shape.codec;
  header.order = chunk.shape.order;
  header.has_parent = chunk.parent.has_value() ? 1 : 0;
  header.group = chunk.id.group;
  header.shards = static_cast<uint16_t>(shards);
  header.position = chunk.id.position;
  header.space = space->digest;
  header.key = chunk.id.key;
  if (chunk.parent) header.parent = *chunk.parent;
  header.layers = chunk.shape.layers;
  header.runs = chunk.shape.runs();
  header.layer_bytes = chunk.shape.layer_bytes.value;
  header.payload_bytes = chunk.shape.payload().value;
  header.raw_bytes = chunk.shape.decoded().value;
  Step("chunk: data");
  for (uint32_t shard = 0; shard < shards; ++shard) {
    header.shard = static_cast<uint16_t>(shard);
    header.sequence = ++sequence_;
    const Writer::Shard to_write{.ticket = number << kShardBits | shard,
                                 .slot = chunk.slots[shard].data(),
                                 .header = header,
                                 .checksums = chunk.checksums,
                                 .description = space->description};
    devices_[DeviceFor(shard, static_cast<uint32_t>(devices_.size()))]->Post(
        [to_write](StoreDevice& device) { device.Write(to_write); });
  }
  writing_[chunk.id].running.insert(number);
  OneWrite write{.chunk = std::move(chunk),
                 .space = space->digest,
                 .sequence = sequence_,
                 .waiting = shards,
                 .places = std::vector<Place>(shards),
                 .replaces = {}};
  writes_.emplace(number, std::move(write));
  rowless_.emplace(number, sequence_ - shards + 1);
}

void Store::State::ShardWritten(const Writer::Outcome& outcome) {
  keeper_->Post([this, outcome] { ShardEnded(outcome); });
}

void Store::State::ShardEnded(const Writer::Outcome& outcome) {
  if ((outcome.ticket & kClearTicket) != 0) return ClearEnded(outcome.ticket & ~kClearTicket, outcome);
  const uint64_t number = outcome.ticket >> kShardBits;
  OneWrite& write = writes_.at(number);
  if (outcome.error != 0) {
    if (write.error == 0) write.error = outcome.error;
  } else {
    write.places[outcome.ticket & ((1U << kShardBits) - 1)] = outcome.place;
  }
  if (--write.waiting > 0) return;
  if (write.error != 0) return EndWrite(number, StatusOf(write.error));
  if (write.cleared) return EndWrite(number, absl::CancelledError("it was cleared meanwhile"));
  write.ended = true;
  SettleWrites(write.chunk.id);
}

void Store::State::KillAll(const Killed& killed) {
  for (const Place place : killed.places) {
    if (place) DeviceOf(place).Post([place, units = killed.units](StoreDevice& device) { device.Kill(place, units); });
  }
}

// Ends those that a later one has overtaken, and commits the latest when it can be.
void Store::State::SettleWrites(const ChunkId& id) {
  const auto it = writing_.find(id);
  if (it == writing_.end()) return;
  const Writing& writing = it->second;
  const auto waits = [this](uint64_t number) { return writes_.at(number).ended && !writes_.at(number).committing; };
  const auto overtaken = std::find_if(writing.running.begin(), writing.running.end(),
                                      [&](uint64_t number) { return number < writing.rows_from && waits(number); });
  if (overtaken != writing.running.end())
    return EndWrite(*overtaken, absl::CancelledError("a later write of it is durable"));  // and comes back here
  const uint64_t last = *writing.running.rbegin();
  if (!waits(last)) return;
  if (writes_.at(last).cleared) return EndWrite(last, absl::CancelledError("it was cleared meanwhile"));
  const std::vector<Place>& places = writes_.at(last).places;
  if (std::any_of(places.begin(), places.end(),
                  [this](Place place) { return segments_[place.segment].state == SegmentState::kFenced; }))
    return EndWrite(last, StatusOf(EIO));
  CommitWrite(last);
}

void Store::State::CommitWrite(uint64_t number) {
  OneWrite& write = writes_.at(number);
  ChunkRow row;
  row.id = write.chunk.id;
  row.parent = write.chunk.parent;
  row.hints = write.chunk.hints;
  row.sequence = write.sequence;
  row.units = write.chunk.shape.units();
  row.codec = write.chunk.shape.codec;
  row.places.assign(write.places.begin(), write.places.end());
  CatalogBatch batch;
  batch.Put(row);
  write.committing = true;
  rowless_.erase(number);
  batch.Settle(Settled());
  Step("chunk: row");
  commits_->Add(std::move(batch), Commits::Need::kTry, [this, number, row = std::move(row)](const absl::Status& status) {
    if (status.ok()) {
      const ChunkId& id = writes_.at(number).chunk.id;
      writing_.at(id).rows_from = number + 1;
      if (recovering_) touched_.insert(id);
      if (recovering_ && !rebuild_) rows_since_.insert_or_assign(id, row);
    }
    EndWrite(number, status);
    CheckCatalog();
  });
  RunSettled();
}

void Store::State::EndWrite(uint64_t number, const absl::Status& status) {
  rowless_.erase(number);
  auto node = writes_.extract(number);
  OneWrite& write = node.mapped();
  const ChunkId id = write.chunk.id;
  const auto it = writing_.find(id);
  it->second.running.erase(number);
  if (it->second.running.empty()) writing_.erase(it);
  if (status.ok()) {
    for (const Killed& killed : write.replaces) KillAll(killed);
    if (const auto left = left_.extract(id); !left.empty()) KillAll(left.mapped());
  } else {
    // Nothing of it counts, and what it was to replace isn't wanted either.
    KillAll({std::exchange(write.places, {}), write.chunk.shape.units()});
    for (Killed& killed : write.replaces) BeginFree(id, std::move(killed), false);
  }
  Step("chunk: written");
  if (status.ok()) rows_put_[id] = {number, write.places};
  owner_->Written(write.chunk.ticket, status, std::move(write.places));
  // What was asked for before the owner heard of it comes before this.
  if (const auto row = rows_put_.find(id); row != rows_put_.end()) {
    keeper_->Post([this, id, put = row->second.number] {
      const auto last = rows_put_.find(id);
      if (last != rows_put_.end() && last->second.number == put && !writing_.contains(id)) rows_put_.erase(last);
    });
  }
  RunSettled();
  SettleWrites(id);
}

void Store::State::Flush() {
  keeper_->Post([this] {
    for (const auto& device : devices_) device->Post([](StoreDevice& d) { d.drive().writer().Flush(); });
  });
}

void Store::State::Free(const ChunkId& id, uint32_t units, std::vector<Place> places, bool replaced) {
  keeper_->Post([this, id, killed = Killed{std::move(places), units}, replaced]() mutable {
    BeginFree(id, std::move(killed), replaced);
  });
}

void Store::State::Leave(const ChunkId& id, uint32_t units, std::vector<Place> places) {
  keeper_->Post([this, id, killed = Killed{std::move(places), units, /*left=*/true}]() mutable {
    BeginFree(id, std::move(killed), /*replaced=*/false);
  });
}

std::vector<ChunkId> Store::State::FreeLeft(absl::FunctionRef<bool(const ChunkId& id, const Killed& left)> which) {
  std::vector<ChunkId> freed;
  for (auto it = left_.begin(); it != left_.end();) {
    const auto at = it++;
    if (!which(at->first, at->second)) continue;
    auto node = left_.extract(at);
    node.mapped().left = false;
    freed.push_back(node.key());
    BeginFree(node.key(), std::move(node.mapped()), /*replaced=*/false);
  }
  return freed;
}

void Store::State::BeginFree(const ChunkId& id, Killed killed, bool replaced) {
  if (recovering_ && !killed.left) touched_.insert(id);
  // While a write of it runs, the row may be that of these places, or its own already: what comes of it tells.
  if (const auto newer = writing_.find(id); newer != writing_.end()) {
    writes_.at(*newer->second.running.rbegin()).replaces.push_back(std::move(killed));
    return;
  }
  // Its owner may have called before it heard that the row is another one's now.
  const auto row = rows_put_.find(id);
  if (replaced || (row != rows_put_.end() && row->second.places != killed.places) || left_.contains(id))
    return KillAll(killed);
  if (killed.left) {
    left_.emplace(id, std::move(killed));
    return;
  }
  if (row != rows_put_.end()) rows_put_.erase(row);
  rows_since_.erase(id);
  CatalogBatch batch;
  batch.Erase(id);
  Step("free: erase");
  Must(std::move(batch), [this, killed = std::move(killed)] { KillAll(killed); });
}

}  // namespace kvist::ssd

// What is written to a store beyond the node, and read from it.
#include <algorithm>
#include <iterator>
#include <memory>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/remote_tier.h"
#include "daemon/shard_codec.h"
#include "storage/base/clock.h"
#include "storage/base/status.h"
#include "storage/pool/slot_header.h"

namespace kvist::daemon {
namespace {

using remote::Identity;
using remote::Outcome;
using remote::SealedStore;
using remote::Verdict;

// What is read by one batch, whose chunks are there when all are: enough for a store to answer many small ones at once.
constexpr Bytes kBatch = MiB(4);

// Of what was read into the beginning of `payload`, which then holds the shard.
absl::Status Take(const SealedStore::Got& got, const codec::Shape& shape, std::span<std::byte> payload) {
  KVIST_RETURN_IF_ERROR(got.status);
  if (got.verdict == Verdict::kMissing) return absl::NotFoundError("the remote store hasn't got it any more");
  if (got.verdict == Verdict::kVersion || got.verdict == Verdict::kCipher) {  // another node's, which reads it
    return absl::FailedPreconditionError(
        absl::StrCat("what the remote store has is of another ", remote::NameOf(got.verdict)));
  }
  if (got.verdict != Verdict::kGood)
    return absl::DataLossError(absl::StrCat("what the remote store has in its place is ", remote::NameOf(got.verdict)));
  return DecodeInPlace(got.said.label, shape, got.bytes, payload);
}

}  // namespace

// A chunk that is being written.
struct RemoteTier::Writing {
  core::WriteStarted write;
  SpaceDigest space;
  SpaceDigest name;                                // in its generation
  std::vector<std::span<const std::byte>> bodies;  // [shard] their payloads
  Slots slots;
  core::GroupSpec group;
  codec::Shape shape;
  std::optional<codec::Method> codec = {};           // nothing: as they are
  std::vector<std::vector<std::byte>> encoded = {};  // of those that are being put
  Bytes put{};
  absl::Time deadline;
  bool first_shard = false;  // is what is being put
};

void RemoteTier::Write(const core::SpaceSpec& space, core::WriteStarted write, Slots slots) {
  auto writing = std::make_shared<Writing>();
  writing->space = space.digest;
  writing->name = NameOf(space.digest);
  const Bytes payload = space.groups[write.group.value].payload();
  for (const std::span<std::byte> slot : slots)
    writing->bodies.emplace_back(slot.subspan(kSlotHeaderBytes.value, payload.value));
  writing->shape = ShapesOf(space)->at(write.group.value);
  writing->group = space.groups[write.group.value];
  writing->codec = options_.codec;
  if (!writing->codec.has_value() && write.method != 0) writing->codec = codec::Method::kLossless;
  writing->write = std::move(write);
  writing->deadline = MonotonicNow() + options_.write_for;
  writing->first_shard = writing->bodies.size() == 1;
  writing->slots = std::move(slots);
  works_.Post([this, writing] { PutShards(writing); });
}

void RemoteTier::PutShards(const std::shared_ptr<Writing>& writing) {
  // Engines that find everything here never ask: so that what they store isn't of a generation that another node has ended.
  if (!MarkersAreFresh(writing->space) && MayReadMarkers(writing->space)) {
    auto asking = std::make_shared<Asking>();
    asking->space = writing->space;
    asking->deadline = writing->deadline;
    asking->done = [](const absl::Status&, const std::vector<bool>&) {};
    asking->parts = 1;
    asks_.Post([this, asking] { ReadMarkers(asking); });
  }
  std::vector<SealedStore::Put> puts;
  const auto shards = static_cast<uint16_t>(writing->bodies.size());
  for (const std::span<std::byte> slot : writing->slots) {
    const core::GroupSpec& group = writing->group;
    for (uint32_t layer = 0; options_.checksums && layer < group.layers; ++layer) {
      const std::span<const std::byte> bytes =
          slot.subspan(kSlotHeaderBytes.value + layer * group.layer_bytes.value, group.layer_bytes.value);
      if (LayerMatches(slot.data(), layer, bytes)) continue;
      // Never under a seal that says it is right.
      ear_->Say(core::WriteFinished{
          writing->write.chunk, absl::DataLossError("DRAM holds other bytes than were stored"), {}, core::Tier::kRemote});
      return;
    }
  }
  writing->encoded.clear();
  writing->encoded.reserve(shards);
  const uint16_t from = writing->first_shard ? 0 : 1, to = writing->first_shard ? 1 : shards;
  for (uint16_t shard = from; shard < to; ++shard) {
    std::span<const std::byte> body = writing->bodies[shard];
    std::optional<codec::Method> method;
    if (writing->codec.has_value()) {
      codec::Method used = *writing->codec;
      absl::StatusOr<std::optional<std::vector<std::byte>>> encoded = EncodeShard(used, writing->shape, body, &used);
      if (encoded.ok() && encoded->has_value()) {
        body = writing->encoded.emplace_back(std::move(**encoded));
        method = used;
      }
    }
    writing->put += Bytes{body.size()};
    puts.push_back({{writing->name, writing->write.key, writing->write.group, Rank{shard}}, {0, LabelOf(method)}, body});
  }
  const auto ended = [this, writing](const absl::Status& status) {
    Note(status);
    if (status.ok() && !writing->first_shard) {
      writing->first_shard = true;
      return works_.Post([this, writing] { PutShards(writing); });
    }
    if (status.ok()) {
      const absl::MutexLock lock(&mutex_);
      written_ += writing->put;
    }
    ear_->Say(core::WriteFinished{writing->write.chunk, status, {}, core::Tier::kRemote});
  };
  const absl::Status taken = store_->Submit(puts, writing->deadline, [ended](const std::vector<absl::Status>& statuses) {
    absl::Status all;
    for (const absl::Status& status : statuses) all.Update(status);
    ended(all);
  });
  if (!taken.ok()) ended(taken);
}

void RemoteTier::Read(std::vector<ChunkToRead> chunks) {
  for (const ChunkToRead& chunk : chunks) ShapesOf(*chunk.space);
  {
    const absl::MutexLock lock(&mutex_);
    for (ChunkToRead& chunk : chunks) {
      const SpaceDigest name = RemoteGenerations::NameIn(chunk.space->digest, generations_.Of(chunk.space->digest));
      const auto shapes = shapes_.find(chunk.space->digest);
      reads_.push_back({std::move(chunk), name, shapes->second});
    }
  }
  decodes_.Post([this] { PumpReads(); });
}

void RemoteTier::PumpReads() {
  while (true) {
    std::vector<ToRead> chunks;
    std::vector<SealedStore::Get> gets;
    Bytes bytes{};
    {
      const absl::MutexLock lock(&mutex_);
      while (!reads_.empty() && bytes < kBatch && reading_ < options_.reading) {
        ToRead read = std::move(reads_.front());
        reads_.pop_front();
        const core::ReadStarted& what = read.chunk.read;
        const Bytes payload = read.chunk.space->groups[what.group.value].payload();
        const auto shards = static_cast<uint16_t>(read.chunk.slots.size());
        for (uint16_t shard = 0; shard < shards; ++shard) {
          gets.push_back({{read.name, what.key, what.group, Rank{shard}},
                          0,
                          read.chunk.slots[shard].subspan(kSlotHeaderBytes.value, payload.value)});
        }
        const Bytes of_chunk = payload * read.chunk.slots.size();
        busy_.Begin(what.chunk.Pack(), of_chunk, MonotonicNow());
        bytes += of_chunk;
        reading_ += of_chunk;
        chunks.push_back(std::move(read));
      }
    }
    if (chunks.empty()) return;
    const auto all = std::make_shared<std::vector<ToRead>>(std::move(chunks));
    const absl::Status taken =
        store_->Submit(gets, MonotonicNow() + options_.read_for, [this, all](const std::vector<SealedStore::Got>& got) {
          decodes_.Post([this, all, got] {
            HaveRead(*all, got);
            PumpReads();
          });
        });
    if (taken.ok()) continue;
    if (absl::IsResourceExhausted(taken) && PutBack(all.get())) return;  // what is on its way makes room
    for (const ToRead& chunk : *all) EndRead(chunk, taken, {});
  }
}

bool RemoteTier::PutBack(std::vector<ToRead>* chunks) {
  const absl::MutexLock lock(&mutex_);
  Bytes bytes{};
  for (const ToRead& chunk : *chunks)
    bytes += chunk.chunk.space->groups[chunk.chunk.read.group.value].payload() * chunk.chunk.slots.size();
  if (reading_ == bytes) return false;  // nothing else is: it never fits
  reading_ -= bytes;
  for (const ToRead& chunk : *chunks) busy_.End(chunk.chunk.read.chunk.Pack(), /*good=*/false, MonotonicNow());
  std::move(chunks->rbegin(), chunks->rend(), std::front_inserter(reads_));
  return true;
}

void RemoteTier::HaveRead(const std::vector<ToRead>& chunks, const std::vector<SealedStore::Got>& got) {
  size_t next = 0;
  std::vector<Identity> bad;
  Bytes longest{};
  for (const ToRead& chunk : chunks) {
    const core::ReadStarted& read = chunk.chunk.read;
    const core::GroupSpec& group = chunk.chunk.space->groups[read.group.value];
    const Bytes payload = group.payload();
    absl::Status status;
    Bytes brought{};
    const auto shards = static_cast<uint16_t>(chunk.chunk.slots.size());
    for (uint16_t shard = 0; shard < shards; ++shard) {
      const std::span<std::byte> into = chunk.chunk.slots[shard].subspan(kSlotHeaderBytes.value, payload.value);
      brought += got[next].bytes;
      const absl::Status of_shard = Take(got[next++], chunk.shapes->at(read.group.value), into);
      status.Update(of_shard);
      if (!of_shard.ok()) continue;
      std::byte* const slot = chunk.chunk.slots[shard].data();
      for (uint32_t layer = 0; options_.checksums && layer < group.layers; ++layer)
        PutLayerChecksum(slot, layer,
                         {slot + kSlotHeaderBytes.value + layer * group.layer_bytes.value, group.layer_bytes.value});
      if (chunk.chunk.arrived) chunk.chunk.arrived(shard, group.layers);
    }
    // Its first object says that all are there, and isn't to be found again.
    if (absl::IsDataLoss(status) || absl::IsNotFound(status)) bad.push_back({chunk.name, read.key, read.group, Rank{0}});
    longest = std::max(longest, payload);
    EndRead(chunk, std::move(status), brought);
  }
  if (bad.empty()) return;
  works_.Post([this, bad = std::move(bad), longest] {
    Note(store_->Remove(bad, longest, MonotonicNow() + options_.write_for, [](const std::vector<Outcome>&) {}));
  });
}

void RemoteTier::EndRead(const ToRead& chunk, absl::Status status, Bytes brought) {
  Note(absl::IsDataLoss(status) || absl::IsNotFound(status) ? absl::OkStatus() : status);
  const core::ReadStarted& read = chunk.chunk.read;
  const Bytes bytes = chunk.chunk.space->groups[read.group.value].payload() * chunk.chunk.slots.size();
  std::optional<core::TierRead> busy;
  {
    const absl::MutexLock lock(&mutex_);
    reading_ -= bytes;
    if (status.ok()) read_ += brought;
    busy = busy_.End(read.chunk.Pack(), status.ok(), MonotonicNow());
  }
  if (busy.has_value()) ear_->Say(*busy);
  ear_->Say(core::ReadFinished{read.chunk, std::move(status)});
}

}  // namespace kvist::daemon

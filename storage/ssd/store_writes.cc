// What is written to a store, freed and cleared, and the rows of its segments.
#include <algorithm>
#include <cerrno>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/check.h"
#include "storage/base/status.h"
#include "storage/ssd/store_state.h"

namespace kvist::ssd {
namespace {

constexpr size_t kWritesMax = 4096;                         // chunks on their way
constexpr absl::Duration kSettleAnyway = absl::Seconds(1);  // whatever is written meanwhile
constexpr absl::Duration kCommitAgain = absl::Seconds(1);   // where there was no space on the file system

absl::Status StatusOf(int error) {
  if (error == ECANCELED) return absl::CancelledError("the store was closed");
  if (MeansNoSpace(error)) return absl::ResourceExhaustedError("the SSD tier has no room for it now");
  return absl::UnavailableError(absl::StrCat("the SSD tier's disk fails: ", ErrnoStatus("writing", error).message()));
}

bool HoldsRecord(std::span<std::byte> slot, const ShardShape& shape) {
  return slot.size() >= (kUnit * shape.units()).value && reinterpret_cast<uintptr_t>(slot.data()) % kUnit.value == 0;
}

}  // namespace

uint64_t Store::State::Settled() const { return recovering_ || tails_unread_ ? 0 : SettledByWrites(); }

uint64_t Store::State::SettledByWrites() const { return rowless_.empty() ? sequence_ + 1 : rowless_.begin()->second; }

void Store::State::WhenSettled(std::function<void(const absl::Status&)> then) {
  when_settled_.emplace(next_write_, std::move(then));
  RunSettled();
}

void Store::State::WhenRecovered(std::function<void()> then) {
  when_recovered_.push_back(std::move(then));
  RunSettled();
}

void Store::State::RunSettled() {
  if (!recovery_over_.has_value()) return;
  for (const std::function<void()>& then : std::exchange(when_recovered_, {})) then();
  const absl::Status& how = *recovery_over_;
  while (!when_settled_.empty() &&
         (!how.ok() || rowless_.empty() || rowless_.begin()->first >= when_settled_.begin()->first)) {
    auto next = when_settled_.extract(when_settled_.begin());
    next.mapped()(how);
  }
}

void Store::State::Must(CatalogBatch batch, std::function<void()> then) {
  batch.Settle(Settled());
  commits_->Add(std::move(batch), Commits::Need::kMust, [this, then = std::move(then)](const absl::Status& status) {
    if (status.ok()) then();
    CheckCatalog();
  });
}

void Store::State::CheckCatalog() {
  if (commits_->broken().ok() || closing_) return;
  {
    const absl::MutexLock lock(&mutex_);
    if (!catalog_trouble_.empty()) return;
    catalog_trouble_ = std::string(commits_->broken().message());
  }
  // Whoever waits for a segment's row waits in vain.
  for (const auto& device : devices_) device->Post([](StoreDevice& d) { d.drive().writer().GiveUp(EIO); });
  SayWritable();
}

void Store::State::CatalogChanged() {
  CheckCatalog();
  if (commits_->full().ok() || !commits_->broken().ok()) {
    for (const uint64_t clear : std::exchange(clears_waiting_, {})) WriteClear(clear);
  } else {
    keeper_->PostAt(hands_.Now() + kCommitAgain, [this] { commits_->Retry(); });
    // Whoever waits for a segment's row would hold its chunk until somebody makes room.
    for (const auto& device : devices_) device->Post([](StoreDevice& d) { d.drive().writer().GiveUp(ENOSPC); });
  }
  SayWritable();
}

void Store::State::SayWritable() {
  std::pair<bool, std::string> now{true, {}};
  for (const std::optional<std::string>& why : why_not_) {
    if (!why.has_value()) return;
    if (!why->empty() && now.first) now = {false, *why};
  }
  if (!may_speak_) return;
  if (!commits_->full().ok()) now = {false, std::string(commits_->full().message())};
  if (!commits_->broken().ok())
    now = {false, absl::StrCat(commits_->broken().message(), ": the SSD tier is read until kvistd is started again")};
  if (last_said_ == now) return;
  last_said_ = now;
  owner_->Writable(now.first, now.second);
}

// Writing.

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

// A row that is on its way already comes before these; one of a write that isn't so far never comes.
void Store::State::Hide(uint32_t space, std::vector<ChunkId> chunks, std::function<void(absl::Status)> done) {
  keeper_->Post([this, space, chunks = std::move(chunks), done = std::move(done)] {
    CatalogBatch batch;
    for (const ChunkId& id : FreeLeft([space](const ChunkId&left, const Killed&) { return left.space == space; })) {
      if (!RowIsOnItsWay(id)) batch.Erase(id);  // a write of it that isn't so far may fail, and only then it would be erased
    }
    for (const ChunkId& id : chunks) {
      if (recovering_) touched_.insert(id);
      if (const auto running = writing_.find(id); running != writing_.end()) {
        for (const uint64_t number : running->second.running) writes_.at(number).cleared = true;
      }
      rows_since_.erase(id);
      batch.Erase(id);
    }
    Step("hide: erase");
    commits_->Add(std::move(batch), Commits::Need::kMust, [this, done, below = sequence_ + 1](const absl::Status& status) {
      status.ok() ? SettleHidden(below, done) : done(status);
      CheckCatalog();
    });
  });
}

// Their rows are gone; that no start adopts their records either is said when no write of before is without its row: were it said earlier, one that loses its
// row wouldn't be adopted. But a disk that is slow, by its rate or by itself, must not hold up whoever clears.
void Store::State::SettleHidden(uint64_t below, std::function<void(absl::Status)> done) {
  const auto settle = [this, below, done = std::move(done),
                       over = std::make_shared<bool>(false)](const absl::Status& settled) {
    if (std::exchange(*over, true)) return;
    if (!settled.ok()) return done(settled);
    CatalogBatch batch;
    batch.Settle(below);
    Step("hide: settle");
    commits_->Add(std::move(batch), Commits::Need::kMust, [this, done](const absl::Status& status) {
      done(status);
      CheckCatalog();
    });
  };
  WhenSettled(settle);
  WhenRecovered(
      [this, settle] { keeper_->PostAt(hands_.Now() + kSettleAnyway, [this, settle] { settle(*recovery_over_); }); });
}

void Store::State::NotePins(std::vector<PinChange> changes) {
  keeper_->Post([this, changes = std::move(changes)]() mutable {
    for (const PinChange& change : changes) {
      if (!recovering_) break;
      if (change.ended) {
        pins_.erase({change.row.space, change.row.name});
      } else {
        pins_[{change.row.space, change.row.name}] = change.row;
      }
    }
    Step("pins: note");
    pin_rows_->Note(std::move(changes));
  });
}

void Store::State::NoteUses(std::vector<UsesNote> notes) {
  keeper_->Post([this, notes = std::move(notes)]() mutable {
    Step("uses: note");
    for (UsesNote& note : notes) use_rows_->Note(std::move(note));
  });
}

void Store::State::SettlePins(std::function<void(absl::Status)> done) {
  keeper_->Post([this, done = std::move(done)] { pin_rows_->Settle(done); });
}

// Reading.

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

// Clearing.

void Store::State::Clear(std::optional<uint32_t> space, std::function<void(absl::Status)> done) {
  keeper_->Post([this, space, done = std::move(done)]() mutable {
    OneClear clear;
    clear.done = std::move(done);
    if (space) {
      const SpaceRow* const row = spaces_.Find(*space);
      if (row == nullptr) return clear.done(absl::InvalidArgumentError(absl::StrCat("no space has the number ", *space)));
      clear.row.space = row->digest;
    }
    clear.row.sequence = ++sequence_;
    BeginClear(std::move(clear));
  });
}

void Store::State::BeginClear(OneClear clear) {
  if (closing_) {
    if (clear.done) clear.done(StatusOf(ECANCELED));
    return;
  }
  const ClearRow& row = clear.row;
  if (!clear.again) {
    {
      const absl::MutexLock lock(&mutex_);
      cleared_[row.space] = std::max(cleared_[row.space], row.sequence);
    }
    for (auto& [number, write] : writes_) {
      if (row.space == SpaceDigest{} || write.space == row.space) write.cleared = true;
    }
  }
  clear.slot.reset(static_cast<std::byte*>(std::aligned_alloc(kUnit.value, kUnit.value)));
  KVIST_CHECK(clear.slot != nullptr);
  const uint64_t number = next_clear_++;
  ClearRow row_first = clear.row;
  const bool again = clear.again;
  clearing_.emplace(number, std::move(clear));
  if (again) return WriteClear(number);
  // A record without a row would be in force after a rebuild alone, and take what was called durable since it was written.
  const auto before = clear_records_.find(row_first.space);
  row_first.place = before == clear_records_.end() ? Place{} : before->second.place;
  CatalogBatch batch;
  PutClear(row_first, &batch);
  Step("clear: row first");
  commits_->Add(std::move(batch), Commits::Need::kMust, [this, number](const absl::Status& status) {
    const absl::Status why = closing_ ? StatusOf(ECANCELED) : status;
    why.ok() ? WriteClear(number) : EndClear(number, why);
    CheckCatalog();
  });
}

// A space has one row for its clears: it never says less than it did.
void Store::State::PutClear(const ClearRow& row, CatalogBatch* batch) {
  uint64_t& latest = clears_asked_[row.space];
  latest = std::max(latest, row.sequence);
  ClearRow put = row;
  put.sequence = latest;
  batch->Put(put);
}

void Store::State::WriteClear(uint64_t number) {
  // No segment's row would come any more, and so no segment to write it to.
  if (!commits_->broken().ok()) return EndClear(number, absl::UnavailableError(commits_->broken().message()));
  OneClear& clear = clearing_.at(number);
  Step("clear: record");
  RecordHeader header{};
  header.kind = RecordKind::kClear;
  header.order = SlotOrder::kLayerMajor;
  header.sequence = clear.row.sequence;
  header.space = clear.row.space;
  const Writer::Shard shard{.ticket = kClearTicket | number, .slot = clear.slot.get(), .header = header};
  devices_[clear.tries++ % devices_.size()]->Post([shard](StoreDevice& device) {
    device.Write(shard);
    device.drive().writer().Flush();
  });
}

void Store::State::ClearEnded(uint64_t number, const Writer::Outcome& outcome) {
  OneClear& clear = clearing_.at(number);
  if (outcome.error != 0) {
    // A clear holds nobody's slots: it can wait for its segment's row.
    if (!closing_ && !commits_->full().ok() && commits_->broken().ok()) {
      clear.tries = 0;
      clears_waiting_.push_back(number);
      return;
    }
    if (!closing_ && clear.tries < 2 * devices_.size()) return WriteClear(number);
    return EndClear(number, StatusOf(outcome.error));
  }
  clear.row.place = outcome.place;
  const auto before = clear_records_.find(clear.row.space);
  const bool superseded = before != clear_records_.end() && before->second.sequence > clear.row.sequence;
  if (superseded) {
    KillAll({{outcome.place}, 1});
    return EndClear(number, absl::OkStatus());
  }
  CatalogBatch batch;
  PutClear(clear.row, &batch);
  Step("clear: row");
  commits_->Add(std::move(batch), Commits::Need::kMust, [this, number](const absl::Status& status) {
    if (status.ok()) {
      const ClearRow row = clearing_.at(number).row;
      ClearRow& in_force = clear_records_[row.space];
      const Place old = in_force.sequence > row.sequence ? row.place : in_force.place;
      if (in_force.sequence <= row.sequence) in_force = row;
      KillAll({{old}, 1});
    }
    EndClear(number, status);
    CheckCatalog();
  });
}

void Store::State::EndClear(uint64_t number, const absl::Status& status) {
  auto node = clearing_.extract(number);
  Step("clear: done");
  if (node.mapped().done) node.mapped().done(status);
}

// Records of clears outlive what they clear: those in a segment that is to be used again, or is lost, are written again.
void Store::State::ClearAgain(uint32_t segment) {
  for (const auto& record : clear_records_) {
    const ClearRow& row = record.second;
    const bool there = row.place ? row.place.segment == segment : false;
    const bool running = std::any_of(clearing_.begin(), clearing_.end(), [&](const auto& c) {
      return c.second.row.space == row.space && c.second.row.sequence >= row.sequence;
    });
    if (!there || running) continue;
    OneClear clear;
    clear.row = row;
    clear.row.place = {};
    clear.again = true;
    BeginClear(std::move(clear));
  }
}

// Segments.

void Store::State::PutSegment(uint32_t segment, SegmentState state, std::function<void()> then) {
  SegmentRow& row = segments_[segment];
  row.number = segment;
  row.state = state;
  CatalogBatch batch;
  batch.Put(row);
  Must(std::move(batch), std::move(then));
}

void Store::State::Announced(const SegmentHeader& header) {
  records_->Know(header);
  keeper_->Post([this, header] {
    SegmentRow& row = segments_[header.segment];
    row.epoch = header.epoch;
    row.secret = header.secret;
    Step("segment: row");
    PutSegment(header.segment, SegmentState::kOpen, [this, header] {
      Step("segment: header");
      devices_[ssd::DeviceOf(header.segment)]->Post([header](StoreDevice& d) { d.drive().writer().Admit(header); });
    });
  });
}

// A start looks into the segments that are open by their rows for records whose rows are lost: this one stays so until all that lies in it has its rows.
void Store::State::Settled(uint32_t segment) {
  keeper_->Post([this, segment] {
    WhenSettled([this, segment, epoch = segments_[segment].epoch](const absl::Status& settled) {
      const SegmentRow& row = segments_[segment];
      if (settled.ok() && row.epoch == epoch && row.state == SegmentState::kOpen)
        PutSegment(segment, SegmentState::kFull, [] {});
    });
  });
}

// Rows that are on their way may lead there in place of older chunks' rows: the fence is put when their owner has heard of them, or a crash between
// would take both.
void Store::State::Fenced(uint32_t segment) {
  keeper_->Post([this, segment] {
    segments_[segment].state = SegmentState::kFenced;  // no more rows lead there
    Must({}, [this, segment] {
      PutSegment(segment, SegmentState::kFenced, [this, segment] {
        given_up_.insert(segment);
        TellGivenUp();
      });
    });
    ClearAgain(segment);
  });
}

void Store::State::Empty(uint32_t segment) {
  keeper_->Post([this, segment] {
    Step("segment: free");
    PutSegment(segment, SegmentState::kFree, [this, segment] {
      Step("segment: release");
      devices_[ssd::DeviceOf(segment)]->Post([segment](StoreDevice& d) { d.Release(segment); });
    });
  });
}

void Store::State::Writable(uint32_t device, bool writable, const std::string& why) {
  keeper_->Post([this, device, why = writable ? std::string() : why] {
    why_not_[device] = why;
    SayWritable();
  });
}

}  // namespace kvist::ssd

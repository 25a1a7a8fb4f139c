// A store's start: what its catalog or its records say.
#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/ssd/store_state.h"

namespace kvist::ssd {
namespace {

// Keys are hashes: half of one is enough to know a chunk again.
uint64_t FingerprintOf(const SpaceDigest& space, uint16_t group, const ChunkKey& key) {
  return key.word(0) ^ (space.word(0) + group) * 0x9e3779b97f4a7c15;
}

uint64_t PlacesHash(std::span<const Place> places) {
  uint64_t hash = 0;
  for (const Place place : places) hash = (hash ^ (uint64_t{place.segment} << 32 | place.unit)) * 0x9e3779b97f4a7c15;
  return hash;
}

}  // namespace

// The keeper's, before it hears of anything else: what the rows before the chunks' say.
void Store::State::NoteKnown() {
  for (const SegmentHeader& header : found_) {
    if (segments_[header.segment].state != SegmentState::kFenced) continue;
    devices_[ssd::DeviceOf(header.segment)]->Post([segment = header.segment](StoreDevice& d) { d.Fence(segment); });
  }
  const std::map<SpaceDigest, ClearRow> clears = std::exchange(clear_records_, {});
  for (const auto& [space, row] : clears) NoteClear(row, /*committed=*/true);
}

void Store::State::Recover() {
  const OpenReport& found = catalog_->report();
  if (rebuild_) return keeper_->Post([this] { BeginRebuild(); });
  if (found.kind != OpenReport::kUnclean || found.settled == 0) return LoadRows();
  // Whose spaces they are is known already: nobody who asks for one now is to hear that there is none.
  if (!HandOver({})) return EndRecovery(absl::CancelledError("the owner has enough"));
  keeper_->Post([this] { BeginTails(); });
}

void Store::State::LoadRows() {
  const absl::Status loading = closing_ ? absl::CancelledError("the store was closed") : catalog_->Load(this);
  if (absl::IsFailedPrecondition(loading)) {  // it is being opened again, when there is space
    keeper_->Post([this, loading] {
      if (!commits_->broken().ok()) return EndRecovery(loading);
      keeper_->PostAt(hands_.Now() + kLookAgain, [this] { beside_->Post([this] { LoadRows(); }); });
    });
  } else if (!loading.ok()) {
    EndRecovery(loading);
  }
}

// A clear that was found; the keeper's, for the loader or the rebuild, which waits meanwhile.
void Store::State::NoteClear(const ClearRow& row, bool committed) {
  {
    const absl::MutexLock lock(&mutex_);
    cleared_[row.space] = std::max(cleared_[row.space], row.sequence);
  }
  uint64_t& asked = clears_asked_[row.space];
  asked = std::max(asked, row.sequence);
  ClearRow& in_force = clear_records_[row.space];
  if (in_force.sequence > row.sequence) return;
  // Of one clear a record that was found is the one that outlives what it clears: the row may say where an earlier clear's lies.
  if (in_force.sequence == row.sequence && (committed || in_force.place == row.place)) return;
  const ClearRow before = std::exchange(in_force, row);
  if (!committed) {
    CatalogBatch batch;
    PutClear(row, &batch);
    Must(std::move(batch), [] {});
  }
  // Its record is wanted; that of before isn't any more.
  if (before.place) KillAll({{before.place}, 1});
  const auto segment = usable_.find(row.place.segment);
  if (row.place && segment != usable_.end() && row.place.unit < segment->second.units - 1 &&
      live_found_[row.place.segment] < segment->second.units - 2) {
    ++live_found_[row.place.segment];
    DeviceOf(row.place).Post([place = row.place](StoreDevice& d) { d.AddLive(place.segment, 1); });
  } else {
    in_force.place = {};
    OneClear clear;
    clear.row = in_force;
    clear.again = true;
    BeginClear(std::move(clear));
  }
}

uint64_t Store::State::ClearedBelow(const SpaceDigest& space) const {
  const absl::MutexLock lock(&mutex_);
  uint64_t below = 0;
  for (const SpaceDigest& of : {SpaceDigest{}, space}) {
    const auto it = cleared_.find(of);
    if (it != cleared_.end()) below = std::max(below, it->second);
  }
  return below;
}

// Whether records of that length can lie there, and if so whether they can be read; they are counted.
Standing Store::State::WhereLies(const ChunkRow& row) {
  size_t counted = 0;
  bool withheld = false;
  for (; counted < row.places.size() && row.units > 0; ++counted) {
    const Place place = row.places[counted];
    const auto segment = usable_.find(place.segment);
    const bool unknown = withheld_.contains(place.segment);
    if (segment == usable_.end() && !unknown) break;
    const uint64_t units = unknown ? segment_units() : segment->second.units;
    uint64_t& live = live_found_[place.segment];
    if (uint64_t{place.unit} + row.units >= units || live + row.units > units - 2) break;
    live += row.units;
    withheld |= unknown;
  }
  if (counted == row.places.size()) return withheld ? Standing::kWithheld : Standing::kUsable;
  for (size_t i = 0; i < counted; ++i) live_found_[row.places[i].segment] -= row.units;
  return Standing::kDead;
}

Standing Store::State::StandingOf(const ChunkRow& row) {
  const SpaceRow* const space = spaces_.Find(row.id.space);
  if (space != nullptr && row.sequence < ClearedBelow(space->digest)) {
    ++recovery_.cleared;
    return Standing::kDead;
  }
  const Standing lies = space == nullptr ? Standing::kDead : WhereLies(row);
  if (lies != Standing::kUsable) ++recovery_.skipped;
  if (lies == Standing::kWithheld) ++recovery_.withheld;
  return lies;
}

// What can't be read just now keeps its row, as what Leave names.
void Store::State::LeaveWithheld(std::vector<ChunkRow> rows) {
  if (rows.empty()) return;
  keeper_->Post([this, rows = std::move(rows)] {
    for (const ChunkRow& row : rows) {
      Killed killed{{row.places.begin(), row.places.end()}, row.units, /*left=*/true};
      for (const Place place : killed.places)
        DeviceOf(place).Post([s = place.segment, u = row.units](StoreDevice& d) { d.AddLive(s, u); });
      touched_.contains(row.id) ? KillAll(killed) : BeginFree(row.id, std::move(killed), /*replaced=*/false);
    }
  });
}

bool Store::State::RowIsOnItsWay(const ChunkId& id) const {
  const auto it = writing_.find(id);
  return it != writing_.end() && std::any_of(it->second.running.begin(), it->second.running.end(),
                                             [this](uint64_t number) { return writes_.at(number).committing; });
}

void Store::State::EraseDead(std::vector<ChunkId> dead) {
  if (dead.empty()) return;
  keeper_->Post([this, dead = std::move(dead)] {
    CatalogBatch batch;
    for (const ChunkId& id : dead) {
      if (!touched_.contains(id) && !RowIsOnItsWay(id)) batch.Erase(id);
    }
    Must(std::move(batch), [] {});
  });
}

bool Store::State::HandOver(const std::vector<ChunkRow>& rows) {
  std::map<uint32_t, uint32_t> live;
  std::vector<FoundChunk> chunks;
  for (const ChunkRow& row : rows) {
    for (const Place place : row.places) live[place.segment] += row.units;
    chunks.push_back({row.id, row.parent, row.hints, row.units, row.codec, {row.places.begin(), row.places.end()}});
  }
  for (const auto& [segment, units] : live) {
    devices_[ssd::DeviceOf(segment)]->Post([s = segment, u = units](StoreDevice& device) { device.AddLive(s, u); });
  }
  recovery_.chunks += chunks.size();
  std::vector<FoundSpace> spaces = std::exchange(untold_spaces_, {});
  if (spaces.empty() && chunks.empty()) return true;
  return owner_->Found(std::move(spaces), std::move(chunks));
}

bool Store::State::Take(RowBatch rows) {
  if (closing_) return false;
  if (stage_ == Stage::kTails) {
    tail_clears_.insert(tail_clears_.end(), rows.clears.begin(), rows.clears.end());
    for (ChunkRow& row : rows.chunks) tails_.Note(std::move(row));
    return true;
  }
  const auto fingerprint = [this](const ChunkRow& row) {
    return FingerprintOf(spaces_.Find(row.id.space)->digest, row.id.group, row.id.key);
  };
  if (!rebuild_) {
    uses_found_.insert(uses_found_.end(), std::move_iterator(rows.uses.begin()), std::move_iterator(rows.uses.end()));
    const std::vector<ChunkRow> usable = Sift(std::move(rows.chunks));
    for (const ChunkRow& row : usable) handed_over_[fingerprint(row)] = {row.sequence, PlacesHash(row.places)};
    return HandOver(usable) && !closing_;
  }
  AskKeeper([&] {
    for (const ClearRow& row : rows.clears) NoteClear(row, /*committed=*/false);
  });
  // What was handed over by a load that ended in damage is the owner's already.
  std::vector<ChunkRow> known;
  const auto again = std::stable_partition(rows.chunks.begin(), rows.chunks.end(),
                                           [&](const ChunkRow& row) { return !handed_over_.contains(fingerprint(row)); });
  known.assign(again, rows.chunks.end());
  rows.chunks.erase(again, rows.chunks.end());
  std::erase_if(known, [&](const ChunkRow& row) {
    const HandedOver& had = handed_over_.at(fingerprint(row));
    return had.sequence != row.sequence || had.places != PlacesHash(row.places);
  });
  if (!CommitFound(&known)) return false;
  std::vector<ChunkRow> usable = Sift(std::move(rows.chunks));
  return CommitFound(&usable) && HandOver(usable) && !closing_;
}

// Those that lead to their chunks, with what is adopted among them.
std::vector<ChunkRow> Store::State::Sift(std::vector<ChunkRow> rows) {
  Tails::Sifted sifted = tails_.Sift(
      std::move(rows), [this](const ChunkRow& row) { return StandingOf(row); },
      [this](const ChunkRow& row) { return IsWhole(row); });
  LeaveWithheld(std::move(sifted.withheld));
  CommitAdopted(std::move(sifted.adopted));
  if (!rebuild_) EraseDead(std::move(sifted.dead));
  return std::move(sifted.usable);
}

// Puts what a rebuild found into the catalog; what was written or freed meanwhile is newer and goes from `rows`.
bool Store::State::CommitFound(std::vector<ChunkRow>* rows) {
  if (rows->empty()) return true;
  absl::Notification committed;
  bool good = false;
  PutFound(std::move(*rows), [&](std::vector<ChunkRow> put, const absl::Status& status) {
    *rows = std::move(put);
    good = status.ok();
    committed.Notify();
  });
  hands_.Await(committed);
  return good;
}

void Store::State::PutFound(std::vector<ChunkRow> rows, PutDone done) {
  ++putting_;
  keeper_->Post(
      [this, rows = std::move(rows), done = std::move(done)]() mutable { PutFoundNow(std::move(rows), std::move(done)); });
}

// The keeper's.
void Store::State::PutFoundNow(std::vector<ChunkRow> rows, PutDone done) {
  // Of a row that is on its way nobody knows yet whether it counts.
  if (std::any_of(rows.begin(), rows.end(), [this](const ChunkRow& row) { return RowIsOnItsWay(row.id); })) {
    keeper_->PostAt(hands_.Now() + kLookAgain, [this, rows = std::move(rows), done = std::move(done)]() mutable {
      PutFoundNow(std::move(rows), std::move(done));
    });
    return;
  }
  std::erase_if(rows, [this](const ChunkRow& row) { return touched_.contains(row.id); });
  CatalogBatch batch;
  for (const ChunkRow& row : rows) batch.Put(row);
  --putting_;
  commits_->Add(std::move(batch), Commits::Need::kMust,
                [rows = std::move(rows), done = std::move(done)](const absl::Status& status) mutable {
                  done(std::move(rows), status);
                });
}

void Store::State::Loaded(const LoadReport& report) {
  recovery_.skipped += report.skipped;
  if (!report.IsLost()) { return report.status.ok() ? EndLoad() : EndRecovery(report.status); }
  keeper_->Post([this, why = std::string(report.status.message())] {
    if (closing_) return EndRecovery(absl::CancelledError("the store was closed"));
    message_ = absl::StrCat("the SSD tier's catalog can't be used: ", why);
    Step("recovery: start over");
    catalog_->StartOver(why, [this](const absl::Status& status) {
      keeper_->Post([this, status] { status.ok() ? BeginAnew() : EndRecovery(status); });
    });
  });
}

// The keeper's. An empty catalog gets what this process knows beside what a rebuild finds: that reads only what was found at the start.
void Store::State::BeginAnew() {
  if (closing_) return EndRecovery(absl::CancelledError("the store was closed"));
  tails_.Clear();
  tails_unread_ = false;  // all records are read
  uses_found_.clear();
  const bool on_its_way = putting_ > 0 || std::any_of(rows_since_.begin(), rows_since_.end(),
                                                      [this](const auto& row) { return RowIsOnItsWay(row.first); });
  if (on_its_way) {  // it may be in the catalog already, and is newer
    keeper_->PostAt(hands_.Now() + kLookAgain, [this] { BeginAnew(); });
    return;
  }
  CatalogBatch batch;
  for (const SpaceRow& row : spaces_.All()) batch.Put(row);
  for (const auto& [number, row] : segments_) batch.Put(row);
  for (const auto& [space, sequence] : clears_asked_) {
    const auto record = clear_records_.find(space);
    batch.Put(ClearRow{space, sequence, record == clear_records_.end() ? Place{} : record->second.place});
  }
  for (const auto& [id, row] : std::exchange(rows_since_, {})) batch.Put(row);
  for (const auto& [name, row] : pins_) batch.Put(row);
  Must(std::move(batch), [] {});
  BeginRebuild();
}

void Store::State::ReadRecords(std::vector<SegmentToRead> segments, AtGap at_gap) {
  rebuilding_ = std::make_shared<Rebuild>(records_.get(), std::move(segments), static_cast<RebuildSink*>(this),
                                          RebuildOptions{.readers = hands_.threads(), .at_gap = at_gap});
  beside_->Post([rebuild = rebuilding_] { rebuild->Run(); });
}

// All rows were taken.
void Store::State::EndLoad() {
  Tails::Sifted rest = tails_.Rest([this](const ChunkRow& row) { return StandingOf(row); },
                                   [this](const ChunkRow& row) { return IsWhole(row); });
  CommitAdopted(std::move(rest.adopted));
  if (!HandOver(rest.usable)) return EndRecovery(absl::CancelledError("the owner has enough"));
  // How far the catalog is settled is said behind all that was adopted.
  keeper_->Post([this] { EndWhenPut(); });
}

// The keeper's.
void Store::State::EndWhenPut() {
  if (putting_ > 0) return keeper_->PostAt(hands_.Now() + kLookAgain, [this] { EndWhenPut(); });
  EndRecovery(absl::OkStatus());
}

// The keeper's. A process that was killed has left records that can be read and aren't on the disk yet. Were rows to lead there in place of
// older records, which may be reclaimed then, a power cut could take both: so all of it is flushed before any of it is believed.
void Store::State::FlushFound(const std::vector<uint32_t>& segments,
                              std::function<void(const std::vector<uint32_t>& failed)> then) {
  struct Flush {
    size_t waits_for;
    std::vector<uint32_t> failed;
    std::function<void(const std::vector<uint32_t>& failed)> then;
  };
  std::vector<std::vector<uint32_t>> of_device(devices_.size());
  for (const uint32_t segment : segments) of_device[ssd::DeviceOf(segment)].push_back(segment);
  Step("recovery: flush");
  const auto waits_for =
      std::count_if(of_device.begin(), of_device.end(), [](const std::vector<uint32_t>& of) { return !of.empty(); });
  if (waits_for == 0) return then({});
  const auto flush = std::make_shared<Flush>(Flush{static_cast<size_t>(waits_for), {}, std::move(then)});
  for (size_t i = 0; i < devices_.size(); ++i) {
    if (of_device[i].empty()) continue;
    const auto synced = [this, flush](std::vector<uint32_t> failed) {
      keeper_->Post([flush, failed = std::move(failed)] {
        flush->failed.insert(flush->failed.end(), failed.begin(), failed.end());
        if (--flush->waits_for == 0) flush->then(flush->failed);
      });
    };
    devices_[i]->Post([segments = std::move(of_device[i]), synced](StoreDevice& d) { d.Sync(segments, synced); });
  }
}

// The keeper's.
void Store::State::BeginRebuild() {
  if (closing_) return EndRecovery(absl::CancelledError("the store was closed"));
  rebuild_ = true;
  std::vector<uint32_t> segments;
  for (const auto& [number, header] : usable_) segments.push_back(number);
  FlushFound(segments, [this](const std::vector<uint32_t>& failed) {
    for (const uint32_t segment : failed) FenceFound(segment);
    GoOnRebuilding();
  });
}

// The keeper's. A segment that the disk refuses to flush: what is in it may be there or not.
void Store::State::FenceFound(uint32_t segment) {
  const SegmentHeader header = usable_.at(segment);
  usable_.erase(segment);
  SegmentRow& row = segments_[segment];
  row = {segment, SegmentState::kFenced, header.epoch, header.secret};
  CatalogBatch batch;
  batch.Put(row);
  Must(std::move(batch), [] {});
  devices_[ssd::DeviceOf(segment)]->Post([segment](StoreDevice& d) { d.Fence(segment); });
}

// The keeper's.
void Store::State::GoOnRebuilding() {
  if (closing_) return EndRecovery(absl::CancelledError("the store was closed"));
  std::vector<SegmentToRead> segments;
  CatalogBatch batch;
  for (const auto& [number, header] : usable_) {
    segments.push_back(ToRead(header));
    SegmentRow& row = segments_[number];
    row = {number, SegmentState::kFull, header.epoch, header.secret};
    batch.Put(row);
  }
  Must(std::move(batch), [] {});
  ReadRecords(std::move(segments), AtGap::kGoOn);
}

std::optional<uint32_t> Store::State::NumberOf(const SpaceDigest& digest, std::string_view description) {
  if (const std::optional<uint32_t> known = spaces_.NumberOf(digest); stage_ == Stage::kTails && known) return known;
  const uint32_t number = OpenSpace(digest, std::string(description));
  untold_spaces_.push_back({number, digest, std::string(description)});
  return number;
}

bool Store::State::Believes(const RecordHeader& record) const {
  if (record.kind != RecordKind::kShard) return true;
  if (stage_ == Stage::kTails) return record.sequence >= catalog_->report().settled;
  const auto known = handed_over_.find(FingerprintOf(record.space, record.group, record.key));
  return known == handed_over_.end() || record.sequence <= known->second.sequence;
}

void Store::State::Rebuilt(const RebuildReport& report) {
  if (stage_ == Stage::kTails) {
    stage_ = Stage::kRows;
    if (report.unreadable > 0) tails_unread_ = true;
    if (!report.status.ok()) return EndRecovery(report.status);
    return keeper_->Post([this] { FlushTails(); });
  }
  recovery_.cleared += report.counts.cleared;
  if (report.status.ok() && !HandOver({})) return EndRecovery(absl::CancelledError("the owner has enough"));
  if (!report.status.ok()) return EndRecovery(report.status);
  keeper_->Post([this] {
    CatalogBatch batch;
    batch.FinishRebuild();
    batch.Settle(SettledByWrites());
    Step("recovery: finish");
    commits_->Add(std::move(batch), Commits::Need::kMust, [this](const absl::Status& status) {
      EndRecovery(status);
      CheckCatalog();
    });
  });
}

void Store::State::EndRecovery(absl::Status status) {
  keeper_->Post([this, status = std::move(status)]() mutable {
    // What waited for room in a full catalog until then is told of that.
    if (closing_ && !status.ok()) status = absl::CancelledError("the store was closed");
    if (status.ok() && !std::exchange(wishes_told_, true)) return TellOfPinsAndUses();
    recovery_.status = status;
    recovery_.rebuilt = rebuild_;
    recovery_.message = message_;
    recovery_.elapsed = hands_.Now() - recovery_began_;
    if (status.ok()) {
      for (const auto& [number, header] : usable_) {
        if (!tails_unread_ && segments_[number].state == SegmentState::kOpen && segments_[number].epoch == header.epoch)
          PutSegment(number, SegmentState::kFull, [] {});
      }
      for (const auto& device : devices_) device->Post([](StoreDevice& d) { d.Recovered(); });
      recovering_ = false;
      Must({}, [] {});  // says how far it is settled
      touched_.clear();
      rows_since_.clear();
      pins_.clear();
      handed_over_ = {};
      TellGivenUp();
      if (!closing_ && scrubber_ != nullptr) scrubber_->Begin();
    }
    recovery_over_ = status;
    RunSettled();
    owner_->Recovered(recovery_);
    recovery_ended_.Notify();
  });
}

// The keeper's. Before the devices hear that they may ask for segments: what is pinned is to be kept, and what was used lately.
void Store::State::TellOfPinsAndUses() {
  std::vector<PinRow> pins;
  for (const auto& [name, row] : pins_) pins.push_back(row);
  for (UseRow& row : std::exchange(uses_found_, {})) use_rows_->Found(std::move(row));
  beside_->Post([this, pins = std::move(pins), uses = use_rows_->Begin()]() mutable {
    if (!pins.empty()) owner_->FoundPins(std::move(pins), recovery_.withheld > 0);
    if (!uses.empty()) owner_->FoundUses(std::move(uses));
    EndRecovery(absl::OkStatus());
  });
}

}  // namespace kvist::ssd

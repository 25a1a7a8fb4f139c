#include "storage/ssd/store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/check.h"
#include "storage/base/clock.h"
#include "storage/base/status.h"
#include "storage/ssd/catalog_check.h"
#include "storage/ssd/collected_rows.h"
#include "storage/ssd/rocks_catalog.h"
#include "storage/ssd/stepped_device.h"
#include "storage/ssd/store_state.h"

namespace kvist::ssd {
namespace {

constexpr Bytes kProbedMin = MiB(8);  // smaller segments tell nothing of a disk
// For the catalog, which takes nothing when there are less than 32 MiB, and for whoever else uses the file system.
constexpr Bytes kKeptFree = MiB(64);
// Of a device whose store was made smaller than it is now. More: more files, and longer looks over all of them.
constexpr uint64_t kSegmentsMost = 4096;

absl::Status StartOverNow(Hands* hands, Catalog* catalog, const std::string& why) {
  absl::Notification done;
  absl::Status result;
  catalog->StartOver(why, [&](const absl::Status& status) {
    result = status;
    done.Notify();
  });
  hands->Await(done);
  return result;
}

}  // namespace

absl::Status StoreOptions::Validate() const {
  if (directories.empty() || directories.size() > kDevicesMax)
    return absl::InvalidArgumentError(absl::StrCat("directories: 1 to ", kDevicesMax, " of them, not ", directories.size()));
  if (segment.value % kUnit.value != 0 || segment < KiB(64) || segment / kUnit > UINT32_MAX)
    return absl::InvalidArgumentError(
        absl::StrCat("segment: ", segment.value, " bytes aren't a multiple of 4 KiB, at least 64 KiB"));
  const uint64_t segments = capacity / segment / directories.size();
  if (segments < 4 || segments > UINT32_MAX / kDevicesMax)
    return absl::InvalidArgumentError(absl::StrCat("capacity: ", capacity.value, " bytes are ", segments, " segments of ",
                                                   segment.value, " bytes for each directory; at least 4 are needed"));
  return absl::OkStatus();
}

void Store::State::AskKeeper(absl::FunctionRef<void()> task) {
  absl::Notification done;
  keeper_->Post([&] {
    task();
    done.Notify();
  });
  hands_.Await(done);
}

absl::Status Store::State::Open() {
  KVIST_RETURN_IF_ERROR(options_.Validate());
  KVIST_RETURN_IF_ERROR(KeepSegmentSize());
  KVIST_RETURN_IF_ERROR(OpenDirectories());
  KVIST_RETURN_IF_ERROR(OpenCatalog());
  return OpenDevices();
}

// By a new size nothing that lies there could be read any more.
absl::Status Store::State::KeepSegmentSize() {
  const absl::StatusOr<Bytes> there = SegmentBytesIn(options_.directories);
  if (absl::IsNotFound(there.status())) return absl::OkStatus();
  KVIST_RETURN_IF_ERROR(there.status());
  StoreOptions kept = options_;
  kept.segment = *there;
  const uint64_t segments = options_.capacity / kept.segment / options_.directories.size();
  const bool too_small = kept.segment < options_.segment && segments > kSegmentsMost;
  if (kept.Validate().ok() && !too_small) {
    options_ = std::move(kept);
    return absl::OkStatus();
  }
  message_ = absl::StrCat("the SSD tier begins anew: its segments of ", there->value, " bytes are too ",
                          too_small ? "small" : "large", " for a capacity of ", options_.capacity.value,
                          " bytes: what they held is given up; with a ", too_small ? "smaller" : "larger",
                          " ssd.capacity it would have been kept");
  return absl::OkStatus();
}

absl::Status Store::State::OpenDirectories() {
  std::optional<StoreId> join;
  for (uint32_t device = 0; device < options_.directories.size(); ++device) {
    KVIST_ASSIGN_OR_RETURN(const StoreDirectory directory,
                           OpenStoreDirectory(options_.directories[device], segment_units(), device, join));
    join = store_ = directory.store;
    files_.push_back(directory.segments.size());
    for (const StoreDirectory::Found& found : directory.segments) {
      if (found.verdict == Verdict::kGood) found_.push_back(found.header);
      if (found.unreadable != 0) unreadable_[found.segment] = found.unreadable;
    }
  }
  KVIST_ASSIGN_OR_RETURN(records_, SegmentRecords::Open(options_.directories, options_.segment));
  for (const SegmentHeader& header : found_) records_->Know(header);
  return absl::OkStatus();
}

absl::Status Store::State::OpenCatalog() {
  if (options_.catalog) {
    catalog_ = options_.catalog();
  } else {
    RocksCatalogOptions catalog;
    catalog.folder = options_.directories[0];
    catalog.store = store_;
    catalog.before_step = options_.before_step;
    KVIST_ASSIGN_OR_RETURN(catalog_, RocksCatalog::Open(std::move(catalog)));
  }
  const OpenReport& report = catalog_->report();
  rebuild_ = report.rebuild_pending;
  if (!report.message.empty()) message_ = report.message;

  CollectedRows found(CollectedRows::Which::kBeforeChunks);
  KVIST_RETURN_IF_ERROR(catalog_->Load(&found));
  hands_.Await(found.ended);
  std::string trouble;
  if (found.report.IsLost()) {
    trouble = std::string(found.report.status.message());
  } else if (!found.report.status.ok() && !absl::IsCancelled(found.report.status)) {
    return found.report.status;
  } else if (!rebuild_) {
    std::vector<SegmentToRead> segments;
    for (const SegmentHeader& header : found_) segments.push_back(ToRead(header));
    trouble = WhyTooOld(found.rows.segments, segments).value_or("");
  }
  if (!trouble.empty()) {
    Step("recovery: start over");
    KVIST_RETURN_IF_ERROR(StartOverNow(&hands_, catalog_.get(), trouble));
    absl::StrAppend(&message_, message_.empty() ? "" : "; ", "the SSD tier's catalog can't be used: ", trouble);
    rebuild_ = true;
    found.rows.segments.clear();
    found.rows.clears.clear();  // their records say it again
    found.rows.spaces.clear();
    found.rows.pins.clear();  // nobody else knows of them
  }
  for (PinRow& row : found.rows.pins) pins_[{row.space, row.name}] = std::move(row);
  for (const SpaceRow& row : found.rows.spaces) {
    spaces_.Know(row);
    untold_spaces_.push_back({row.number, row.digest, row.description});
  }
  for (const SegmentRow& row : found.rows.segments) segments_[row.number] = row;
  for (const ClearRow& row : found.rows.clears) clear_records_[row.space] = row;
  KVIST_RETURN_IF_ERROR(CheckThatAllIsThere());
  Withhold();
  for (const SegmentHeader& header : found_) {
    const auto row = segments_.find(header.segment);
    const bool known = row != segments_.end() && row->second.epoch == header.epoch;
    if (known ? row->second.state != SegmentState::kFenced : rebuild_) usable_[header.segment] = header;
  }
  commits_ = std::make_unique<Commits>(
      catalog_.get(), [this](std::function<void()> task) { keeper_->Post(std::move(task)); }, [this] { CatalogChanged(); });
  pin_rows_ = std::make_unique<PinRows>([this](CatalogBatch batch, PinRows::Done then) {
    commits_->Add(std::move(batch), Commits::Need::kMust, [this, then = std::move(then)](const absl::Status& status) {
      then(status);
      CheckCatalog();
    });
  });
  use_rows_ = std::make_unique<UseRows>([this](CatalogBatch batch) {
    commits_->Add(std::move(batch), Commits::Need::kTry, [this](const absl::Status&) { CheckCatalog(); });
  });
  return absl::OkStatus();
}

// A file system that isn't mounted has an empty directory in its place: what the catalog knows there would be erased, and written elsewhere.
// (The first directory has the catalog, so it is there; an open segment may have been refused its file.)
absl::Status Store::State::CheckThatAllIsThere() const {
  std::vector<uint64_t> used(files_.size());
  for (const auto& [number, row] : segments_) {
    if (ssd::DeviceOf(number) < used.size() && row.state == SegmentState::kFull) ++used[ssd::DeviceOf(number)];
  }
  for (size_t device = 1; device < used.size(); ++device) {
    if (files_[device] > 0 || used[device] == 0) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(options_.directories[device], " has none of the ", used[device],
                     " segments that the catalog knows there: is its file system mounted? If its disk was replaced, "
                     "`kvistctl fsck --repair` forgets what was on it"));
  }
  return absl::OkStatus();
}

void Store::State::Withhold() {
  for (const auto& [segment, error] : unreadable_) {
    const auto found = std::find_if(found_.begin(), found_.end(), [s = segment](const auto& h) { return h.segment == s; });
    const auto row = segments_.find(segment);
    // One header is enough, when it is the one that its row is of; in a rebuild none has a row.
    if (found != found_.end() && (row == segments_.end() ? rebuild_ : row->second.epoch == found->epoch)) continue;
    if (found != found_.end()) found_.erase(found);
    withheld_.insert(segment);
  }
  if (withheld_.empty()) return;
  absl::StrAppend(&message_, message_.empty() ? "" : "; ", withheld_.size(),
                  " segments of the SSD tier aren't used, for the disk doesn't give their headers (",
                  ErrnoStatus(SegmentFileName(*withheld_.begin()), unreadable_.at(*withheld_.begin())).message(),
                  "): what lies there is kept until a start that can read them");
}

std::vector<SegmentHeader> Store::State::GoodOf(uint32_t device) const {
  std::vector<SegmentHeader> good;
  for (const SegmentHeader& header : found_) {
    if (ssd::DeviceOf(header.segment) == device) good.push_back(header);
  }
  return good;
}

absl::Status Store::State::OpenDevices() {
  // Above all that was, on whatever device: so what this process writes has higher sequence numbers than all before.
  uint64_t epoch = 0;
  for (const SegmentHeader& header : found_) epoch = std::max(epoch, header.epoch);
  for (const auto& [number, row] : segments_) epoch = std::max(epoch, row.epoch);
  for (const auto& [space, row] : clear_records_)
    epoch = std::max(epoch, row.sequence >> 32);              // it may have written nothing else
  epoch = std::max(epoch, catalog_->report().settled >> 32);  // whose segments may all be gone
  if (rebuild_ && !withheld_.empty()) epoch += 1 << 20;       // nobody knows theirs
  sequence_ = (epoch + 1) << 32;
  const auto count = static_cast<uint32_t>(options_.directories.size());
  for (uint32_t number = 0; number < count; ++number) {
    const std::string& directory = options_.directories[number];
    KVIST_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, options_.open_device({.directory = directory,
                                                                                 .segment_bytes = options_.segment,
                                                                                 .keep_free = kKeptFree,
                                                                                 .io_uring = options_.io_uring}));
    if (options_.before_step) device = std::make_unique<SteppedDevice>(std::move(device), options_.before_step);
    StoreDevice::Options of;
    of.directory = directory;
    of.number = number;
    of.drive.segments = {.device = number,
                         .segments = static_cast<uint32_t>(options_.capacity / options_.segment / count),
                         .units = segment_units()};
    of.drive.writer.store = store_;
    of.drive.writer.bytes_per_second = options_.bytes_per_second;
    of.drive.writer.queue_max = 1 << 16;
    of.drive.writer.announce = true;
    of.found = GoodOf(number);
    std::copy_if(withheld_.begin(), withheld_.end(), std::back_inserter(of.withheld),
                 [number](uint32_t segment) { return ssd::DeviceOf(segment) == number; });
    of.epoch = epoch;
    of.probe = options_.segment >= kProbedMin;
    devices_.push_back(
        std::make_unique<StoreDevice>(std::move(device), std::move(of), static_cast<StoreDevice::Listener*>(this)));
    why_not_.emplace_back(std::nullopt);
  }
  for (const auto& device : devices_) hands_.Start(device.get());
  AskKeeper([this] { NoteKnown(); });
  if (options_.scrub_every > absl::ZeroDuration())
    scrubber_ = std::make_unique<Scrubber>(records_.get(), static_cast<Scrubber::Owner*>(this),
                                           Scrubber::Options{.every = options_.scrub_every});
  return absl::OkStatus();
}

void Store::State::Register(std::span<std::byte> memory) {
  for (const auto& device : devices_) device->Register(memory);
}

void Store::State::Start() {
  started_ = true;
  recovery_began_ = hands_.Now();
  keeper_->Post([this] {
    may_speak_ = true;
    SayWritable();
  });
  beside_->Post([this] { Recover(); });
}

Store::State::~State() {
  closing_ = true;
  if (scrubber_ != nullptr) scrubber_->End();
  AskKeeper([this] {  // from here on nothing new is begun
    if (rebuilding_ != nullptr) rebuilding_->Cancel();
    if (commits_ != nullptr) commits_->Close();  // the rebuild may wait for one that is tried again
    for (const uint64_t clear : std::exchange(clears_waiting_, {}))
      EndClear(clear, absl::CancelledError("the store was closed"));
    if (started_) return;
    recovery_over_ = absl::CancelledError("the store was closed");
    RunSettled();
  });
  if (started_) hands_.Await(recovery_ended_);
  beside_->Join();
  for (const auto& device : devices_) device->Stop();
  for (const auto& device : devices_) hands_.Join(device.get());
  if (commits_ != nullptr) {
    // What the devices have said becomes commits, and what these say may be more.
    absl::Notification idle;
    std::function<void()> look = [&] {
      if (commits_->idle()) return idle.Notify();
      keeper_->PostAt(hands_.Now() + kLookAgain, look);
    };
    keeper_->Post(look);
    hands_.Await(idle);
  }
  keeper_->Join();  // what it has left to do may be commits, of which nobody hears any more
  // What a crash has left is still to be looked for.
  const bool all_was_found = recovery_over_.has_value() && recovery_over_->ok() && !tails_unread_;
  if (catalog_ != nullptr && catalog_->report().kind == OpenReport::kUnclean && !all_was_found) catalog_->EndUnclean();
  catalog_.reset();
}

uint32_t Store::State::OpenSpace(const SpaceDigest& digest, std::string description) {
  KVIST_CHECK(description.size() <= kRowDescriptionMax);
  bool made = false;
  const uint32_t number = spaces_.NumberOf(digest, std::move(description), &made);
  if (made) {
    keeper_->Post([this, number] {
      CatalogBatch batch;
      batch.Put(*spaces_.Find(number));
      Must(std::move(batch), [] {});
    });
  }
  return number;
}

Store::Status Store::State::status() const {
  Status status;
  for (const auto& device : devices_) status.devices.push_back(device->row());
  const CatalogStats catalog = catalog_->stats();
  if (scrubber_ != nullptr) status.scrubbed = scrubber_->scrubbed();
  status.recovering = recovering_;
  status.commits = catalog.commits;
  status.commits_failed = catalog.failed;
  status.catalogs_set_aside = catalog.set_aside;
  const absl::MutexLock lock(&mutex_);
  status.catalog = catalog_trouble_;
  return status;
}

Store::Store(std::unique_ptr<State> state) : state_(std::move(state)) {}
Store::~Store() = default;

absl::StatusOr<std::unique_ptr<Store>> Store::Open(StoreOptions options, StoreOwner* owner) {
  auto state = std::make_unique<State>(std::move(options), owner);
  KVIST_RETURN_IF_ERROR(state->Open());
  return std::unique_ptr<Store>(new Store(std::move(state)));
}

void Store::Start() { state_->Start(); }
void Store::Register(std::span<std::byte> memory) { state_->Register(memory); }
uint32_t Store::OpenSpace(const SpaceDigest& digest, std::string description) {
  return state_->OpenSpace(digest, std::move(description));
}
void Store::Write(ChunkToWrite chunk) { state_->Write(std::move(chunk)); }
void Store::Read(std::vector<ChunkToRead> chunks) { state_->Read(std::move(chunks)); }
void Store::Flush() { state_->Flush(); }
void Store::Free(const ChunkId& id, uint32_t units, std::vector<Place> places, bool replaced) {
  state_->Free(id, units, std::move(places), replaced);
}
void Store::Leave(const ChunkId& id, uint32_t units, std::vector<Place> places) {
  state_->Leave(id, units, std::move(places));
}
void Store::Clear(std::optional<uint32_t> space, std::function<void(absl::Status)> done) {
  state_->Clear(space, std::move(done));
}

void Store::Hide(uint32_t space, std::vector<ChunkId> chunks, std::function<void(absl::Status)> done) {
  state_->Hide(space, std::move(chunks), std::move(done));
}
void Store::NotePins(std::vector<PinChange> changes) { state_->NotePins(std::move(changes)); }
void Store::NoteUses(std::vector<UsesNote> notes) { state_->NoteUses(std::move(notes)); }
void Store::SettlePins(std::function<void(absl::Status)> done) { state_->SettlePins(std::move(done)); }
Store::Status Store::status() const { return state_->status(); }

}  // namespace kvist::ssd

#include "daemon/ssd_tier.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "daemon/core/core.h"
#include "daemon/kv_shape.h"
#include "daemon/node_rows.h"
#include "daemon/pin_row.h"
#include "daemon/session/space_description.h"
#include "storage/base/check.h"
#include "storage/base/clock.h"
#include "storage/base/log_subject.h"
#include "storage/base/status.h"

namespace kvist::daemon {
namespace {

constexpr absl::Duration kWarnAgain = absl::Minutes(1);  // of the same trouble

ssd::ShardShape ShapeOf(const core::SpaceSpec& space, GroupId group) {
  const core::GroupSpec& spec = space.groups[group.value];
  return {spec.layers, spec.layer_bytes, ssd::SlotOrder::kLayerMajor};
}

core::DiskForm FormOf(const ssd::FoundChunk& chunk) {
  if (chunk.codec == ssd::Codec::kRaw) return {};
  return {static_cast<uint8_t>(chunk.codec), ssd::kUnit * chunk.units};
}

// OK: it is written, encoded if it could be.
absl::Status WhyNotWritten(const absl::StatusOr<std::optional<EncodedChunk>>& encoded, bool may_stay) {
  if (absl::IsDataLoss(encoded.status())) return encoded.status();
  if (!may_stay || (encoded.ok() && encoded->has_value())) return absl::OkStatus();
  if (encoded.ok()) return absl::AlreadyExistsError("it takes no less room encoded so");
  return absl::InternalError(encoded.status().message());  // an InvalidArgument would be of the disk
}

uint64_t Packed(ssd::Place place) { return uint64_t{place.segment} << 32 | place.unit; }

ssd::ChunkId IdOf(uint32_t space, GroupId group, const ChunkKey& key, uint32_t position) {
  return {.position = position, .space = space, .group = group.value, .key = key};
}

}  // namespace

absl::StatusOr<std::unique_ptr<SsdTier>> SsdTier::Open(ssd::StoreOptions options, ssd::Checksums checksums) {
  auto tier = std::unique_ptr<SsdTier>(new SsdTier(options.directories.size(), checksums));
  KVIST_ASSIGN_OR_RETURN(tier->store_, ssd::Store::Open(std::move(options), tier.get()));
  for (TaskThread* thread : {&tier->encodes_, &tier->decodes_}) thread->Start([] { return absl::InfiniteDuration(); });
  return tier;
}

SsdTier::~SsdTier() {
  encodes_.Stop();
  decodes_.Stop();
}

SsdTier::Status SsdTier::status() const {
  Status status;
  status.store = store_->status();
  const absl::MutexLock lock(&mutex_);
  status.writable = writable_;
  status.why_not = why_not_;
  status.recovery = recovery_;
  status.moved = moved_;
  return status;
}

// ---- From the core ----------------------------------------------------------------------------------------------------------

uint32_t SsdTier::NumberOf(SpaceId id, const core::SpaceSpec& space) {
  {
    const absl::MutexLock lock(&mutex_);
    if (const auto met = met_.find(id); met != met_.end()) return met->second.number;
  }
  const uint32_t number = store_->OpenSpace(space.digest, space.description);
  Meet(id, number, space);
  return number;
}

void SsdTier::Meet(SpaceId id, uint32_t number, const core::SpaceSpec& spec) {
  Met met{number, {}, {}, ShapesOf(spec)};
  for (const core::GroupSpec& group : spec.groups) {
    met.units.push_back(static_cast<uint32_t>(group.slot_bytes.front() / ssd::kUnit));
    met.shards.push_back(group.shards());
  }
  const absl::MutexLock lock(&mutex_);
  met_.try_emplace(id, std::move(met));
  name_of_.try_emplace(number, id);
}

std::optional<SpaceId> SsdTier::NameOf(uint32_t number) {
  const absl::MutexLock lock(&mutex_);
  const auto known = name_of_.find(number);
  return known == name_of_.end() ? std::nullopt : std::optional(known->second);
}

void SsdTier::Write(const core::SpaceSpec& space, core::WriteStarted write, Slots slots) {
  ssd::Store::ChunkToWrite chunk{.ticket = write.chunk.Pack(),
                                 .id = IdOf(NumberOf(write.space, space), write.group, write.key, write.position),
                                 .parent = write.parent,
                                 .hints = core::Pack(write.hint),
                                 .shape = ShapeOf(space, write.group),
                                 .slots = std::move(slots),
                                 .checksums = checksums_};
  if (write.method == 0) return store_->Write(std::move(chunk));
  auto encoding =
      std::make_shared<Encoding>(Encoding{std::move(chunk), write.space, codec::Shape{}, write.method, write.may_stay});
  {
    const absl::MutexLock lock(&mutex_);
    encoding->shape = met_.at(write.space).shapes[write.group.value];
    encodings_[encoding->chunk.ticket] = encoding;
  }
  encodes_.Post([this, encoding = std::move(encoding)] { Encode(encoding); });
}

void SsdTier::Encode(std::shared_ptr<Encoding> encoding) {
  ssd::Store::ChunkToWrite& chunk = encoding->chunk;
  const Ticket ticket = chunk.ticket;
  const auto is_wanted = [this, ticket] {
    const absl::MutexLock lock(&mutex_);
    return encodings_.contains(ticket);
  };
  absl::StatusOr<std::optional<EncodedChunk>> encoded = std::nullopt;
  if (is_wanted()) {
    encoded = EncodedChunk::Of(static_cast<codec::Method>(encoding->method), encoding->shape, chunk.shape, chunk.slots,
                               checksums_ == ssd::Checksums::kKeep);
  }
  absl::Status why = WhyNotWritten(encoded, encoding->may_stay);
  // With the lock: a clear that comes later finds it in the store.
  const absl::MutexLock lock(&mutex_);
  if (encodings_.erase(ticket) == 0) why = absl::CancelledError("it was cleared meanwhile");
  if (!why.ok()) return ear_->Say(core::WriteFinished{core::ChunkRef::Unpack(ticket), why});
  if (encoded.ok() && encoded->has_value()) {
    chunk.shape = (*encoded)->shape();
    chunk.slots = (*encoded)->slots();
    chunk.checksums = ssd::Checksums::kCompute;
    encoded_.emplace(ticket, **std::move(encoded));
  }
  store_->Write(std::move(chunk));
}

void SsdTier::ForgetEncodings(absl::FunctionRef<bool(const Encoding& encoding)> which) {
  const absl::MutexLock lock(&mutex_);
  absl::erase_if(encodings_, [which](const auto& encoding) { return which(*encoding.second); });
}

void SsdTier::Read(std::vector<ChunkToRead> chunks) {
  std::vector<ssd::Store::ChunkToRead> to_read;
  to_read.reserve(chunks.size());
  {
    const absl::MutexLock lock(&mutex_);
    const absl::Time now = MonotonicNow();
    for (const ChunkToRead& chunk : chunks) {
      Bytes bytes{};
      for (const auto& slot : chunk.slots) bytes += Bytes{slot.size()};
      busy_.Begin(chunk.read.chunk.Pack(), bytes, now);
    }
  }
  for (ChunkToRead& chunk : chunks) {
    core::ReadStarted& read = chunk.read;
    const ssd::ShardShape raw = ShapeOf(*chunk.space, read.group);
    if (read.form.method != 0) {
      const absl::MutexLock lock(&mutex_);
      decodings_[read.chunk.Pack()] = {met_.at(read.space).shapes[read.group.value], raw, chunk.slots,
                                       std::exchange(chunk.arrived, {})};
    }
    to_read.push_back({.ticket = read.chunk.Pack(),
                       .id = IdOf(NumberOf(read.space, *chunk.space), read.group, read.key, read.position),
                       .shape = ShapeIn(read.form, raw),
                       .places = std::move(read.places),
                       .slots = std::move(chunk.slots),
                       .by_layer = read.by_layer,
                       .arrived = std::move(chunk.arrived)});
  }
  store_->Read(std::move(to_read));
}

void SsdTier::Free(core::PlacesFreed freed) {
  if (freed_) freed_(freed);
  for (core::PlacesFreed::Chunk& chunk : freed.chunks) {
    uint32_t number = 0, units = 0;
    {
      const absl::MutexLock lock(&mutex_);
      const Met& met = met_.at(chunk.space);
      number = met.number;
      units = chunk.form.method == 0 ? met.units[chunk.group.value] : static_cast<uint32_t>(chunk.form.bytes / ssd::kUnit);
      // What a start finds of chunks that were stored again meanwhile is replaced, too, but wasn't moved.
      if (chunk.replaced && recovery_.has_value()) {
        const auto devices = static_cast<uint32_t>(moved_.size());
        for (uint32_t shard = 0; shard < chunk.places.size(); ++shard)
          moved_[ssd::DeviceFor(shard, devices)] += ssd::kUnit * units;
      }
    }
    const ssd::ChunkId id = IdOf(number, chunk.group, chunk.key, chunk.position);
    std::vector<ssd::Place> places(chunk.places.begin(), chunk.places.end());
    if (chunk.row_stays) {
      store_->Leave(id, units, std::move(places));
    } else {
      store_->Free(id, units, std::move(places), chunk.replaced);
    }
  }
}

void SsdTier::Clear(const core::SpaceSpec* space, core::SpaceCleared cleared) {
  std::optional<uint32_t> number;
  if (space != nullptr) number = NumberOf(*cleared.space, *space);
  ForgetEncodings([&cleared](const Encoding& encoding) { return encoding.space == cleared.space.value_or(encoding.space); });
  store_->Clear(number, [this, job = cleared.job](const absl::Status& kept) {
    if (!kept.ok()) {
      spdlog::error("what was cleared is cleared again after a restart, for the SSD tier couldn't note it: {}",
                    std::string(kept.message()));
    }
    ear_->Say(core::ClearKept{job, core::Tier::kSsd, kept});
  });
}

void SsdTier::Hide(const core::SpaceSpec& space, core::ChunksHidden hidden) {
  const uint32_t number = NumberOf(hidden.space, space);
  std::vector<ssd::ChunkId> ids;
  ids.reserve(hidden.chunks.size());
  for (const core::ChunksHidden::Chunk& chunk : hidden.chunks)
    ids.push_back(IdOf(number, chunk.group, chunk.key, chunk.position));
  ForgetEncodings(
      [&ids](const Encoding& encoding) { return std::find(ids.begin(), ids.end(), encoding.chunk.id) != ids.end(); });
  store_->Hide(number, std::move(ids), [this, job = hidden.job](const absl::Status& kept) {
    if (!kept.ok()) {
      spdlog::error("what was cleared by chunks is cleared again after a restart, for the SSD tier couldn't note it: {}",
                    std::string(kept.message()));
    }
    ear_->Say(core::ClearKept{job, core::Tier::kSsd, kept});
  });
}

void SsdTier::NotePins(const core::SpaceSpec& space, core::PinsNoted noted) {
  const uint32_t number = NumberOf(noted.space, space);
  const absl::Time now = absl::Now();  // pins last beyond this boot
  std::vector<ssd::PinChange> changes;
  changes.reserve(noted.notes.size());
  for (const core::PinNote& note : noted.notes) changes.push_back({ToRow(number, note, now), note.count == 0});
  store_->NotePins(std::move(changes));
}

void SsdTier::NoteUses(core::UsesNoted noted) {
  ssd::UsesNote note{noted.noted.period, noted.noted.written, {}};
  note.chunks.reserve(noted.noted.uses.size());
  {
    const absl::MutexLock lock(&mutex_);
    for (const core::DiskUses::Use& use : noted.noted.uses)
      note.chunks.push_back({met_.at(use.space).number, use.group.value, use.key});
  }
  std::vector<ssd::UsesNote> notes;
  notes.push_back(std::move(note));
  store_->NoteUses(std::move(notes));
}

bool SsdTier::SettlePins(absl::Time deadline) const {
  struct Settled {
    absl::Notification over;
    absl::Status kept;
  };
  const auto settled = std::make_shared<Settled>();
  store_->SettlePins([settled](absl::Status kept) {
    settled->kept = std::move(kept);
    settled->over.Notify();
  });
  const bool in_time = settled->over.WaitForNotificationWithTimeout(deadline - MonotonicNow());
  if (in_time && settled->kept.ok()) return true;
  spdlog::warn("a restart may not find what is pinned as it is now: {}",
               in_time ? std::string(settled->kept.message()) : "the SSD tier's catalog takes too long");
  return false;
}

// ---- From the store ---------------------------------------------------------------------------------------------------------

void SsdTier::Written(Ticket ticket, absl::Status status, std::vector<ssd::Place> places) {
  core::WriteFinished written{core::ChunkRef::Unpack(ticket), std::move(status), std::move(places)};
  {
    const absl::MutexLock lock(&mutex_);
    if (const auto encoded = encoded_.extract(ticket); !encoded.empty()) {
      written.form = encoded.mapped().form();
      written.loss = encoded.mapped().loss();
    }
  }
  ear_->Say(std::move(written));
}

void SsdTier::Read(Ticket ticket, absl::Status status) {
  {
    const absl::MutexLock lock(&mutex_);
    if (auto decoding = decodings_.extract(ticket); !decoding.empty() && status.ok()) {
      return decodes_.Post([this, ticket, decoding = std::make_shared<Decoding>(std::move(decoding.mapped()))] {
        Decode(ticket, *decoding);
      });
    }
  }
  EndRead(ticket, std::move(status));
}

void SsdTier::Decode(Ticket ticket, const Decoding& decoding) {
  absl::Status status;
  for (uint32_t shard = 0; shard < decoding.slots.size() && status.ok(); ++shard) {
    status = DecodeRecord(decoding.shape, decoding.raw, decoding.slots[shard], checksums_ == ssd::Checksums::kKeep);
    if (status.ok() && decoding.arrived) decoding.arrived(shard, decoding.raw.layers);
  }
  EndRead(ticket, std::move(status));
}

void SsdTier::EndRead(Ticket ticket, absl::Status status) {
  std::optional<core::TierRead> busy;
  {
    const absl::MutexLock lock(&mutex_);
    busy = busy_.End(ticket, status.ok(), MonotonicNow());
  }
  if (busy.has_value()) ear_->Say(*busy);
  ear_->Say(core::ReadFinished{core::ChunkRef::Unpack(ticket), std::move(status)});
}

void SsdTier::Writable(bool writable, const std::string& why) {
  bool new_trouble = false;
  {
    const absl::MutexLock lock(&mutex_);
    writable_ = writable;
    why_not_ = why;
    // One that works with what its disk has left says it again and again.
    const absl::Time now = MonotonicNow();
    new_trouble = !writable && (why != warned_of_ || now - warned_ > kWarnAgain);
    if (new_trouble) {
      warned_of_ = why;
      warned_ = now;
    }
  }
  if (new_trouble) spdlog::warn("the SSD tier takes no writes now: {}", why);
  if (writable) spdlog::debug("the SSD tier takes writes");
  ear_->Say(core::DiskWritable{writable});
}

// Whether the daemon still listens; a space that it can't serve is left where it is.
bool SsdTier::MeetFound(const ssd::FoundSpace& found) {
  absl::StatusOr<core::SpaceSpec> spec = session::SpaceOf(found.description);
  if (!spec.ok() || spec->digest != found.digest) {
    const LogSubject about({.space = Hex(found.digest)});
    spdlog::warn("what the SSD tier holds of one space stays unused: {}",
                 spec.ok() ? "its description isn't its own" : std::string(spec.status().message()));
    return true;
  }
  if (!ear_->Tell(core::SpaceFound{*spec})) return false;
  const std::optional<SpaceId> id = ear_->FindSpace(found.digest);
  if (id.has_value()) {
    Meet(*id, found.number, *spec);
  } else {
    const LogSubject about({.tenant = spec->tenant, .space = Hex(spec->digest)});
    spdlog::warn("what the SSD tier holds of model {} stays unused: its chunks don't fit into this pool", spec->model);
  }
  return true;
}

void SsdTier::NoteUnserved(const ssd::FoundChunk& chunk) {
  const absl::MutexLock lock(&mutex_);
  for (const ssd::Place place : chunk.places) unserved_.insert(Packed(place));
}

bool SsdTier::Fits(SpaceId space, const ssd::FoundChunk& chunk) {
  const absl::MutexLock lock(&mutex_);
  const Met& met = met_.at(space);
  const auto units_fit = [&](uint32_t units) {
    return chunk.codec == ssd::Codec::kRaw ? chunk.units == units : chunk.units > 1 && chunk.units < units;
  };
  const bool fits = chunk.id.group < met.units.size() && units_fit(met.units[chunk.id.group]) &&
                    met.shards[chunk.id.group] == chunk.places.size();
  misfits_ += fits ? 0 : 1;
  return fits;
}

bool SsdTier::Found(std::vector<ssd::FoundSpace> spaces, std::vector<ssd::FoundChunk> chunks) {
  for (const ssd::FoundSpace& space : spaces) {
    if (!MeetFound(space)) return false;
  }
  // Those of one space go together, in their order.
  core::ChunksFound found;
  const auto tell = [&] { return found.chunks.empty() || ear_->Tell(std::exchange(found, {})); };
  for (ssd::FoundChunk& chunk : chunks) {
    const std::optional<SpaceId> space = NameOf(chunk.id.space);
    if (!space.has_value()) {
      NoteUnserved(chunk);
      continue;
    }
    if (!Fits(*space, chunk)) {
      store_->Free(chunk.id, chunk.units, std::move(chunk.places));
      continue;
    }
    if ((found.chunks.size() == core::Core::kPlacesMax || *space != found.space) && !tell()) return false;
    found.space = *space;
    found.chunks.push_back({GroupId{chunk.id.group}, chunk.id.key, chunk.parent, chunk.id.position, std::move(chunk.places),
                            core::UnpackHint(chunk.hints), FormOf(chunk)});
  }
  return tell();
}

void SsdTier::FoundPins(std::vector<ssd::PinRow> pins, bool withheld) {
  const absl::Time now = absl::Now();
  uint64_t unread = 0;
  for (const ssd::PinRow& row : pins) {
    const std::optional<SpaceId> space = NameOf(row.space);
    if (!space.has_value()) continue;  // whoever serves it one day keeps it
    std::optional<core::PinNote> note = ParsePin(row, now);
    unread += note.has_value() ? 0 : 1;
    if (note.has_value() && !ear_->Tell(core::PinFound{*space, *std::move(note), withheld})) return;
  }
  if (unread > 0) spdlog::warn("{} pins that the SSD tier's catalog has are of another version, or damaged", unread);
}

void SsdTier::FoundUses(std::vector<ssd::UsesNote> uses) {
  static_assert(ssd::kUsesPerRow <= core::Core::kPlacesMax);
  for (const ssd::UsesNote& note : uses) {
    core::UsesFound event{{note.period, note.written, {}}};
    for (const ssd::ChunkUse& use : note.chunks) {
      if (const std::optional<SpaceId> space = NameOf(use.space))
        event.found.uses.push_back({*space, GroupId{use.group}, use.key});
    }
    if (!ear_->Tell(std::move(event))) return;
  }
}

void SsdTier::Recovered(const ssd::Recovery& recovery) {
  uint64_t misfits = 0;
  {
    const absl::MutexLock lock(&mutex_);
    recovery_ = recovery;
    misfits = misfits_;
  }
  ear_->Say(core::DiskTold{.rows_left = recovery.withheld > 0});
  if (misfits > 0) spdlog::warn("{} chunks of the SSD tier were freed: their spaces have no such groups or shards", misfits);
  if (!recovery.message.empty()) spdlog::warn("{}", recovery.message);
  if (!recovery.status.ok()) return;
  spdlog::info("the SSD tier has {} chunks, found {} in {}{}", recovery.chunks,
               recovery.rebuilt ? "by their headers" : "in its catalog", absl::FormatDuration(recovery.elapsed),
               recovery.adopted + recovery.cleared + recovery.skipped == 0
                   ? ""
                   : absl::StrCat("; ", recovery.adopted, " of them weren't in it yet, or any more, ", recovery.cleared,
                                  " were cleared, ", recovery.skipped, " can't be used"));
}

template <class Places, class Unserved>
void SsdTier::TellOf(const Places& none, const std::vector<ssd::PlaceWanted>& records, Unserved unserved) {
  Places event = none;
  for (const ssd::PlaceWanted& record : records) {
    const std::optional<SpaceId> space = NameOf(record.id.space);
    if (!space.has_value()) {
      unserved(record);
      continue;
    }
    event.records.push_back({*space, GroupId{record.id.group}, record.id.key, record.place});
    if (event.records.size() == core::Core::kPlacesMax && !ear_->Tell(std::exchange(event, none))) return;
  }
  if (!event.records.empty()) ear_->Tell(std::move(event));
}

void SsdTier::WantsBack(std::vector<ssd::PlaceWanted> records) {
  TellOf(core::PlacesWanted{}, records, [this](const ssd::PlaceWanted& record) {
    {
      const absl::MutexLock lock(&mutex_);
      if (unserved_.erase(Packed(record.place)) == 0) return;
    }
    store_->Free(record.id, record.units, {record.place});
  });
}

void SsdTier::Damaged(std::vector<ssd::PlaceWanted> records) {
  TellOf(core::PlacesLost{.records = {}, .damaged = true}, records,
         [](const ssd::PlaceWanted&) {});  // whoever serves them one day finds out
}

void SsdTier::GivenUp(std::vector<ssd::PlaceWanted> records) {
  spdlog::warn("the SSD tier gives up {} records: the disk failed to write beside them, so they count as durable no longer",
               records.size());
  TellOf(core::PlacesLost{.records = {}, .damaged = false}, records, [](const ssd::PlaceWanted&) {});
}

}  // namespace kvist::daemon

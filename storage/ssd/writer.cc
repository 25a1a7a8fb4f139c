#include "storage/ssd/writer.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "storage/base/check.h"
#include "storage/ssd/segment_header.h"

namespace kvist::ssd {
namespace {

std::unique_ptr<std::byte, decltype(&std::free)> Units(uint32_t count) {
  std::unique_ptr<std::byte, decltype(&std::free)> units(
      static_cast<std::byte*>(std::aligned_alloc(kUnit.value, (kUnit * count).value)), &std::free);
  KVIST_CHECK(units != nullptr);
  return units;
}

uint32_t UnitsOf(const Writer::Shard& shard) { return UnitsFor({shard.header.payload_bytes}); }
uint32_t DescriptionUnits(const Writer::Shard& shard) {
  return shard.description ? UnitsFor({shard.description->size()}) : 0;
}

}  // namespace

// A segment from Prepare until its last record has an outcome. Entries are what was written, in the order of their places: both headers,
// then records.
struct Writer::Use {
  struct Entry {
    uint64_t ticket = 0;
    Place place{};
    uint32_t units = 0;
    bool is_record = false;
    bool written = false;
  };
  uint32_t id = 0;
  SegmentHeader header{};
  std::unique_ptr<std::byte, decltype(&std::free)> header_unit{nullptr, &std::free};  // both headers are written from it
  std::vector<SpaceDigest> described;                                                 // spaces that have their record here
  std::vector<std::unique_ptr<std::byte, decltype(&std::free)>> descriptions;         // these records
  std::deque<Entry> entries;                                                          // not yet durable
  uint32_t first = 0;        // number of entries.front(): how many are durable
  uint32_t written = 0;      // so many, from the segment's start, are written without a gap
  uint32_t sync_covers = 0;  // `written` when the running sync was submitted
  uint32_t writing = 0;      // in flight
  Bytes unsynced{};          // written since a sync was last submitted, perhaps with gaps
  bool syncing = false;
  bool allocating = true;
  bool admitted = true;
  int error = 0;

  uint32_t end() const { return first + static_cast<uint32_t>(entries.size()); }
};

Writer::Writer(IoQueue* queue, Segments* segments, Options options)
    : queue_(queue), segments_(segments), options_(std::move(options)) {}
Writer::~Writer() = default;

bool Writer::Write(const Shard& shard) {
  if (full()) return false;
  KVIST_CHECK(shard.header.kind == RecordKind::kClear || shard.header.sequence > last_sequence_);
  KVIST_CHECK(WellFormed(shard.header) && UnitsOf(shard) + DescriptionUnits(shard) <= segments_->units_max());
  last_sequence_ = std::max(last_sequence_, shard.header.sequence);
  waiting_.push_back(shard);
  ++accepted_;
  return true;
}

void Writer::Flush() { flush_until_ = accepted_; }

void Writer::Pump(absl::Time now) {
  wake_at_ = absl::InfiniteFuture();
  starved_ = false;
  PrepareNext();
  Bytes step = options_.seal_step;
  while (sealing_ || BeginSealing(now)) {
    if (step.value == 0) {
      wake_at_ = absl::InfinitePast();
      break;
    }
    if (!sealing_->record.Go(&step, &sealer_)) {
      step = {};
      continue;
    }
    WriteEntry(sealing_->use, sealing_->entry, sealing_->slot);
    sealing_.reset();
    queue_->Pump();  // the device has this one while the next one is sealed
    PrepareNext();
  }
  for (size_t i = 0; i < uses_.size(); ++i) MaybeSync(uses_[i].get());
  // A use that a full successor has closed may have nothing on its way any more.
  for (size_t i = uses_.size(); i-- > 0;) MaybeRetire(uses_[i].get());
}

// Gives the next shard its place, when there is one and the device will want it soon.
bool Writer::BeginSealing(absl::Time now) {
  if (waiting_.empty()) return false;
  const Shard& shard = waiting_.front();
  const uint32_t units = UnitsOf(shard);
  // A large one takes long to seal: it begins while the one before it is still being written.
  if (queue_->waiting_to_write() >= std::max(options_.sealed_ahead, kUnit * units) || !RateAllows(now)) return false;
  const auto described = [&](uint32_t segment) {
    const std::vector<SpaceDigest>& spaces = UseOf(segment)->described;
    return !shard.description || std::find(spaces.begin(), spaces.end(), shard.header.space) != spaces.end();
  };
  std::optional<uint32_t> segment = segments_->MakeRoom(units);
  if (segment && !described(*segment)) segment = segments_->MakeRoom(units + DescriptionUnits(shard));
  if (!segment) {
    starved_ = !segments_->has_prepared();  // else its file is being made
    return false;
  }
  Use* const use = UseOf(*segment);
  if (!described(*segment)) Describe(use, shard);
  const std::optional<Place> place = segments_->Append(units);
  sealing_.emplace(Sealing{use, Append(use, &shard, *place, units), shard.slot,
                           RecordSealing(shard.slot, shard.header, use->header, *place, shard.checksums)});
  credit_ -= static_cast<double>((kUnit * units).value);
  waiting_.pop_front();
  return true;
}

// Writes the record that says what the shard's space is. Nobody wants it for itself: it goes with its segment.
void Writer::Describe(Use* use, const Shard& shard) {
  RecordHeader header{};
  header.sequence = shard.header.sequence;
  header.kind = RecordKind::kSpace;
  header.order = SlotOrder::kLayerMajor;
  header.space = shard.header.space;
  header.payload_bytes = header.raw_bytes = shard.description->size();
  header.layers = header.runs = shard.description->empty() ? 0 : 1;
  header.layer_bytes = header.payload_bytes;
  const uint32_t units = DescriptionUnits(shard);
  const std::optional<Place> place = segments_->Append(units);
  segments_->Kill(*place, units);
  std::byte* const record = use->descriptions.emplace_back(Units(units)).get();
  std::memcpy(record + kHeaderBytes.value, shard.description->data(), shard.description->size());
  SealRecord(record, header, use->header, *place, Checksums::kCompute, &sealer_);
  WriteEntry(use, Append(use, nullptr, *place, units), record);
  use->described.push_back(shard.header.space);
}

bool Writer::RateAllows(absl::Time now) {
  if (options_.bytes_per_second.value == 0) return true;
  const auto rate = static_cast<double>(options_.bytes_per_second.value);
  // A tenth of a second may be saved up; a large record goes when there is any credit, and is paid off afterwards.
  const double gained = credited_ == absl::InfinitePast() ? rate : absl::ToDoubleSeconds(now - credited_) * rate;
  credit_ = std::min(credit_ + std::max(gained, 0.0), rate / 10);
  credited_ = now;
  if (credit_ > 0) return true;
  wake_at_ = now + absl::Seconds(-credit_ / rate) + absl::Microseconds(1);
  return false;
}

void Writer::PrepareNext() {
  if (segments_->has_prepared() || (no_file_ != 0 && !retry_)) return;
  if (segments_->open_units() > segments_->units_max() / 2) return;
  if (segments_->open_units() == 0 && waiting_.empty() && !retry_) return;  // a store that nobody writes to makes no file
  const std::optional<SegmentHeader> header = segments_->Prepare(options_.store, options_.draw_secret());
  if (!header) return;
  auto use = std::make_unique<Use>();
  use->id = next_use_++ & 0xffffff;
  use->header = *header;
  use->header_unit = Units(1);
  PutSegmentHeader(*header, std::span<std::byte, kUnit.value>(use->header_unit.get(), kUnit.value));
  queue_->Submit(IoQueue::Lane::kControl, this,
                 {.kind = Io::Kind::kAllocate, .segment = header->segment, .tag = Tag(*use, Step::kAllocate, 0)});
  if (options_.announce) {
    use->admitted = false;
    announced_.push_back(*header);
  }
  uses_.push_back(std::move(use));
}

void Writer::Admit(const SegmentHeader& header) {
  for (const auto& use : uses_) {
    if (use->header.segment != header.segment || use->header.epoch != header.epoch || use->admitted) continue;
    use->admitted = true;
    if (!use->allocating && use->error == 0) BeginUse(use.get());
    MaybeRetire(use.get());
    return;
  }
}

uint32_t Writer::Append(Use* use, const Shard* shard, Place place, uint32_t units) {
  use->entries.push_back({shard == nullptr ? 0 : shard->ticket, place, units, shard != nullptr, false});
  if (shard != nullptr) ++uses_pending_;
  return use->end() - 1;
}

void Writer::WriteEntry(Use* use, uint32_t entry, std::byte* bytes) {
  const Use::Entry& of = use->entries[entry - use->first];
  ++use->writing;
  queue_->Submit(IoQueue::Lane::kWrite, this,
                 {Io::Kind::kWrite,
                  of.place.segment,
                  OffsetOf(of.place),
                  {bytes, (kUnit * of.units).value},
                  Tag(*use, Step::kWrite, entry)});
}

void Writer::Ended(uint64_t tag, int error) {
  const auto id = static_cast<uint32_t>(tag >> 40);
  const auto it = std::find_if(uses_.begin(), uses_.end(), [&](const auto& use) { return use->id == id; });
  KVIST_CHECK(it != uses_.end());
  Use* const use = it->get();
  switch (static_cast<Step>(tag >> 32 & 0xff)) {
    case Step::kAllocate: Allocated(use, error); break;
    case Step::kWrite: Written(use, static_cast<uint32_t>(tag), error); break;
    case Step::kSync: Synced(use, error); break;
  }
  MaybeSync(use);
  MaybeRetire(use);
}

void Writer::Allocated(Use* use, int error) {
  use->allocating = false;
  retry_ = false;
  no_file_ = IsOfTheDisk(error) ? 0 : error;
  if (no_file_ != 0) {
    ++counters_.refused_files;
    segments_->Refuse(use->header.segment);
    use->error = error;  // nothing was written: it goes without being fenced
    return;
  }
  if (error != 0) return Fail(use, error);
  if (use->admitted) BeginUse(use);
}

void Writer::BeginUse(Use* use) {
  segments_->Ready(use->header.segment);
  const uint32_t last = segments_->options().units - 1;
  for (const uint32_t unit : {uint32_t{0}, last})
    WriteEntry(use, Append(use, nullptr, {use->header.segment, unit}, 1), use->header_unit.get());
}

void Writer::Written(Use* use, uint32_t entry, int error) {
  --use->writing;
  Use::Entry& of = use->entries[entry - use->first];
  of.written = error == 0;
  if (error != 0) {
    ++counters_.write_errors;
    return Fail(use, error);
  }
  use->unsynced += kUnit * of.units;
  while (use->written < use->end() && use->entries[use->written - use->first].written) ++use->written;
}

void Writer::MaybeSync(Use* use) {
  if (use->error != 0 || use->syncing || use->written == use->first) return;
  const bool asked = ended_ < flush_until_;
  // Headers alone can wait for the first record, unless there is none to come.
  if ((use->writing > 0 || SealingIn(*use)) && use->unsynced < options_.sync_bytes && !asked) return;
  use->syncing = true;
  use->sync_covers = use->written;
  use->unsynced = {};
  ++counters_.syncs;
  queue_->Submit(IoQueue::Lane::kControl, this,
                 {.kind = Io::Kind::kSync, .segment = use->header.segment, .tag = Tag(*use, Step::kSync, 0)});
}

void Writer::Synced(Use* use, int error) {
  use->syncing = false;
  if (error != 0) {
    ++counters_.sync_errors;
    return Fail(use, error);
  }
  if (use->error != 0) return;  // what was written before the failure may be there; nobody relies on it
  for (; use->first < use->sync_covers; ++use->first) {
    const Use::Entry entry = use->entries.front();
    use->entries.pop_front();
    if (!entry.is_record) continue;
    outcomes_.push_back({entry.ticket, entry.place, entry.units, 0});
    ++counters_.records;
    counters_.bytes += (kUnit * entry.units).value;
    --uses_pending_;
    ++ended_;
  }
}

void Writer::Fail(Use* use, int error) {
  if (use->error != 0) return;
  use->error = error;
  if (SealingIn(*use)) sealing_.reset();  // it ends with the others
  segments_->Fence(use->header.segment);
  fenced_.push_back(use->header.segment);
}

// Lets a use go when nothing of it is on its way and nothing more will come.
void Writer::MaybeRetire(Use* use) {
  if (use->writing > 0 || use->syncing || use->allocating || SealingIn(*use)) return;
  const uint32_t segment = use->header.segment;
  if (use->error == 0) {
    if (!use->entries.empty() || segments_->state(segment) != Segments::State::kClosing) return;
    segments_->Settled(segment);
    settled_.push_back(segment);
  }
  for (const Use::Entry& entry : use->entries) {
    if (!entry.is_record) continue;
    segments_->Kill(entry.place, entry.units);
    outcomes_.push_back({entry.ticket, {}, entry.units, use->error});
    --uses_pending_;
    ++ended_;
  }
  std::erase_if(uses_, [&](const auto& of) { return of.get() == use; });
}

void Writer::GiveUp(int error) {
  KVIST_CHECK(error != 0);
  for (const Shard& shard : waiting_) outcomes_.push_back({shard.ticket, {}, UnitsFor({shard.header.payload_bytes}), error});
  ended_ += waiting_.size();
  waiting_.clear();
  starved_ = false;
}

Writer::Use* Writer::UseOf(uint32_t segment) {
  for (const auto& use : uses_) {
    if (use->header.segment == segment && use->error == 0) return use.get();
  }
  KVIST_CHECK(false);
  return nullptr;
}

uint64_t Writer::Tag(const Use& use, Step step, uint32_t entry) const {
  return uint64_t{use.id} << 40 | uint64_t{static_cast<uint8_t>(step)} << 32 | entry;
}

}  // namespace kvist::ssd

// What the owner of a simulated store does, hears, and may rely on.
#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "tests/sim/store_world.h"

namespace kvist::sim {
namespace {

constexpr uint64_t kVersionsMax = 1 << 20;  // of a chunk

// "in 3:8 4:1": segments and units.
std::string In(const std::vector<ssd::Place>& places) {
  std::string in = places.empty() ? "" : " in";
  for (const ssd::Place place : places) absl::StrAppend(&in, " ", place.segment, ":", place.unit);
  return in;
}

}  // namespace

ssd::ChunkId StoreWorld::IdOf(const Name& name) const {
  return {name.second % 5, numbers_[name.first], 1, ssd::DigestOf<ChunkKey>(1 + name.second)};
}

StoreWorld::Name StoreWorld::NameOf(const ssd::ChunkId& id) const {
  const auto space = std::find(numbers_.begin(), numbers_.end(), id.space);
  KVIST_CHECK(space != numbers_.end());
  return {static_cast<uint32_t>(space - numbers_.begin()), id.key.bytes[0] - 1u};
}

uint64_t StoreWorld::SeedOf(const Name& name, uint64_t version, uint32_t shard) const {
  return ((uint64_t{name.first} * 64 + name.second) * kVersionsMax + version) * 8 + shard;
}

// Whether what lies there is nobody's promise any more, in this kind of world.
bool StoreWorld::MayBeLost(const std::vector<ssd::Place>& places) const {
  if (kind_ != Kind::kFailing) return kind_ == Kind::kLying;
  return std::any_of(places.begin(), places.end(), [this](const ssd::Place place) {
    return files_[ssd::DeviceOf(place.segment)]->failed.contains(place.segment);
  });
}

bool StoreWorld::BeingRead(const Name& name) const {
  return std::any_of(reading_.begin(), reading_.end(), [&](const auto& entry) { return entry.second.name == name; });
}

bool StoreWorld::ReliesOnWhatFailed() const {
  if (kind_ != Kind::kFailing || !store_->status().catalog.empty()) return false;
  return std::any_of(known_.begin(), known_.end(), [this](const auto& known) {
    return std::any_of(known.second.places.begin(), known.second.places.end(), [this](const ssd::Place place) {
      const uint32_t device = ssd::DeviceOf(place.segment);
      return files_[device]->failed.contains(place.segment) && !failed_before_[device].contains(place.segment);
    });
  });
}

void StoreWorld::BeginWrite(const Name& name, bool again) {
  History& history = histories_[name];
  const uint64_t ticket = ++next_ticket_;
  Writing& writing = writing_[ticket];
  writing.name = name;
  writing.version = history.next++;
  writing.again = again;
  ssd::Store::ChunkToWrite chunk;
  chunk.ticket = ticket;
  chunk.id = IdOf(name);
  if (chunk.id.position > 0) chunk.parent = ssd::DigestOf<ChunkKey>(name.second);
  chunk.hints = static_cast<uint16_t>(name.second);
  chunk.shape = ShapeOf(CodecOf(writing.version));
  for (uint32_t shard = 0; shard < shards_; ++shard) {
    ssd::AlignedBytes& slot = writing.slots.emplace_back(ssd::kUnit * chunk.shape.units());
    ssd::FillPayload(slot.data(), SeedOf(name, writing.version, shard), chunk.shape.payload().value);
    chunk.slots.emplace_back(slot.data(), slot.size().value);
  }
  Note(absl::StrCat("write ", name.first, "/", name.second, " version ", writing.version, " ticket ", ticket));
  store_->Write(std::move(chunk));
}

void StoreWorld::Written(Ticket ticket, absl::Status status, std::vector<ssd::Place> places) {
  auto node = writing_.extract(ticket);
  if (!verdict_.Expect(!node.empty(), kOneAnswer, absl::StrCat("write ", ticket, " was answered twice"))) return;
  Note(absl::StrCat("written ", ticket, " ", absl::StatusCodeToString(status.code())),
       absl::StrCat(status.message(), In(places)));
  const Writing& writing = node.mapped();
  const Name name = writing.name;
  History& history = histories_[name];
  if (!status.ok()) {
    ++coverage_.refused;
    verdict_.Expect(kind_ != Kind::kHonest || !absl::IsUnavailable(status), kServesAgain,
                    absl::StrCat("a disk without faults: ", status.message()));
    // What can't be written again for want of room it does without.
    if (writing.again && !writing.cleared && known_.contains(name) && !BeingRead(name)) FreeOne(name);
    return;
  }
  ++coverage_.written;
  const ssd::Codec codec = CodecOf(writing.version);
  if (writing.cleared) return store_->Free(IdOf(name), ShapeOf(codec).units(), std::move(places));
  verdict_.Expect(!history.durable || *history.durable < writing.version, kNothingHalfDone,
                  "an earlier write is durable behind a later one");
  history.durable = history.was_durable = writing.version;
  history.places = places;
  history.back = false;
  const Known before = std::exchange(known_[name], {std::move(places), codec});
  for (auto& [read, reading] : reading_) reading.replaced |= reading.name == name;
  if (!before.places.empty()) store_->Free(IdOf(name), ShapeOf(before.codec).units(), before.places, /*replaced=*/true);
}

bool StoreWorld::MayBe(const Reading& reading, uint32_t shard, uint32_t layers) const {
  const ssd::ShardShape shape = ShapeOf(reading.codec);
  const bool raw = shape.codec == ssd::Codec::kRaw;
  const uint64_t bytes = raw ? (shape.layer_bytes * layers).value : shape.payload().value;
  ssd::AlignedBytes wanted(ssd::kUnit * shape.units());
  for (uint64_t version = reading.floor; version < reading.end; ++version) {
    if (CodecOf(version) != reading.codec) continue;
    ssd::FillPayload(wanted.data(), SeedOf(reading.name, version, shard), bytes);
    if (std::memcmp(wanted.data() + ssd::kHeaderBytes.value, reading.slots[shard].data() + ssd::kHeaderBytes.value, bytes) ==
        0)
      return true;
  }
  return false;
}

void StoreWorld::BeginRead(const Name& name) {
  const History& history = histories_[name];
  const uint64_t ticket = ++next_ticket_;
  Reading& reading = reading_[ticket];
  reading.name = name;
  reading.floor = kind_ == Kind::kLying ? 0 : FloorOf(history);  // a disk that lies may have lost a clear, too
  reading.end = history.next;
  std::vector<ssd::Store::ChunkToRead> chunks(1);
  chunks[0].ticket = ticket;
  chunks[0].id = IdOf(name);
  chunks[0].shape = ShapeOf(known_.at(name).codec);
  chunks[0].places = known_.at(name).places;
  reading.codec = known_.at(name).codec;
  chunks[0].by_layer = prng_.Percent(50);
  for (uint32_t shard = 0; shard < shards_; ++shard) {
    const ssd::AlignedBytes& slot = reading.slots.emplace_back(ssd::kUnit * chunks[0].shape.units());
    chunks[0].slots.emplace_back(slot.data(), slot.size().value);
  }
  chunks[0].arrived = [this, ticket](uint32_t shard, uint32_t layers) {
    const Reading& of = reading_.at(ticket);
    verdict_.Expect(of.given_up || MayBe(of, shard, layers), kNoWrongBytes,
                    absl::StrCat("layers that have arrived of chunk ", of.name.first, "/", of.name.second));
  };
  Note(absl::StrCat("read ", name.first, "/", name.second, " ticket ", ticket));
  store_->Read(std::move(chunks));
}

void StoreWorld::Read(Ticket ticket, absl::Status status) {
  auto node = reading_.extract(ticket);
  if (!verdict_.Expect(!node.empty(), kOneAnswer, absl::StrCat("read ", ticket, " was answered twice"))) return;
  Note(absl::StrCat("has read ", ticket, " ", absl::StatusCodeToString(status.code())), std::string(status.message()));
  const Reading& reading = node.mapped();
  if (!BeingRead(reading.name) && given_up_.erase(reading.name) > 0 && !reading.given_up && !reading.replaced)
    return FreeOne(reading.name);
  if (reading.given_up || absl::IsCancelled(status)) return;
  const std::string what = absl::StrCat("chunk ", reading.name.first, "/", reading.name.second);
  if (status.ok() || options_.plant == Plant::kUnchecked) {
    ++coverage_.read;
    for (uint32_t shard = 0; shard < shards_; ++shard)
      verdict_.Expect(MayBe(reading, shard, ShapeOf(reading.codec).runs()), kNoWrongBytes,
                      absl::StrCat(what, ", shard ", shard));
    return;
  }
  ++(absl::IsDataLoss(status) ? coverage_.damaged_reads : coverage_.failed_reads);
  const auto known = known_.find(reading.name);
  if (known == known_.end() || reading.replaced) return;
  // A disk that fails may refuse any read, but has nothing else there than it should.
  const History& history = histories_[reading.name];
  const bool was_durable = history.durable.has_value() && history.places == known->second.places;
  const bool may_fail = !was_durable || (kind_ == Kind::kFailing && absl::IsUnavailable(status)) ||
                        MayBeLost(known->second.places) || (history.back && absl::IsDataLoss(status));
  verdict_.Expect(may_fail, kSurvives, absl::StrCat(what, " can't be read: ", status.ToString()));
  if (BeingRead(reading.name)) return;
  if (absl::IsUnavailable(status)) return LeaveOne(reading.name);
  FreeOne(reading.name);
}

void StoreWorld::LeaveOne(const Name& name) {
  ++coverage_.left;
  Note(absl::StrCat("leave ", name.first, "/", name.second));
  History& history = histories_[name];
  history.durable.reset();  // it may be wanted back without a word
  left_[name] = history.was_durable + 1;
  auto node = known_.extract(name);
  store_->Leave(IdOf(name), ShapeOf(node.mapped().codec).units(), std::move(node.mapped().places));
}

void StoreWorld::FreeOne(const Name& name) {
  ++coverage_.freed;
  Note(absl::StrCat("free ", name.first, "/", name.second));
  histories_[name].durable.reset();
  auto node = known_.extract(name);
  store_->Free(IdOf(name), ShapeOf(node.mapped().codec).units(), std::move(node.mapped().places));
}

void StoreWorld::Clear(std::optional<uint32_t> space) {
  Note(absl::StrCat("clear ", space ? absl::StrCat(*space) : "all"));
  const auto is_in = [space](const Name& name) { return !space || name.first == *space; };
  std::map<Name, uint64_t> below;  // is gone when it is done
  for (auto& [name, history] : histories_) {
    if (!is_in(name)) continue;
    history.durable.reset();
    below[name] = history.next;
  }
  for (auto& [ticket, writing] : writing_) writing.cleared |= is_in(writing.name);
  for (auto& [ticket, reading] : reading_) reading.given_up |= is_in(reading.name);
  std::vector<std::pair<Name, Known>> gone;
  for (auto it = known_.begin(); it != known_.end();) {
    const bool goes = is_in(it->first);
    if (goes) gone.emplace_back(it->first, std::move(it->second));
    it = goes ? known_.erase(it) : std::next(it);
  }
  const auto forget = [this, below = std::move(below)] {
    for (const auto& [name, version] : below) histories_[name].cleared = std::max(histories_[name].cleared, version);
  };
  for (uint32_t s = 0; s < numbers_.size(); ++s) {
    if (!space || *space == s) cleared_spaces_.insert(s);
  }
  if (options_.plant == Plant::kClearTooEarly) forget();
  ++clears_running_;
  store_->Clear(space ? std::optional(numbers_[*space]) : std::nullopt, [this, forget](const absl::Status& status) {
    --clears_running_;
    Note(absl::StrCat("cleared ", absl::StatusCodeToString(status.code())), std::string(status.message()));
    verdict_.Expect(kind_ != Kind::kHonest || !absl::IsUnavailable(status), kServesAgain,
                    absl::StrCat("a clear fails: ", status.message()));
    if (!status.ok()) return;
    ++coverage_.cleared;
    forget();
  });
  for (auto& [name, known] : gone) store_->Free(IdOf(name), ShapeOf(known.codec).units(), std::move(known.places));
}

// The owner clears one chunk: reads of it may go on until its places are freed, which comes at once or later.
void StoreWorld::Hide(const Name& name) {
  Note(absl::StrCat("hide ", name.first, "/", name.second));
  History& history = histories_[name];
  const uint64_t below = history.next;
  history.durable.reset();
  for (auto& [ticket, writing] : writing_) writing.cleared |= writing.name == name;
  std::map<Name, uint64_t> hidden;
  for (const auto& [left, version] : left_) {
    if (left.first == name.first) hidden[left] = version;
  }
  hidden[name] = below;
  ++clears_running_;
  store_->Hide(numbers_[name.first], {IdOf(name)}, [this, hidden](const absl::Status& status) {
    --clears_running_;
    Note(absl::StrCat("hidden ", absl::StatusCodeToString(status.code())), std::string(status.message()));
    verdict_.Expect(kind_ != Kind::kHonest || !absl::IsUnavailable(status), kServesAgain,
                    absl::StrCat("a chunk can't be hidden: ", status.message()));
    if (!status.ok()) return;
    ++coverage_.hidden;
    for (const auto& [of, version] : hidden) histories_[of].hidden = std::max(histories_[of].hidden, version);
  });
  hidden_now_.insert(name);
  if (!known_.contains(name) || BeingRead(name)) return;
  auto node = known_.extract(name);
  store_->Free(IdOf(name), ShapeOf(node.mapped().codec).units(), std::move(node.mapped().places));
}

void StoreWorld::NotePin(uint32_t pin) {
  PinHistory& history = pins_[pin];
  const uint64_t version = history.over.size();
  history.over.push_back(prng_.Percent(30));
  Note(absl::StrCat("note pin ", pin, history.over.back() ? " over" : ""));
  ssd::PinChange change{{.space = numbers_[0], .name = std::to_string(pin), .description = std::to_string(version)},
                        history.over.back()};
  store_->NotePins({std::move(change)});
  pins_now_.insert(pin);
  ++notes_running_;
  store_->SettlePins([this, pin, version](const absl::Status& status) {
    --notes_running_;
    Note(absl::StrCat("noted ", absl::StatusCodeToString(status.code())), std::string(status.message()));
    if (!status.ok()) return;
    ++coverage_.pins_noted;
    pins_[pin].durable = std::max(pins_[pin].durable, version);
  });
}

void StoreWorld::FoundPins(std::vector<ssd::PinRow> pins, bool) {
  verdict_.Expect(!recovered_ && pins_found_.empty(), kOneAnswer, "pins are told of twice, or too late");
  for (const ssd::PinRow& row : pins)
    pins_found_[static_cast<uint32_t>(std::stoul(row.name))] = std::stoull(row.description);
}

// Each use is of another chunk, by which it is known again.
void StoreWorld::NoteUses() {
  if (prng_.Percent(20)) ++period_;
  ssd::UsesNote note{std::max(period_ - static_cast<int32_t>(prng_.Below(3)), -2), Bytes{uses_.size()}, {}};
  for (uint32_t n = prng_.Below(4); n > 0; --n) {
    note.chunks.push_back({numbers_[0], 0, ssd::DigestOf<ChunkKey>(uses_.size())});
    uses_.push_back(first_ + note.period);
    ++coverage_.uses_noted;
  }
  Note(absl::StrCat("note ", note.chunks.size(), " uses in period ", note.period));
  std::vector<ssd::UsesNote> notes;
  notes.push_back(std::move(note));
  store_->NoteUses(std::move(notes));
}

// Some of what was noted, as long ago as it was: which period the store has taken for the last one that ran the uses themselves must agree upon.
void StoreWorld::FoundUses(std::vector<ssd::UsesNote> notes) {
  std::optional<int32_t> first;
  for (const ssd::UsesNote& note : notes) {
    verdict_.Expect(note.period <= 0 && note.period > -static_cast<int32_t>(ssd::UseRows::kPeriods), kSurvives,
                    absl::StrCat("uses of period ", note.period, " are found"));
    for (const ssd::ChunkUse& use : note.chunks) {
      uint64_t n = 0;
      while (n < uses_.size() && ssd::DigestOf<ChunkKey>(n) != use.key) ++n;
      if (kind_ == Kind::kLying) continue;  // rows are spoilt, and catalogs older than they say
      if (!verdict_.Expect(n < uses_.size() && uses_found_.insert(n).second, kNothingHalfDone,
                           "a use is found twice, or was never noted"))
        continue;
      ++coverage_.uses_found;
      if (!first.has_value()) first = uses_[n] - note.period;
      verdict_.Expect(uses_[n] - note.period == *first, kSurvives,
                      absl::StrCat("use ", n, " of period ", uses_[n], " is found in period ", note.period));
    }
  }
  // What has been noted in this life already goes on from there.
  const int32_t before = std::exchange(first_, first.value_or(first_));
  for (uint64_t n = uses_at_start_; n < uses_.size(); ++n) uses_[n] += first_ - before;
}

void StoreWorld::CheckUses(const ssd::Recovery& recovery) {
  for (const uint64_t n : uses_due_) {
    verdict_.Expect(recovery.rebuilt || uses_found_.contains(n), kSurvives,
                    absl::StrCat("use ", n, " of period ", uses_[n], " was noted before a clean end and isn't found"));
  }
}

void StoreWorld::CheckPins(const ssd::Recovery& recovery) {
  if (kind_ == Kind::kLying) return;  // rows are spoilt, and catalogs older than they say
  coverage_.pins_found += pins_found_.size();
  for (auto& [pin, history] : pins_) {
    const auto it = pins_found_.find(pin);
    if (pins_now_.contains(pin)) continue;
    if (recovery.rebuilt) history.durable = 0;  // what the catalog alone knew may be lost
    if (it != pins_found_.end()) {
      const uint64_t version = it->second;
      verdict_.Expect(version >= history.durable && version < history.over.size() && !history.over[version], kSurvives,
                      absl::StrCat("pin ", pin, " is found in version ", version, ", and was noted in ", history.durable));
      continue;
    }
    const auto may_be = std::find(history.over.begin() + static_cast<ptrdiff_t>(history.durable), history.over.end(), true);
    verdict_.Expect(recovery.rebuilt || may_be != history.over.end(), kSurvives,
                    absl::StrCat("pin ", pin, " was noted in version ", history.durable, " and isn't found"));
  }
}

void StoreWorld::Writable(bool writable, const std::string& why) {
  Note(absl::StrCat("writable ", writable), why);
  writable_ = writable;
}

bool StoreWorld::Found(std::vector<ssd::FoundSpace> spaces, std::vector<ssd::FoundChunk> chunks) {
  for (const ssd::FoundSpace& space : spaces) {
    const auto known = std::find(numbers_.begin(), numbers_.end(), space.number);
    if (kind_ == Kind::kLying && known == numbers_.end()) continue;  // its row was damaged once: it has another number now
    verdict_.Expect(known != numbers_.end() &&
                        space.digest == ssd::DigestOf<SpaceDigest>(1000 + static_cast<uint64_t>(known - numbers_.begin())),
                    kTenantsApart, "a space has another one's number");
  }
  for (ssd::FoundChunk& chunk : chunks) {
    if (std::find(numbers_.begin(), numbers_.end(), chunk.id.space) == numbers_.end()) {
      store_->Free(chunk.id, chunk.units, std::move(chunk.places));
      continue;
    }
    const Name name = NameOf(chunk.id);
    History& history = histories_[name];
    Note(absl::StrCat("found ", name.first, "/", name.second), In(chunk.places));
    ++coverage_.found;
    if (chunk.id.position < last_position_) ++found_backwards_;
    last_position_ = chunk.id.position;
    verdict_.Expect(kind_ == Kind::kLying || history.cleared < history.next, kClearedIsGone,
                    absl::StrCat("chunk ", name.first, "/", name.second, " is found"));
    verdict_.Expect(chunk.places.size() == shards_ && chunk.units == ShapeOf(chunk.codec).units(), kNothingHalfDone,
                    "a chunk is found in another shape");
    // (What is hidden while a load runs may have been on its way here before.)
    if (history.hidden >= history.next && !hidden_now_.contains(name)) hidden_found_.insert(name);
    if (hidden_now_.contains(name)) {
      store_->Free(chunk.id, chunk.units, std::move(chunk.places), /*replaced=*/known_.contains(name));
    } else if (cleared_spaces_.contains(name.first)) {
      store_->Free(chunk.id, chunk.units, std::move(chunk.places), /*replaced=*/known_.contains(name));
    } else if (known_.contains(name)) {
      store_->Free(chunk.id, chunk.units, std::move(chunk.places), /*replaced=*/true);
    } else {
      // What was freed or cleared before that was durable is back.
      const bool same = history.places == chunk.places && history.next == history.was_durable + 1;
      if (same && history.was_durable >= history.cleared) {
        history.back |= !history.durable.has_value();
        history.durable = history.was_durable;
      }
      known_[name] = {std::move(chunk.places), chunk.codec};
    }
  }
  return true;
}

void StoreWorld::Recovered(const ssd::Recovery& recovery) {
  Note(absl::StrCat("recovered ", absl::StatusCodeToString(recovery.status.code()), recovery.rebuilt ? " rebuilt " : " ",
                    recovery.chunks),
       recovery.message);
  recovered_ = true;
  // A rebuild behind a load that has found damage begins anew.
  verdict_.Expect(found_backwards_ <= (recovery.rebuilt ? 1 : 0), kSurvives,
                  "a chunk was found before one that may be its parent");
  if (recovery.rebuilt) {
    ++coverage_.rebuilds;
    for (auto& [name, history] : histories_) history.hidden = 0;
  } else {
    verdict_.Expect(kind_ == Kind::kLying || hidden_found_.empty(), kClearedIsGone,
                    absl::StrCat(hidden_found_.size(), " chunks that were hidden are found"));
  }
  if (!recovery.status.ok()) {
    verdict_.Expect(kind_ != Kind::kHonest || absl::IsCancelled(recovery.status), kServesAgain,
                    absl::StrCat("recovery fails: ", recovery.status.message()));
    return;
  }
  CheckPins(recovery);
  CheckUses(recovery);
  coverage_.adopted += recovery.adopted;
  for (const auto& [name, history] : histories_) {
    if (!history.durable || MayBeLost(history.places)) continue;
    ++coverage_.looked_for;
    verdict_.Expect(known_.contains(name), kSurvives,
                    absl::StrCat("chunk ", name.first, "/", name.second, " was called durable in version ", *history.durable,
                                 " and isn't found"));
  }
}

void StoreWorld::WantsBack(std::vector<ssd::PlaceWanted> records) {
  ++coverage_.wanted_back;
  for (const ssd::PlaceWanted& record : records) {
    const Name name = NameOf(record.id);
    const auto known = known_.find(name);
    if (known == known_.end() || known->second.places.size() <= record.shard ||
        known->second.places[record.shard] != record.place || BeingRead(name))
      continue;
    if (prng_.Percent(60)) {
      FreeOne(name);
    } else {
      ++coverage_.written_again;
      BeginWrite(name, true);
    }
  }
}

void StoreWorld::Damaged(std::vector<ssd::PlaceWanted>) {}

void StoreWorld::GivenUp(std::vector<ssd::PlaceWanted> records) {
  for (const ssd::PlaceWanted& record : records) {
    const Name name = NameOf(record.id);
    const auto known = known_.find(name);
    if (known == known_.end() || known->second.places.size() <= record.shard ||
        known->second.places[record.shard] != record.place)
      continue;
    ++coverage_.given_up;
    if (BeingRead(name)) {
      given_up_.insert(name);
    } else {
      FreeOne(name);
    }
  }
}

}  // namespace kvist::sim

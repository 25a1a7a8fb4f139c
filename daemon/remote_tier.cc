#include "daemon/remote_tier.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <span>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "daemon/kv_shape.h"
#include "daemon/shard_codec.h"
#include "storage/base/clock.h"
#include "storage/base/kept_file.h"
#include "storage/base/status.h"
#include "storage/pool/slot_header.h"

namespace kvist::daemon {
namespace {

using remote::Found;
using remote::Identity;
using remote::Outcome;
using remote::SealedStore;
using remote::Verdict;

// How long what a marker says is believed: so late a node sees another one's clear.
constexpr absl::Duration kMarkerFresh = absl::Seconds(1);
constexpr absl::Duration kAskAtLeast = absl::Milliseconds(1);
constexpr absl::Duration kProbeEvery = absl::Milliseconds(500);
constexpr uint16_t kProbed = 8;  // objects at once
constexpr absl::Duration kLookEvery = absl::Seconds(2);
// What is read by one batch, whose chunks are there when all are: enough for a store to answer many small ones at once.
constexpr Bytes kBatch = MiB(4);
// No space has so many groups: an object of it is a marker.
constexpr GroupId kMarkerGroup{UINT16_MAX};
// Objects are removed in parts of what the store takes at a time, which leave room for others.
constexpr uint64_t kRemovedShare = 16;
constexpr size_t kCountedMost = 1024;        // as the core asks for at most
using MarkerBody = std::array<uint64_t, 1>;  // the number

Bytes PayloadOf(const core::GroupSpec& group) { return group.layer_bytes * group.layers; }

std::string KeyOf(const SpaceDigest* space) {
  if (space == nullptr) return "";
  return {reinterpret_cast<const char*>(space->bytes.data()), space->bytes.size()};
}

std::optional<SpaceDigest> SpaceOf(const std::string& key) {
  if (key.empty()) return std::nullopt;
  SpaceDigest space;
  std::memcpy(space.bytes.data(), key.data(), key.size());
  return space;
}

const SpaceDigest* PointerTo(const std::optional<SpaceDigest>& space) { return space.has_value() ? &*space : nullptr; }

absl::Status FirstError(const std::vector<Outcome>& outcomes) {
  for (const Outcome& outcome : outcomes) KVIST_RETURN_IF_ERROR(outcome.status);
  return absl::OkStatus();
}

// Of questions: OK also when some servers of the store couldn't be reached, as long as others answered. What those have isn't there.
absl::Status ErrorOfAll(const std::vector<Outcome>& outcomes) {
  const bool any = std::any_of(outcomes.begin(), outcomes.end(), [](const Outcome& outcome) { return outcome.status.ok(); });
  for (const Outcome& outcome : outcomes) {
    if (!any || !absl::IsUnavailable(outcome.status)) KVIST_RETURN_IF_ERROR(outcome.status);
  }
  return absl::OkStatus();
}

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

// A question of the core's, or of an operator.
struct RemoteTier::Asking {
  SpaceDigest space;
  uint16_t groups = 0;
  std::vector<ChunkKey> keys;
  absl::Time deadline;
  std::function<void(absl::Status status, std::vector<bool> there)> done;

  absl::Mutex mutex;
  Generation generation;  // that was asked for
  int parts = 0;          // that aren't answered yet
  absl::Status status;
  std::vector<bool> there;
};

// Chunks that are being removed.
struct RemoteTier::Forgetting {
  core::RemoteForgotten forgotten;
  std::vector<Identity> identities = {};  // of first shards: without them there is nothing
  Bytes longest{};
  size_t next = 0;
  absl::Status status{};  // the first error
};

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

absl::StatusOr<std::unique_ptr<RemoteTier>> RemoteTier::Open(Options options, std::unique_ptr<remote::RemoteStore> store) {
  RemoteGenerations generations;
  if (!options.generations.empty()) { KVIST_ASSIGN_OR_RETURN(generations, RemoteGenerations::Open(options.generations)); }
  KVIST_ASSIGN_OR_RETURN(std::unique_ptr<remote::GuardedStore> guarded,
                         remote::GuardedStore::Create(std::move(store), options.guard));
  auto tier = absl::WrapUnique(new RemoteTier(std::move(options), std::move(generations)));
  {
    const absl::MutexLock lock(&tier->mutex_);
    for (const std::string& space : tier->generations_.Cleared()) tier->markers_[space].untold = true;
  }
  tier->guard_ = guarded.get();
  tier->store_ = std::make_unique<SealedStore>(std::move(guarded), tier->options_.sealing);
  return tier;
}

RemoteTier::~RemoteTier() {
  for (TaskThread* thread : {&asks_, &works_, &decodes_, &recodes_}) thread->Stop();
}

void RemoteTier::Start() {
  asks_.Start([this] { return LookAfter(); });
  for (TaskThread* thread : {&works_, &decodes_, &recodes_}) thread->Start({});
}

RemoteTier::Status RemoteTier::status() const {
  Status status;
  status.name = options_.name;
  status.where = options_.where;
  status.encrypted = options_.sealing.encrypt;
  status.load = store_->load();
  status.guard = guard_->figures();
  status.verdicts = store_->verdicts();
  const absl::MutexLock lock(&mutex_);
  status.reachable = reachable_;
  status.why_not = reachable_ ? "" : why_not_;
  status.waiting_reads = reads_.size();
  status.written = written_;
  status.read = read_;
  return status;
}

// ---- Whether it answers -----------------------------------------------------------------------------------------------------

absl::Duration RemoteTier::LookAfter() {
  bool reachable = false, untold = false, unkept = false;
  std::vector<std::function<void()>> recode;
  {
    const absl::MutexLock lock(&mutex_);
    recode.swap(recode_later_);
    reachable = reachable_;
    unkept = !unkept_.empty();
    for (const auto& [space, marker] : markers_) untold = untold || marker.untold;
  }
  if (unkept) works_.Post([this] { KeepGenerations(); });
  for (std::function<void()>& task : recode) recodes_.Post(std::move(task));
  if (!reachable) {
    Probe();
    return kProbeEvery;
  }
  if (untold) TellMarkers();
  return kLookEvery;  // a put may fail later, or the file
}

// Whether it answers at all: it is asked for objects that needn't be there, several, so that not one server of a store decides.
void RemoteTier::Probe() {
  std::array<Identity, kProbed> any;
  any.fill(MarkerOf(nullptr));
  for (uint16_t i = 0; i < kProbed; ++i) any[i].shard = Rank{i};
  const absl::Status asked =
      store_->Exists(any, MonotonicNow() + options_.read_for, [this](const std::vector<Outcome>& outcomes) {
        const absl::Status status = ErrorOfAll(outcomes);
        if (!status.ok()) return Note(status);
        SayReachable(true, "");
      });
  if (!asked.ok()) Note(asked);
}

void RemoteTier::Note(const absl::Status& status) {
  if (status.ok() || absl::IsResourceExhausted(status)) return;
  // One answer that is late or an error says nothing of the next; the breaker counts them.
  const bool closed = guard_->figures().breaker == remote::Breaker::State::kClosed;
  bool reachable = false;
  {
    const absl::MutexLock lock(&mutex_);
    reachable = reachable_;
    if (!reachable) why_not_ = std::string(status.message());
  }
  if (reachable && !closed) SayReachable(false, std::string(status.message()));
}

void RemoteTier::SayReachable(bool reachable, std::string why_not) {
  {
    const absl::MutexLock lock(&mutex_);
    if (reachable_ == reachable) return;
    reachable_ = reachable;
    why_not_ = why_not;
    ear_->Say(core::RemoteReachable{reachable});  // here, so that the core hears of both in their order
  }
  asks_.Wake();
  // A log may take its time, and the reactor wants the mutex.
  if (reachable) {
    spdlog::info("remote:{} answers: {}", options_.name, options_.where);
  } else {
    spdlog::warn("remote:{} isn't asked until it answers again: {}", options_.name, why_not);
  }
}

// ---- Generations ------------------------------------------------------------------------------------------------------------

std::shared_ptr<const RemoteTier::Shapes> RemoteTier::ShapesOf(const core::SpaceSpec& space) {
  const std::string key = KeyOf(&space.digest);
  const absl::MutexLock lock(&mutex_);
  std::shared_ptr<const Shapes>& known = shapes_[key];
  if (known != nullptr) return known;
  known = std::make_shared<const Shapes>(daemon::ShapesOf(space));
  return known;
}

SpaceDigest RemoteTier::NameOf(const SpaceDigest& space) {
  const absl::MutexLock lock(&mutex_);
  return RemoteGenerations::NameIn(space, generations_.Of(space));
}

Identity RemoteTier::MarkerOf(const SpaceDigest* space) const {
  Identity marker{};
  if (space != nullptr) marker.space = *space;
  marker.group = kMarkerGroup;
  return marker;
}

void RemoteTier::Clear(const core::SpaceSpec* space, core::SpaceCleared cleared) {
  const SpaceDigest* digest = space != nullptr ? &space->digest : nullptr;
  {
    const absl::MutexLock lock(&mutex_);
    // Most likely above what other nodes have set; what is read says whether it is.
    generations_.Raise(digest, std::max<uint64_t>(generations_.Number(digest) + 1, absl::ToUnixMicros(absl::Now())));
    Marker& marker = markers_[KeyOf(digest)];
    marker.untold = true;
    marker.cleared = MonotonicNow();
    unkept_.push_back({cleared.job, digest != nullptr ? std::optional(*digest) : std::nullopt, generations_.Number(digest)});
  }
  works_.Post([this] { KeepGenerations(); });
  asks_.Wake();
}

void RemoteTier::KeepGenerations() {
  RemoteGenerations now;
  {
    const absl::MutexLock lock(&mutex_);
    now = generations_;
  }
  const absl::Status kept = options_.generations.empty() ? absl::OkStatus() : KeepFile(options_.generations, now.Text());
  bool failed_before = false;
  {
    const absl::MutexLock lock(&mutex_);
    failed_before = std::exchange(file_fails_, !kept.ok());
    if (kept.ok()) SayKept([&now](const Unkept& clear) { return clear.number <= now.Number(PointerTo(clear.space)); });
  }
  if (!kept.ok() && !failed_before) {
    spdlog::error("what was cleared may be found again in remote:{} after a restart, for it couldn't be noted: {}",
                  options_.name, std::string(kept.message()));
  }
}

void RemoteTier::SayKept(const std::function<bool(const Unkept& clear)>& which) {
  std::erase_if(unkept_, [this, &which](const Unkept& clear) {
    if (!which(clear)) return false;
    ear_->Say(core::ClearKept{clear.job, core::Tier::kRemote});
    return true;
  });
}

absl::Status RemoteTier::HearMarker(const SpaceDigest* space, const SealedStore::Got& got, absl::Time asked) {
  KVIST_RETURN_IF_ERROR(got.status);
  // What isn't one tells nothing: were it taken for none, what was cleared could be found.
  if (got.verdict != Verdict::kGood && got.verdict != Verdict::kMissing)
    return absl::DataLossError(absl::StrCat("a marker of the remote store is ", remote::NameOf(got.verdict)));
  const uint64_t number = got.verdict == Verdict::kGood ? got.said.epoch : 0;
  bool raised = false, tell = false;
  {
    const absl::MutexLock lock(&mutex_);
    Marker& marker = markers_[KeyOf(space)];
    raised = generations_.Raise(space, marker.cleared.has_value() ? number + 1 : number);
    if (raised) ear_->Say(core::RemoteCleared{space != nullptr ? std::optional(*space) : std::nullopt});
    if (marker.cleared < asked) marker.cleared.reset();
    marker.read = asked;
    marker.untold = number < generations_.Number(space);
    tell = marker.untold && !marker.telling;
    if (!marker.untold) SayKept([space](const Unkept& clear) { return KeyOf(PointerTo(clear.space)) == KeyOf(space); });
  }
  if (raised) works_.Post([this] { KeepGenerations(); });
  if (tell) asks_.Wake();
  return absl::OkStatus();
}

void RemoteTier::TellMarkers() {
  std::vector<std::optional<SpaceDigest>> untold;
  {
    const absl::MutexLock lock(&mutex_);
    for (auto& [key, marker] : markers_) {
      if (!marker.untold || marker.telling) continue;
      marker.telling = true;
      untold.push_back(SpaceOf(key));
    }
  }
  for (const std::optional<SpaceDigest>& space : untold) TellMarker(space);
}

void RemoteTier::TellMarker(std::optional<SpaceDigest> space) {
  const auto body = std::make_shared<MarkerBody>();
  const auto answered = [this, space, body, asked = MonotonicNow()](const SealedStore::Got& got) {
    Note(got.status);
    const absl::Status heard = HearMarker(PointerTo(space), got, asked);
    uint64_t number = 0;
    {
      const absl::MutexLock lock(&mutex_);
      Marker& marker = markers_[KeyOf(PointerTo(space))];
      // Only a clear is put over what is no marker: by any other number what a later clear took could be found again.
      const bool over_none = absl::IsDataLoss(heard) && marker.cleared.has_value() && *marker.cleared < asked;
      marker.telling = marker.untold && (over_none || (heard.ok() && !marker.cleared.has_value()));
      if (marker.telling) number = generations_.Number(PointerTo(space));
      if (heard.ok() && marker.cleared.has_value()) asks_.Wake();  // once more: it was cleared meanwhile
    }
    if (number > 0) PutMarker(space, number);
  };
  const SealedStore::Get get{MarkerOf(PointerTo(space)), 0, std::as_writable_bytes(std::span(*body))};
  const absl::Status taken = store_->Submit({&get, 1}, MonotonicNow() + options_.read_for,
                                            [answered](const std::vector<SealedStore::Got>& got) { answered(got.front()); });
  if (!taken.ok()) answered({.status = taken});
}

void RemoteTier::PutMarker(std::optional<SpaceDigest> space, uint64_t number) {
  const auto body = std::make_shared<MarkerBody>(MarkerBody{number});
  const SealedStore::Put put{MarkerOf(PointerTo(space)), {.epoch = number}, std::as_bytes(std::span(*body))};
  // It stays untold: another node may have put a smaller one at the same time, so it is read again, by the next look at the latest.
  const auto told = [this, space, number, body](const absl::Status& status) {
    Note(status);
    const absl::MutexLock lock(&mutex_);
    markers_[KeyOf(PointerTo(space))].telling = false;
    if (status.ok() && number < generations_.Number(PointerTo(space))) asks_.Wake();
  };
  const absl::Status taken = store_->Submit({&put, 1}, MonotonicNow() + options_.write_for,
                                            [told](const std::vector<absl::Status>& statuses) { told(statuses.front()); });
  if (!taken.ok()) told(taken);
}

// ---- Asking -----------------------------------------------------------------------------------------------------------------

void RemoteTier::Ask(const core::SpaceSpec& space, core::RemoteAsked asked) {
  auto asking = std::make_shared<Asking>();
  asking->space = space.digest;
  asking->groups = static_cast<uint16_t>(space.groups.size());
  asking->keys = std::move(asked.keys);
  // One wait for all that is asked for a lookup.
  asking->deadline = asked.patient ? MonotonicNow() + options_.read_for
                                   : std::max(asked.since + options_.ask_for, MonotonicNow() + kAskAtLeast);
  asking->done = [this, ask = asked.ask](absl::Status status, std::vector<bool> there) {
    Note(status);
    ear_->Say(core::RemoteFound{ask, std::move(status), std::move(there)});
  };
  asks_.Post([this, asking] { AskStore(asking); });
}

absl::StatusOr<uint32_t> RemoteTier::Count(const core::SpaceSpec& space, std::vector<ChunkKey> keys, absl::Time deadline) {
  {
    const absl::MutexLock lock(&mutex_);
    if (!reachable_) return absl::UnavailableError(absl::StrCat("remote:", options_.name, ": ", why_not_));
  }
  struct Answer {
    absl::Notification said;
    absl::Status status;
    std::vector<bool> there;
  };
  const auto answer = std::make_shared<Answer>();
  auto asking = std::make_shared<Asking>();
  asking->space = space.digest;
  asking->groups = static_cast<uint16_t>(space.groups.size());
  keys.resize(std::min(keys.size(), kCountedMost / space.groups.size()));
  asking->keys = keys;
  asking->deadline = std::min(deadline, MonotonicNow() + options_.read_for);
  asking->done = [answer](absl::Status status, std::vector<bool> there) {
    answer->status = std::move(status);
    answer->there = std::move(there);
    answer->said.Notify();
  };
  asks_.Post([this, asking] { AskStore(asking); });
  if (!answer->said.WaitForNotificationWithTimeout(deadline - MonotonicNow()))
    return absl::UnavailableError(absl::StrCat("remote:", options_.name, " didn't answer"));
  KVIST_RETURN_IF_ERROR(answer->status);
  auto count = static_cast<uint32_t>(keys.size());
  for (uint32_t g = 0; g < space.groups.size(); ++g) {
    for (uint32_t k = 0; space.groups[g].reuse.chained() && k < count; ++k) {
      if (!answer->there[g * keys.size() + k]) count = k;
    }
  }
  return count;
}

void RemoteTier::Forget(const core::SpaceSpec& space, core::RemoteForgotten forgotten) {
  const auto forgetting = std::make_shared<Forgetting>();
  forgetting->forgotten = std::move(forgotten);
  const std::vector<ChunkKey>& keys = forgetting->forgotten.keys;
  const SpaceDigest name = NameOf(space.digest);
  for (const core::GroupSpec& group : space.groups) forgetting->longest = std::max(forgetting->longest, PayloadOf(group));
  const auto groups = static_cast<uint16_t>(space.groups.size());
  for (uint16_t group = 0; group < groups; ++group) {
    for (const ChunkKey& key : keys) forgetting->identities.push_back({name, key, GroupId{group}, Rank{0}});
  }
  std::function<void()> remove = [this, forgetting] { RemoveSome(forgetting); };
  // What is being encoded anew would be written back.
  bool recodes = false;
  {
    const absl::MutexLock lock(&mutex_);
    for (const auto& [job, known] : recodings_) {
      const std::shared_ptr<RemoteRecoding> recoding = known.lock();
      if (recoding == nullptr) continue;
      recodes = true;
      remove = [recoding, forgetting, then = std::move(remove)] { recoding->Leave(forgetting->forgotten.keys, then); };
    }
  }
  (recodes ? recodes_ : asks_).Post(std::move(remove));
}

void RemoteTier::RemoveSome(const std::shared_ptr<Forgetting>& forgetting) {
  const std::span<const Identity> left = std::span(forgetting->identities).subspan(forgetting->next);
  const auto most = static_cast<size_t>(std::max<uint64_t>(options_.guard.limits.operations / kRemovedShare, 1));
  const std::span<const Identity> some = left.first(std::min(left.size(), most));
  forgetting->next += some.size();
  const auto ended = [this, forgetting](const absl::Status& of_some) {
    Note(of_some);
    forgetting->status.Update(of_some);
    if (forgetting->next < forgetting->identities.size()) return asks_.Post([this, forgetting] { RemoveSome(forgetting); });
    const absl::Status& status = forgetting->status;
    const core::RemoteForgotten& forgotten = forgetting->forgotten;
    if (!status.ok()) {
      spdlog::warn("{} chunks that were cleared or moved may be found in remote:{}, for they couldn't be removed: {}",
                   forgotten.keys.size(), options_.name, std::string(status.message()));
    }
    ear_->Say(core::RemoteForgot{forgotten.job, forgotten.space, forgotten.keys, status});
  };
  const absl::Status taken = store_->Remove(some, forgetting->longest, MonotonicNow() + options_.write_for,
                                            [ended](const std::vector<Outcome>& outcomes) { ended(FirstError(outcomes)); });
  if (!taken.ok()) ended(taken);
}

void RemoteTier::AskStore(const std::shared_ptr<Asking>& asking) {
  const bool fresh = MarkersAreFresh(asking->space);
  {
    const absl::MutexLock lock(&asking->mutex);
    asking->parts = fresh ? 1 : 2;
  }
  AskExists(asking);
  if (!fresh) ReadMarkers(asking);
}

bool RemoteTier::MayReadMarkers(const SpaceDigest& space) {
  const absl::MutexLock lock(&mutex_);
  Marker& marker = markers_[KeyOf(&space)];
  const absl::Time now = MonotonicNow();
  if (marker.asked > now - kMarkerFresh) return false;
  marker.asked = now;
  return true;
}

bool RemoteTier::MarkersAreFresh(const SpaceDigest& space) {
  const absl::MutexLock lock(&mutex_);
  const absl::Time since = MonotonicNow() - kMarkerFresh;
  return markers_[KeyOf(&space)].read > since && markers_[KeyOf(nullptr)].read > since;
}

void RemoteTier::AskExists(const std::shared_ptr<Asking>& asking) {
  std::vector<Identity> identities;
  identities.reserve(asking->groups * asking->keys.size());
  Generation generation;
  {
    const absl::MutexLock lock(&mutex_);
    generation = generations_.Of(asking->space);
  }
  {
    const absl::MutexLock lock(&asking->mutex);
    asking->generation = generation;
  }
  const SpaceDigest name = RemoteGenerations::NameIn(asking->space, generation);
  for (uint16_t group = 0; group < asking->groups; ++group) {
    for (const ChunkKey& key : asking->keys) identities.push_back({name, key, GroupId{group}, Rank{0}});
  }
  const auto answered = [this, asking](absl::Status status, const std::vector<Outcome>& outcomes) {
    {
      const absl::MutexLock lock(&asking->mutex);
      asking->status.Update(status);
      asking->there.clear();
      for (const Outcome& outcome : outcomes) asking->there.push_back(outcome.found == Found::kYes);
    }
    AskedPart(asking);
  };
  const absl::Status taken = store_->Exists(identities, asking->deadline, [answered](const std::vector<Outcome>& outcomes) {
    answered(ErrorOfAll(outcomes), outcomes);
  });
  if (!taken.ok()) answered(taken, {});
}

void RemoteTier::ReadMarkers(const std::shared_ptr<Asking>& asking) {
  struct Bodies {
    MarkerBody all{}, space{};
  };
  const auto bodies = std::make_shared<Bodies>();
  const SealedStore::Get gets[] = {
      {MarkerOf(nullptr), 0, std::as_writable_bytes(std::span(bodies->all))},
      {MarkerOf(&asking->space), 0, std::as_writable_bytes(std::span(bodies->space))},
  };
  const auto answered = [this, asking, bodies, asked = MonotonicNow()](absl::Status status,
                                                                       const std::vector<SealedStore::Got>& got) {
    const SpaceDigest* of[] = {nullptr, &asking->space};
    for (size_t i = 0; i < got.size(); ++i) status.Update(HearMarker(of[i], got[i], asked));
    {
      const absl::MutexLock lock(&asking->mutex);
      asking->status.Update(status);
    }
    AskedPart(asking);
  };
  const absl::Status taken =
      store_->Submit(gets, asking->deadline, [answered](const std::vector<SealedStore::Got>& got) { answered({}, got); });
  if (!taken.ok()) answered(taken, {});
}

void RemoteTier::AskedPart(const std::shared_ptr<Asking>& asking) {
  Generation now_counts;
  {
    const absl::MutexLock lock(&mutex_);
    now_counts = generations_.Of(asking->space);
  }
  absl::Status status;
  std::vector<bool> there;
  {
    const absl::MutexLock lock(&asking->mutex);
    if (--asking->parts > 0) return;
    if (asking->status.ok() && asking->generation != now_counts && !asking->keys.empty()) {
      // What was found is of a generation that was cleared.
      asking->parts = 1;
      asks_.Post([this, asking] { AskExists(asking); });
      return;
    }
    status = asking->status;
    there = std::move(asking->there);
  }
  if (!status.ok()) there.clear();
  asking->done(std::move(status), std::move(there));
}

// ---- Writing ----------------------------------------------------------------------------------------------------------------

void RemoteTier::Write(const core::SpaceSpec& space, core::WriteStarted write, Slots slots) {
  auto writing = std::make_shared<Writing>();
  writing->space = space.digest;
  writing->name = NameOf(space.digest);
  const Bytes payload = PayloadOf(space.groups[write.group.value]);
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

// ---- Encoding another way ---------------------------------------------------------------------------------------------------

void RemoteTier::Recode(const core::SpaceSpec& space, core::RecodeStarted started) {
  RemoteRecoding::Prompt prompt{.name = NameOf(space.digest),
                                .shapes = *ShapesOf(space),
                                .keys = std::move(started.keys),
                                .read_for = options_.read_for,
                                .write_for = options_.write_for};
  if (started.method != 0) prompt.method = static_cast<codec::Method>(started.method);
  for (const core::GroupSpec& group : space.groups) prompt.shards.push_back(group.shards());
  const auto recoding = std::make_shared<RemoteRecoding>(
      store_.get(), std::move(prompt), [this](std::function<void()> task) { recodes_.Post(std::move(task)); },
      [this](std::function<void()> task) {
        const absl::MutexLock lock(&mutex_);
        recode_later_.push_back(std::move(task));
      },
      [this, job = started.job](const RemoteRecoding::Tally& tally) {
        ear_->Say(core::Recoded{.job = job,
                                .done = tally.chunks + tally.already + tally.missing + tally.failed,
                                .chunks = tally.chunks,
                                .already = tally.already,
                                .left = tally.failed,
                                .bytes = tally.before,
                                .bytes_after = tally.after,
                                .loss = tally.loss,
                                .ended = tally.ended,
                                .status = tally.status});
      });
  std::vector<std::shared_ptr<RemoteRecoding>> others;
  {
    const absl::MutexLock lock(&mutex_);
    std::erase_if(recodings_, [](const auto& other) { return other.second.expired(); });
    for (const auto& [job, known] : recodings_) {
      if (std::shared_ptr<RemoteRecoding> other = known.lock()) others.push_back(std::move(other));
    }
    recodings_[started.job] = recoding;
  }
  recodes_.Post([recoding, others = std::move(others)] { recoding->Start(others); });
}

void RemoteTier::StopRecoding(core::JobId job) {
  std::shared_ptr<RemoteRecoding> recoding;
  {
    const absl::MutexLock lock(&mutex_);
    if (const auto known = recodings_.find(job); known != recodings_.end()) recoding = known->second.lock();
  }
  if (recoding != nullptr) recoding->Stop();
}

// ---- Reading ----------------------------------------------------------------------------------------------------------------

void RemoteTier::Read(std::vector<ChunkToRead> chunks) {
  for (const ChunkToRead& chunk : chunks) ShapesOf(*chunk.space);
  {
    const absl::MutexLock lock(&mutex_);
    for (ChunkToRead& chunk : chunks) {
      const SpaceDigest name = RemoteGenerations::NameIn(chunk.space->digest, generations_.Of(chunk.space->digest));
      const auto shapes = shapes_.find(KeyOf(&chunk.space->digest));
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
        const Bytes payload = PayloadOf(read.chunk.space->groups[what.group.value]);
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
    bytes += PayloadOf(chunk.chunk.space->groups[chunk.chunk.read.group.value]) * chunk.chunk.slots.size();
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
    const Bytes payload = PayloadOf(group);
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
  const Bytes bytes = PayloadOf(chunk.chunk.space->groups[read.group.value]) * chunk.chunk.slots.size();
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

#include "daemon/session/reactor.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "daemon/session/pacing.h"
#include "daemon/session/short_slice.h"
#include "storage/base/check.h"
#include "storage/base/clock.h"
#include "storage/base/shm/futex.h"
#include "storage/base/status.h"
#include "storage/base/usable_cpus.h"

namespace kvist::session {

absl::StatusOr<std::unique_ptr<Reactor>> Reactor::Create(Options options, core::Core* core, SlotMemory slots) {
  if (const std::vector<int> allowed = UsableCpus();
      options.cpu >= 0 && !std::binary_search(allowed.begin(), allowed.end(), options.cpu)) {
    return absl::InvalidArgumentError(absl::StrCat("session.reactor_cpu: this process may not run on CPU ", options.cpu,
                                                   ", only on ", PrintRanges(allowed)));
  }
  auto reactor = std::unique_ptr<Reactor>(new Reactor(std::move(options), core, std::move(slots)));
  KVIST_ASSIGN_OR_RETURN(reactor->doorbells_,
                         Doorbells::Create([raw = reactor.get()](SessionId session) { raw->Rung(session); }));
  return reactor;
}

Reactor::Reactor(Options options, core::Core* core, SlotMemory slots)
    : options_(std::move(options)), core_(*core), slots_(std::move(slots)), activity_(options_.tenants) {}

Reactor::~Reactor() { KVIST_CHECK(!thread_.joinable()); }

void Reactor::Start() {
  KVIST_CHECK(engine_ != nullptr);
  mover_ = std::make_unique<SlotMover>();
  thread_ = std::thread([this] { Loop(); });
  ::pthread_setname_np(thread_.native_handle(), "kvist-reactor");
}

void Reactor::Stop() {
  if (!thread_.joinable()) return;
  RunAndWait([this] {
    stopping_ = true;
    std::vector<SessionId> all;
    for (const auto& [id, session] : sessions_) all.push_back(id);
    for (const SessionId id : all) core_.Handle(core::SessionClosed{id}, &effects_);
    CarryOut();
  });
  thread_.join();
}

// ---- From other threads -----------------------------------------------------------------------------------------------------

void Reactor::Wake() {
  // An exchange, so that either Sleep sees a full inbox or this sees that it is awaited. seq_cst, as Sleep's last look: who has not been
  // seen there finds the session's word as Sleep left it.
  const uint32_t before = inbox_.exchange(static_cast<uint32_t>(Inbox::kFull), std::memory_order_seq_cst);
  if (before == static_cast<uint32_t>(Inbox::kEmpty)) return;
  // Who finds it full while the reactor still sleeps wakes it again: a client could have undone the first waking (see Sleep).
  if (before == static_cast<uint32_t>(Inbox::kFull) && !sleeps_.load(std::memory_order_relaxed)) return;
  std::shared_ptr<const shm::SessionMemory> memory;
  {
    absl::MutexLock lock(&inbox_mutex_);
    memory = sleeps_on_;
  }
  if (memory == nullptr) {
    shm::FutexWakeAll(&inbox_);
  } else {
    shm::RingConsumer::WakeFromWord(memory->header());
  }
}

void Reactor::SleepOn(const EngineSession* session) {
  const shm::SessionMemory* memory = session == nullptr ? nullptr : session->memory().get();
  if (stands_in_ == memory) return;
  stands_in_ = memory;
  absl::MutexLock lock(&inbox_mutex_);
  sleeps_on_ = session == nullptr ? nullptr : session->memory();
}

void Reactor::Run(std::function<void()> task) {
  {
    absl::MutexLock lock(&inbox_mutex_);
    if (stopped_) return;
    tasks_.push_back(std::move(task));
  }
  Wake();
}

void Reactor::CopyDone(OpId op, cuda::CopyEnd end) {
  const int64_t now = MonotonicNanos();
  {
    absl::MutexLock lock(&inbox_mutex_);
    copies_done_.push_back({op, std::move(end), now});
  }
  Wake();
}

void Reactor::Say(LowerTier::Event event) {
  Run([this, event = std::move(event)] { Hear(event); });
}

bool Reactor::RunAndWait(std::function<void()> task) {
  struct Ran {
    absl::Notification ended;
    bool ran = false;
  };
  const auto ran = std::make_shared<Ran>();
  // Also when the task is dropped: with its last copy.
  Run([ran, last = std::shared_ptr<void>(nullptr, [ran](void*) { ran->ended.Notify(); }), task = std::move(task)] {
    task();
    ran->ran = true;
  });
  while (!ran->ended.WaitForNotificationWithTimeout(kWakeAgain)) Wake();  // see Sleep
  return ran->ran;
}

bool Reactor::Tell(LowerTier::Event event) {
  return RunAndWait([this, event = std::move(event)] { Hear(event); });
}

std::optional<SpaceId> Reactor::FindSpace(const SpaceDigest& digest) {
  std::optional<SpaceId> found;
  RunAndWait([this, &found, &digest] { found = core_.FindSpace(digest); });
  return found;
}

void Reactor::Flush(std::function<void(const core::Flushed&)> flushed) {
  Run([this, flushed = std::move(flushed)] {
    const core::RequestTag tag{++next_flush_};
    flushes_.emplace(tag.value, flushed);
    core_.Handle(core::FlushAsked{std::nullopt, tag}, &effects_);
    CarryOut();
  });
}

void Reactor::Rung(SessionId session) {
  {
    absl::MutexLock lock(&inbox_mutex_);
    rung_.insert(session);
  }
  Wake();
}

void Reactor::Open(std::unique_ptr<EngineSession> session, std::function<void(absl::Status)> opened) {
  Run([this, session = std::make_shared<std::unique_ptr<EngineSession>>(std::move(session)), opened = std::move(opened)] {
    if (stopping_) return opened(absl::UnavailableError("kvistd is stopping"));
    EngineSession& s = **session;
    const SessionId id = s.identity().id;
    const Registration& registration = s.registration();
    ++tenants_[registration.space.tenant];
    sessions_.emplace(id, std::move(*session));
    opening_.emplace(id, opened);
    const uint32_t near = options_.region_near ? options_.region_near(registration.numa_node) : 0;
    core_.Handle(
        core::SessionOpened{id, registration.instance, registration.role, registration.rank, registration.space, near},
        &effects_);
    CarryOut();
  });
}

void Reactor::Close(SessionId id, std::function<void()> drained) {
  Run([this, id, drained = std::move(drained)] {
    if (Find(id) == nullptr) return drained();
    draining_[id].push_back(drained);
    std::erase_if(rounds_, [&](const Round& round) { return round.id == id; });
    core_.Handle(core::SessionClosed{id}, &effects_);
    CarryOut();
  });
}

void Reactor::WatchChunks(std::function<void(const core::ChunksChanged&)> changed) {
  KVIST_CHECK(!chunks_changed_);
  chunks_changed_ = std::move(changed);
  core_.Handle(core::ChunksWatched{}, &effects_);
  CarryOut();
}

// ---- The loop ---------------------------------------------------------------------------------------------------------------

void Reactor::Loop() {
  if (options_.cpu >= 0) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(options_.cpu, &set);
    ::sched_setaffinity(0, sizeof set, &set);  // Create has asked for the CPU; one that has gone since costs speed only
  }
  AskForShortSlices();  // where there are none it is a little slower
  Pacing pacing(MonotonicNanos());
  bool spin = false;
  // Asked once a turn: it looks at many things, and nothing of them changes while the reactor sleeps.
  bool work = core_.has_work();
  while (!(stopping_ && sessions_.empty())) {
    now_nanos_ = read_nanos_ != 0 ? std::exchange(read_nanos_, 0) : MonotonicNanos();
    pacing.Turn(now_nanos_);
    bool expired = false;
    if (work || now_nanos_ - ticked_nanos_ >= kTickNanos) {
      ticked_nanos_ = now_nanos_;
      // As much as was done for sessions: however busy they are, what a dead one held is reclaimed in time.
      const uint64_t start = core_.work();
      uint64_t before_tick = start;
      do {
        before_tick = core_.work();
        core_.Handle(core::Tick{FromMonotonicNanos(now_nanos_)}, &effects_);
        expired |= !effects_.empty();
        CarryOut();
        // A Tick that has done nothing won't do more when it is called again.
      } while (core_.has_work() && core_.work() > before_tick && core_.work() - start < turn_work_);
    }
    const uint64_t before = core_.work();
    if (spin) Look();
    const bool inbox = TakeInbox();
    const bool drained = DrainSessions();
    turn_work_ = core_.work() - before;
    if (inbox || drained || expired) pacing.Worked();
    work = core_.has_work();
    if (stopping_ || work) continue;
    spin = pacing.Spin() && !SharesCore();
    if (!spin) {
      pacing.Sleeps();
      Sleep();
      read_nanos_ = 0;
    }
  }
  absl::MutexLock lock(&inbox_mutex_);
  stopped_ = true;
  tasks_.clear();
  for (const auto& [tag, flushed] : flushes_) flushed({{}, {}, absl::CancelledError("kvistd is stopping"), 0});
  flushes_.clear();
}

// Whether spinning would hold up a client whose work it waits for.
bool Reactor::SharesCore() const {
  if (rounds_.empty()) return true;  // whoever comes next is asleep now, and there is no ring to look at
  const uint32_t cpu = shm::CurrentCpu();
  return std::any_of(rounds_.begin(), rounds_.end(), [cpu](const Round& round) {
    return round.session->header().client_cpu.load(std::memory_order_relaxed) == cpu;
  });
}

// Spins until there is work, for less than a microsecond: within a turn, so that what comes need not wait for a look at the clock.
void Reactor::Look() const {
  for (int i = 0; i < 16; ++i) {
    if (inbox_.load(std::memory_order_relaxed) == static_cast<uint32_t>(Inbox::kFull)) return;
    for (const Round& round : rounds_) {
      if (!round.session->ring().Empty()) return;
    }
    shm::SpinPause();
  }
}

// Waiting for a word costs a tenth of an idle round trip, so while all sessions are one tenant's the inbox has none of its own: who fills it
// wakes the reactor by the word of one of them. A client can undo that, if it writes its word in the instant between the waking and
// the reactor's wait; then whom it keeps waiting is its own tenant, and operators and another tenant's first engine until the inbox's next
// entry: who waits for a task, and the listener while sessions are being opened or end, wakes the reactor again.
void Reactor::Sleep() {
  uint32_t inbox = static_cast<uint32_t>(Inbox::kEmpty);
  if (!inbox_.compare_exchange_strong(inbox, static_cast<uint32_t>(Inbox::kAwaited), std::memory_order_acq_rel)) return;
  sleeps_.store(true, std::memory_order_relaxed);
  words_.clear();
  const EngineSession* stands_in = nullptr;
  bool work = false;
  for (size_t i = 0; i < rounds_.size();) {
    Round& round = rounds_[i];
    shm::RingConsumer& ring = round.session->ring();
    if (words_.size() + 1 < options_.words && now_nanos_ - round.last_work_nanos <= kDozeNanos) {
      work |= !ring.Sleep(shm::Asleep::kOnWord);
      words_.push_back(ring.word());
      if (stands_in == nullptr && tenants_.size() == 1) stands_in = round.session;
    } else if (ring.Sleep(shm::Asleep::kOnDoorbell)) {
      round = rounds_.back();
      rounds_.pop_back();
      continue;
    } else {
      work = true;
    }
    ++i;
  }
  if (stands_in == nullptr) words_.push_back({&inbox_, static_cast<uint32_t>(Inbox::kAwaited)});
  SleepOn(stands_in);
  // The last look at the inbox: who fills it later finds the words as they are now.
  if (!work && inbox_.load(std::memory_order_seq_cst) == static_cast<uint32_t>(Inbox::kAwaited)) {
    // No timer unless somebody waits for the clock: arming one costs as much as a twentieth of an idle round trip.
    shm::FutexWaitAny(words_, core_.waits_for_clock() ? now_nanos_ + kClockNanos : INT64_MAX);
  }
  sleeps_.store(false, std::memory_order_relaxed);
  inbox = static_cast<uint32_t>(Inbox::kAwaited);
  inbox_.compare_exchange_strong(inbox, static_cast<uint32_t>(Inbox::kEmpty), std::memory_order_relaxed);
  for (const Round& round : rounds_) round.session->ring().Awake();
}

void Reactor::Poll(SessionId id) {
  EngineSession* session = Find(id);
  if (session == nullptr || draining_.contains(id)) return;
  for (const Round& round : rounds_) {
    if (round.id == id) return;
  }
  session->ring().Awake();
  rounds_.push_back({id, session, now_nanos_});
}

bool Reactor::TakeInbox() {
  if (inbox_.load(std::memory_order_acquire) == static_cast<uint32_t>(Inbox::kEmpty)) return false;
  std::vector<std::function<void()>> tasks;
  std::vector<Quiet> copies;
  absl::flat_hash_set<SessionId> rung;
  {
    absl::MutexLock lock(&inbox_mutex_);
    inbox_.store(static_cast<uint32_t>(Inbox::kEmpty), std::memory_order_relaxed);
    tasks.swap(tasks_);
    copies.swap(copies_done_);
    rung.swap(rung_);
  }
  for (const SessionId id : rung) Poll(id);
  for (auto& [op, end, quiet_nanos] : copies) {
    const auto copy = in_flight_.extract(op.Pack());
    KVIST_CHECK(!copy.empty());
    const InFlight& of = copy.mapped();
    const bool load = of.direction == core::Direction::kLoad;
    Latencies& latencies = activity_.latencies;
    if (!of.streams) (load ? latencies.copy_load : latencies.copy_store).Record(quiet_nanos - of.submitted_nanos);
    if (end.began_nanos != 0 && !of.streams) {
      latencies.waits[static_cast<size_t>(load ? Queue::kCopyLoad : Queue::kCopyStore)].Record(end.began_nanos -
                                                                                               of.submitted_nanos);
    }
    EngineSession* session = Find(of.session);
    if (of.direction == core::Direction::kStore && session != nullptr && session->Abandoned(of.tag)) {
      end.status = absl::CancelledError("the engine gave the store up");
    }
    core_.Handle(core::CopyFinished{op, std::move(end.status), std::move(end.corrupt)}, &effects_);
    CarryOut();
  }
  for (const std::function<void()>& task : tasks) task();
  return true;
}

bool Reactor::DrainSessions() {
  bool worked = false;
  for (round_ = 0; round_ < rounds_.size(); ++round_) {
    Round& round = rounds_[round_];
    const SessionId id = round.id;
    // The latest look at the clock: less than a microsecond ago, for Look spins no longer, and a look here would delay every request.
    const int64_t taken_nanos = read_nanos_ != 0 ? read_nanos_ : now_nanos_;
    const absl::StatusOr<uint32_t> drained = round.session->Drain({}, taken_nanos, &core_, &effects_);
    if (drained.ok() && *drained > 0) {
      round.last_work_nanos = now_nanos_;
      worked = true;
    }
    const uint64_t lookups_before = lookups_answered_;
    CarryOut();
    // The requests are answered; what follows delays none of them.
    if (const uint64_t lookups = lookups_answered_ - lookups_before; lookups > 0) {
      read_nanos_ = MonotonicNanos();  // also the next turn's
      activity_.latencies.hooks[static_cast<size_t>(Hook::kLookup)].Record(read_nanos_ - taken_nanos, lookups);
    }
    if (!drained.ok()) {
      std::erase_if(rounds_, [&](const Round& r) { return r.id == id; });
      --round_;
      draining_.try_emplace(id);  // not polled again
      broken_(id, drained.status());
    }
  }
  const uint32_t cpu = shm::CurrentCpu();
  for (const Round& round : rounds_) {
    std::atomic<uint32_t>& published = round.session->header().daemon_cpu;
    if (published.load(std::memory_order_relaxed) != cpu) published.store(cpu, std::memory_order_relaxed);
  }
  return worked;
}

// ---- Effects ----------------------------------------------------------------------------------------------------------------

EngineSession* Reactor::Find(SessionId id) {
  if (round_ < rounds_.size() && rounds_[round_].id == id)
    return rounds_[round_].session;  // whose requests are answered just now
  const auto found = sessions_.find(id);
  return found == sessions_.end() ? nullptr : found->second.get();
}

void Reactor::Forget(SessionId id) {
  const auto found = sessions_.find(id);
  if (found->second->memory().get() == stands_in_) SleepOn(nullptr);  // the mapping ends with the session
  const auto tenant = tenants_.find(found->second->registration().space.tenant);
  if (--tenant->second == 0) tenants_.erase(tenant);
  sessions_.erase(found);
}

void Reactor::CarryOut() {
  // Carrying an effect out never calls the core, so no effect is added meanwhile.
  for (core::Effect& effect : effects_) std::visit([this](auto& e) { Carry(e); }, effect);
  effects_.clear();
  for (size_t tier = 0; tier < core::kTiers; ++tier) {
    if (!reads_[tier].empty()) TierAt(static_cast<core::Tier>(tier)).Read(std::exchange(reads_[tier], {}));
  }
}

void Reactor::Hear(const LowerTier::Event& event) {
  if (const auto* const read = std::get_if<core::ReadFinished>(&event)) {
    if (const auto ended = coming_.extract(read->chunk.Pack()); !ended.empty()) {
      bool lacked = false;
      const auto& [arrivals, shards] = ended.mapped();
      for (uint32_t shard = 0; shard < shards; ++shard) lacked |= arrivals[shard].End(read->status);
      if (lacked && read->status.ok()) engine_->Arrived();
      if (!read->status.ok()) engine_->Look();  // what it makes fail needn't wait for what else it lacks
    }
  }
  std::visit([this](const auto& said) { core_.Handle(said, &effects_); }, event);
  CarryOut();
  if (const auto* const kept = std::get_if<core::ClearKept>(&event)) Kept(*kept);
}

void Reactor::Carry(core::SessionAccepted& effect) {
  EngineSession* session = Find(effect.session);
  session->Accepted(effect.space, &activity_.latencies);
  doorbells_->Add(effect.session, session->doorbell());
  const auto opened = opening_.extract(effect.session);
  opened.mapped()(absl::OkStatus());
}

void Reactor::Carry(core::SessionRefused& effect) {
  const auto opened = opening_.extract(effect.session);
  Forget(effect.session);
  opened.mapped()(effect.why);
}

void Reactor::Carry(core::SessionDrained& effect) {
  const EngineSession* session = Find(effect.session);
  activity_.Ended(session->registration().space.tenant, session->space(), session->traffic());
  doorbells_->Remove(session->doorbell());
  std::erase_if(rounds_, [&](const Round& round) { return round.id == effect.session; });
  Forget(effect.session);
  if (const auto waiting = draining_.extract(effect.session); !waiting.empty()) {
    for (const std::function<void()>& drained : waiting.mapped()) drained();
  }
}

void Reactor::Carry(core::LookupAnswered& effect) {
  if (!effect.waited) ++lookups_answered_;  // in this turn: DrainSessions measures them together
  Find(effect.session)->Answer(effect);
}

LowerTier& Reactor::TierAt(core::Tier tier) const {
  KVIST_CHECK(tier != core::Tier::kDram);
  if (tier == core::Tier::kRemote) return *remote_;
  return *disk_;
}

LowerTier::Slots Reactor::SlotsOf(SpaceId space, GroupId group, std::span<const SlotRef> slots) const {
  const std::vector<Bytes>& bytes = core_.SlotBytes(space, group);
  LowerTier::Slots spans;
  for (size_t shard = 0; shard < slots.size(); ++shard) spans.emplace_back(slots_(slots[shard]), bytes[shard].value);
  return spans;
}

void Reactor::Carry(core::WriteStarted& effect) {
  LowerTier::Slots slots = SlotsOf(effect.space, effect.group, effect.slots);
  const core::SpaceSpec& space = core_.spec(effect.space);
  LowerTier& tier = TierAt(effect.to);
  tier.Write(space, std::move(effect), std::move(slots));
}

void Reactor::Carry(core::SlotsCopyStarted& effect) {
  std::vector<SlotMover::Piece> pieces;
  for (const auto& [from, to] : effect.slots) pieces.push_back({slots_(from), slots_(to)});
  mover_->Copy(std::move(pieces), effect.bytes, [this] {
    Run([this] {
      core_.Handle(core::SlotsCopied{}, &effects_);
      CarryOut();
    });
  });
}

void Reactor::Carry(core::ReadStarted& effect) {
  Coming& coming = coming_[effect.chunk.Pack()];
  coming.shards = static_cast<uint32_t>(effect.slots.size());
  coming.arrivals.reset(new cuda::SlotArrival[coming.shards]);
  auto arrived = [arrivals = coming.arrivals, engine = engine_](uint32_t shard, uint32_t layers) {
    if (arrivals[shard].Arrived(layers)) engine->Arrived();
  };
  LowerTier::Slots slots = SlotsOf(effect.space, effect.group, effect.slots);
  std::vector<LowerTier::ChunkToRead>& reads = reads_[static_cast<size_t>(effect.from)];
  reads.push_back({&core_.spec(effect.space), std::move(effect), std::move(slots), std::move(arrived)});
}

void Reactor::Carry(core::SpaceCleared& effect) {
  const core::SpaceSpec* space = effect.space.has_value() ? &core_.spec(*effect.space) : nullptr;
  const auto meant = [&effect](core::Tier tier) { return effect.tier.value_or(tier) == tier; };
  if (disk_ != nullptr && meant(core::Tier::kSsd)) disk_->Clear(space, effect);
  if (remote_ != nullptr && meant(core::Tier::kRemote)) remote_->Clear(space, effect);
}

void Reactor::Carry(core::ChunksHidden& effect) {
  const core::SpaceSpec& space = core_.spec(effect.space);
  disk_->Hide(space, std::move(effect));
}

void Reactor::Carry(core::PinsNoted& effect) {
  const core::SpaceSpec& space = core_.spec(effect.space);
  disk_->NotePins(space, std::move(effect));
}

void Reactor::Carry(core::PinLost& effect) {
  if (pin_lost_) pin_lost_(effect);
}

void Reactor::Carry(core::RemoteAsked& effect) {
  const core::SpaceSpec& space = core_.spec(effect.space);
  remote_->Ask(space, std::move(effect));
}

void Reactor::Carry(core::RemoteForgotten& effect) {
  const core::SpaceSpec& space = core_.spec(effect.space);
  remote_->Forget(space, std::move(effect));
}

void Reactor::Carry(core::RecodeStarted& effect) {
  const core::SpaceSpec& space = core_.spec(effect.space);
  remote_->Recode(space, std::move(effect));
}

void Reactor::Carry(core::Flushed& effect) {
  if (effect.session.has_value()) return Find(*effect.session)->Answer(effect);
  flushes_.extract(effect.tag.value).mapped()(effect);
}

void Reactor::Carry(core::CopyStarted& effect) {
  std::vector<std::byte*> memory;
  memory.reserve(effect.slots.size());
  for (const SlotRef slot : effect.slots) memory.push_back(slots_(slot));
  EngineSession* const session = Find(effect.session);
  cuda::Copy copy = session->Begin(effect, std::move(memory));
  Expect(effect, *session, &copy);
  in_flight_.emplace(effect.op.Pack(),
                     InFlight{effect.session, effect.tag, effect.direction, MonotonicNanos(), !copy.arrivals.empty()});
  engine_->Submit(std::move(copy));
}

void Reactor::Expect(const core::CopyStarted& effect, const EngineSession& session, cuda::Copy* copy) const {
  const auto coming = [](core::ChunkRef chunk) { return static_cast<bool>(chunk); };
  if (std::none_of(effect.coming.begin(), effect.coming.end(), coming)) return;
  const core::GroupSpec& group = core_.spec(session.space()).groups[copy->group.value];
  const uint32_t shard = group.ShardOf(session.registration().rank);
  copy->order = effect.by_layer ? cuda::Order::kByLayer : cuda::Order::kByChunk;
  for (const core::ChunkRef chunk : effect.coming) {
    std::shared_ptr<cuda::SlotArrival>& arrival = copy->arrivals.emplace_back();
    if (!chunk) continue;
    const std::shared_ptr<cuda::SlotArrival[]>& arrivals = coming_.at(chunk.Pack()).arrivals;
    arrival = {arrivals, &arrivals[shard]};
  }
}

void Reactor::Carry(core::CopyCancelled& effect) { engine_->Cancel(effect.op); }

void Reactor::Carry(core::OpEnded& effect) { Find(effect.session)->Answer(effect); }

void Reactor::Carry(core::Answered& effect) { Find(effect.session)->Answer(effect); }

void Reactor::Carry(core::CorruptionFound& effect) {
  if (corruption_) corruption_(effect);
}

Activity::Rows Reactor::Traffics() const {
  Activity::Rows rows = activity_.ended();
  for (const auto& [id, session] : sessions_)
    rows.Add(session->registration().space.tenant, session->space(), session->traffic());
  return rows;
}

void Reactor::SetQuota(const std::string& tenant, std::optional<Bytes> quota) {
  core_.Handle(core::QuotaSet{tenant, quota}, &effects_);
  CarryOut();
}

absl::StatusOr<uint32_t> Reactor::Pin(SpaceId space, std::string owner, std::span<const ChunkKey> keys,
                                      absl::Duration lasts) {
  core_.Handle(core::OperatorPinAsked{space, {}, std::move(owner), keys, lasts}, &effects_);
  const auto answer = std::find_if(effects_.begin(), effects_.end(), [](const core::Effect& effect) {
    return std::holds_alternative<core::PinAnswered>(effect);
  });
  KVIST_CHECK(answer != effects_.end());
  const core::PinAnswered pinned = std::get<core::PinAnswered>(*answer);
  CarryOut();
  if (!pinned.status.ok()) return pinned.status;
  return pinned.chunks;
}

void Reactor::RemovePin(SpaceId space, const core::PinName& pin) {
  core_.Handle(core::PinRemoved{space, pin}, &effects_);
  CarryOut();
}

}  // namespace kvist::session

#include "tests/sim/world.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/core/left_index.h"
#include "storage/base/check.h"
#include "tests/sim/only.h"
#include "tests/sim/trace.h"

namespace kvist::sim {
namespace {

ChunkKey KeyFrom(uint64_t seed) {
  Prng prng(Prng(seed).Next());  // twice, so that the bytes of neighbours don't overlap
  ChunkKey key;
  for (uint8_t& byte : key.bytes) byte = static_cast<uint8_t>(prng.Next());
  return key;
}

}  // namespace

World::World(Options options) : options_(options), prng_(options.seed), crashes_(~options.seed), scarce_(~options.seed * 3) {
  core_options_.lease_max = absl::Milliseconds(prng_.Between(200, 5000));
  core_options_.fill_timeout = absl::Milliseconds(prng_.Between(200, 3000));
  core_options_.lease_share = prng_.Between(20, 100) / 100.0;
  core_options_.private_share = prng_.Between(5, 60) / 100.0;
  core_options_.pin_share = prng_.Between(5, 60) / 100.0;
  core_options_.slice_work = prng_.Percent(50) ? prng_.Between(1, 8) : prng_.Between(9, 64);
  if (prng_.Percent(40)) core_options_.event_work = prng_.Between(core::CoreOptions::kEventWorkMin, 64);
  if (prng_.Percent(20)) core_options_.ghosts_max = prng_.Between(1, 8);
  core_options_.eviction = prng_.Percent(50) ? core::Eviction::kLru : core::Eviction::kLhd;
  core_options_.seed = prng_.Next();
  core_options_.doubt = absl::Milliseconds(crashes_.Between(0, 3000));
  MakePool();
  MakeSpaces();
  MakeEngines();
}

void World::MakePool() {
  pool_.slab_bytes = KiB(4 * prng_.Between(6, 16));
  const uint32_t regions = prng_.Between(1, 2);
  for (uint32_t i = 0; i < regions; ++i) pool_.regions.push_back(pool_.slab_bytes * prng_.Between(2, 8));
  auto slots = pool::SlotAllocator::Create(pool_);
  KVIST_CHECK(slots.ok());
  slots_ = std::make_unique<pool::SlotAllocator>(*std::move(slots));
  if (prng_.Percent(30)) core_options_.quotas["blue"] = pool_.slab_bytes * prng_.Between(1, 3);
  if (prng_.Percent(10)) core_options_.quotas["green"] = pool_.slab_bytes * prng_.Between(1, 6) + KiB(4);
  shortage_ = std::make_unique<Shortage>(slots_.get(), &scarce_);
  if (options_.seed % 5 == 0) shortage_percent_ = scarce_.Between(2, 40);  // in some worlds, beside crashes and without
  memory_ = std::make_unique<Memory>(pool_.regions, slots_.get(), &verdict_);
  MakeCore();
  oracle_ = std::make_unique<Oracle>(core_options_, slots_.get(), memory_.get(), &verdict_);
  copies_ = std::make_unique<CopyEngine>(memory_.get(), &prng_);
}

void World::MakeCore() {
  index_ = std::make_unique<test::KeptSections>();
  core_ = std::make_unique<core::Core>(core_options_, slots_.get(), index_.get());
  told_.Watch(core_.get());
}

void World::MakeSpaces() {
  const uint32_t count = prng_.Between(1, 4);
  for (uint32_t s = 0; s < count; ++s) {
    core::SpaceSpec spec;
    spec.digest.bytes = KeyFrom(1000 + s).bytes;
    spec.tenant = s % 2 == 0 ? "green" : "blue";
    spec.model = absl::StrCat("model-", s);
    const uint32_t ranks = prng_.Between(1, 4);
    const uint32_t groups = prng_.Percent(50) ? 1 : prng_.Between(2, 3);
    for (uint32_t g = 0; g < groups; ++g) {
      core::GroupSpec& group = spec.groups.emplace_back();
      const uint32_t pages = prng_.Between(1, kSlotPagesMax);
      if (prng_.Percent(groups == 1 ? 10 : 50)) {
        group.reuse.kind = prng_.Percent(50) ? GroupKind::kWindow : GroupKind::kState;
        if (group.reuse.kind == GroupKind::kWindow) group.reuse.window_chunks = prng_.Between(1, 4);
      }
      if (prng_.Percent(20)) group.ranks_per_shard = ranks % 2 == 0 && prng_.Percent(50) ? 2 : ranks;
      for (uint32_t r = 0; r < ranks / group.ranks_per_shard; ++r)
        group.slot_bytes.push_back(KiB(4 * (prng_.Percent(80) ? pages : prng_.Between(1, kSlotPagesMax))));
    }
    spaces_.push_back(std::move(spec));
  }
}

void World::MakeEngines() {
  const uint32_t count = prng_.Between(2, 4);
  for (uint32_t e = 0; e < count; ++e) {
    // Names repeat over tenants, and now and then within one.
    Engine engine{absl::StrCat("engine-", prng_.Percent(90) ? e / 2 : 0), prng_.Below(spaces_.size())};
    processes_.push_back({{}, e, core::Role::kScheduler, {}, false, {}});
    const uint32_t ranks = spaces_[engine.space].ranks();
    for (uint16_t r = 0; r < ranks; ++r) processes_.push_back({{}, e, core::Role::kWorker, Rank{r}, false, {}});
    if (prng_.Percent(20))
      processes_.push_back({{}, e, core::Role::kWorker, Rank{0}, false, {}});  // a rank that is there twice
    engines_.push_back(std::move(engine));
  }
  leases_.resize(engines_.size());
  allocations_.resize(engines_.size());
  branches_ = prng_.Between(1, 4);
  depth_ = prng_.Between(2, 12);
  // What a run does often and what seldom is drawn, too: bugs hide in unusual mixtures.
  for (const uint32_t usual : {40, 2, 3, 30, 25, 12, 30, 12, 4, 1, 20, 60, 4, 4, 4, 12, 1, 2, 1}) {
    weights_.push_back(usual * (prng_.Percent(70) ? 4 : prng_.Percent(50) ? 1 : 12));
  }
}

bool World::Run() {
  for (Process& process : processes_) {
    if (verdict_.kept()) Open(process);
  }
  // Each step makes an event but for those that find nothing to do; the bound is for a world in which nothing can happen.
  while (verdict_.kept() && events_ < options_.events && steps_ < options_.events * 100) {
    ++steps_;
    Act();
    // Every other world.
    if (options_.seed % 2 == 1 && verdict_.kept() && crashes_.Below(1500) == 0) Crash();
  }
  return verdict_.kept() && Drain();
}

void World::Act() {
  // While bytes move from slot to slot somebody is to read there.
  if (copies_->copies_slots() && prng_.Percent(75)) return prng_.Percent(30) ? Lookup() : Load();
  uint32_t sum = 0;
  for (const uint32_t weight : weights_) sum += weight;
  uint32_t at = prng_.Below(sum);
  uint32_t kind = 0;
  for (const uint32_t weight : weights_) {
    if (at < weight) break;
    at -= weight;
    ++kind;
  }
  switch (kind) {  // in the order of weights_
    case 0: return Lookup();
    case 1: return KillSession();
    case 2: return OpenSession();
    case 3: return Load();
    case 4: return Store();
    case 5: return Compute();
    case 6: return Store();
    case 7: return Release();
    case 8: return Cancel();
    case 9: return Clear();
    case 10: return PassTime();
    case 11: return StepCopies();
    case 12: return Pin();
    case 13: return Hint();
    case 14: return Allocate();
    case 15: return Swap();
    case 16: return CancelJob();
    case 17: return ClearPrompt();
    case 18: return MovePrompt();
  }
}

// ---- Crashes ----------------------------------------------------------------------------------------------------------------

void World::Crash() {
  struct Asked {
    size_t process;
    std::vector<ChunkKey> keys;
    uint32_t chunks;
  };
  std::vector<Asked> asked;
  // Nothing from a session that isn't there any more.
  const auto ask = [&](size_t process, const std::vector<ChunkKey>& keys) -> std::optional<uint32_t> {
    const core::Effects& effects =
        Deliver(core::LookupAsked{processes_[process].session, core::RequestTag{next_tag_++}, keys, absl::ZeroDuration()});
    if (effects.empty()) return std::nullopt;
    return std::get<core::LookupAnswered>(effects[0]).chunks;
  };
  for (size_t p = 0; p < processes_.size() && verdict_.kept(); ++p) {
    if (!processes_[p].open) continue;
    std::vector<ChunkKey> keys = Prompt();
    if (const auto chunks = ask(p, keys)) asked.push_back({p, std::move(keys), *chunks});
  }
  if (!verdict_.kept()) return;
  if (options_.trace) std::printf("%" PRIu64 " the core dies\n", events_);

  for (Process& process : processes_) process.open = false;
  copies_->LoseAll();
  oracle_->NewCore();
  core_.reset();
  *slots_ = *pool::SlotAllocator::Create(pool_);
  core_options_.seed = prng_.Next();
  const std::unique_ptr<test::KeptSections> kept = std::move(index_);
  const core::LeftIndex left(kept->sections());
  MakeCore();
  Deliver(core::Tick{now_});
  std::vector<std::optional<SpaceId>> spaces;
  for (const core::LeftIndex::Space& space : left.spaces()) {
    const auto spec =
        std::find_if(spaces_.begin(), spaces_.end(), [&](const core::SpaceSpec& s) { return s.digest == space.digest; });
    KVIST_CHECK(spec != spaces_.end());
    core_->Handle(core::SpaceFound{*spec}, &effects_);
    spaces.push_back(core_->FindSpace(space.digest));
  }
  oracle_->Note(core_->TakeOver(left, spaces));
  told_.Watch(core_.get());
  core_->CheckInvariants();
  memory_->NewSlots();
  late_until_ = now_ + core_options_.doubt;
  ops_.clear();

  // Nothing that was a hit is lost.
  for (const Asked& one : asked) {
    if (verdict_.kept()) Open(processes_[one.process]);
    if (!verdict_.kept() || !processes_[one.process].open) return;
    const std::optional<uint32_t> chunks = ask(one.process, one.keys);
    if (!chunks.has_value()) continue;
    oracle_->NoteHitsKept(*chunks);
    verdict_.Expect(*chunks == one.chunks, kSurvives,
                    absl::StrCat("a prompt had ", one.chunks, " chunks before the core died, and has ", *chunks));
  }
}

// ---- Sessions ---------------------------------------------------------------------------------------------------------------

void World::Open(Process& process) {
  const Engine& engine = engines_[process.engine];
  process.session = SessionId{next_session_++};
  process.jobs.clear();
  const core::Effects& effects =
      Deliver(core::SessionOpened{process.session, engine.name, process.role, process.rank, spaces_[engine.space]});
  process.open = !effects.empty() && std::holds_alternative<core::SessionAccepted>(effects[0]);
}

void World::OpenSession() {
  if (prng_.Percent(10)) return OpenImpossibleSession();
  Process& process = prng_.Pick(processes_);
  if (!process.open) Open(process);
}

void World::OpenImpossibleSession() {
  const Engine& engine = prng_.Pick(engines_);
  core::SessionOpened event{SessionId{next_session_++}, engine.name, core::Role::kWorker, Rank{0}, spaces_[engine.space]};
  const auto other_digest = [&] { event.space.digest.bytes = KeyFrom(5000 + next_session_).bytes; };
  switch (prng_.Below(6)) {
    case 5:
      event.space.groups.push_back(event.space.groups[0]);  // with another number of ranks
      event.space.groups.back().slot_bytes.push_back(KiB(4));
      other_digest();
      break;
    case 0: event.rank.value = static_cast<uint16_t>(event.space.ranks() + prng_.Below(3)); break;
    case 1:
      event.space.groups.clear();
      other_digest();
      break;
    case 2:
      event.space.groups[0].slot_bytes[0] = Bytes{prng_.Percent(50) ? 0u : 5000u};
      other_digest();
      break;
    case 3:
      event.space.groups[0].slot_bytes[0] = slots_->slab_bytes() + KiB(4);
      other_digest();
      break;
    case 4:
      event.space.groups[0].reuse = {GroupKind::kWindow, 0};
      other_digest();
      break;
  }
  Deliver(event);
}

void World::KillSession() {
  Process& process = prng_.Pick(processes_);
  if (!process.open) {
    if (!dead_.empty()) Deliver(core::SessionClosed{prng_.Pick(dead_)});  // says so again
    return;
  }
  Kill(process);
}

void World::Kill(Process& process) {
  process.open = false;
  dead_.push_back(process.session);
  Deliver(core::SessionClosed{process.session});
}

// Between two events, whatever the step that they are of has in mind: its session may be the one that is dead then.
void World::KillAtPoint() {
  const uint64_t before = deaths_possible_;
  const auto is_open = [](const Process& process) { return process.open; };
  deaths_possible_ += static_cast<uint64_t>(std::ranges::count_if(processes_, is_open));
  if (options_.kill_at <= before || options_.kill_at > deaths_possible_) return;
  auto process = std::ranges::find_if(processes_, is_open);
  for (uint64_t point = before + 1; point < options_.kill_at; ++point)
    process = std::find_if(process + 1, processes_.end(), is_open);
  Kill(*process);
  killed_in_flight_ = Only<core::SessionDrained>(effects_) == nullptr;
}

World::Process* World::RandomProcess(std::optional<core::Role> role) {
  Process& process = prng_.Pick(processes_);
  if (!process.open && !prng_.Percent(3)) return nullptr;
  if (role.has_value() && process.role != *role && !prng_.Percent(2)) return nullptr;
  return process.session.value == 0 ? nullptr : &process;
}

// ---- Requests ---------------------------------------------------------------------------------------------------------------

// A path of the tree that all prompts share; now and then one that no honest engine would send.
std::vector<ChunkKey> World::Prompt() {
  std::vector<ChunkKey> keys(prng_.Between(1, depth_));
  uint64_t node = 1;
  for (ChunkKey& key : keys) {
    node = node * 31 + (prng_.Percent(60) ? 0 : prng_.Below(branches_)) + 1;
    key = KeyFrom(node);
    if (seen_keys_.size() < 256) seen_keys_.push_back(key);
  }
  if (prng_.Percent(4)) prng_.Pick(keys) = prng_.Pick(seen_keys_);                          // a key that hangs elsewhere
  if (prng_.Percent(2)) keys.push_back(prng_.Pick(keys));                                   // twice in one chain
  if (prng_.Percent(2)) keys.erase(keys.begin(), keys.begin() + prng_.Below(keys.size()));  // an orphan
  return keys;
}

void World::Lookup() {
  const Process* process = RandomProcess(prng_.Percent(80) ? std::optional(core::Role::kScheduler) : std::nullopt);
  if (process == nullptr) return;
  const std::vector<ChunkKey> keys = prng_.Percent(1) ? std::vector<ChunkKey>{} : Prompt();
  absl::Duration lease;
  if (prng_.Percent(70)) lease = core_options_.lease_max * prng_.Between(1, 150) / 100;
  const core::Effects& effects = Deliver(core::LookupAsked{process->session, core::RequestTag{next_tag_++}, keys, lease});
  if (effects.empty()) return;
  const auto* answer = std::get_if<core::LookupAnswered>(&effects[0]);
  if (answer == nullptr || !answer->lease) return;
  std::vector<KnownLease>& known = leases_[process->engine];
  if (known.size() < 24) known.emplace_back();
  prng_.Pick(known) = {answer->lease, answer->chunks};
  known.back() = {answer->lease, answer->chunks};
}

void World::Load() {
  const Process* process = RandomProcess(core::Role::kWorker);
  if (process == nullptr) return;
  std::vector<KnownLease>& known = prng_.Percent(95) ? leases_[process->engine] : prng_.Pick(leases_);
  if (known.empty()) return;
  KnownLease lease = prng_.Percent(50) ? known.back() : prng_.Pick(known);
  if (prng_.Percent(2)) lease.id.generation += prng_.Percent(50) ? 2 : 1;
  if (prng_.Percent(1)) lease.id = LeaseId::Unpack(prng_.Next());
  core::LoadAsked event{process->session, core::RequestTag{next_tag_++}, lease.id, {}, prng_.Below(lease.chunks + 1), 0};
  const std::vector<core::GroupSpec>& groups = spaces_[engines_[process->engine].space].groups;
  event.group.value = static_cast<uint16_t>(prng_.Below(groups.size() + (prng_.Percent(3) ? 1 : 0)));
  if (event.group.value < groups.size() && prng_.Percent(90)) {
    const uint32_t needed = groups[event.group.value].reuse.FirstNeeded(lease.chunks);
    event.first = needed + prng_.Below(lease.chunks - needed + 1);
  }
  event.count =
      prng_.Percent(95) && event.first < lease.chunks ? prng_.Between(1, lease.chunks - event.first) : prng_.Below(4);
  if (prng_.Percent(1)) event.first = event.count = UINT32_MAX - prng_.Below(2);
  Deliver(event);
}

void World::Compute() {
  const size_t e = prng_.Below(engines_.size());
  const std::vector<ChunkKey> keys = Prompt();
  const size_t cut = prng_.Percent(50) ? keys.size() : prng_.Below(keys.size()) + 1;  // prefill in one piece or two
  const std::vector<core::GroupSpec>& groups = spaces_[engines_[e].space].groups;
  const size_t kept = prng_.Between(1, 6);  // what a window group still has of the prompt
  for (Process& process : processes_) {
    if (process.engine != e || process.role != core::Role::kWorker || !process.open || prng_.Percent(4))
      continue;  // a rank that never comes
    for (uint16_t g = 0; g < groups.size(); ++g) {
      const auto at = keys.begin() + static_cast<std::ptrdiff_t>(cut);
      if (const GroupKind kind = groups[g].reuse.kind; kind != GroupKind::kFull) {
        // A state is kept where a prefill step ended, a window's last chunks there.
        const size_t last = kind == GroupKind::kState ? 1 : std::min(kept, cut);
        process.jobs.push_back({GroupId{g}, {}, {at - static_cast<std::ptrdiff_t>(last), at}});
        if (at != keys.end()) process.jobs.push_back({GroupId{g}, *(at - 1), {keys.end() - 1, keys.end()}});
        continue;
      }
      process.jobs.push_back({GroupId{g}, {}, {keys.begin(), at}});
      if (at != keys.end()) process.jobs.push_back({GroupId{g}, *(at - 1), {at, keys.end()}});
    }
    while (process.jobs.size() > 32) process.jobs.pop_front();
  }
}

void World::Ask(Process& process, StoreJob job) {
  if (const auto space = core_->FindSpace(spaces_[engines_[process.engine].space].digest); space && PromptGoes(*space))
    return;
  Deliver(core::StoreAsked{process.session, core::RequestTag{next_tag_++}, job.group, job.parent, job.keys});
}

void World::Store() {
  Process* process = RandomProcess(core::Role::kWorker);
  if (process == nullptr) return;
  if (process->jobs.empty()) {
    if (process->open && prng_.Percent(90)) return;
    return Ask(*process, {GroupId{static_cast<uint16_t>(prng_.Below(3))}, {}, Prompt()});
  }
  const size_t at = prng_.Percent(85) ? 0 : prng_.Below(process->jobs.size());  // ranks need not agree on the order
  StoreJob job = process->jobs[at];
  if (!prng_.Percent(5))
    process->jobs.erase(process->jobs.begin() + static_cast<std::ptrdiff_t>(at));  // else it comes twice
  Ask(*process, std::move(job));
}

void World::Release() {
  const Process* process = RandomProcess(std::nullopt);
  if (process == nullptr) return;
  std::vector<KnownLease>& known = prng_.Percent(92) ? leases_[process->engine] : prng_.Pick(leases_);
  if (known.empty()) return;
  const size_t at = prng_.Below(known.size());
  Deliver(core::ReleaseAsked{process->session, known[at].id});
  if (prng_.Percent(40))
    known.erase(known.begin() + static_cast<std::ptrdiff_t>(at));  // else it is used again: released twice, or loaded from
}

void World::Cancel() {
  if (!ops_.empty()) Deliver(core::CancelAsked{prng_.Pick(ops_)});
}

// Pins, unpins, and an operator who removes some pin.
void World::Pin() {
  const Process* process = RandomProcess(std::nullopt);
  if (process == nullptr) return;
  const core::RequestTag tag{next_tag_++};
  const std::vector<ChunkKey> keys = prng_.Percent(1) ? std::vector<ChunkKey>{} : Prompt();
  for (uint32_t s = 0; s < core_->status().spaces.size(); ++s) {
    if (PromptGoes(SpaceId{s})) return;
  }
  if (prng_.Percent(40)) {
    Deliver(core::PinAsked{process->session, tag, keys});
  } else if (prng_.Percent(30)) {
    const auto space = static_cast<uint32_t>(prng_.Below(core_->status().spaces.size()));
    const absl::Duration lasts =
        prng_.Percent(20) ? absl::InfiniteDuration() : absl::Milliseconds(static_cast<int64_t>(prng_.Below(5000)));
    Deliver(core::OperatorPinAsked{SpaceId{space}, tag, prng_.Percent(70) ? "operator" : "engine-0", keys, lasts});
  } else if (const std::vector<core::PinRow> rows = core_->pins(); rows.empty() || prng_.Percent(50)) {
    Deliver(core::UnpinAsked{process->session, tag, keys});
  } else {
    const core::PinRow& row = prng_.Pick(rows);
    core::PinRemoved event{row.space, row.name};
    if (prng_.Percent(5)) event.pin.owner = "nobody";
    Deliver(event);
  }
}

void World::Hint() {
  const Process* process = RandomProcess(std::nullopt);
  if (process == nullptr) return;
  const std::vector<ChunkKey> keys = Prompt();
  const core::Hint hint{prng_.Percent(50), static_cast<core::ExpectedReuse>(prng_.Below(4)),
                        static_cast<core::StopReason>(prng_.Below(core::kStopReasonMax + 1))};
  std::span<const ChunkKey> left = std::span(keys).subspan(prng_.Below(keys.size()));
  while (!left.empty() && verdict_.kept()) {
    const size_t count = std::min<size_t>(left.size(), core_->HintKeysMax(process->session));
    Deliver(core::HintAsked{process->session, left.first(count), hint});
    left = left.subspan(count);
  }
}

void World::Allocate() {
  const Process* process = RandomProcess(std::nullopt);
  if (process == nullptr) return;
  std::vector<KnownAllocation>& known = prng_.Percent(95) ? allocations_[process->engine] : prng_.Pick(allocations_);
  if (!known.empty() && prng_.Percent(40)) {
    const size_t at = prng_.Below(known.size());
    Deliver(core::FreeAsked{process->session, known[at].id});
    if (prng_.Percent(50)) known.erase(known.begin() + static_cast<std::ptrdiff_t>(at));  // else it is used again
    return;
  }
  core::AllocateAsked event{process->session, core::RequestTag{next_tag_++}, {}, prng_.Between(1, 6)};
  const std::vector<core::GroupSpec>& groups = spaces_[engines_[process->engine].space].groups;
  event.group.value = static_cast<uint16_t>(prng_.Below(groups.size() + (prng_.Percent(3) ? 1 : 0)));
  if (prng_.Percent(2)) event.chunks = prng_.Percent(50) ? 0 : UINT32_MAX;
  const core::Effects& effects = Deliver(event);
  const auto* answer = effects.empty() ? nullptr : std::get_if<core::Answered>(&effects[0]);
  if (answer == nullptr || !answer->allocation) return;
  if (known.size() < 8) known.emplace_back();
  prng_.Pick(known) = {answer->allocation, event.group, event.chunks};
  known.back() = {answer->allocation, event.group, event.chunks};
}

void World::Swap() {
  const Process* process = RandomProcess(core::Role::kWorker);
  if (process == nullptr) return;
  const std::vector<KnownAllocation>& known = prng_.Percent(95) ? allocations_[process->engine] : prng_.Pick(allocations_);
  if (known.empty()) return;
  KnownAllocation allocation = prng_.Pick(known);
  if (prng_.Percent(1)) allocation.id.generation += 2;
  core::SwapAsked event{process->session,
                        core::RequestTag{next_tag_++},
                        core::Direction::kLoad,
                        allocation.id,
                        allocation.group,
                        prng_.Below(allocation.chunks + 1),
                        0,
                        0,
                        1};
  if (prng_.Percent(55)) event.direction = core::Direction::kStore;
  event.count = event.first < allocation.chunks && prng_.Percent(97) ? prng_.Between(1, allocation.chunks - event.first)
                                                                     : prng_.Below(3);
  if (prng_.Percent(1)) event.group.value += 1;
  if (prng_.Percent(1)) event.layers = prng_.Below(3);
  if (prng_.Percent(1)) event.first = event.count = UINT32_MAX - prng_.Below(2);
  Deliver(event);
}

void World::Clear() {
  if (!prng_.Percent(30)) return;  // or nothing would ever be old enough to be hit
  if (core_->jobs().full()) return;
  core::ClearAsked event{core::JobId{next_job_++}};
  if (prng_.Percent(70)) event.space = SpaceId{prng_.Below(spaces_.size() + (prng_.Percent(10) ? 3 : 0))};
  Deliver(event);
}

bool World::PromptGoes(SpaceId space) const {
  bool goes = false;
  core_->jobs().ForEach([&](const core::Job& job) {
    goes |= job.kind == core::JobKind::kClearPrompt && job.state == core::JobState::kRunning && job.space == space;
  });
  return goes;
}

void World::ClearPrompt() {
  if (!prng_.Percent(15)) return;  // or nothing would ever be old enough to be hit
  const auto spaces = static_cast<uint32_t>(core_->status().spaces.size());
  if (spaces == 0 || core_->jobs().full()) return;
  const SpaceId space{prng_.Below(spaces)};
  std::vector<ChunkKey> keys = Prompt();
  keys.resize(std::min<size_t>(keys.size(), core_->ClearKeysMax(space)));
  if (oracle_->IsStoring(space)) return;
  Deliver(core::PromptClearAsked{core::JobId{next_job_++}, space, keys});
}

// There is no disk here.
void World::MovePrompt() {
  const auto spaces = static_cast<uint32_t>(core_->status().spaces.size());
  if (spaces == 0 || core_->jobs().full()) return;
  const std::vector<ChunkKey> keys = Prompt();
  const bool up = prng_.Percent(50);
  Deliver(core::MoveAsked{.job = core::JobId{next_job_++},
                          .space = SpaceId{prng_.Below(spaces)},
                          .keys = keys,
                          .from = up ? core::Tier::kSsd : core::Tier::kDram,
                          .to = up ? core::Tier::kDram : core::Tier::kSsd,
                          .keep_source = prng_.Percent(50)});
}

// One that runs, most likely, or that has ended or never was. Which pins a prompt's clear has ended by then the oracle doesn't know.
void World::CancelJob() {
  const uint64_t recent = std::min<uint64_t>(next_job_, 3);
  const core::JobId id{next_job_ - prng_.Below(recent)};
  const core::Job* job = core_->jobs().Find(id);
  if (job != nullptr && job->kind == core::JobKind::kClearPrompt && core_->status().pins > 0) return;
  Deliver(core::JobCancelAsked{id});
}

void World::PassTime() {
  now_ += absl::Milliseconds(prng_.Percent(90)   ? prng_.Between(0, 40)
                             : prng_.Percent(80) ? prng_.Between(100, 900)
                                                 : prng_.Between(1000, 10000));
  TellTime(prng_.Percent(98) ? now_ : now_ - absl::Seconds(1));
}

void World::TellTime(absl::Time told) {
  if (now_ >= late_until_) copies_->EndLate();
  Deliver(core::Tick{told});
}

void World::StepCopies() {
  if (copies_->copies_slots() && prng_.Percent(30)) {
    if (copies_->StepSlots()) Deliver(core::SlotsCopied{});
    return;
  }
  if (const auto finished = copies_->Step()) Deliver(*finished);
}

// ---- The end ----------------------------------------------------------------------------------------------------------------

// Faults stop; everything ends, all processes leave, and nothing may remain; then the pool must serve a newcomer.
bool World::Drain() {
  copies_->StopFaults();
  shortage_percent_ = 0;
  const auto settle = [&] {
    const auto quiet = [&] {
      const core::CoreStatus status = core_->status();
      return copies_->running() == 0 && !core_->has_work() && status.leases == 0 && status.filling == 0 &&
             status.slots_in_doubt == 0;
    };
    for (uint32_t round = 0; round < 100000 && verdict_.kept() && !quiet(); ++round) {
      StepCopies();
      now_ += absl::Milliseconds(10);
      TellTime(now_);
    }
    verdict_.Expect(!verdict_.kept() || quiet(), kNothingLeaks, "leases, half stores, copies or clears that never end");
  };
  for (Process& process : processes_) {
    if (process.open && verdict_.kept()) Deliver(core::SessionClosed{process.session});
    process.open = false;
  }
  for (const core::PinRow& row : core_->pins()) {
    if (verdict_.kept()) Deliver(core::PinRemoved{row.space, row.name});
  }
  settle();
  if (!verdict_.kept()) return false;

  // With nobody there, everything can go: each space must find room, at the latest when slabs are empty that were emptied for others who didn't come.
  for (const core::SpaceSpec& spec : spaces_) {
    std::vector<Process> ranks;
    for (uint16_t r = 0; r < spec.ranks() && verdict_.kept(); ++r) {
      Process& rank = ranks.emplace_back(Process{SessionId{next_session_++}, 0, core::Role::kWorker, Rank{r}, true, {}});
      Deliver(core::SessionOpened{rank.session, "newcomer", rank.role, rank.rank, spec});
    }
    // Of no prompt: one of those may hang elsewhere in the tree, and is refused as long as it isn't evicted.
    const std::vector<ChunkKey> keys{KeyFrom(UINT64_MAX - next_session_)};
    bool hit = false;
    constexpr int kAttempts = 64;
    for (int attempt = 0; attempt < kAttempts && verdict_.kept() && !hit; ++attempt) {
      for (uint16_t g = 0; g < spec.groups.size(); ++g) {
        for (Process& rank : ranks) {
          if (verdict_.kept()) Ask(rank, {GroupId{g}, {}, keys});
        }
      }
      while (copies_->running() > 0 && verdict_.kept()) StepCopies();
      now_ += 2 * core::Vacating::kPatience / kAttempts;
      TellTime(now_);
      if (!verdict_.kept()) return false;
      const core::Effects& effects =
          Deliver(core::LookupAsked{ranks[0].session, core::RequestTag{next_tag_++}, keys, absl::ZeroDuration()});
      const auto* answer = effects.empty() ? nullptr : std::get_if<core::LookupAnswered>(&effects[0]);
      hit = answer != nullptr && answer->chunks == 1;
    }
    Bytes needed{};
    for (const core::GroupSpec& group : spec.groups) needed += slots_->slab_bytes() * group.slot_bytes.size();
    // Without a quota it is promised what all of them leave, when they fit.
    Bytes promised{};
    for (const auto& [tenant, bytes] : core_options_.quotas) promised += bytes;
    const auto quota = core_options_.quotas.find(spec.tenant);
    const Bytes its = quota != core_options_.quotas.end() ? std::min(quota->second, slots_->capacity())
                      : promised <= slots_->capacity()    ? slots_->capacity() - promised
                                                          : slots_->capacity();
    if (needed <= its)
      verdict_.Expect(!verdict_.kept() || hit, kServesAgain, "a newcomer's chunk is refused though nothing is in use");
    for (const Process& rank : ranks) {
      if (verdict_.kept()) Deliver(core::SessionClosed{rank.session});
    }
    settle();
    if (!verdict_.kept()) return false;
  }
  Deliver(core::ClearAsked{core::JobId{next_job_++}});
  settle();
  if (!verdict_.kept()) return false;

  core_->CheckInvariants();
  const core::CoreStatus status = core_->status();
  const uint64_t left = slots_->live_slots() + status.chunks + status.leases + status.ops + status.filling +
                        status.sessions + status.instances;
  return verdict_.Expect(left == 0, kNothingLeaks,
                         absl::StrCat("after the end: ", slots_->live_slots(), " slots, ", status.chunks, " chunks, ",
                                      status.leases, " leases, ", status.ops, " operations, ", status.filling,
                                      " half stores, ", status.sessions, " sessions, ", status.instances, " instances"));
}

// ---- Delivery ---------------------------------------------------------------------------------------------------------------

template <class Event>
const core::Effects& World::Deliver(const Event& event) {
  KillAtPoint();
  effects_.clear();
  if (!verdict_.kept()) return effects_;
  if (options_.trace) std::printf("%" PRIu64 " %s\n", events_, Print(event).c_str());
  const uint64_t work = core_->work();
  Handle(event);
  ++events_;
  if (options_.trace) {
    for (const core::Effect& effect : effects_) std::printf("    %s\n", Print(effect).c_str());
    std::fflush(stdout);
  }
  Digest(effects_);
  verdict_.Expect(core_->work() - work <= core_options_.EventWorkBound(), kBoundedWork,
                  absl::StrCat("an event cost ", core_->work() - work));
  if (const std::string wrong = told_.Hear(&effects_, *core_); !wrong.empty()) verdict_.Break(kToldIsHeld, wrong);
  if (!verdict_.kept()) return effects_;
  std::optional<core::SlotsCopyStarted> slots_copy;  // any event may begin one
  std::erase_if(effects_, [&](core::Effect& effect) {
    auto* const copy = std::get_if<core::SlotsCopyStarted>(&effect);
    if (copy != nullptr) slots_copy = std::move(*copy);
    return copy != nullptr;
  });
  oracle_->Judge(event, effects_);
  copies_->CheckReads();
  if (!verdict_.kept()) return effects_;
  for (const core::Effect& effect : effects_) CarryOut(effect);
  if (slots_copy.has_value()) CopySlots(*slots_copy);
  oracle_->Compare(*core_);
  if (verdict_.kept() && events_ % options_.invariants_every == 0) core_->CheckInvariants();
  return effects_;
}

template <class Event>
void World::Handle(const Event& event) {
  constexpr bool kStores = std::is_same_v<Event, core::StoreAsked>;
  if constexpr (kStores || std::is_same_v<Event, core::AllocateAsked>) {
    if (shortage_percent_ > 0 && scarce_.Percent(shortage_percent_)) {
      shortage_->Begin();
      core_->Handle(event, &effects_);
      const bool went = shortage_->End() > 0;
      ++shortages_;
      // An allocation gives whole chunks back, too.
      if (kStores && went) ++rolled_back_;
      return;
    }
  }
  core_->Handle(event, &effects_);
  if constexpr (std::is_same_v<Event, core::SlotsCopied>) {
    std::vector<SlotRef> taken;
    for (const core::Vacating::Move& move : core_->slots_moved()) taken.push_back(move.to);
    slots_moved_ += taken.size();
    copies_->EndSlots(taken);
  }
}

void World::CarryOut(const core::Effect& effect) {
  if (const auto* start = std::get_if<core::CopyStarted>(&effect)) {
    copies_->Start(start->op, start->direction, oracle_->ShardsOf(start->op));
    if (ops_.size() < 32) {
      ops_.push_back(start->op);
    } else {
      prng_.Pick(ops_) = start->op;
    }
  } else if (const auto* cancel = std::get_if<core::CopyCancelled>(&effect)) {
    copies_->Cancel(cancel->op);
  }
}

void World::CopySlots(const core::SlotsCopyStarted& copy) {
  std::vector<Memory::SlotCopy> copies;
  for (const auto& [from, to] : copy.slots) copies.push_back(memory_->BeginCopy(from, to));
  copies_->StartSlots(std::move(copies));
}

void World::Digest(const core::Effects& effects) {
  for (const core::Effect& effect : effects) {
    for (const char c : Print(effect)) digest_ = (digest_ ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
}

}  // namespace kvist::sim

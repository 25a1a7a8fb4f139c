#include "daemon/core/core.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/check.h"

namespace kvist::core {
namespace {

KeyHash HashFromSeed(uint64_t seed) {
  KeyHash hash;
  for (uint64_t& word : hash.seed) {  // splitmix64
    seed += 0x9e3779b97f4a7c15;
    uint64_t z = seed;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    word = z ^ (z >> 31);
  }
  return hash;
}

bool IsShare(double share) { return share > 0 && share <= 1; }

}  // namespace

absl::Status CoreOptions::Validate() const {
  if (lease_max <= absl::ZeroDuration()) return absl::InvalidArgumentError("lease_max must be positive");
  if (fill_timeout <= absl::ZeroDuration()) return absl::InvalidArgumentError("fill_timeout must be positive");
  if (!IsShare(lease_share)) return absl::InvalidArgumentError("lease_share must be above 0 and at most 1");
  if (!IsShare(private_share)) return absl::InvalidArgumentError("private_share must be above 0 and at most 1");
  if (!IsShare(pin_share)) return absl::InvalidArgumentError("pin_share must be above 0 and at most 1");
  if (slice_chunks == 0) return absl::InvalidArgumentError("slice_chunks must be positive");
  return absl::OkStatus();
}

Core::Core(CoreOptions options, pool::SlotAllocator* slots)
    : options_(options),
      slots_(*slots),
      chunks_(HashFromSeed(options.seed)),
      tenants_(&chunks_, slots->capacity(), options.quotas),
      placement_(slots, &chunks_, &spaces_, &tenants_),
      leases_(ShareOf(slots->capacity(), options.lease_share), static_cast<uint32_t>(options.seed >> 32)),
      allocations_(ShareOf(slots->capacity(), options.private_share), kAllocationsPerSession,
                   static_cast<uint32_t>(options.seed >> 32)),
      usable_(&chunks_) {
  KVIST_CHECK(options.Validate().ok());
}

void Core::Retune(const CoreOptions& options) {
  KVIST_CHECK(options.Validate().ok());
  options_.lease_max = options.lease_max;
  options_.lease_share = options.lease_share;
  options_.private_share = options.private_share;
  options_.pin_share = options.pin_share;
  options_.fill_timeout = options.fill_timeout;
  fills_.Shorten(now_ + options_.fill_timeout);
  leases_.SetBudget(ShareOf(slots_.capacity(), options_.lease_share));
  allocations_.SetBudget(ShareOf(slots_.capacity(), options_.private_share));
}

// ---- Sessions ---------------------------------------------------------------------------------------------------------------

void Core::Handle(const SessionOpened& event, Effects* out) {
  const absl::StatusOr<SpaceId> space = spaces_.Open(event.space, &slots_, &tenants_);
  if (!space.ok()) {
    out->push_back(SessionRefused{event.session, space.status()});
    return;
  }
  const absl::StatusOr<Session*> session = sessions_.Open(event, *space, event.space.ranks());
  if (!session.ok()) {
    out->push_back(SessionRefused{event.session, session.status()});
    return;
  }
  out->push_back(SessionAccepted{event.session, *space});
}

void Core::Handle(const SessionClosed& event, Effects* out) {
  Session* session = sessions_.Find(event.session);
  if (session == nullptr || session->closed) return;
  sessions_.Close(event.session);
  if (kPlanted != PlantedBug::kLeaseOfDeadSessionKept) {
    for (const LeaseId lease : leases_.OfSession(event.session)) EndLease(lease);
  }
  for (const AllocationId allocation : allocations_.OfSession(event.session)) EndAllocation(allocation);
  for (const uint64_t op : session->ops) out->push_back(CopyCancelled{OpId::Unpack(op)});
  if (session->role == Role::kWorker) {
    // What this rank has not stored it never will. What it is storing now fails with its copy.
    for (const ChunkIndex chunk : fills_.OfWriter(session->instance)) reap_.emplace_back(chunk, fills_.Find(chunk)->serial);
  }
  if (session->ops.empty()) {
    sessions_.Remove(event.session);
    out->push_back(SessionDrained{event.session});
  }
}

// ---- Lookups and leases -----------------------------------------------------------------------------------------------------

void Core::Handle(const LookupAsked& event, Effects* out) {
  Session* session = sessions_.Find(event.session);
  if (session == nullptr || session->closed) return;
  KVIST_CHECK(event.keys.size() <= kKeysMax);
  const Space& space = spaces_[session->space];
  const auto groups = static_cast<uint16_t>(space.spec.groups.size());

  const uint32_t position = usable_.Find(session->space, space.epoch, space.spec.groups, event.keys);
  for (uint16_t group = 0; position > 0 && group < groups; ++group) {
    const std::span<const ChunkIndex> needed = usable_.needed(GroupId{group});
    for (const ChunkIndex chunk : needed) chunks_[chunk].ForgetHint();
    if (space.spec.groups[group].reuse.chained()) {
      tenants_[space.tenant].policy->Used(needed);
    } else {
      for (const ChunkIndex chunk : needed) Use(chunk);
    }
  }
  counters_.lookups += 1;
  counters_.lookup_chunks_asked += event.keys.size();
  counters_.lookup_chunks_hit += position;

  LookupAnswered answer{event.session, event.tag, position, {}};
  if (position > 0 && event.lease > absl::ZeroDuration()) {
    Lease lease = LeaseOn(*session, position);
    lease.session = event.session;
    lease.deadline = now_ + std::min(event.lease, options_.lease_max);
    const auto kept = lease.kept;
    answer.lease = leases_.Grant(std::move(lease));
    if (answer.lease) Keep(kept);
  }
  out->push_back(answer);
}

Lease Core::LeaseOn(const Session& session, uint32_t position) const {
  const Space& space = spaces_[session.space];
  Lease lease;
  lease.instance = session.instance;
  lease.chunks = position;
  const auto groups = static_cast<uint16_t>(space.spec.groups.size());
  for (uint16_t group = 0; group < groups; ++group) {
    std::span<const ChunkIndex> needed = usable_.needed(GroupId{group});
    lease.bytes += space.chunk_bytes(GroupId{group}) * needed.size();
    if (space.spec.groups[group].reuse.chained()) needed = needed.last(1);
    lease.kept.insert(lease.kept.end(), needed.begin(), needed.end());
    lease.kept_end.push_back(static_cast<uint32_t>(lease.kept.size()));
  }
  return lease;
}

void Core::Handle(const ReleaseAsked& event, Effects*) {
  Session* session = sessions_.Find(event.session);
  if (session == nullptr || session->closed) return;
  if (leases_.Find(event.lease, session->instance) != nullptr) EndLease(event.lease);
}

void Core::EndLease(LeaseId id) { KeepNoLonger(leases_.End(id).kept); }

void Core::Keep(std::span<const ChunkIndex> chunks) {
  for (const ChunkIndex chunk : chunks) {
    ++chunks_[chunk].keeps;
    placement_.PolicyOf(chunk).Withdrawn(chunk);
  }
}

void Core::KeepNoLonger(std::span<const ChunkIndex> chunks) {
  for (const ChunkIndex chunk : chunks) {
    --chunks_[chunk].keeps;
    UseEnded(chunk);
  }
}

void Core::Use(ChunkIndex chunk) { placement_.PolicyOf(chunk).Used({&chunk, 1}); }

void Core::UseEnded(ChunkIndex i) {
  Chunk& chunk = chunks_[i];
  if (chunk.keeps > 0 || chunk.holds > 0) return;
  if (chunk.state == ChunkState::kSealed && !chunk.detached) {
    Use(i);
  } else if (!chunk.needed()) {
    placement_.Collect(i);
  }
}

// ---- Loads and stores -------------------------------------------------------------------------------------------------------

OpId Core::Start(Op op, std::vector<SlotRef> slots, std::vector<uint32_t> chunk_of, Effects* out) {
  CopyStarted effect{{}, op.session, op.tag, op.direction, std::move(slots), std::move(chunk_of)};
  Session* session = sessions_.Find(op.session);
  effect.op = ops_.Insert(std::move(op));
  const OpId id = effect.op;
  session->ops.insert(id.Pack());
  out->push_back(std::move(effect));
  return id;
}

void Core::Handle(const LoadAsked& event, Effects* out) {
  Session* session = sessions_.Find(event.session);
  if (session == nullptr || session->closed) return;
  const auto refuse = [&](absl::Status why) { out->push_back(OpEnded{event.session, event.tag, std::move(why)}); };
  if (session->role != Role::kWorker)
    return refuse(absl::FailedPreconditionError("only a worker session can load: a scheduler has no KV memory"));
  const Lease* lease = leases_.Find(event.lease, session->instance);
  if (lease == nullptr)
    return refuse(absl::AbortedError("the lease has ended (released, expired, or not of this instance): look up again"));
  const std::vector<GroupSpec>& groups = spaces_[session->space].spec.groups;
  if (event.group.value >= groups.size()) return refuse(absl::InvalidArgumentError("no such cache group in this space"));
  const ReuseRule& reuse = groups[event.group.value].reuse;
  const uint32_t needed = reuse.FirstNeeded(lease->chunks);
  if (event.count == 0 || event.first < needed || event.first >= lease->chunks ||
      event.count > lease->chunks - event.first) {
    return refuse(absl::InvalidArgumentError(absl::StrCat("chunks [", event.first, ", ", uint64_t{event.first} + event.count,
                                                          ") of a lease over [", needed, ", ", lease->chunks, ") in group ",
                                                          event.group.value)));
  }
  if (session->ops.size() >= Sessions::kOpsPerSession)
    return refuse(absl::ResourceExhaustedError("too many operations in flight in this session"));

  Op op{event.session, event.tag, Direction::kLoad, {}};
  op.copied = event.count;
  std::vector<SlotRef> slots(event.count);
  std::vector<uint32_t> chunk_of(event.count);
  std::iota(chunk_of.begin(), chunk_of.end(), 0);
  const std::span<const ChunkIndex> kept = lease->kept_of(event.group);
  if (reuse.chained()) {
    ChunkIndex at = kept.back();
    while (chunks_[at].position + 1 > event.first + event.count) at = chunks_[at].parent;
    op.chunks.push_back(at);
    for (uint32_t k = event.count; k-- > 0; at = chunks_[at].parent) slots[k] = placement_.SlotOf(at, session->rank);
  } else {
    const std::span<const ChunkIndex> asked = kept.subspan(event.first - needed, event.count);
    op.chunks.assign(asked.begin(), asked.end());
    for (uint32_t k = 0; k < event.count; ++k) slots[k] = placement_.SlotOf(asked[k], session->rank);
  }
  for (const ChunkIndex chunk : op.chunks) {
    ++chunks_[chunk].holds;
    placement_.PolicyOf(chunk).Withdrawn(chunk);
  }
  Start(std::move(op), std::move(slots), std::move(chunk_of), out);
}

void Core::Handle(const StoreAsked& event, Effects* out) {
  Session* session = sessions_.Find(event.session);
  if (session == nullptr || session->closed) return;
  KVIST_CHECK(event.keys.size() <= kKeysMax);
  const auto refuse = [&](absl::Status why) { out->push_back(OpEnded{event.session, event.tag, std::move(why)}); };
  if (session->role != Role::kWorker)
    return refuse(absl::FailedPreconditionError("only a worker session can store: a scheduler has no KV memory"));
  if (event.group.value >= spaces_[session->space].spec.groups.size())
    return refuse(absl::InvalidArgumentError("no such cache group in this space"));
  if (session->ops.size() >= Sessions::kOpsPerSession)
    return refuse(absl::ResourceExhaustedError("too many operations in flight in this session"));

  Op op{event.session, event.tag, Direction::kStore, {}};
  std::vector<SlotRef> slots;
  std::vector<uint32_t> chunk_of;
  ChunkIndex parent = kNoChunk;
  uint32_t k = 0;
  const auto count = static_cast<uint32_t>(event.keys.size());
  const bool chained = spaces_[session->space].spec.groups[event.group.value].reuse.chained();
  const bool rooted = !chained || !event.parent.has_value();
  if (!rooted) parent = FindCurrent(session->space, event.group, *event.parent);
  // A chained chunk without its prefix could never be a hit: without its parent nothing is stored. After a refusal nothing more is tried.
  for (; (rooted || parent != kNoChunk) && k < count; ++k) {
    ChunkIndex chunk = kNoChunk;
    const Claim claim = ClaimShard(*session, event.group, event.keys[k], parent, &chunk);
    if (claim == Claim::kRefuse) break;
    if (chained) parent = chunk;
    if (claim == Claim::kSkip) {
      if (!chained && chunks_[chunk].state == ChunkState::kSealed) UseEnded(chunk);
      ++op.skipped;
      continue;
    }
    ++op.copied;
    op.chunks.push_back(chunk);
    slots.push_back(placement_.SlotOf(chunk, session->rank));
    chunk_of.push_back(k);
  }
  op.refused = count - k;
  counters_.stores_refused += op.refused;
  // The prefix was used now, whatever became of the rest.
  if (parent != kNoChunk && chunks_[parent].state == ChunkState::kSealed) UseEnded(parent);
  if (op.chunks.empty()) {
    out->push_back(OpEnded{event.session, event.tag, absl::OkStatus(), 0, op.skipped, op.refused});
    return;
  }
  Start(std::move(op), std::move(slots), std::move(chunk_of), out);
}

ChunkIndex Core::FindCurrent(SpaceId space, GroupId group, const ChunkKey& key) {
  const ChunkIndex found = chunks_.Find(space, group, key);
  if (found == kNoChunk) return kNoChunk;
  const Chunk& chunk = chunks_[found];
  const bool orphan = chunk.parent != kNoChunk &&
                      chunks_[chunk.parent].detached;  // no lookup gets there; in its place it can be stored again
  if (chunk.epoch == spaces_[space].epoch && !orphan) return found;
  Detach(found);
  return kNoChunk;
}

Core::Claim Core::ClaimShard(const Session& session, GroupId group, const ChunkKey& key, ChunkIndex parent,
                             ChunkIndex* chunk) {
  ChunkIndex i = FindCurrent(session.space, group, key);
  const GroupSpec& spec = spaces_[session.space].spec.groups[group.value];
  const uint64_t mine = uint64_t{1} << spec.ShardOf(session.rank);
  if (i == kNoChunk || (chunks_[i].state == ChunkState::kGhost && chunks_[i].parent == parent)) {
    if (i == kNoChunk) {
      i = chunks_.Add(session.space, group, key, parent, spaces_[session.space].epoch);
      if (parent != kNoChunk) placement_.PolicyOf(parent).Withdrawn(parent);
    }
    if (!placement_.Reserve(i)) {
      placement_.Collect(i);
      return Claim::kRefuse;
    }
    fills_.Begin(i, session.instance, spec.shards(), now_ + options_.fill_timeout);
  }
  *chunk = i;
  Chunk& c = chunks_[i];
  if (c.parent != parent) return Claim::kRefuse;  // keys come from clients: this one hangs elsewhere in the tree
  if (c.state == ChunkState::kSealed) return Claim::kSkip;
  Fill* fill = fills_.Find(i);
  if (fill->writer != session.instance || fill->doomed || (fill->claimed & mine) != 0) return Claim::kSkip;
  fill->claimed |= mine;
  ++c.holds;
  return Claim::kCopy;
}

void Core::Handle(const CancelAsked& event, Effects* out) {
  if (ops_.Find(event.op) != nullptr) out->push_back(CopyCancelled{event.op});
}

void Core::Handle(const CopyFinished& event, Effects* out) {
  if (ops_.Find(event.op) == nullptr) return;  // a late duplicate
  const Op op = ops_.Take(event.op);
  const bool ok = event.status.ok();
  Session* session = sessions_.Find(op.session);
  const uint32_t dropped = DropCorrupt(op, event.corrupt);
  if (op.allocation) SwapEnded(op, event.op, ok);
  for (const ChunkIndex chunk : op.chunks) {
    if (op.direction == Direction::kStore && !op.allocation) {
      FinishShard(chunk, session->rank, ok);
    } else {
      --chunks_[chunk].holds;
      UseEnded(chunk);
    }
  }
  if (ok && !op.allocation)
    (op.direction == Direction::kStore ? counters_.chunks_stored : counters_.chunks_loaded) += op.copied;
  if (dropped > 0) out->push_back(CorruptionFound{session->space, dropped});
  session->ops.erase(event.op.Pack());
  if (!session->closed) {
    out->push_back(OpEnded{op.session, op.tag, event.status, ok ? op.copied : 0, op.skipped, op.refused});
  } else if (session->ops.empty()) {
    sessions_.Remove(op.session);
    out->push_back(SessionDrained{op.session});
  }
}

// Leases and copies of others may hold them for longer: each load of theirs is checked, too. Chunks below them go unseen with time, or when
// they are stored again.
uint32_t Core::DropCorrupt(const Op& op, std::span<const uint32_t> slots) {
  uint32_t dropped = op.allocation ? static_cast<uint32_t>(slots.size()) : 0;  // nobody else finds those anyway
  if (op.allocation) slots = {};
  const bool listed = op.chunks.size() == op.copied;
  ChunkIndex at = op.chunks.back();
  uint32_t slot = op.copied - 1;  // whose chunk `at` is
  for (auto corrupt = slots.rbegin(); corrupt != slots.rend(); ++corrupt) {
    KVIST_CHECK(op.direction == Direction::kLoad && *corrupt <= slot);
    for (; slot > *corrupt; --slot) at = listed ? op.chunks[slot - 1] : chunks_[at].parent;
    if (chunks_[at].detached) continue;  // cleared, or found before
    Detach(at);
    ++dropped;
  }
  counters_.chunks_corrupt += dropped;
  return dropped;
}

// ---- Sealing ----------------------------------------------------------------------------------------------------------------

void Core::FinishShard(ChunkIndex i, Rank rank, bool stored) {
  Chunk& chunk = chunks_[i];
  Fill* fill = fills_.Find(i);
  --chunk.holds;
  if (fill == nullptr) {
    KVIST_CHECK(kPlanted != PlantedBug::kNone);
    return UseEnded(i);
  }
  if (!stored) fill->doomed = true;
  if (fill->doomed) return Abandon(i);
  fill->stored |= uint64_t{1} << spaces_[chunk.space].spec.groups[chunk.group.value].ShardOf(rank);
  if (!fill->sealed() && kPlanted != PlantedBug::kSealedAfterOneRank) return;
  fills_.End(i);
  chunk.state = ChunkState::kSealed;
  ++spaces_[chunk.space].sealed;
  if (!chunk.needed()) Use(i);
}

void Core::Doom(ChunkIndex i) {
  fills_.Find(i)->doomed = true;
  Abandon(i);
}

// Ends a doomed fill once no copy runs. The chunk's prefix counts as used now: it was, when the store came.
void Core::Abandon(ChunkIndex i) {
  if (chunks_[i].holds > 0) return;
  const ChunkIndex parent = chunks_[i].parent;
  fills_.End(i);
  placement_.Unreserve(i);
  placement_.Collect(i);
  if (parent != kNoChunk && chunks_[parent].state == ChunkState::kSealed && !chunks_[parent].detached) UseEnded(parent);
}

// ---- Jobs -------------------------------------------------------------------------------------------------------------------

void Core::Handle(const ClearAsked& event, Effects* out) {
  if (event.space.has_value() && !spaces_.Has(*event.space)) {
    jobs_.Start({.id = event.job, .request = event.request, .space = event.space});
    jobs_.End(event.job, JobState::kDone);  // listed all the same: whoever asked may look for it
    out->push_back(JobEnded{event.job, JobState::kDone, 0});
    return;
  }
  for (uint32_t s = 0; s < spaces_.size(); ++s) {
    if (event.space.has_value() && event.space->value != s) continue;
    Space& space = spaces_[SpaceId{s}];
    ++space.epoch;
    if (Pins::OfSpace pins = pins_.TakeAll(SpaceId{s}, space.tenant); !pins.empty())
      cleared_pins_.push_back(std::move(pins));
  }
  // Places that are made later hold nothing of the epochs before.
  jobs_.Start({.id = event.job, .request = event.request, .space = event.space, .total = chunks_.places()});
}

uint32_t Core::Clear(Job* job, uint32_t budget) {
  uint32_t spent = 0;
  for (; spent < budget && job->done < job->total; ++job->done) {
    const auto i = static_cast<ChunkIndex>(job->done);
    const Chunk& chunk = chunks_[i];
    ++spent;
    if (chunk.state == ChunkState::kFree || chunk.detached || chunk.epoch == spaces_[chunk.space].epoch) continue;
    if (job->space.has_value() && chunk.space != *job->space) continue;
    if (chunk.state == ChunkState::kSealed) ++job->chunks;
    spent += Detach(i);
  }
  return spent;
}

void Core::Handle(const JobCancelAsked& event, Effects* out) {
  if (const Job* job = jobs_.End(event.job, JobState::kCancelled))
    out->push_back(JobEnded{job->id, job->state, job->chunks});
}

uint32_t Core::Detach(ChunkIndex i) {
  Chunk& chunk = chunks_[i];
  placement_.PolicyOf(i).Withdrawn(i);
  chunks_.Detach(i);
  if (chunk.state != ChunkState::kFilling) return placement_.Collect(i);
  Doom(i);
  return 1;
}

void Core::Handle(const QuotaSet& event, Effects*) { tenants_.SetQuota(event.tenant, event.bytes); }

// ---- The clock --------------------------------------------------------------------------------------------------------------

void Core::Handle(const Tick& event, Effects* out) {
  now_ = std::max(now_, event.now);
  uint32_t budget = options_.slice_chunks;
  while (budget > 0) {
    const LeaseId expired = leases_.Expired(now_);
    if (!expired) break;
    EndLease(expired);
    --budget;
  }
  while (budget > 0) {
    const ChunkIndex late = fills_.Expired(now_);
    if (late == kNoChunk) break;
    Doom(late);
    --budget;
  }
  for (; budget > 0 && !reap_.empty(); --budget) {
    const auto [chunk, serial] = reap_.front();
    reap_.pop_front();
    // It may have ended since, and another half store of the same chunk have begun.
    const Fill* fill = fills_.Find(chunk);
    if (fill != nullptr && fill->serial == serial) Doom(chunk);
  }
  for (; budget > 0 && !cleared_pins_.empty(); --budget) {
    Pins::OfSpace& pins = cleared_pins_.front();
    const Pins::OfSpace::node_type ended = pins.extract(pins.begin());
    pins_.Forget(ended.mapped().number);
    KeepNoLonger(ended.mapped().kept);
    if (pins.empty()) cleared_pins_.pop_front();
  }
  while (budget > 0 && (jobs_.busy() || !placement_.rest().empty())) {
    if (!placement_.rest().empty()) {
      budget -= std::min(budget, placement_.CollectRest(budget));
      continue;
    }
    Job* job = jobs_.current();
    budget -= std::min(budget, Clear(job, budget));
    if (job->done < job->total || !placement_.rest().empty()) continue;
    const Job* ended = jobs_.End(job->id, JobState::kDone);
    out->push_back(JobEnded{ended->id, ended->state, ended->chunks});
  }
}

CoreStatus::SpaceRow Core::space(SpaceId id) const {
  const Space& met = spaces_[id];
  CoreStatus::SpaceRow row{met.spec.digest, met.spec.tenant, met.spec.model, met.sealed, met.bytes};
  const auto groups = static_cast<uint16_t>(met.spec.groups.size());
  for (uint16_t g = 0; g < groups; ++g) row.chunk_bytes = std::max(row.chunk_bytes, met.chunk_bytes(GroupId{g}));
  return row;
}

CoreStatus Core::status() const {
  CoreStatus status = counters_;
  for (uint32_t s = 0; s < spaces_.size(); ++s) {
    status.spaces.push_back(space(SpaceId{s}));
    status.sealed += status.spaces.back().chunks;
  }
  for (uint32_t t = 0; t < tenants_.size(); ++t) {
    const Tenant& tenant = tenants_[TenantId{t}];
    status.tenants.push_back({tenant.name, tenant.quota, tenant.used, tenant.evictions});
  }
  for (const auto& [name, quota] : tenants_.quotas()) { status.quotas.emplace_back(name, quota); }
  status.chunks = chunks_.size();
  status.filling = fills_.size();
  status.leases = leases_.size();
  status.pins = pins_.size();
  status.allocations = allocations_.size();
  status.private_bytes = private_bytes_;
  status.ops = ops_.size();
  status.sessions = sessions_.size();
  status.instances = sessions_.instances();
  status.evictions = placement_.evictions();
  status.index_bytes = {chunks_.memory_bytes()};
  return status;
}

}  // namespace kvist::core

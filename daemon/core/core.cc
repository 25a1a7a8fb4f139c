#include "daemon/core/core.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/core/planted_bug.h"
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
  if (doubt < absl::ZeroDuration()) return absl::InvalidArgumentError("doubt must not be negative");
  if (fill_timeout <= absl::ZeroDuration()) return absl::InvalidArgumentError("fill_timeout must be positive");
  if (!IsShare(lease_share)) return absl::InvalidArgumentError("lease_share must be above 0 and at most 1");
  if (!IsShare(private_share)) return absl::InvalidArgumentError("private_share must be above 0 and at most 1");
  if (!IsShare(pin_share)) return absl::InvalidArgumentError("pin_share must be above 0 and at most 1");
  if (slice_work == 0) return absl::InvalidArgumentError("slice_work must be positive");
  if (event_work < kEventWorkMin)
    return absl::InvalidArgumentError(absl::StrCat("event_work must be at least ", kEventWorkMin));
  return absl::OkStatus();
}

Core::Core(CoreOptions options, pool::SlotAllocator* slots, pool::Sections* sections)
    : options_(options),
      slots_(*slots),
      spaces_(sections != nullptr ? sections : &own_sections_),
      chunks_(HashFromSeed(options.seed), sections != nullptr ? sections : &own_sections_),
      tenants_(&chunks_, slots->capacity(), options.quotas, options.eviction,
               options.disk.has_value() ? [this](ChunkIndex chunk) { return BytesOf(chunk); }
                                        : std::function<Bytes(ChunkIndex)>()),
      placement_(slots, &chunks_, &spaces_, &tenants_, sections != nullptr ? sections : &own_sections_),
      fills_(&chunks_),
      leases_(ShareOf(slots->capacity(), options.lease_share), static_cast<uint32_t>(options.seed >> 32)),
      allocations_(ShareOf(slots->capacity(), options.private_share), kAllocationsPerSession,
                   static_cast<uint32_t>(options.seed >> 32)),
      ages_(options.disk.value_or(CoreOptions::Disk{}).capacity),
      usable_(&chunks_, options.event_work) {
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

void Core::On(const SessionOpened& event, Effects* out) {
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
  if (event.role == Role::kWorker) {
    const std::span<const uint32_t> near = sessions_.NearOf((*session)->instance);
    spaces_[*space].near.assign(near.begin(), near.end());
  }
  out->push_back(SessionAccepted{event.session, *space});
}

void Core::On(const SessionClosed& event, Effects* out) {
  Session* session = sessions_.Find(event.session);
  if (session == nullptr || session->closed) return;
  sessions_.Close(event.session);
  std::erase_if(flushes_, [&](const Flush& flush) { return flush.session == event.session; });
  EndAsks(event.session);
  if (planted != PlantedBug::kLeaseOfDeadSessionKept) leases_.Close(event.session);
  allocations_.Close(event.session);
  chunks_.Charge(session->ops.size());
  for (const uint64_t op : session->ops) {
    const OpId id = OpId::Unpack(op);
    if (ops_.Find(id)->reads_left > 0) {
      given_up_.push_back(id);
    } else {
      out->push_back(CopyCancelled{id});
    }
  }
  // What it is storing now fails with its copy.
  if (session->role == Role::kWorker) reap_.push_back({session->instance, fills_.next_serial()});
  if (session->ops.empty()) {
    sessions_.Remove(event.session);
    out->push_back(SessionDrained{event.session});
  }
}

// ---- Lookups and leases -----------------------------------------------------------------------------------------------------

void Core::On(const LookupAsked& event, Effects* out) {
  Session* session = sessions_.Find(event.session);
  if (session == nullptr || session->closed) return;
  KVIST_CHECK(event.keys.size() <= kKeysMax);
  const Space& space = spaces_[session->space];
  const uint32_t position = usable_.Find(session->space, space.epoch, space.spec.groups, event.keys);
  if (!AskRemote(event, *session, position, out)) Answer(event, *session, position, false, out);
}

void Core::Answer(const LookupAsked& event, const Session& session, uint32_t position, bool waited, Effects* out) {
  const Space& space = spaces_[session.space];
  const auto groups = static_cast<uint16_t>(space.spec.groups.size());
  for (uint16_t group = 0; position > 0 && group < groups; ++group) {
    const std::span<const ChunkIndex> needed = usable_.needed(GroupId{group});
    chunks_.Charge(needed.size());
    for (const ChunkIndex chunk : needed) {
      chunks_[chunk].ForgetHint();
      chunks_[chunk].disk_use = ages_.now();
    }
    UsePath(needed, space.spec.groups[group].reuse.chained());
  }
  // What isn't worth a load was used all the same.
  const bool weighed = position > event.have && event.lease > absl::ZeroDuration();
  if (weighed) position = WorthLoading(session, position, event.have);
  counters_.lookups += 1;
  counters_.lookup_chunks_asked += event.keys.size();
  counters_.lookup_chunks_hit += position;

  LeaseId granted;
  uint32_t coming = 0;
  if (position > event.have && event.lease > absl::ZeroDuration() && FitsBehind(event.have, session, position)) {
    Lease lease = LeaseOn(session.space, position, event.have);
    lease.instance = session.instance;
    lease.session = event.session;
    lease.by_layer = event.by_layer;
    lease.deadline = now_ + std::min(event.lease, options_.lease_max);
    const auto kept = lease.kept;
    granted = leases_.Grant(std::move(lease));
    if (granted) Keep(kept);
    // Nothing is read for whom it couldn't be kept.
    if (granted && (space.below > 0 || !reading_.empty())) coming = Fetch(granted, session.space);
  }
  auto& answer = std::get<LookupAnswered>(out->emplace_back(std::in_place_type<LookupAnswered>));  // filled where it lies
  answer.session = event.session;
  answer.tag = event.tag;
  answer.chunks = position;
  answer.coming = coming;
  answer.lease = granted;
  answer.waited = waited;
  if (weighed) ReadLeft(out);  // not into what the lease keeps
}

Core::Located Core::Locate(SpaceId id, std::span<const ChunkKey> keys) {
  KVIST_CHECK(keys.size() <= kKeysMax);
  const Space& space = spaces_[id];
  Located located{usable_.Find(id, space.epoch, space.spec.groups, keys)};
  if (located.chunks == 0) return located;
  std::vector<bool> below(located.chunks);
  const auto groups = static_cast<uint16_t>(space.spec.groups.size());
  for (uint16_t group = 0; group < groups; ++group) {
    const std::span<const ChunkIndex> needed = usable_.needed(GroupId{group});
    chunks_.Charge(needed.size());
    for (size_t i = 0; i < needed.size(); ++i) {
      if (!chunks_[needed[i]].has_slots()) below[located.chunks - needed.size() + i] = true;
    }
  }
  located.below = static_cast<uint32_t>(std::count(below.begin(), below.end(), true));
  return located;
}

Bytes Core::LeaseBytes(SpaceId id, uint32_t position, uint32_t have) const {
  const Space& space = spaces_[id];
  Bytes sum{};
  const auto groups = static_cast<uint16_t>(space.spec.groups.size());
  for (uint16_t g = 0; g < groups; ++g)
    sum += space.chunk_bytes(GroupId{g}) *
           (position - std::min(position, std::max(have, space.spec.groups[g].reuse.FirstNeeded(position))));
  return sum;
}

bool Core::FitsBehind(uint32_t have, const Session& session, uint32_t position) const {
  const Space& space = spaces_[session.space];
  if (have == 0 || space.below == 0) return true;
  Bytes slots = LeaseBytes(session.space, position, have);
  const auto groups = static_cast<uint16_t>(space.spec.groups.size());
  for (uint16_t g = 0; g < groups; ++g) {
    const ReuseRule& reuse = space.spec.groups[g].reuse;
    const uint32_t first = reuse.FirstNeeded(position);
    if (!reuse.chained() || first >= have) continue;
    for (const ChunkIndex chunk : usable_.needed(GroupId{g}).first(have - first)) {
      if (chunks_[chunk].has_slots()) slots += space.chunk_bytes(GroupId{g});
    }
  }
  return slots <= std::min(tenants_[space.tenant].quota, slots_.capacity());
}

Lease Core::LeaseOn(SpaceId id, uint32_t position, uint32_t have) const {
  const Space& space = spaces_[id];
  Lease lease;
  lease.bytes = LeaseBytes(id, position, have);
  lease.have = have;
  lease.chunks = position;
  const auto groups = static_cast<uint16_t>(space.spec.groups.size());
  for (uint16_t group = 0; group < groups; ++group) {
    std::span<const ChunkIndex> needed = usable_.needed(GroupId{group});
    const ReuseRule& reuse = space.spec.groups[group].reuse;
    needed = needed.subspan(lease.FirstOf(reuse) - reuse.FirstNeeded(position));
    if (!reuse.chained()) {
      lease.kept.insert(lease.kept.end(), needed.begin(), needed.end());
    } else {
      for (uint32_t k = 0; space.below > 0 && k + 1 < needed.size(); ++k) {
        if (chunks_[needed[k]].has_slots() && !chunks_[needed[k + 1]].has_slots()) lease.kept.push_back(needed[k]);
      }
      lease.kept.push_back(needed.back());
    }
    lease.kept_end.push_back(static_cast<uint32_t>(lease.kept.size()));
  }
  return lease;
}

void Core::On(const ReleaseAsked& event, Effects*) {
  Session* session = sessions_.Find(event.session);
  if (session == nullptr || session->closed) return;
  if (leases_.Find(event.lease, session->instance) != nullptr) EndLease(event.lease);
}

void Core::EndLease(LeaseId id) {
  job_waits_ = false;
  const Lease lease = leases_.End(id);
  readers_.erase(lease.read_turn);
  chunks_.Charge(lease.to_read.size());
  for (const ChunkIndex chunk : lease.to_read) {
    if (chunks_[chunk].holds > 0) orphan_reads_.push_back({RefOf(chunk), lease.by_layer});
  }
  KeepNoLonger(lease.kept);
}

void Core::Keep(std::span<const ChunkIndex> chunks) {
  chunks_.Charge(chunks.size());
  for (const ChunkIndex chunk : chunks) {
    ++chunks_[chunk].keeps;
    placement_.PolicyOf(chunk).Withdrawn(chunk);
  }
}

void Core::KeepNoLonger(std::span<const ChunkIndex> chunks) {
  chunks_.Charge(chunks.size());
  for (const ChunkIndex chunk : chunks) {
    --chunks_[chunk].keeps;
    UseEnded(chunk);
  }
}

// The policy orders what is in slots: with a disk below, a path has gaps, and a chunk above one is a leaf there.
void Core::UsePath(std::span<const ChunkIndex> path, bool chained) {
  const auto sealed = [this](ChunkIndex chunk) { return chunks_[chunk].state == ChunkState::kSealed; };
  while (!path.empty() && !sealed(path.back())) path = path.first(path.size() - 1);
  if (path.empty()) return;
  EvictionPolicy& policy = placement_.PolicyOf(path.back());
  if (!chained) {
    for (const ChunkIndex& chunk : path) {
      if (sealed(chunk)) policy.Used({&chunk, 1});
    }
    return;
  }
  policy.Used(path);
  if (!options_.below()) return;
  for (const ChunkIndex chunk : path.first(path.size() - 1)) {
    if (sealed(chunk) && !chunks_[chunk].busy()) policy.Returned(chunk);
  }
}

void Core::UseEnded(ChunkIndex i) {
  Chunk& chunk = chunks_[i];
  if (chunk.state == ChunkState::kLost && chunk.holds == 0) placement_.Unreserve(i);
  if (!places_lost_.empty() && chunk.holds == 0 && places_lost_.erase(i) > 0 && chunk.on_disk()) placement_.ForgetPlaces(i);
  if (chunk.keeps > 0 || chunk.holds > 0) return;
  if (chunk.state == ChunkState::kSealed && !chunk.detached) {
    placement_.PolicyOf(i).Returned(i);
  } else if (!chunk.needed()) {
    placement_.Collect(i);
  }
}

void Core::On(const QuotaSet& event, Effects*) { tenants_.SetQuota(event.tenant, event.bytes); }

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
    status.below += spaces_[SpaceId{s}].below;
  }
  for (uint32_t t = 0; t < tenants_.size(); ++t) {
    const Tenant& tenant = tenants_[TenantId{t}];
    status.tenants.push_back({tenant.name, tenant.quota, tenant.used, tenant.evictions});
  }
  for (const auto& [name, quota] : tenants_.quotas()) { status.quotas.emplace_back(name, quota); }
  status.chunks = chunks_.size();
  status.filling = fills_.size();
  status.slots_in_doubt = placement_.in_doubt();
  status.remote_waiting = remote_queue_.size();
  status.leases = leases_.size();
  status.pins = pins_.size();
  status.allocations = allocations_.size();
  status.private_bytes = private_bytes_;
  status.ops = ops_.size();
  status.sessions = sessions_.size();
  status.instances = sessions_.instances();
  status.evictions = placement_.evictions();
  status.demotions = placement_.demotions();
  status.slots_moved = placement_.vacating().slots_moved();
  status.slabs_emptied = placement_.vacating().slabs_emptied();
  status.index_bytes = {chunks_.memory_bytes()};
  for (uint32_t t = 0; t < tenants_.size(); ++t) status.index_bytes += Bytes{tenants_[TenantId{t}].policy->memory_bytes()};
  return status;
}

}  // namespace kvist::core

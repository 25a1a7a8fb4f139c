#include "daemon/core/core.h"

#include <algorithm>
#include <utility>

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

}  // namespace

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
      usable_(&chunks_, options.event_work),
      ages_(options.disk.value_or(CoreOptions::Disk{}).capacity) {
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
  flushes_.DropOf(event.session);
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

// ---- Chunks in use ----------------------------------------------------------------------------------------------------------

ChunkIndex Core::Find(ChunkRef chunk) const {
  if (chunk.index >= chunks_.places() || chunks_[chunk.index].generation != chunk.generation) return kNoChunk;
  return chunks_[chunk.index].state == ChunkState::kFree ? kNoChunk : chunk.index;
}

void Core::Detach(ChunkIndex i) {
  Chunk& chunk = chunks_[i];
  placement_.PolicyOf(i).Withdrawn(i);
  placement_.Detach(i);
  if (chunk.state != ChunkState::kFilling) return placement_.Collect(i);
  Doom(i);
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

// ---- Rows and figures -------------------------------------------------------------------------------------------------------

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
  status.encoded = placement_.encoded();
  status.evictions = placement_.evictions();
  status.demotions = placement_.demotions();
  status.slots_moved = placement_.vacating().slots_moved();
  status.slabs_emptied = placement_.vacating().slabs_emptied();
  status.index_bytes = {chunks_.memory_bytes()};
  for (uint32_t t = 0; t < tenants_.size(); ++t) status.index_bytes += Bytes{tenants_[TenantId{t}].policy->memory_bytes()};
  return status;
}

}  // namespace kvist::core

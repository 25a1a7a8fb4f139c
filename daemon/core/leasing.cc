// What the core does for lookups: how far a prompt is found, what of it is kept by a lease, and when that ends.

#include <algorithm>
#include <utility>

#include "daemon/core/core.h"
#include "storage/base/check.h"

namespace kvist::core {

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
      Use(chunk);
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
    if (granted && (space.below > 0 || !reads_.empty())) coming = Fetch(granted, session.space);
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
  EndJobsWait();
  const Lease lease = leases_.End(id);
  read_queue_.Leave(lease.read_turn);
  chunks_.Charge(lease.to_read.size());
  for (const ChunkIndex chunk : lease.to_read) {
    if (chunks_[chunk].holds > 0) read_queue_.Add({RefOf(chunk), lease.by_layer});
  }
  KeepNoLonger(lease.kept);
}

}  // namespace kvist::core

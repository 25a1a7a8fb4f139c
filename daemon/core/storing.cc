// What the core does for stores: who copies which shard, and when a chunk is sealed, or given up.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/core/core.h"
#include "daemon/core/planted_bug.h"
#include "storage/base/check.h"

namespace kvist::core {

void Core::On(const StoreAsked& event, Effects* out) {
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
  ChunkIndex parent = kNoChunk;
  uint32_t k = 0;
  const auto count = static_cast<uint32_t>(event.keys.size());
  const bool chained = spaces_[session->space].spec.groups[event.group.value].reuse.chained();
  const bool rooted = !chained || !event.parent.has_value();
  if (!rooted) parent = FindCurrent(session->space, event.group, *event.parent);
  // A chained chunk without its prefix could never be a hit: without its parent nothing is stored. After a refusal nothing more is tried.
  Claim claim = Claim::kCopy;
  const EvictionPolicy& policy = *tenants_[spaces_[session->space].tenant].policy;
  for (; (rooted || parent != kNoChunk) && k < count && (k == 0 || !placement_.spent()); ++k) {
    if (k % ChunkTable::kPrefetched == 0) {
      const std::span<const ChunkKey> next = event.keys.subspan(k, std::min<size_t>(count - k, ChunkTable::kPrefetched));
      const auto names = chunks_.PrefetchNames(session->space, event.group, next);
      policy.Prefetch(std::span(names).first(next.size()));
    }
    ChunkIndex chunk = kNoChunk;
    claim = ClaimShard(*session, event.group, event.keys[k], parent, count - k, &chunk);
    if (claim == Claim::kRefuse || claim == Claim::kTooManyGhosts) break;
    if (chained) parent = chunk;
    if (claim == Claim::kSkip) {
      if (!chained && chunks_[chunk].state == ChunkState::kSealed) UseEnded(chunk);
      ++op.skipped;
      continue;
    }
    ++op.copied;
    op.chunks.push_back(chunk);
    op.slots.push_back(placement_.SlotOf(chunk, session->rank));
    op.chunk_of.push_back(k);
  }
  op.refused = count - k;
  counters_.stores_refused += op.refused;
  // The prefix was used now, whatever became of the rest.
  if (parent != kNoChunk && chunks_[parent].state == ChunkState::kSealed) UseEnded(parent);
  if (op.chunks.empty()) {
    absl::Status status;
    if (claim == Claim::kTooManyGhosts) {
      status = absl::ResourceExhaustedError(
          absl::StrCat("stores of the tenant that failed have left ", tenants_[spaces_[session->space].tenant].ghosts,
                       " chunks on which others hang, and at most ", options_.ghosts_max,
                       " are kept: store them again, or wait until what hangs on them has ended or is evicted"));
    }
    out->push_back(OpEnded{event.session, event.tag, std::move(status), 0, op.skipped, op.refused});
    return;
  }
  Start(std::move(op), out);
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

Core::Claim Core::ClaimShard(const Session& session, GroupId group, const ChunkKey& key, ChunkIndex parent, uint32_t wanted,
                             ChunkIndex* chunk) {
  ChunkIndex i = FindCurrent(session.space, group, key);
  const GroupSpec& spec = spaces_[session.space].spec.groups[group.value];
  const uint64_t mine = uint64_t{1} << spec.ShardOf(session.rank);
  if (i == kNoChunk || (chunks_[i].state == ChunkState::kGhost && chunks_[i].parent == parent)) {
    if (i == kNoChunk) {
      const TenantId tenant = spaces_[session.space].tenant;
      if (tenants_[tenant].ghosts >= options_.ghosts_max) {
        placement_.MakeFewerGhosts(tenant);  // for the next one
        return Claim::kTooManyGhosts;
      }
      i = placement_.Add(session.space, group, key, parent);
    }
    if (!placement_.Reserve(i, sessions_.NearOf(session.instance), Tenants::Victims::kAny, wanted)) {
      placement_.Collect(i);
      return Claim::kRefuse;
    }
    fills_.Begin(i, session.instance, spec.shards(), now_ + options_.fill_timeout);
  }
  *chunk = i;
  Chunk& c = chunks_[i];
  if (c.parent != parent) return Claim::kRefuse;  // keys come from clients: this one hangs elsewhere in the tree
  if (c.whole()) return Claim::kSkip;
  Fill* fill = fills_.Find(i);
  if (fill->writer != session.instance || fill->doomed || (fill->claimed & mine) != 0) return Claim::kSkip;
  fill->claimed |= mine;
  ++c.holds;
  return Claim::kCopy;
}

// ---- Sealing ----------------------------------------------------------------------------------------------------------------

bool Core::FinishShard(ChunkIndex i, Rank rank, bool stored) {
  Chunk& chunk = chunks_[i];
  Fill* fill = fills_.Find(i);
  --chunk.holds;
  if (fill == nullptr) {
    KVIST_CHECK(planted != PlantedBug::kNone);
    UseEnded(i);
    return stored;
  }
  if (!stored) fill->doomed = true;
  if (fill->doomed) {
    Abandon(i);
    return false;
  }
  // Or a clear has hidden it and not come to it yet, or what it hangs on was dropped.
  const bool visible =
      chunk.epoch == spaces_[chunk.space].epoch && (chunk.parent == kNoChunk || !chunks_[chunk.parent].detached);
  fill->stored |= uint64_t{1} << spaces_[chunk.space].spec.groups[chunk.group.value].ShardOf(rank);
  if (!fill->sealed() && planted != PlantedBug::kSealedAfterOneRank) return visible;
  fills_.End(i);
  chunk.state = ChunkState::kSealed;
  chunk.disk_use = ages_.now();
  ++spaces_[chunk.space].sealed;
  placement_.PolicyOf(i).Sealed(i);
  placement_.Moved(i);
  NoteCame(i, Tier::kDram);
  if (!chunk.busy()) placement_.PolicyOf(i).Returned(i);
  if (visible && !chunk.detached) OfferRemote(i);
  return visible;
}

void Core::Doom(ChunkIndex i) {
  fills_.Find(i)->doomed = true;
  Abandon(i);
}

// Ends a doomed fill once no copy runs. The chunk's prefix counts as used now: it was, when the store came.
void Core::Abandon(ChunkIndex i) {
  if (chunks_[i].holds > 0) return;
  if (placement_.spent()) {  // a store of many chunks of many ranks
    quiet_.emplace_back(i, fills_.Find(i)->serial);
    return;
  }
  const ChunkIndex parent = chunks_[i].parent;
  fills_.End(i);
  placement_.Unreserve(i);
  placement_.Collect(i);
  if (parent != kNoChunk && chunks_[parent].state == ChunkState::kSealed && !chunks_[parent].detached) UseEnded(parent);
}

}  // namespace kvist::core

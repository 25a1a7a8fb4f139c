// Moves from and to a store beyond the node. From there, into slots or through them to disk: it is asked what it has of the prompt, a part after
// the other, for that isn't known here; what is there is kept, read, and for a move to disk written. To there: it is asked, too, for others remove
// from it; what it hasn't is written from slots, and from disk kept and read first.

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/core/core.h"
#include "storage/base/check.h"

namespace kvist::core {
namespace {

// So many chunks are asked for at a time, and no more than what an event may do of them: a part of it for each.
constexpr uint32_t kAskedAtOnce = 256;
constexpr uint32_t kWorkOfOne = 16;
// What was asked in vain, for something of the space was to be forgotten meanwhile, is asked again so many times in a row.
constexpr uint32_t kVainMax = 8;

}  // namespace

void Core::AskForMove(const Job& job, PromptJob* of, size_t first, Effects* out) {
  const Space& space = spaces_[*job.space];
  const auto groups = static_cast<uint32_t>(space.spec.groups.size());
  const auto from = static_cast<uint32_t>(first);
  Ask ask{{}, of->keys, *job.space, space.epoch, now_, from};
  ask.job = job.id;
  ask.there.resize(groups);
  chunks_.Charge(of->keys.size() / 32);
  of->asking = true;
  const AskId id = asks_.Insert(std::move(ask));
  const uint32_t at_once = std::min(kAskedAtOnce, options_.event_work / kWorkOfOne);
  AskFor(id, asks_.Find(id), std::max(at_once / groups, 1u), out);
}

void Core::TakeForMove(const Ask& ask, const absl::Status& status) {
  const auto found = prompt_jobs_.find(ask.job);
  if (found == prompt_jobs_.end()) return;  // it was cancelled
  PromptJob& of = found->second;
  of.asking = false;
  Job* job = jobs_.Running(ask.job);
  KVIST_CHECK(job != nullptr);
  const auto groups = static_cast<uint16_t>(ask.there.size());
  const bool cleared = ask.epoch != spaces_[ask.space].epoch;
  const bool vain = status.ok() && ask.vain && !cleared;
  if (vain && ++of.vain <= kVainMax) return;  // once more
  const bool told = status.ok() && !cleared && !vain;
  if (!status.ok())
    job->trouble = absl::StrCat("the remote store didn't say what it has: ", absl::string_view(status.message()));
  if (vain) job->trouble = "the remote store was to forget something of this space whenever it was asked: try again later";
  if (of.move.to == Tier::kRemote) {
    of.told_from = ask.from;
    of.told = told ? ask.from + ask.asked : of.keys.size();
    of.there = told ? ask.there : std::vector<std::vector<bool>>();
    return;
  }
  of.next = ask.from + ask.asked;
  if (!told) {
    of.next = of.keys.size();
    if (!cleared) job->left += (of.keys.size() - ask.from) * groups;  // of what isn't known to be there
  }
  job->done = std::min<uint64_t>(job->total, of.next * groups);
  if (!told) return;
  of.vain = 0;
  std::vector<ChunkRef> added;
  TakeRemote(ask, &added);
  // What isn't kept is known no longer when this event is over.
  for (uint32_t k = 0; k < ask.asked; ++k) {
    const ChunkKey& key = ask.keys[ask.from + k];
    for (uint16_t g = 0; g < groups; ++g)
      KeepForMove(job, &of, GroupId{g}, key, ask.there[g][k] && !remote_names_.WillForget({ask.space, key}));
  }
  CollectUnneeded(added);
}

void Core::KeepForMove(Job* job, PromptJob* of, GroupId group, const ChunkKey& key, bool in_store) {
  const Space& space = spaces_[*job->space];
  const ChunkIndex i = chunks_.FindVisible(*job->space, group, space.epoch, key);
  if (i == kNoChunk) {  // what it hangs on is nowhere, if it is there at all
    job->left += in_store ? 1 : 0;
    if (in_store) of->left_there.insert(key);
    return;
  }
  const Bytes most = ShareOf(std::min(tenants_[space.tenant].quota, slots_.capacity()), options_.lease_share);
  const Chunk& chunk = chunks_[i];
  const bool to_disk = of->move.to == Tier::kSsd;
  const bool there = to_disk ? chunk.on_disk() : chunk.state == ChunkState::kSealed;
  const bool leaves = !of->move.keep_source && chunk.remote != RemoteCopy::kNone;
  const bool fits = of->kept_bytes + BytesOf(i) <= most;
  if (there && !leaves) ++job->already;
  if (there && !leaves) return;
  if (!fits) {
    ++job->left;
    of->left_there.insert(key);
    return;
  }
  of->kept_bytes += BytesOf(i);
  of->kept.push_back({i, /*moves=*/true, /*was_in_slots=*/chunk.state == ChunkState::kSealed});
  Keep({&i, 1});
}

Core::Turn Core::GoOnReadingRemote(Job* job, PromptJob* of, uint64_t until, Effects* out) {
  const bool to_disk = of->move.to == Tier::kSsd;
  switch (of->step) {
    case PromptJob::Step::kKeys:
      if (of->asking) return Turn::kWaits;
      if (of->next < of->keys.size()) {
        AskForMove(*job, of, of->next, out);
        return Turn::kWaits;
      }
      of->step = PromptJob::Step::kRead;
      of->next = of->kept.size();
      return Turn::kMore;
    case PromptJob::Step::kRead:
      for (; chunks_.work() < until && of->next > 0; --of->next) {
        chunks_.Charge(1);
        const ChunkIndex i = of->kept[of->next - 1].chunk;
        if (to_disk && chunks_[i].on_disk()) continue;
        const Turn turn = ReadForMove(i, out);
        if (turn == Turn::kWaits && Starves()) break;
        if (turn != Turn::kDone) return turn;
      }
      if (of->next > 0 && !Starves()) return Turn::kMore;
      of->step = PromptJob::Step::kWritten;
      of->next = of->kept.size();
      return Turn::kMore;
    case PromptJob::Step::kWritten:  // writes begin, the last chunk first
      for (; to_disk && chunks_.work() < until && of->next > 0; --of->next) {
        chunks_.Charge(1);
        const ChunkIndex i = of->kept[of->next - 1].chunk;
        if (chunks_[i].state == ChunkState::kReading) return Turn::kWaits;
        const bool cleared = chunks_[i].detached || chunks_[i].epoch != spaces_[chunks_[i].space].epoch;
        if (chunks_[i].state != ChunkState::kSealed || cleared || chunks_[i].disk != DiskCopy::kNone) continue;
        if (placement_.vacating().IsCopied(i)) return Turn::kWaits;
        if (!writable_.has_value() || (*writable_ && !MayWrite() && !spaces_[*job->space].no_disk)) return Turn::kWaits;
        WriteForMove(i, out);
      }
      if (to_disk && of->next > 0) return Turn::kMore;
      of->step = PromptJob::Step::kSettle;
      return Turn::kMore;
    case PromptJob::Step::kSettle: break;
    case PromptJob::Step::kForget: return GoOnForgetting(*job, of, until, out);
    default:
      if (of->hiding > 0) return Turn::kWaits;
      job->done = job->total;
      return Turn::kDone;
  }
  for (; chunks_.work() < until && !of->kept.empty(); of->kept.pop_back()) {
    const PromptJob::Kept kept = of->kept.back();
    const ChunkIndex i = kept.chunk;
    const Chunk& chunk = chunks_[i];
    if (chunk.state == ChunkState::kReading || chunk.disk == DiskCopy::kWriting) return Turn::kWaits;
    chunks_.Charge(1);
    const bool moved = !chunk.detached && (to_disk ? chunk.on_disk() : chunk.state == ChunkState::kSealed);
    ++(moved ? job->chunks : job->left);
    if (moved) job->bytes += BytesOf(i);
    if (!of->move.keep_source) {
      // Once for all groups: they lie together.
      if (moved && (of->to_forget.empty() || of->to_forget.back() != chunk.key)) of->to_forget.push_back(chunk.key);
      if (!moved) of->left_there.insert(chunk.key);
    }
    const ChunkRef name = RefOf(i);
    KeepNoLonger({&i, 1});
    // It has only passed through slots.
    const ChunkIndex still = to_disk && moved && !kept.was_in_slots ? Find(name) : kNoChunk;
    if (still != kNoChunk && chunks_[still].state == ChunkState::kSealed && chunks_[still].disk == DiskCopy::kThere &&
        !chunks_[still].busy())
      FreeSlotsOf(still);
  }
  if (!of->kept.empty()) return Turn::kMore;
  of->step = PromptJob::Step::kForget;
  return Turn::kMore;
}

// The store forgets a chunk in all its groups, which lie together there: those of which nothing is left in it only.
Core::Turn Core::GoOnForgetting(const Job& job, PromptJob* of, uint64_t until, Effects* out) {
  const auto groups = static_cast<uint16_t>(spaces_[*job.space].spec.groups.size());
  RemoteForgotten forgotten{job.id, *job.space, {}};
  for (; chunks_.work() < until && !of->to_forget.empty(); of->to_forget.pop_back()) {
    const ChunkKey& key = of->to_forget.back();
    chunks_.Charge(groups);
    if (of->left_there.contains(key)) continue;
    forgotten.keys.push_back(key);
    DoomRemoteWrites(*job.space, key, job.id);
    for (uint16_t g = 0; g < groups; ++g) {
      const ChunkIndex i = chunks_.FindVisible(*job.space, GroupId{g}, spaces_[*job.space].epoch, key);
      if (i == kNoChunk || chunks_[i].remote != RemoteCopy::kThere || (chunks_[i].only_remote() && chunks_[i].holds > 0))
        continue;
      placement_.ForgetRemote(i);
      if (chunks_[i].state == ChunkState::kGhost) placement_.Collect(i);
    }
  }
  if (of->to_forget.empty()) of->step = PromptJob::Step::kDurable;
  if (forgotten.keys.empty()) return Turn::kMore;
  ++of->hiding;
  ForgetRemotely(std::move(forgotten), out);
  return Turn::kMore;
}

// ---- To there ---------------------------------------------------------------------------------------------------------------

bool Core::KnowsForMove(const Job& job, PromptJob* of, size_t key, Effects* out) {
  if (of->asking) return false;
  if (key < of->told) return true;
  if (of->told == 0) of->losses = spaces_[*job.space].remote_losses;
  if (!reachable_) {
    of->told = of->keys.size();
    of->there.clear();
    return true;
  }
  AskForMove(job, of, key, out);
  return false;
}

void Core::BelieveForMove(const PromptJob& of, size_t key, ChunkIndex i) {
  const Chunk& chunk = chunks_[i];
  if (chunk.remote == RemoteCopy::kWriting || chunk.only_remote() || !chunk.whole()) return;
  const bool there = !of.there.empty() && of.there[chunk.group.value][key - of.told_from];
  if (there && chunk.remote == RemoteCopy::kNone) placement_.SetRemote(i);
  if (!there && chunk.remote == RemoteCopy::kThere) placement_.ForgetRemote(i);
}

Core::Turn Core::GoOnWritingRemote(Job* job, PromptJob* of, uint64_t until, Effects* out) {
  const Space& space = spaces_[*job->space];
  const size_t groups = space.spec.groups.size();
  const size_t items = of->keys.size() * groups;
  const auto find = [&](size_t item) {
    return chunks_.FindVisible(*job->space, GroupId{static_cast<uint16_t>(item % groups)}, space.epoch,
                               of->keys[item / groups]);
  };
  const bool keep = of->move.keep_source;
  if (of->step == PromptJob::Step::kKeys) {
    if (of->items.empty()) of->items.resize(items);
    for (; chunks_.work() < until && of->next < items; ++of->next, ++job->done) {
      const ChunkIndex i = find(of->next);
      PromptJob::Item& item = of->items[of->next];
      if (i == kNoChunk) continue;
      const Chunk& chunk = chunks_[i];
      item = PromptJob::Item::kLeft;
      const bool forgets = remote_names_.WillForget({*job->space, chunk.key});
      if (remote_names_.IsBeingCleared({*job->space, chunk.key}) || (forgets && !reachable_)) continue;
      if (forgets || !KnowsForMove(*job, of, of->next / groups, out)) return Turn::kWaits;
      BelieveForMove(*of, of->next / groups, i);
      const bool there = chunk.remote != RemoteCopy::kNone;
      if (there && (keep || !chunk.has_slots())) {
        item = PromptJob::Item::kAlready;
        continue;
      }
      if (chunk.state != ChunkState::kSealed || (!there && !reachable_)) continue;
      if (!there && (remote_writing_ >= options_.remote->writing || placement_.vacating().IsCopied(i))) return Turn::kWaits;
      item = PromptJob::Item::kToMove;
      if (!there) BeginRemoteWrite(i, out);
    }
    if (of->next < items) return Turn::kMore;
    of->step = PromptJob::Step::kSettle;
  }
  for (; chunks_.work() < until && of->next > 0; --of->next, ++job->done) {
    const PromptJob::Item item = of->items[of->next - 1];
    chunks_.Charge(1);
    const ChunkIndex i = item == PromptJob::Item::kToMove ? find(of->next - 1) : kNoChunk;
    if (i != kNoChunk && chunks_[i].remote == RemoteCopy::kWriting) return Turn::kWaits;
    job->already += item == PromptJob::Item::kAlready;
    job->left += item == PromptJob::Item::kLeft;
    if (item != PromptJob::Item::kToMove) continue;
    const bool there = i != kNoChunk && MayFreeFor(*of, i);
    const bool moved = there && (keep || (chunks_[i].state == ChunkState::kSealed && !chunks_[i].busy()));
    ++(moved ? job->chunks : job->left);
    if (!moved) continue;
    job->bytes += BytesOf(i);
    if (!keep) FreeSlotsOf(i);
  }
  return of->next > 0 ? Turn::kMore : Turn::kDone;
}

// ---- From disk --------------------------------------------------------------------------------------------------------------

Core::Turn Core::GoOnSending(Job* job, PromptJob* of, uint64_t until, Effects* out) {
  const Space& space = spaces_[*job->space];
  const size_t groups = space.spec.groups.size();
  const size_t items = of->keys.size() * groups;
  const Bytes most = ShareOf(std::min(tenants_[space.tenant].quota, slots_.capacity()), options_.lease_share);
  const bool keep = of->move.keep_source;
  switch (of->step) {
    case PromptJob::Step::kKeys:
      for (; chunks_.work() < until && of->next < items; ++of->next, ++job->done) {
        const GroupId group{static_cast<uint16_t>(of->next % groups)};
        const ChunkIndex i = chunks_.FindVisible(*job->space, group, space.epoch, of->keys[of->next / groups]);
        if (i == kNoChunk || !chunks_[i].on_disk()) continue;
        const Chunk& chunk = chunks_[i];
        const bool forgets = remote_names_.WillForget({*job->space, chunk.key});
        const bool cleared = remote_names_.IsBeingCleared({*job->space, chunk.key}) || (forgets && !reachable_);
        if (cleared) ++job->left;
        if (cleared) continue;
        if (forgets || !KnowsForMove(*job, of, of->next / groups, out)) return Turn::kWaits;
        BelieveForMove(*of, of->next / groups, i);
        const bool moves = !keep || chunk.remote == RemoteCopy::kNone;
        const bool fits = of->kept_bytes + BytesOf(i) <= most;
        if (!moves) ++job->already;
        if (moves && !fits) ++job->left;
        if (!moves || !fits) continue;
        of->kept_bytes += BytesOf(i);
        of->kept.push_back({i, /*moves=*/true, /*was_in_slots=*/chunk.state == ChunkState::kSealed});
        Keep({&i, 1});
      }
      if (of->next < items) return Turn::kMore;
      of->step = PromptJob::Step::kRead;
      of->next = of->kept.size();
      return Turn::kMore;
    case PromptJob::Step::kRead:
      for (; chunks_.work() < until && of->next > 0; --of->next) {
        chunks_.Charge(1);
        const ChunkIndex i = of->kept[of->next - 1].chunk;
        if (chunks_[i].remote != RemoteCopy::kNone) continue;
        const Turn turn = ReadForMove(i, out);
        if (turn == Turn::kWaits && Starves()) break;
        if (turn != Turn::kDone) return turn;
      }
      if (of->next > 0 && !Starves()) return Turn::kMore;
      of->step = PromptJob::Step::kWritten;
      of->next = of->kept.size();
      return Turn::kMore;
    case PromptJob::Step::kWritten:
      for (; chunks_.work() < until && of->next > 0; --of->next) {
        chunks_.Charge(1);
        const ChunkIndex i = of->kept[of->next - 1].chunk;
        const Chunk& chunk = chunks_[i];
        if (chunk.state == ChunkState::kReading) return Turn::kWaits;
        const bool cleared = chunk.detached || chunk.epoch != spaces_[chunk.space].epoch ||
                             remote_names_.WillForget({chunk.space, chunk.key});
        if (chunk.state != ChunkState::kSealed || cleared || chunk.remote != RemoteCopy::kNone || !reachable_) continue;
        if (remote_writing_ >= options_.remote->writing || placement_.vacating().IsCopied(i)) return Turn::kWaits;
        BeginRemoteWrite(i, out);
      }
      if (of->next > 0) return Turn::kMore;
      of->step = PromptJob::Step::kSettle;
      return Turn::kMore;
    default: break;
  }
  for (; chunks_.work() < until && !of->kept.empty(); of->kept.pop_back(), ++job->done) {
    const PromptJob::Kept kept = of->kept.back();
    const ChunkIndex i = kept.chunk;
    const Chunk& chunk = chunks_[i];
    if (chunk.state == ChunkState::kReading || chunk.remote == RemoteCopy::kWriting) return Turn::kWaits;
    chunks_.Charge(1);
    const bool freed = keep || chunk.disk != DiskCopy::kMoving;  // else it is being written again
    const bool moved = !chunk.detached && MayFreeFor(*of, i) && freed;
    ++(moved ? job->chunks : job->left);
    if (moved) job->bytes += BytesOf(i);
    const ChunkRef name = RefOf(i);
    KeepNoLonger({&i, 1});
    if (const ChunkIndex still = Find(name); moved && !kept.was_in_slots && still != kNoChunk && !chunks_[still].busy() &&
                                             chunks_[still].state == ChunkState::kSealed)
      FreeSlotsOf(still);
    const ChunkIndex still = Find(name);
    const bool is_read = still != kNoChunk && chunks_[still].state == ChunkState::kBelow && chunks_[still].holds > 0;
    if (moved && !keep && still != kNoChunk && !is_read && chunks_[still].disk == DiskCopy::kThere) ForgetCopy(still);
  }
  if (!of->kept.empty()) return Turn::kMore;
  job->done = job->total;
  return Turn::kDone;
}

}  // namespace kvist::core

// A store beyond the node, below the slots: asked for what a lookup doesn't find here, and given what is stored here, behind the engines' backs.
//
// What it has isn't remembered: others write to it and remove from it. A lookup with a lease whose keys aren't all hits asks for those that
// follow, a few at first, for most prompts that aren't here are nowhere; what is there hangs in the tree while the lease needs it, is read like
// what is on disk, and lives in slots from then on like anything else. A prompt that is all here asks nobody, so it is as fast with a store that
// is slow, or gone.
//
// What is sealed is offered once, in the order in which it came, so that a prefix is there before what hangs on it. What is evicted before its
// turn isn't written: nothing waits for a store beyond the node.

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/core/core.h"
#include "storage/base/check.h"

namespace kvist::core {
namespace {

// Lookups that wait for the store at a time; others are answered with what is here.
constexpr size_t kAsksMax = 256;
// How many keys of each group are asked for at first, and how many more each time when all were there, while no more than kKeysAsked chunks
// were asked for in all: three round trips at most.
constexpr uint32_t kFirstAsked = 16;
constexpr uint32_t kGrowth = 16;
constexpr uint32_t kKeysAsked = 1024;
// What taking an answer in may cost, of an event's work: the lookup itself comes after it.
constexpr uint32_t kTakeShare = 4;
// What it couldn't be told to forget is tried again after Remote::pause, and then after twice as long each time, up to so many times that.
constexpr int kAgainMost = 64;

std::vector<ChunkKey> TakeLast(std::vector<ChunkKey>* keys, uint64_t most) {
  const auto from = keys->end() - static_cast<std::ptrdiff_t>(std::min<uint64_t>(keys->size(), most));
  std::vector<ChunkKey> last(from, keys->end());
  keys->erase(from, keys->end());
  return last;
}

}  // namespace

// ---- Asking -----------------------------------------------------------------------------------------------------------------

bool Core::AskRemote(const LookupAsked& lookup, const Session& session, uint32_t position, Effects* out) {
  if (!reachable_ || lookup.lease <= absl::ZeroDuration() || now_ < remote_pause_until_) return false;
  const Space& space = spaces_[session.space];
  const uint32_t reach =
      UsablePosition::Reach(space.spec.groups, static_cast<uint32_t>(lookup.keys.size()), options_.event_work);
  if (std::max(position, lookup.have) >= reach || asks_.size() >= kAsksMax) return false;
  Ask ask{lookup, {lookup.keys.begin(), lookup.keys.begin() + reach}, session.space, space.epoch, now_, position};
  ask.lookup.keys = {};
  ask.there.resize(space.spec.groups.size());
  chunks_.Charge(reach / 32);  // copied: 32 keys take less than looking for one
  ++counters_.remote_asked;
  const AskId id = asks_.Insert(std::move(ask));
  AskFor(id, asks_.Find(id), kFirstAsked, out);
  return true;
}

void Core::AskFor(AskId id, Ask* ask, uint32_t keys, Effects* out) {
  const auto first = ask->keys.begin() + ask->from + ask->asked;
  const auto groups = static_cast<uint32_t>(ask->there.size());
  const uint32_t left = std::max(kKeysAsked / groups, 1u) - std::min(ask->asked, kKeysAsked / groups);
  keys = std::min({keys, left, static_cast<uint32_t>(ask->keys.end() - first)});
  ask->asked += keys;
  chunks_.Charge(keys / 32);
  out->push_back(RemoteAsked{id, ask->space, {first, first + keys}, ask->began, ask->job != JobId{}});
}

void Core::On(const RemoteFound& event, Effects* out) {
  Ask* ask = asks_.Find(event.ask);
  if (ask == nullptr) return;  // its session is gone
  const bool of_job = ask->job != JobId{};
  const size_t groups = ask->there.size();
  const size_t known = ask->there[0].size();
  const size_t fresh = ask->asked - known;
  bool all = event.status.ok();
  if (event.status.ok()) {
    KVIST_CHECK(event.there.size() == groups * fresh);
    for (size_t g = 0; g < groups; ++g) {
      const auto begin = event.there.begin() + static_cast<std::ptrdiff_t>(g * fresh);
      const auto end = begin + static_cast<std::ptrdiff_t>(fresh);
      ask->there[g].insert(ask->there[g].end(), begin, end);
      if (spaces_[ask->space].spec.groups[g].reuse.chained()) all = all && std::find(begin, end, false) == end;
    }
    chunks_.Charge(event.there.size() / 32);
  } else if (!of_job) {
    ++counters_.remote_unanswered;
    // What this node has too much of itself says nothing of the store.
    if (!absl::IsResourceExhausted(event.status)) remote_pause_until_ = now_ + options_.remote->pause;
  }
  if (of_job) return TakeForMove(asks_.Take(event.ask), event.status);
  if (all && ask->from + ask->asked < ask->keys.size() && ask->asked < kKeysAsked / groups)
    return AskFor(event.ask, ask, ask->asked * kGrowth, out);

  const Ask ended = asks_.Take(event.ask);
  const Session* session = sessions_.Find(ended.lookup.session);
  std::vector<ChunkRef> added;
  TakeRemote(ended, &added);
  const Space& space = spaces_[ended.space];
  LookupAsked lookup = ended.lookup;
  lookup.keys = ended.keys;
  Answer(lookup, *session, usable_.Find(ended.space, space.epoch, space.spec.groups, lookup.keys), true, out);
  CollectUnneeded(added);
}

void Core::CollectUnneeded(std::span<const ChunkRef> added) {
  chunks_.Charge(added.size() / 8);
  for (auto i = added.rbegin(); i != added.rend(); ++i) {
    // Collecting one may have taken those above it, or left one of them to a later turn: that is detached.
    const ChunkIndex at = Find(*i);
    if (at != kNoChunk && !chunks_[at].detached && chunks_[at].only_remote()) placement_.Collect(at);
  }
}

void Core::TakeRemote(const Ask& ask, std::vector<ChunkRef>* added) {
  if (ask.vain || ask.epoch != spaces_[ask.space].epoch) return;  // what was found may be what was cleared meanwhile
  const std::vector<GroupSpec>& specs = spaces_[ask.space].spec.groups;
  const uint64_t until = chunks_.work() + options_.event_work / kTakeShare;
  const auto groups = static_cast<uint16_t>(specs.size());
  for (uint16_t g = 0; g < groups; ++g) {
    const GroupId group{g};
    const bool chained = specs[g].reuse.chained();
    ChunkIndex parent = kNoChunk;
    if (chained && ask.from > 0) {
      parent = FindCurrent(ask.space, group, ask.keys[ask.from - 1]);
      if (parent == kNoChunk || !chunks_[parent].whole()) continue;  // evicted meanwhile
    }
    for (uint32_t k = 0; k < ask.there[g].size() && chunks_.work() < until; ++k) {
      const ChunkKey& key = ask.keys[ask.from + k];
      const bool there = ask.there[g][k] && !remote_names_.WillForget({ask.space, key});
      ChunkIndex i = FindCurrent(ask.space, group, key);
      const bool hangs = i != kNoChunk && chunks_[i].parent == parent;  // keys come from clients
      const bool fits = i == kNoChunk || (hangs && (chunks_[i].whole() || chunks_[i].state == ChunkState::kGhost));
      if (fits && there && (i == kNoChunk || chunks_[i].state == ChunkState::kGhost)) {
        ++counters_.remote_chunks_found;
        if (i == kNoChunk) {
          i = placement_.AddRemote(ask.space, group, key, parent);
        } else {
          placement_.SetRemote(i);
        }
        added->push_back(RefOf(i));
      } else if (hangs && there && chunks_[i].whole() && chunks_[i].remote == RemoteCopy::kNone) {
        placement_.SetRemote(i);  // needn't be written there
      }
      if (!chained) continue;
      if (i == kNoChunk || !fits || !chunks_[i].whole()) break;
      parent = i;
    }
  }
}

void Core::EndAsks(SessionId session) {
  std::vector<AskId> over;
  asks_.ForEach([&](AskId id, const Ask& ask) {
    if (ask.job == JobId{} && ask.lookup.session == session) over.push_back(id);
  });
  chunks_.Charge(over.size());
  for (const AskId id : over) asks_.Take(id);
}

void Core::ForgetRemotely(RemoteForgotten forgotten, Effects* out) {
  chunks_.Charge(forgotten.keys.size());
  for (const ChunkKey& key : forgotten.keys) remote_names_.ForgetBegan({forgotten.space, key});
  LoseRemotely(forgotten.space);
  out->push_back(std::move(forgotten));
}

void Core::On(const RemoteForgot& event, Effects*) {
  LoseRemotely(event.space);  // they may have been answered before
  Job* const job = jobs_.Running(event.job);
  const bool again = !event.status.ok() && job != nullptr && job->kind == JobKind::kClearPrompt;
  if (!again) ForgottenRemotely(event.space, event.keys);
  if (job == nullptr) return;
  PromptJob& of = prompt_jobs_.at(event.job);
  --of.hiding;
  if (event.status.ok()) {
    of.again_after = absl::ZeroDuration();
    of.again_at = absl::InfinitePast();
    if (!of.again.empty() || job->kind != JobKind::kClearPrompt) return;
    job->aside = false;
    if (job->lost == 0) job->trouble.clear();  // else it says why the job will end cancelled
    return;
  }
  if (job->lost == 0) {
    job->trouble = absl::StrCat("the remote store couldn't be told, and may have some of it: ",
                                absl::string_view(event.status.message()), again ? "; it is tried again" : "");
  }
  if (!again) return;
  chunks_.Charge(event.keys.size() / 32);
  of.again.insert(of.again.end(), event.keys.begin(), event.keys.end());
  of.again_after = std::clamp(2 * of.again_after, options_.remote->pause, kAgainMost * options_.remote->pause);
  of.again_at = now_ + of.again_after;
}

void Core::ForgottenRemotely(SpaceId space, std::span<const ChunkKey> keys) {
  chunks_.Charge(keys.size());
  for (const ChunkKey& key : keys) remote_names_.ForgetEnded({space, key});
}

void Core::ForgetAgain(uint64_t until, Effects* out) {
  while (chunks_.work() < until && !unforgotten_.empty()) {
    auto& [space, keys] = unforgotten_.front();
    ForgottenRemotely(space, TakeLast(&keys, until - chunks_.work()));
    if (keys.empty()) unforgotten_.pop_front();
  }
  for (auto& [id, of] : prompt_jobs_) {
    if (chunks_.work() >= until || !MayForgetAgain(of)) continue;
    RemoteForgotten forgotten{id, *jobs_.Running(id)->space, TakeLast(&of.again, until - chunks_.work())};
    chunks_.Charge(forgotten.keys.size());
    ++of.hiding;
    out->push_back(std::move(forgotten));
  }
}

void Core::DoomRemoteWrites(SpaceId space, const ChunkKey& key, JobId job) {
  if (const uint32_t writes = remote_names_.Doom({space, key}, job); writes > 0) prompt_jobs_[job].hiding += writes;
}

void Core::LoseRemotely(SpaceId space) {
  ++spaces_[space].remote_losses;
  asks_.ForEach([space](AskId, Ask& ask) { ask.vain = ask.vain || ask.space == space; });
}

void Core::On(const RemoteCleared& event, Effects*) {
  chunks_.Charge(1);
  for (uint32_t s = 0; s < spaces_.size(); ++s) {
    Space& space = spaces_[SpaceId{s}];
    if (event.space.has_value() && space.spec.digest != *event.space) continue;
    space.remote_cleared = next_remote_;
    ++space.remote_losses;
  }
  if (cleared_walk_.next == cleared_walk_.end) cleared_walk_.since = next_remote_;
  ++next_remote_;
  cleared_walk_.next = 0;
  cleared_walk_.end = chunks_.places();
}

void Core::ForgetCleared(uint64_t until) {
  for (; chunks_.work() < until && cleared_walk_.next < cleared_walk_.end; ++cleared_walk_.next) {
    const Chunk& chunk = chunks_[cleared_walk_.next];
    chunks_.Charge(1);
    // What is nowhere else is known as long as something needs it: reading it will tell.
    if (chunk.state == ChunkState::kFree || chunk.only_remote() || chunk.remote != RemoteCopy::kThere) continue;
    if (spaces_[chunk.space].remote_cleared >= cleared_walk_.since) placement_.ForgetRemote(cleared_walk_.next);
  }
}

void Core::On(const RemoteReachable& event, Effects*) {
  reachable_ = event.reachable;
  if (!reachable_) return;
  remote_pause_until_ = absl::InfinitePast();
  for (auto& [id, of] : prompt_jobs_) {
    of.again_at = absl::InfinitePast();
    of.again_after = absl::ZeroDuration();
  }
}

// ---- Writing ----------------------------------------------------------------------------------------------------------------

void Core::OfferRemote(ChunkIndex i) {
  if (!options_.remote.has_value() || chunks_[i].remote != RemoteCopy::kNone) return;
  if (remote_queue_.size() >= options_.remote->queue) {
    ++counters_.remote_chunks_dropped;
    return;
  }
  remote_queue_.push_back({RefOf(i), next_remote_++});
}

void Core::WriteRemote(Effects* out) {
  while (CanWriteRemote() && !placement_.spent()) {
    const auto [ref, serial] = remote_queue_.front();
    const ChunkIndex i = Find(ref);
    remote_queue_.pop_front();
    chunks_.Charge(1);
    if (i == kNoChunk || chunks_[i].detached || chunks_[i].epoch != spaces_[chunks_[i].space].epoch)
      continue;  // cleared, or gone
    Chunk& chunk = chunks_[i];
    // Sealed before another node cleared its space there: in the store it is cleared, too.
    if (chunk.remote != RemoteCopy::kNone || serial < spaces_[chunk.space].remote_cleared) continue;
    if (chunk.state != ChunkState::kSealed || remote_names_.WillForget({chunk.space, chunk.key})) {
      ++counters_.remote_chunks_dropped;
      continue;
    }
    BeginRemoteWrite(i, out);
  }
}

void Core::BeginRemoteWrite(ChunkIndex i, Effects* out) {
  Chunk& chunk = chunks_[i];
  // Until it is written; and what hangs above it goes no sooner.
  if (chunk.clean || chunk.disk == DiskCopy::kWriting) placement_.PolicyOf(i).Withdrawn(i);
  chunk.remote = RemoteCopy::kWriting;
  NoteCame(i, Tier::kRemote);
  ++chunk.holds;
  remote_writing_ += BytesOf(i);
  remote_names_.WriteBegan({chunk.space, chunk.key}, next_remote_++);
  const std::span<const SlotRef> slots = placement_.SlotsOf(i);
  chunks_.Charge(slots.size());
  WriteStarted write{RefOf(i),     chunk.space, chunk.group, chunk.key, {}, chunk.position, {slots.begin(), slots.end()},
                     Tier::kRemote};
  if (chunk.parent != kNoChunk) write.parent = chunks_[chunk.parent].key;
  if (chunk.on_disk()) write.method = placement_.FormOf(i).method;
  out->push_back(std::move(write));
}

void Core::RemoteWritten(ChunkIndex i, const absl::Status& status, Effects* out) {
  if (i == kNoChunk || chunks_[i].remote != RemoteCopy::kWriting) return;  // a late duplicate
  Chunk& chunk = chunks_[i];
  chunks_.Charge(1);
  remote_writing_ -= BytesOf(i);
  --chunk.holds;
  const RemoteNames::Ended ended = remote_names_.WriteEnded({chunk.space, chunk.key});
  const bool cleared = ended.serial < spaces_[chunk.space].remote_cleared || !ended.forget_for.empty();
  chunk.remote = status.ok() && !cleared ? RemoteCopy::kThere : RemoteCopy::kNone;
  ++(status.ok() ? counters_.remote_chunks_written : counters_.remote_writes_failed);
  if (absl::IsDataLoss(status)) DropCorrupt(i, out);
  for (const JobId job : ended.forget_for) ForgetRemotely({job, chunk.space, {chunk.key}}, out);
  if (chunk.remote == RemoteCopy::kThere) placement_.Moved(i);
  Settle(i);
}

}  // namespace kvist::core

#include "daemon/controller/following.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <map>
#include <span>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "storage/base/clock.h"

namespace kvist::controller {
namespace {

// Between two looks whether something has to be swept; while something has, a shard each.
constexpr absl::Duration kSweep = absl::Milliseconds(500);
// A stream that has been silent for so many times fresh_for is ended, and the node followed anew.
constexpr int kSilentTimes = 10;
constexpr absl::Duration kShard = absl::Milliseconds(1);

std::string Hex(const SpaceDigest& digest) {
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest.bytes.data()), digest.bytes.size()});
}

bool IsWhole(const Directory::NodeView& view) { return !view.stale && !view.filling && !view.needs_snapshot; }

// The changes that the node had and hadn't told when it made this; nothing where that isn't said.
std::optional<uint64_t> UntoldAt(const FeedMessage& message) {
  if (const auto* end = std::get_if<SnapshotEnd>(&message)) return end->untold;
  if (const auto* changes = std::get_if<ChangeBatch>(&message)) return changes->untold;
  return std::nullopt;
}

rpc::Found FoundIn(const Directory::SpaceView& space, size_t asked, const Holding& holding) {
  rpc::Found found{Hex(space.digest), space.tenant, space.model, static_cast<uint32_t>(space.chunk_tokens.value)};
  found.asked = static_cast<uint32_t>(asked);
  found.chunks = holding.chunks;
  found.on_disk = std::min(holding.chunks, holding.needed() - holding.In(RestTier::kDram));
  return found;
}

}  // namespace

Following::Following(const Nodes* nodes, Options options) : options_(options) {
  for (const NamedNode* node : nodes->all()) {
    if (!node->api->can_be_followed()) continue;
    followed_.push_back(std::make_unique<Followed>());
    followed_.back()->node = node;
  }
  for (const auto& followed : followed_) followed->thread = std::thread([this, one = followed.get()] { Follow(one); });
  sweeper_ = std::thread([this] { Sweep(); });
}

Following::~Following() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    stops_.SignalAll();
  }
  for (const auto& followed : followed_) {
    absl::MutexLock lock(&followed->mutex);
    if (followed->stream != nullptr) followed->stream->Cancel();
  }
  for (const auto& followed : followed_) followed->thread.join();
  sweeper_.join();
}

bool Following::Pause(absl::Duration duration) {
  const absl::Time end = MonotonicNow() + duration;
  absl::MutexLock lock(&mutex_);
  while (!stopping_ && MonotonicNow() < end) stops_.WaitWithTimeout(&mutex_, end - MonotonicNow());
  return !stopping_;
}

void Following::Sweep() {
  while (Pause(directory_.Tick(MonotonicNow()) ? kShard : kSweep)) {
    // A machine that went without a word leaves a connection on which nothing ever comes.
    for (const auto& followed : followed_) {
      absl::MutexLock lock(&followed->mutex);
      const absl::Duration silent = MonotonicNow() - std::max(followed->heard, followed->began);
      if (followed->stream != nullptr && silent > kSilentTimes * options_.fresh_for) followed->stream->Cancel();
    }
  }
}

// ---- Streams ----------------------------------------------------------------------------------------------------------------

void Following::Follow(Followed* followed) {
  const std::string& name = followed->node->name;
  absl::Duration pause = options_.pause_min;
  std::string said;
  do {
    const absl::StatusOr<NodeId> id = directory_.Meet(name);
    if (!id.ok()) continue;  // more nodes than a controller has
    std::optional<NodeFeed::Position> from;
    if (const auto position = directory_.PositionOf(*id)) from = {position->epoch, position->sequence};
    const std::shared_ptr<ChunkStream> stream = followed->node->api->Follow(from);
    {
      absl::MutexLock lock(&followed->mutex);
      followed->id = *id;
      followed->stream = stream;
      followed->began = MonotonicNow();
    }
    // Who stops us has either seen the stream, or is seen here.
    if (!Pause(absl::ZeroDuration())) return;
    const absl::Status why = Hear(followed, *id, stream.get(), &pause);
    if (!Pause(absl::ZeroDuration())) return;
    stream->Cancel();
    directory_.Lose(*id, MonotonicNow() + options_.lease);
    absl::MutexLock lock(&followed->mutex);
    followed->stream = nullptr;
    followed->why_not = std::string(why.message());
    if (said != followed->why_not) spdlog::warn("node {} isn't followed, so it is asked: {}", name, followed->why_not);
    said = followed->why_not;
  } while (Pause(std::exchange(pause, std::min(2 * pause, options_.pause_max))));
}

absl::Status Following::Hear(Followed* followed, NodeId id, ChunkStream* stream, absl::Duration* pause) {
  for (bool said = false;;) {
    const absl::StatusOr<FeedMessage> message = stream->Read();
    if (!message.ok()) return message.status();
    if (const absl::Status taken = directory_.Hear(id, *message); !taken.ok()) return taken;
    *pause = options_.pause_min;
    const std::optional<Directory::NodeView> view = directory_.View(id);
    absl::MutexLock lock(&followed->mutex);
    followed->heard = MonotonicNow();
    const std::optional<uint64_t> untold = UntoldAt(*message);
    if (untold == 0) followed->level = followed->heard;
    const bool whole = view.has_value() && IsWhole(*view);
    if (whole && !said) spdlog::info("node {} is followed: it holds {} chunks", followed->node->name, view->chunks);
    said |= whole;
    followed->why_not = whole ? "" : "it is telling what it holds";
    if (whole && untold.value_or(0) > 0) followed->why_not = absl::StrCat("changes that it still has to tell: ", *untold);
  }
}

// ---- Answers ----------------------------------------------------------------------------------------------------------------

const Following::Followed* Following::Find(const NamedNode* node) const {
  const auto found = std::find_if(followed_.begin(), followed_.end(), [node](const auto& one) { return one->node == node; });
  return found == followed_.end() ? nullptr : found->get();
}

std::optional<Following::Fresh> Following::FreshNow(const Followed& followed) const {
  std::optional<NodeId> id;
  absl::Duration age;
  {
    absl::MutexLock lock(&followed.mutex);
    id = followed.id;
    age = MonotonicNow() - followed.level;
  }
  if (!id.has_value() || age > options_.fresh_for) return std::nullopt;
  const std::optional<Directory::NodeView> view = directory_.View(*id);
  if (!view.has_value() || !IsWhole(*view)) return std::nullopt;
  return Fresh{*id, std::max(age, absl::ZeroDuration())};
}

std::vector<std::optional<Following::Known>> Following::Lookup(const std::vector<const NamedNode*>& nodes,
                                                               const rpc::SpaceFilter& filter, const rpc::Prompt& prompt) {
  std::vector<std::optional<Known>> known(nodes.size());
  std::vector<std::optional<Fresh>> fresh(nodes.size());
  std::vector<std::vector<Directory::SpaceView>> spaces(nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    const Followed* const followed = Find(nodes[i]);
    if (followed == nullptr) continue;
    fresh[i] = FreshNow(*followed);
    if (!fresh[i].has_value()) continue;
    spaces[i] = directory_.SpacesOf(fresh[i]->id);
    std::erase_if(spaces[i], [&filter](const Directory::SpaceView& space) {
      return !filter.Fits(Hex(space.digest), space.model, space.tenant);
    });
    if (spaces[i].size() > kSpacesMax) fresh[i].reset();
  }

  std::unique_ptr<DirectorySearch> search;
  {
    absl::MutexLock lock(&mutex_);
    if (!searches_.empty()) {
      search = std::move(searches_.back());
      searches_.pop_back();
    }
  }
  if (search == nullptr) search = std::make_unique<DirectorySearch>(&directory_);
  std::map<uint64_t, std::vector<ChunkKey>> keys;         // by the tokens of a chunk
  std::map<SpaceDigest, std::map<NodeId, Holding>> held;  // in spaces that were searched
  const auto held_in = [&](const Directory::SpaceView& space) -> const std::map<NodeId, Holding>& {
    const auto [at, is_new] = held.try_emplace(space.digest);
    if (!is_new) return at->second;
    const uint64_t tokens = space.chunk_tokens.value;
    if (!keys.contains(tokens)) keys[tokens] = prompt.KeysOf(static_cast<uint32_t>(tokens));
    if (keys[tokens].empty()) return at->second;
    const auto found = search->Find(space.digest, keys[tokens]);
    for (const Holding& holding : found.ok() ? *found : std::span<const Holding>()) at->second[holding.node] = holding;
    return at->second;
  };
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (!fresh[i].has_value()) continue;
    known[i] = Known{{}, fresh[i]->age};
    for (const Directory::SpaceView& space : spaces[i]) {
      const std::map<NodeId, Holding>& holdings = held_in(space);
      const auto holding = holdings.find(fresh[i]->id);
      const size_t asked = keys[space.chunk_tokens.value].size();
      known[i]->spaces.push_back(FoundIn(space, asked, holding == holdings.end() ? Holding{} : holding->second));
    }
  }
  // Of a node that was lost meanwhile, or has begun to tell anew, some may have been missing.
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (!known[i].has_value()) continue;
    const std::optional<Fresh> still = FreshNow(*Find(nodes[i]));
    if (!still.has_value() || still->id != fresh[i]->id) known[i].reset();
  }
  absl::MutexLock lock(&mutex_);
  searches_.push_back(std::move(search));
  return known;
}

std::optional<Following::State> Following::StateOf(const NamedNode* node) const {
  const Followed* const followed = Find(node);
  if (followed == nullptr) return std::nullopt;
  const std::optional<Fresh> fresh = FreshNow(*followed);
  State state{.fresh = fresh.has_value()};
  std::optional<NodeId> id;
  {
    absl::MutexLock lock(&followed->mutex);
    id = followed->id;
    if (followed->heard != absl::InfinitePast()) state.age = MonotonicNow() - followed->heard;
    if (!state.fresh) state.why_not = followed->why_not.empty() ? "it hasn't been heard lately" : followed->why_not;
  }
  const std::optional<Directory::NodeView> view = id.has_value() ? directory_.View(*id) : std::nullopt;
  if (view.has_value()) state.chunks = view->chunks;
  return state;
}

}  // namespace kvist::controller

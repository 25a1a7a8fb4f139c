#include "daemon/controller/directory.h"

#include <sys/random.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/check.h"
#include "storage/base/status.h"

namespace kvist::controller {
namespace {

// Chunks whose cache lines are asked for at once: a lock waits for all loads before it, so one after the other they would wait 200 ns each.
constexpr size_t kBlock = 32;

Fingerprint Seeded(const Directory::Options& options) {
  Fingerprint fingerprint{};
  std::ranges::copy(options.seed, fingerprint.seed);
  if (std::ranges::all_of(options.seed, [](uint64_t word) { return word == 0; })) {
    KVIST_CHECK(::getrandom(fingerprint.seed, sizeof fingerprint.seed, 0) == sizeof fingerprint.seed);
  }
  return fingerprint;
}

}  // namespace

Directory::Directory(Options options) : fingerprint_(Seeded(options)), tellings_(index_.readers()) {}
Directory::Directory() : Directory(Options{}) {}
Directory::~Directory() = default;

absl::StatusOr<NodeId> Directory::Meet(std::string_view name) {
  const WriterLock lock(&nodes_mutex_);
  if (const auto known = by_name_.find(name); known != by_name_.end()) return known->second;
  if (nodes_.size() >= kNodesMax) {
    return absl::ResourceExhaustedError(absl::StrCat("node ", std::string(name), " would be more than ", kNodesMax));
  }
  const NodeId id{next_node_++};
  nodes_.emplace(id, std::make_shared<Node>(name, index_.readers()));
  by_name_.emplace(name, id);
  return id;
}

std::shared_ptr<Directory::Node> Directory::Find(NodeId node) const {
  const ReaderLock lock(&nodes_mutex_);
  const auto found = nodes_.find(node);
  return found == nodes_.end() ? nullptr : found->second;
}

absl::Status Directory::Hear(NodeId id, const FeedMessage& message) {
  const std::shared_ptr<Node> node = Find(id);
  if (node == nullptr) return absl::NotFoundError(absl::StrCat("node ", id.value, " has been forgotten"));
  Node* const its = node.get();
  const MutexLock lock(&its->mutex);
  if (its->forgotten) return absl::NotFoundError(absl::StrCat("node ", its->name, " has been forgotten"));
  absl::Status status;
  if (const auto* introduced = std::get_if<SpaceIntroduced>(&message)) {
    status = Take(id, its, *introduced);
  } else if (const auto* begin = std::get_if<SnapshotBegin>(&message)) {
    status = Take(id, its, *begin);
  } else if (const auto* slice = std::get_if<SnapshotSlice>(&message)) {
    status = Take(id, its, *slice);
  } else if (const auto* end = std::get_if<SnapshotEnd>(&message)) {
    status = Take(id, its, *end);
  } else {
    status = Take(id, its, std::get<ChangeBatch>(message));
  }
  if (status.ok()) {
    its->lease_end.reset();
  } else {
    its->follows = false;
    DropFilling(its);
    SetStale(its, true);
  }
  return status;
}

absl::Status Directory::Follows(const Node& node, uint64_t epoch) const {
  if (!node.follows) return absl::AbortedError(absl::StrCat("node ", node.name, ": a snapshot is needed"));
  if (node.epoch != epoch)
    return absl::AbortedError(absl::StrCat("node ", node.name, ": another epoch: a snapshot is needed"));
  return absl::OkStatus();
}

void Directory::SetStale(Node* node, bool stale) {
  if (!node->shown.has_value() || node->stale == stale) return;
  tellings_.Show(node->shown->id, stale ? Tellings::State::kStale : Tellings::State::kLive);
  node->stale = stale;
}

void Directory::DropFilling(Node* node) {
  if (!node->filling.has_value()) return;
  tellings_.Void(node->filling->id);
  node->filling.reset();
}

absl::Status Directory::Take(NodeId, Node* node, const SpaceIntroduced& message) {
  KVIST_RETURN_IF_ERROR(Follows(*node, message.epoch));
  KVIST_ASSIGN_OR_RETURN(const Space* const space, OpenSpace(message));
  node->spaces[message.id.value] = space;
  return absl::OkStatus();
}

absl::Status Directory::Take(NodeId id, Node* node, const SnapshotBegin& message) {
  DropFilling(node);
  const std::optional<TellingId> telling = tellings_.Take(id);
  if (!telling.has_value()) {
    return absl::ResourceExhaustedError(absl::StrCat("node ", node->name, ": no room for a snapshot until more is swept"));
  }
  SetStale(node, true);
  node->filling = Telling{*telling, 0};
  node->slices = 0;
  node->epoch = message.epoch;
  node->sequence = message.sequence;
  node->follows = true;
  node->spaces.clear();
  return absl::OkStatus();
}

absl::Status Directory::Take(NodeId, Node* node, const SnapshotSlice& message) {
  KVIST_RETURN_IF_ERROR(Follows(*node, message.epoch));
  if (!node->filling.has_value() || message.index != node->slices) {
    return absl::AbortedError(absl::StrCat("node ", node->name, ": slice ", message.index, " of a snapshot came after ",
                                           node->slices, " others: a new one is needed"));
  }
  ++node->slices;
  return TakeChunks(node, message.chunks);
}

absl::Status Directory::Take(NodeId, Node* node, const SnapshotEnd& message) {
  KVIST_RETURN_IF_ERROR(Follows(*node, message.epoch));
  if (!node->filling.has_value() || message.slices != node->slices) {
    return absl::AbortedError(absl::StrCat("node ", node->name, ": a snapshot of ", message.slices, " slices ended after ",
                                           node->slices, ": a new one is needed"));
  }
  const std::optional<TellingId> before = node->shown.has_value() ? std::optional(node->shown->id) : std::nullopt;
  tellings_.Show(node->filling->id, Tellings::State::kLive, before);
  node->shown = std::exchange(node->filling, std::nullopt);
  node->stale = false;
  return absl::OkStatus();
}

absl::Status Directory::Take(NodeId, Node* node, const ChangeBatch& message) {
  KVIST_RETURN_IF_ERROR(Follows(*node, message.epoch));
  if (message.after > node->sequence) {
    return absl::AbortedError(absl::StrCat("node ", node->name, ": changes after ", message.after, " came after ",
                                           node->sequence, ": a snapshot is needed"));
  }
  // What was told before says nothing new, and an older state of a chunk may be older than what is known.
  if (message.up_to > node->sequence) {
    KVIST_RETURN_IF_ERROR(TakeChunks(node, message.chunks));
    node->sequence = message.up_to;
  }
  if (!node->filling.has_value()) SetStale(node, false);
  return absl::OkStatus();
}

const Directory::Space* Directory::KnownSpace(const Node& node, SpaceId id) {
  const auto known = node.spaces.find(id.value);
  return known == node.spaces.end() ? nullptr : known->second;
}

absl::Status Directory::TakeChunks(Node* node, const std::vector<ChunkState>& chunks) {
  // All of a message is taken, or nothing.
  const Space* space = nullptr;  // of the chunk before
  uint32_t its_id = 0;
  for (const ChunkState& chunk : chunks) {
    if (space == nullptr || its_id != chunk.space.value) space = KnownSpace(*node, chunk.space);
    its_id = chunk.space.value;
    if (space == nullptr) {
      return absl::AbortedError(
          absl::StrCat("node ", node->name, ": space ", chunk.space.value, " wasn't introduced: a snapshot is needed"));
    }
    if (chunk.group.value >= space->view.groups.size() || !chunk.tiers.valid()) {
      return absl::InvalidArgumentError(absl::StrCat("node ", node->name, ": a chunk in group ", chunk.group.value, " of ",
                                                     space->view.groups.size(), ", tiers ", chunk.tiers.bits));
    }
  }
  Telling& telling = node->filling.has_value() ? *node->filling : *node->shown;
  std::array<uint64_t, kBlock> fingerprints;
  for (size_t first = 0; first < chunks.size(); first += kBlock) {
    const size_t count = std::min(kBlock, chunks.size() - first);
    for (size_t i = 0; i < count; ++i) {
      const ChunkState& chunk = chunks[first + i];
      if (its_id != chunk.space.value) space = KnownSpace(*node, chunk.space);
      its_id = chunk.space.value;
      fingerprints[i] = fingerprint_(space->id, chunk.group, chunk.key);
    }
    {
      const Reading reading(&node->reader);
      for (size_t i = 0; i < count; ++i) index_.Touch(fingerprints[i]);
    }
    for (size_t i = 0; i < count; ++i) {
      const int more = index_.Set(fingerprints[i], telling.id, chunks[first + i].tiers);
      telling.chunks = static_cast<uint64_t>(static_cast<int64_t>(telling.chunks) + more);
    }
  }
  return absl::OkStatus();
}

std::optional<Directory::Position> Directory::PositionOf(NodeId id) const {
  const std::shared_ptr<Node> node = Find(id);
  if (node == nullptr) return std::nullopt;
  const MutexLock lock(&node->mutex);
  // Half a snapshot is gone with its stream.
  if (!node->follows || node->filling.has_value()) return std::nullopt;
  return Position{node->epoch, node->sequence};
}

void Directory::Lose(NodeId id, absl::Time lease_end) {
  const std::shared_ptr<Node> node = Find(id);
  if (node == nullptr) return;
  const MutexLock lock(&node->mutex);
  if (node->filling.has_value()) node->follows = false;
  DropFilling(node.get());
  SetStale(node.get(), true);
  node->lease_end = lease_end;
}

bool Directory::Tick(absl::Time now) {
  {
    const WriterLock lock(&nodes_mutex_);
    for (auto at = nodes_.begin(); at != nodes_.end();) {
      const std::shared_ptr<Node> node = at->second;  // outlives its lock
      const auto next = std::next(at);
      const MutexLock its(&node->mutex);
      if (node->lease_end.has_value() && *node->lease_end <= now) {
        DropFilling(node.get());
        if (node->shown.has_value()) tellings_.Void(node->shown->id);
        node->shown.reset();
        node->follows = false;
        node->forgotten = true;
        by_name_.erase(node->name);
        nodes_.erase(at);
      }
      at = next;
    }
  }
  index_.Collect();
  if (!tellings_.AnyVoid()) return false;
  index_.Sweep(next_shard_, tellings_.ToSweep());
  next_shard_ = (next_shard_ + 1) % HolderIndex::kShards;
  tellings_.Swept(HolderIndex::kShards);
  return tellings_.AnyVoid();
}

absl::StatusOr<const Directory::Space*> Directory::OpenSpace(const SpaceIntroduced& introduced) {
  if (introduced.groups.empty() || introduced.groups.size() > kGroupsMax || introduced.chunk_tokens.value == 0) {
    return absl::InvalidArgumentError(absl::StrCat("a space of ", introduced.groups.size(), " groups, chunks of ",
                                                   introduced.chunk_tokens.value, " tokens"));
  }
  for (const ReuseRule& rule : introduced.groups) {
    if (rule.kind == GroupKind::kWindow && rule.window_chunks == 0) {
      return absl::InvalidArgumentError("a window of no chunks");
    }
  }
  const WriterLock lock(&spaces_mutex_);
  if (const auto known = by_digest_.find(introduced.digest); known != by_digest_.end()) {
    const SpaceView& view = known->second->view;
    if (view.groups != introduced.groups || view.chunk_tokens != introduced.chunk_tokens ||
        view.tenant != introduced.tenant || view.model != introduced.model) {
      return absl::InvalidArgumentError(absl::StrCat("two nodes differ about a space of model ", view.model));
    }
    return known->second;
  }
  if (spaces_.size() >= kSpacesMax) return absl::ResourceExhaustedError(absl::StrCat("more than ", kSpacesMax, " spaces"));
  const SpaceId id{static_cast<uint32_t>(spaces_.size())};
  spaces_.push_back(std::make_unique<const Space>(
      Space{id, {introduced.digest, introduced.tenant, introduced.model, introduced.chunk_tokens, introduced.groups}}));
  by_digest_.emplace(introduced.digest, spaces_.back().get());
  return spaces_.back().get();
}

const Directory::Space* Directory::FindSpace(const SpaceDigest& digest) const {
  const ReaderLock lock(&spaces_mutex_);
  const auto found = by_digest_.find(digest);
  return found == by_digest_.end() ? nullptr : found->second;
}

std::vector<Directory::SpaceView> Directory::Spaces(const SpaceFilter& filter) const {
  std::vector<SpaceView> views;
  const ReaderLock lock(&spaces_mutex_);
  for (const auto& space : spaces_) {
    if (filter.model.has_value() && space->view.model != *filter.model) continue;
    if (filter.tenant.has_value() && space->view.tenant != *filter.tenant) continue;
    views.push_back(space->view);
  }
  return views;
}

Directory::NodeView Directory::ViewOf(NodeId id, const Node& node) {
  NodeView view{id, node.name};
  view.chunks = node.shown.has_value() ? node.shown->chunks : 0;
  view.stale = node.shown.has_value() && node.stale;
  view.filling = node.filling.has_value();
  view.needs_snapshot = !node.follows;
  return view;
}

std::optional<Directory::NodeView> Directory::View(NodeId id) const {
  const std::shared_ptr<Node> node = Find(id);
  if (node == nullptr) return std::nullopt;
  const MutexLock lock(&node->mutex);
  return ViewOf(id, *node);
}

std::vector<Directory::SpaceView> Directory::SpacesOf(NodeId id) const {
  const std::shared_ptr<Node> node = Find(id);
  if (node == nullptr) return {};
  std::map<uint32_t, const Space*> by_number;
  {
    const MutexLock lock(&node->mutex);
    by_number.insert(node->spaces.begin(), node->spaces.end());
  }
  std::vector<SpaceView> views;
  for (const auto& [number, space] : by_number) views.push_back(space->view);
  return views;
}

std::vector<Directory::NodeView> Directory::Nodes() const {
  std::vector<NodeView> views;
  const ReaderLock lock(&nodes_mutex_);
  for (const auto& [id, node] : nodes_) {
    const MutexLock its(&node->mutex);
    views.push_back(ViewOf(id, *node));
  }
  std::ranges::sort(views, {}, [](const NodeView& view) { return view.node; });
  return views;
}

}  // namespace kvist::controller

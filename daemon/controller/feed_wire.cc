#include "daemon/controller/feed_wire.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "storage/base/status.h"

namespace kvist::controller {
namespace {

using node::v1::ChunkNews;
using Group = ChunkNews::Space::Group;
using Runs = google::protobuf::RepeatedPtrField<ChunkNews::Chunks>;

constexpr size_t kKeyBytes = sizeof(ChunkKey::bytes);

Group::Kind ToKind(GroupKind kind) {
  switch (kind) {
    case GroupKind::kFull: return Group::FULL;
    case GroupKind::kWindow: return Group::WINDOW;
    case GroupKind::kState: return Group::STATE;
  }
  return Group::FULL;
}

void Put(const SpaceIntroduced& from, ChunkNews* to) {
  ChunkNews::Space& space = *to->mutable_space();
  space.set_number(from.id.value);
  space.set_digest(from.digest.bytes.data(), from.digest.bytes.size());
  space.set_tenant(from.tenant);
  space.set_model(from.model);
  space.set_chunk_tokens(static_cast<uint32_t>(from.chunk_tokens.value));
  for (const ReuseRule& rule : from.groups) {
    Group& group = *space.add_groups();
    group.set_kind(ToKind(rule.kind));
    group.set_window_chunks(rule.window_chunks);
  }
}

void Put(const std::vector<ChunkState>& from, Runs* to) {
  ChunkNews::Chunks* run = nullptr;
  for (const ChunkState& chunk : from) {
    if (run == nullptr || run->space() != chunk.space.value || run->group() != chunk.group.value) {
      run = to->Add();
      run->set_space(chunk.space.value);
      run->set_group(chunk.group.value);
    }
    run->mutable_keys()->append(reinterpret_cast<const char*>(chunk.key.bytes.data()), kKeyBytes);
    run->mutable_tiers()->push_back(static_cast<char>(chunk.tiers.bits));
  }
}

void Put(const SnapshotBegin& from, ChunkNews* to) { to->mutable_begin()->set_sequence(from.sequence); }

void Put(const SnapshotSlice& from, ChunkNews* to) {
  to->mutable_slice()->set_index(from.index);
  Put(from.chunks, to->mutable_slice()->mutable_chunks());
}

void Put(const SnapshotEnd& from, ChunkNews* to) {
  to->mutable_end()->set_slices(from.slices);
  to->mutable_end()->set_untold(from.untold);
}

void Put(const ChangeBatch& from, ChunkNews* to) {
  to->mutable_changes()->set_after(from.after);
  to->mutable_changes()->set_up_to(from.up_to);
  to->mutable_changes()->set_untold(from.untold);
  Put(from.chunks, to->mutable_changes()->mutable_chunks());
}

absl::StatusOr<FeedMessage> SpaceFrom(const ChunkNews& news) {
  const ChunkNews::Space& space = news.space();
  SpaceIntroduced introduced{news.epoch(), SpaceId{space.number()}, {}, space.tenant(), space.model(), {}, {}};
  if (space.digest().size() != introduced.digest.bytes.size())
    return absl::InvalidArgumentError(absl::StrCat("space.digest: ", space.digest().size(), " bytes; allowed: 32"));
  std::copy(space.digest().begin(), space.digest().end(), introduced.digest.bytes.begin());
  introduced.chunk_tokens = Tokens{space.chunk_tokens()};
  for (const Group& group : space.groups()) {
    ReuseRule& rule = introduced.groups.emplace_back();
    switch (group.kind()) {
      case Group::FULL: rule.kind = GroupKind::kFull; break;
      case Group::WINDOW: rule.kind = GroupKind::kWindow; break;
      case Group::STATE: rule.kind = GroupKind::kState; break;
      default: return absl::InvalidArgumentError(absl::StrCat("space.groups.kind: ", group.kind(), "; allowed: 0 to 2"));
    }
    rule.window_chunks = group.window_chunks();
  }
  return introduced;
}

absl::StatusOr<std::vector<ChunkState>> ChunksFrom(const Runs& runs) {
  std::vector<ChunkState> chunks;
  for (const ChunkNews::Chunks& run : runs) {
    if (run.keys().size() != run.tiers().size() * kKeyBytes) {
      return absl::InvalidArgumentError(absl::StrCat("chunks.keys: ", run.keys().size(),
                                                     " bytes; allowed: 32 for each of the ", run.tiers().size(), " tiers"));
    }
    if (run.group() > std::numeric_limits<uint16_t>::max())
      return absl::InvalidArgumentError(absl::StrCat("chunks.group: ", run.group(), "; allowed: at most 65535"));
    for (size_t i = 0; i < run.tiers().size(); ++i) {
      ChunkState& chunk = chunks.emplace_back();
      chunk.space = SpaceId{run.space()};
      chunk.group = GroupId{static_cast<uint16_t>(run.group())};
      std::copy_n(run.keys().begin() + static_cast<std::ptrdiff_t>(i * kKeyBytes), kKeyBytes, chunk.key.bytes.begin());
      chunk.tiers = TierSet{static_cast<uint8_t>(run.tiers()[i])};
    }
  }
  return chunks;
}

}  // namespace

ChunkNews ToNews(const FeedMessage& message) {
  ChunkNews news;
  std::visit(
      [&news](const auto& told) {
        news.set_epoch(told.epoch);
        Put(told, &news);
      },
      message);
  return news;
}

absl::StatusOr<FeedMessage> FromNews(const ChunkNews& news) {
  switch (news.news_case()) {
    case ChunkNews::kSpace: return SpaceFrom(news);
    case ChunkNews::kBegin: return SnapshotBegin{news.epoch(), news.begin().sequence()};
    case ChunkNews::kSlice: {
      KVIST_ASSIGN_OR_RETURN(std::vector<ChunkState> chunks, ChunksFrom(news.slice().chunks()));
      return SnapshotSlice{news.epoch(), news.slice().index(), std::move(chunks)};
    }
    case ChunkNews::kEnd: return SnapshotEnd{news.epoch(), news.end().slices(), news.end().untold()};
    case ChunkNews::kChanges: {
      const ChunkNews::Changes& changes = news.changes();
      KVIST_ASSIGN_OR_RETURN(std::vector<ChunkState> chunks, ChunksFrom(changes.chunks()));
      return ChangeBatch{news.epoch(), changes.after(), changes.up_to(), std::move(chunks), changes.untold()};
    }
    case ChunkNews::NEWS_NOT_SET: break;
  }
  return absl::InvalidArgumentError("news: a message without any");
}

}  // namespace kvist::controller

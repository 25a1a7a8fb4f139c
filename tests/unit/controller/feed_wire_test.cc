#include "daemon/controller/feed_wire.h"

#include <catch2/catch.hpp>
#include <random>
#include <string>
#include <vector>

#include "tests/unit/controller/telling_node.h"

namespace kvist::controller {
namespace {

constexpr uint64_t kHighEpoch = 0x8000'0000'0000'0005;

// Over the wire and back.
FeedMessage Again(const FeedMessage& message) {
  node::v1::ChunkNews arrived;
  REQUIRE(arrived.ParseFromString(ToNews(message).SerializeAsString()));
  const absl::StatusOr<FeedMessage> read = FromNews(arrived);
  INFO(read.status());
  REQUIRE(read.ok());
  return *read;
}

TEST_CASE("Each message of a feed comes back from the wire as it was") {
  SpaceIntroduced space{kHighEpoch,
                        SpaceId{7},
                        DigestOf(3),
                        "ten\xff"
                        "ant",
                        std::string("mo\0del", 6),
                        Tokens{256},
                        {}};
  space.groups = {{}, {GroupKind::kWindow, 5}, {GroupKind::kState, 0}};
  const auto space_again = std::get<SpaceIntroduced>(Again(space));
  CHECK(space_again.epoch == kHighEpoch);
  CHECK(space_again.id == space.id);
  CHECK(space_again.digest == space.digest);
  CHECK(space_again.tenant == space.tenant);
  CHECK(space_again.model == space.model);
  CHECK(space_again.chunk_tokens == space.chunk_tokens);
  CHECK(space_again.groups == space.groups);

  CHECK(std::get<SnapshotBegin>(Again(SnapshotBegin{kHighEpoch, UINT64_MAX - 1})).sequence == UINT64_MAX - 1);
  CHECK(std::get<SnapshotEnd>(Again(SnapshotEnd{kHighEpoch, 12})).slices == 12);

  // Runs of one group, and chunks that change groups and spaces each time.
  std::vector<ChunkState> chunks;
  for (uint64_t n = 0; n < 40; ++n) {
    const uint32_t of = n < 20 ? 0 : static_cast<uint32_t>(n);
    chunks.push_back(
        {SpaceId{of / 2}, GroupId{static_cast<uint16_t>(of % 3)}, KeyOf(n), TierSet{static_cast<uint8_t>(n % 8)}});
  }
  const auto slice = std::get<SnapshotSlice>(Again(SnapshotSlice{kHighEpoch, 4, chunks}));
  CHECK(slice.epoch == kHighEpoch);
  CHECK(slice.index == 4);
  CHECK(slice.chunks == chunks);
  const auto batch = std::get<ChangeBatch>(Again(ChangeBatch{kHighEpoch, 10, 50, chunks, kHighEpoch}));
  CHECK(batch.after == 10);
  CHECK(batch.up_to == 50);
  CHECK(batch.untold == kHighEpoch);
  CHECK(std::get<SnapshotEnd>(Again(SnapshotEnd{kHighEpoch, 3, 7})).untold == 7);
  CHECK(batch.chunks == chunks);
  CHECK(std::get<ChangeBatch>(Again(ChangeBatch{kHighEpoch, 50, 50, {}})).chunks.empty());
}

TEST_CASE("A chunk costs 33 bytes on the wire, and a run of them a few more") {
  SnapshotSlice slice{kHighEpoch, 0, {}};
  for (uint64_t n = 0; n < 512; ++n) slice.chunks.push_back({SpaceId{1}, GroupId{0}, KeyOf(n), kDram});
  CHECK(ToNews(slice).ByteSizeLong() < 512 * 33 + 40);
}

TEST_CASE("News that is none of a feed's messages is refused, and names the field") {
  const auto refused = [](const node::v1::ChunkNews& news, const std::string& field) {
    const absl::StatusOr<FeedMessage> read = FromNews(news);
    REQUIRE(read.status().code() == absl::StatusCode::kInvalidArgument);
    CHECK_THAT(std::string(read.status().message()), Catch::StartsWith(field));
  };
  refused({}, "news");
  node::v1::ChunkNews news;
  news.mutable_space()->set_digest("short");
  refused(news, "space.digest");
  news.mutable_space()->set_digest(std::string(32, 'd'));
  news.mutable_space()->add_groups()->set_kind(static_cast<node::v1::ChunkNews::Space::Group::Kind>(9));
  refused(news, "space.groups.kind");
  node::v1::ChunkNews::Chunks* run = news.mutable_slice()->add_chunks();
  run->set_keys(std::string(64, 'k'));
  run->set_tiers("x");
  refused(news, "chunks.keys");
  run->set_tiers("xy");
  run->set_group(65536);
  refused(news, "chunks.group");
  const node::v1::ChunkNews::Chunks same = *run;
  *news.mutable_changes()->add_chunks() = same;
  refused(news, "chunks.group");
}

TEST_CASE("Bytes that nobody sent on purpose are refused or read, never more") {
  std::mt19937_64 random(7);
  const std::string good =
      ToNews(ChangeBatch{kHighEpoch, 1, 3, {{SpaceId{1}, GroupId{0}, KeyOf(1), kDram}}}).SerializeAsString();
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = good;
    for (uint64_t n = 1 + random() % 4; n > 0; --n) bytes[random() % bytes.size()] = static_cast<char>(random());
    node::v1::ChunkNews news;
    if (news.ParseFromString(bytes)) static_cast<void>(FromNews(news).ok());
  }
}

}  // namespace
}  // namespace kvist::controller

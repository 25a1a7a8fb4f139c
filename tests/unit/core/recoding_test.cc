// Encoding a prompt another way in the store beyond the node, which may take hours.
#include <catch2/catch.hpp>
#include <vector>

#include "tests/unit/core/three_tiers.h"

namespace kvist::core {
namespace {

JobId Recode(ThreeTiers& node, const std::vector<ChunkKey>& keys, JobKind kind = JobKind::kCompress) {
  const JobId job{++node.jobs};
  node.Do(RecodeAsked{.job = job, .kind = kind, .space = SpaceId{0}, .keys = keys, .method = 1});
  node.Rest();
  return job;
}

JobState StateOf(const ThreeTiers& node, JobId job) { return node.f.core->jobs().Find(job)->state; }

}  // namespace

TEST_CASE("Other jobs have their turn while a prompt is encoded, but no other that encodes") {
  ThreeTiers node;
  const auto keys = KeysOf({1, 2, 3});
  node.Keep(keys);
  const JobId first = Recode(node, keys);
  const JobId second = Recode(node, keys, JobKind::kDecompress);
  const JobId third = Recode(node, keys);
  CHECK(node.recodings == std::vector{first});
  node.f.now += absl::Hours(1);
  CHECK(node.Move(Tier::kDram, Tier::kSsd, keys).state == JobState::kDone);
  node.Do(ClearAsked{.job = JobId{++node.jobs}, .space = SpaceId{0}});
  node.Rest();
  CHECK(StateOf(node, JobId{node.jobs}) == JobState::kDone);
  CHECK(StateOf(node, first) == JobState::kRunning);

  node.Do(Recoded{.job = first, .done = 2, .chunks = 2, .bytes = KiB(8), .bytes_after = KiB(4)});
  node.Rest();
  CHECK(node.recodings == std::vector{first});
  CHECK(node.f.core->jobs().Find(first)->bytes == KiB(8));
  node.Do(Recoded{.job = first, .done = 3, .chunks = 3, .ended = true});
  node.Rest();
  CHECK(StateOf(node, first) == JobState::kDone);
  CHECK(*node.f.core->jobs().Find(first)->ended - *node.f.core->jobs().Find(first)->began >= absl::Hours(1));
  CHECK(node.recodings == std::vector{first, second});

  node.Do(JobCancelAsked{second});
  node.Rest();
  CHECK(node.recodings == std::vector{first, second, second, third});
  node.Do(Recoded{.job = second, .done = 3, .chunks = 3, .ended = true});  // it had been cancelled
  node.Rest();
  CHECK(StateOf(node, third) == JobState::kRunning);
  node.Do(Recoded{.job = third, .done = 3, .chunks = 3, .ended = true});
  node.Rest();
  CHECK(StateOf(node, third) == JobState::kDone);
}

TEST_CASE("One that waits to encode and is cancelled keeps no other from it") {
  ThreeTiers node;
  const auto keys = KeysOf({1});
  const JobId first = Recode(node, keys), second = Recode(node, keys), third = Recode(node, keys);
  node.Do(JobCancelAsked{second});
  node.Rest();
  CHECK(node.recodings == std::vector{first});
  node.Do(Recoded{.job = first, .done = 1, .chunks = 1, .ended = true});
  node.Rest();
  CHECK(node.recodings == std::vector{first, third});
}

}  // namespace kvist::core

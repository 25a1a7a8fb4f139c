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

// ---- On disk ----------------------------------------------------------------------------------------------------------------

namespace {

const Job& RecodeOnDisk(ThreeTiers& node, const std::vector<ChunkKey>& keys, uint8_t method) {
  const JobId job{++node.jobs};
  node.Do(RecodeAsked{.job = job,
                      .kind = method == 0 ? JobKind::kDecompress : JobKind::kCompress,
                      .tier = Tier::kSsd,
                      .space = SpaceId{0},
                      .keys = keys,
                      .method = method});
  node.Rest();
  while (!node.reads.empty()) node.EndReads();
  return *node.f.core->jobs().Find(job);
}

uint8_t MethodOf(const ThreeTiers& node, const ChunkKey& key) { return node.catalog.at(key).form.method; }

}  // namespace

TEST_CASE("What is on disk is encoded there another way, through slots, and read as it lies there") {
  ThreeTiers node;
  const auto keys = KeysOf({1, 2, 3, 4});
  node.Keep(keys);
  node.Flush();
  // Two of them are on disk only.
  node.Move(Tier::kDram, Tier::kSsd, keys);
  node.Move(Tier::kSsd, Tier::kDram, KeysOf({1, 2}), /*keep_source=*/true);
  const uint64_t live = node.f.slots->live_slots();
  node.incompressible.insert(keys[1]);

  const Job job = RecodeOnDisk(node, keys, 2);
  CHECK(job.state == JobState::kDone);
  CHECK(job.chunks == 3);
  CHECK(job.already == 1);  // it would be no smaller
  CHECK(job.left == 0);
  CHECK(job.done == job.total);
  CHECK(job.bytes == KiB(4) * 3);
  CHECK(job.bytes_after == KiB(3) * 3);
  CHECK(job.loss == Loss{0.25, 0.5});
  CHECK(node.f.slots->live_slots() == live);  // what only passed through slots isn't there any more
  CHECK(node.rows.size() == 4);
  for (const ChunkKey& key : keys) CHECK(MethodOf(node, key) == (key == keys[1] ? 0 : 2));
  CHECK(node.f.core->status().chunks_recoded == 3);
  CHECK(node.f.core->status().encoded.chunks == 3);
  CHECK(node.f.core->status().encoded.bytes == KiB(3) * 3);
  CHECK(node.f.core->status().encoded.slot_bytes == KiB(4) * 3);

  const Job again = RecodeOnDisk(node, keys, 2);
  CHECK(again.chunks == 0);
  CHECK(again.already == 4);

  // Also after a restart it is read as it lies there; and what is to be moved stays so.
  node.Restart(ThreeTiersOptions());
  CHECK(node.Hits(keys) == 4);
  node.Do(LookupAsked{node.worker, RequestTag{++node.tags}, keys, absl::Seconds(1)});
  node.Rest();
  REQUIRE(node.reads.size() == 4);
  for (const ReadStarted& read : node.reads) CHECK(read.form == node.catalog.at(read.key).form);
  node.EndReads();
  node.Reclaim(keys);
  CHECK(MethodOf(node, keys[3]) == 2);

  const Job back = RecodeOnDisk(node, keys, 0);
  CHECK(back.chunks == 3);
  CHECK(back.bytes == KiB(3) * 3);
  CHECK(back.bytes_after == KiB(4) * 3);
  for (const ChunkKey& key : keys) CHECK(MethodOf(node, key) == 0);
}

TEST_CASE("What is encoded on disk is said to be when it goes beyond the node") {
  ThreeTiers node;
  const auto keys = KeysOf({1, 2});
  node.Keep(keys);
  node.Flush();
  RecodeOnDisk(node, {keys[0]}, 2);
  node.methods_beyond.clear();
  node.store.clear();
  node.Move(Tier::kSsd, Tier::kRemote, keys);
  CHECK(node.methods_beyond == std::map<ChunkKey, uint8_t>{{keys[0], 2}, {keys[1], 0}});
}

TEST_CASE("Encoding what isn't on disk does nothing, and what can't be read or written is left as it is") {
  ThreeTiers node;
  const auto keys = KeysOf({1, 2});
  node.Keep(keys);
  CHECK(RecodeOnDisk(node, keys, 1).chunks == 0);
  node.Flush();
  node.Do(DiskWritable{false});
  CHECK(RecodeOnDisk(node, keys, 1).left == 2);
  node.Do(DiskWritable{true});
  node.hold_writes = true;
  const JobId job = RecodeOnDisk(node, keys, 1).id;
  REQUIRE(node.writes.size() == 2);
  node.writes[0].status = absl::ResourceExhaustedError("full");
  node.writes[1].status = absl::UnavailableError("EIO");
  node.EndWrites();
  CHECK(StateOf(node, job) == JobState::kDone);
  CHECK(node.f.core->jobs().Find(job)->left == 2);
  CHECK(node.Clear(Tier::kDram, keys, false).left == 0);
  CHECK(node.Hits(keys) == 2);  // still on disk
}

TEST_CASE("Encoding on disk that is cancelled lets go of all, and what is written then is there") {
  ThreeTiers node;
  const auto keys = KeysOf({1, 2, 3});
  node.Keep(keys);
  node.Move(Tier::kDram, Tier::kSsd, keys);
  node.hold_writes = true;
  const JobId job = RecodeOnDisk(node, keys, 1).id;
  REQUIRE(node.writes.size() == 3);
  CHECK(StateOf(node, job) == JobState::kRunning);
  node.Do(JobCancelAsked{job});
  node.Rest();
  node.EndWrites();
  CHECK(StateOf(node, job) == JobState::kCancelled);
  CHECK(node.Hits(keys) == 3);
  CHECK(node.Clear(Tier::kDram, keys, false).left == 0);  // nothing keeps it
  CHECK(node.f.slots->live_slots() == 0);
}

// What it waited for came between two slices of its looking, behind where it had got to: it looked no more until something else happened.
TEST_CASE("What is encoded on disk goes on when what it waits for comes while it looks for something to do") {
  ThreeTiers node;
  const auto keys = KeysOf({1, 2, 3});
  node.Keep(keys);
  node.Flush();
  node.Move(Tier::kDram, Tier::kSsd, KeysOf({3}));
  const JobId job{++node.jobs};
  node.Do(RecodeAsked{
      .job = job, .kind = JobKind::kCompress, .tier = Tier::kSsd, .space = SpaceId{0}, .keys = keys, .method = 2});
  node.Rest();
  REQUIRE(node.reads.size() == 1);  // of the last, which it looks at first; the others are encoded meanwhile
  REQUIRE(MethodOf(node, keys[0]) == 2);
  REQUIRE(MethodOf(node, keys[1]) == 2);
  const int slices = GENERATE(range(0, 5));
  node.Do(FreeAsked{node.worker, AllocationId{}});  // anything: it looks once more
  for (int i = 0; i < slices; ++i) node.Do(Tick{node.f.now});
  node.EndReads();
  CHECK(StateOf(node, job) == JobState::kDone);
  CHECK(MethodOf(node, keys[2]) == 2);
}

}  // namespace kvist::core

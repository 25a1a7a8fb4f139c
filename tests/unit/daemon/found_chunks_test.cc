// What a store has of a space is held against the space before the core hears of it: a row that can't be costs its chunk, not the start.
#include <catch2/catch.hpp>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/synchronization/notification.h"
#include "daemon/session/space_description.h"
#include "daemon/ssd_tier.h"
#include "proto/session.pb.h"
#include "storage/base/check.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/ssd/records.h"

namespace kvist::daemon {
namespace {

// Two groups of one shard: slots of two units, and of three.
core::SpaceSpec SpaceOfTwoGroups() {
  session::v1::KeptSpace kept;
  kept.set_tenant("tenant");
  session::v1::Space& space = *kept.mutable_space();
  space.set_model("model");
  space.set_kv_dtype("bf16");
  space.set_layout("nhd");
  space.set_page_tokens(16);
  space.set_chunk_tokens(16);
  space.set_tensor_parallel(1);
  space.set_pipeline_parallel(1);
  space.set_slot_order(session::v1::Space::SLOT_ORDER_LAYER_MAJOR);
  for (const uint64_t bytes : {4096, 8192}) {
    session::v1::Space::Group& group = *space.add_groups();
    group.set_kind(session::v1::Space::Group::KIND_FULL);
    group.set_layers(1);
    group.set_segments(1);
    group.set_segment_bytes(bytes);
  }
  const absl::StatusOr<core::SpaceSpec> spec = session::SpaceOf(kept.SerializeAsString());
  INFO(spec.status());
  REQUIRE(spec.ok());
  REQUIRE(spec->groups[0].slot_bytes[0] == KiB(8));
  REQUIRE(spec->groups[1].slot_bytes[0] == KiB(12));
  return *spec;
}

// Whoever wrote it before.
class Writer final : public ssd::StoreOwner {
 public:
  explicit Writer(ssd::StoreOptions options) : store_(*ssd::Store::Open(std::move(options), this)) {
    store_->Start();
    recovered_.WaitForNotification();
  }
  void Write(const core::SpaceSpec& space, uint64_t n, uint16_t group, size_t shards, uint64_t bytes) {
    std::vector<ssd::AlignedBytes> memory;
    ssd::Store::ChunkToWrite chunk;
    chunk.ticket = n;
    chunk.id = {0, store_->OpenSpace(space.digest, space.description), group, ssd::DigestOf<ChunkKey>(n)};
    chunk.shape = {.layers = 1, .layer_bytes = Bytes{bytes}, .order = ssd::SlotOrder::kLayerMajor};
    for (size_t shard = 0; shard < shards; ++shard) {
      const ssd::AlignedBytes& slot = memory.emplace_back(ssd::kUnit * chunk.shape.units());
      chunk.slots.emplace_back(slot.data(), slot.size().value);
    }
    store_->Write(std::move(chunk));
    store_->Flush();
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return written_ >= n; });
  }

  void Note(ssd::UsesNote note) {
    std::vector<ssd::UsesNote> notes;
    notes.push_back(std::move(note));
    store_->NoteUses(std::move(notes));
  }

  void FoundPins(std::vector<ssd::PinRow>, bool) override {}
  void FoundUses(std::vector<ssd::UsesNote>) override {}
  void Written(Ticket ticket, absl::Status status, std::vector<ssd::Place>) override {
    KVIST_CHECK(status.ok());
    const std::lock_guard lock(mutex_);
    written_ = ticket;
    changed_.notify_all();
  }
  void Read(Ticket, absl::Status) override {}
  void Writable(bool, const std::string&) override {}
  bool Found(std::vector<ssd::FoundSpace>, std::vector<ssd::FoundChunk>) override { return true; }
  void Recovered(const ssd::Recovery&) override { recovered_.Notify(); }
  void WantsBack(std::vector<ssd::PlaceWanted>) override {}
  void Damaged(std::vector<ssd::PlaceWanted>) override {}
  void GivenUp(std::vector<ssd::PlaceWanted>) override {}

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  Ticket written_ = 0;
  absl::Notification recovered_;
  const std::unique_ptr<ssd::Store> store_;
};

// A core that hears of one space, and what is found of it.
class Ear final : public session::LowerTier::Ear {
 public:
  explicit Ear(SpaceDigest digest) : digest_(digest) {}
  void Say(session::LowerTier::Event event) override { Hear(event); }
  bool Tell(session::LowerTier::Event event) override {
    Hear(event);
    return true;
  }
  std::optional<SpaceId> FindSpace(const SpaceDigest& digest) override {
    return digest == digest_ ? std::optional(SpaceId{3}) : std::nullopt;
  }
  std::vector<core::ChunksFound::Found> AwaitFound() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return told_; });
    return found_;
  }
  std::vector<core::DiskUses> AwaitUses() {
    AwaitFound();
    const std::lock_guard lock(mutex_);
    return uses_;
  }

 private:
  void Hear(const session::LowerTier::Event& event) {
    const std::lock_guard lock(mutex_);
    told_ |= std::holds_alternative<core::DiskTold>(event);
    changed_.notify_all();
    if (const auto* const of = std::get_if<core::UsesFound>(&event)) {
      CHECK_FALSE(told_);
      uses_.push_back(of->found);
    }
    const auto* const found = std::get_if<core::ChunksFound>(&event);
    if (found == nullptr) return;
    CHECK(found->space == SpaceId{3});
    found_.insert(found_.end(), found->chunks.begin(), found->chunks.end());
  }
  const SpaceDigest digest_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool told_ = false;
  std::vector<core::ChunksFound::Found> found_;
  std::vector<core::DiskUses> uses_;
};

TEST_CASE("Chunks on disk that their space can't have are freed, the others are found") {
  const test::TempDir dir;
  ssd::StoreOptions options;
  options.directories = {dir / "ssd"};
  options.segment = KiB(512);
  options.capacity = options.segment * 16;
  const core::SpaceSpec space = SpaceOfTwoGroups();
  {
    Writer writer(options);
    writer.Write(space, 1, 0, 1, 4096);  // as it should be
    writer.Write(space, 2, 1, 1, 8192);  //
    writer.Write(space, 3, 9, 1, 4096);  // of no group
    writer.Write(space, 4, 0, 2, 4096);  // of two shards
    writer.Write(space, 5, 0, 1, 8192);  // of another length
  }
  for (int start = 0; start < 2; ++start) {
    Ear ear(space.digest);
    auto tier = SsdTier::Open(options, ssd::Checksums::kCompute);
    REQUIRE(tier.ok());
    (*tier)->SpeakTo(&ear);
    (*tier)->Start();
    const std::vector<core::ChunksFound::Found> found = ear.AwaitFound();
    REQUIRE(found.size() == 2);
    CHECK(found[0].group.value + found[1].group.value == 1);
    CHECK((*tier)->status().recovery->chunks == (start == 0 ? 5 : 2));
  }
}

TEST_CASE("Uses are told of in the core's names, as long ago as they were noted, over several daemons") {
  const test::TempDir dir;
  ssd::StoreOptions options;
  options.directories = {dir / "ssd"};
  options.segment = KiB(512);
  options.capacity = options.segment * 16;
  const core::SpaceSpec space = SpaceOfTwoGroups();
  {
    Writer writer(options);
    writer.Write(space, 1, 0, 1, 4096);
    writer.Note({0, KiB(1), {{0, 0, ssd::DigestOf<ChunkKey>(1)}, {77, 0, ssd::DigestOf<ChunkKey>(1)}}});  // of no space
  }
  for (int32_t start = 0; start < 3; ++start) {
    Ear ear(space.digest);
    auto tier = SsdTier::Open(options, ssd::Checksums::kCompute);
    REQUIRE(tier.ok());
    (*tier)->SpeakTo(&ear);
    (*tier)->Start();
    const std::vector<core::DiskUses> uses = ear.AwaitUses();
    REQUIRE(uses.size() == static_cast<size_t>(1 + start));
    for (int32_t n = 0; n <= start; ++n) {
      const core::DiskUses& of = uses[static_cast<size_t>(n)];
      CHECK(of.period == n - start);
      CHECK(of.written == KiB(static_cast<uint64_t>(1 + n)));
      REQUIRE(of.uses.size() == 1);
      CHECK(of.uses[0].space == SpaceId{3});
      CHECK(of.uses[0].group == GroupId{static_cast<uint16_t>(n)});
      CHECK(of.uses[0].key == ssd::DigestOf<ChunkKey>(static_cast<uint64_t>(1 + n)));
    }
    (*tier)->NoteUses({{1,
                        KiB(static_cast<uint64_t>(2 + start)),
                        {{SpaceId{3}, GroupId{static_cast<uint16_t>(1 + start)},
                          ssd::DigestOf<ChunkKey>(static_cast<uint64_t>(2 + start))}}}});
  }
}

}  // namespace
}  // namespace kvist::daemon

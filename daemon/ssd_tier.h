#ifndef KVIST_DAEMON_SSD_TIER_H_
#define KVIST_DAEMON_SSD_TIER_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "daemon/disk_codec.h"
#include "daemon/session/lower_tier.h"
#include "daemon/task_thread.h"
#include "daemon/tier_busy.h"
#include "storage/codec/shape.h"
#include "storage/ssd/store.h"

namespace kvist::daemon {

// The tier of a node's disks: the core's effects in the words of a store, and the store's news in those of the core. It decides
// nothing and keeps nothing but names, a space's number in the store and in the core, what is on its way, and what operators ask for.
//
// What is to lie there encoded is encoded before the store has it, and decoded where it was read, in its slot.
//
// Lifecycle: Open -> SpeakTo -> Start, when the ear hears -> destroyed, before the slots are.
// Threads: as DiskTier; the store's own call it, too, and two of its own encode and decode.
class SsdTier final : public session::DiskTier, private ssd::StoreOwner {
 public:
  // Errors: ssd::Store::Open's, with the key to change.
  static absl::StatusOr<std::unique_ptr<SsdTier>> Open(ssd::StoreOptions options, ssd::Checksums checksums);
  ~SsdTier() override;

  // Who hears of all that the store says; outlives this. Before the core has effects for it.
  void SpeakTo(Ear* ear) { ear_ = ear; }
  // Tells the ear of what is there already.
  void Start() { store_->Start(); }
  void Register(std::span<std::byte> memory) { store_->Register(memory); }  // as the store's
  // Hears, before Start is called, of all that is freed from then on, before it is.
  void OnFreed(std::function<void(const core::PlacesFreed& freed)> freed) { freed_ = std::move(freed); }

  void Write(const core::SpaceSpec& space, core::WriteStarted write, Slots slots) override;
  void Read(std::vector<ChunkToRead> chunks) override;
  void Free(core::PlacesFreed freed) override;
  void Clear(const core::SpaceSpec* space, core::SpaceCleared cleared) override;
  void Hide(const core::SpaceSpec& space, core::ChunksHidden hidden) override;
  void NotePins(const core::SpaceSpec& space, core::PinsNoted noted) override;
  void NoteUses(core::UsesNoted noted) override;

  // Waits until the disk has all that NotePins was given before, or `deadline`. False: not in time, or it couldn't. Threads: any but the
  // reactor's.
  bool SettlePins(absl::Time deadline) const;

  // For operators and monitoring. Threads: any.
  struct Status {
    ssd::Store::Status store;
    std::optional<bool> writable;  // absent: it hasn't said yet
    std::string why_not;
    std::optional<ssd::Recovery> recovery;  // when it has ended, well or not
    // [device] Of what was written: what was there already, and was written again so that its segment can be used again.
    std::vector<Bytes> moved;
  };
  Status status() const;

 private:
  SsdTier(size_t devices, ssd::Checksums checksums) : checksums_(checksums), moved_(devices) {}

  // The store's news.
  void Written(Ticket ticket, absl::Status status, std::vector<ssd::Place> places) override;
  void Read(Ticket ticket, absl::Status status) override;
  void Writable(bool writable, const std::string& why) override;
  bool Found(std::vector<ssd::FoundSpace> spaces, std::vector<ssd::FoundChunk> chunks) override;
  void FoundPins(std::vector<ssd::PinRow> pins, bool withheld) override;
  void FoundUses(std::vector<ssd::UsesNote> uses) override;
  void Recovered(const ssd::Recovery& recovery) override;
  void WantsBack(std::vector<ssd::PlaceWanted> records) override;
  void Damaged(std::vector<ssd::PlaceWanted> records) override;
  void GivenUp(std::vector<ssd::PlaceWanted> records) override;
  // Tells the core of these places, so many at a time; and `unserved` those of spaces that nobody serves.
  template <class Places, class Unserved>
  void TellOf(const Places& none, const std::vector<ssd::PlaceWanted>& records, Unserved unserved);

  // A chunk on its way to the disk by way of a codec.
  struct Encoding {
    ssd::Store::ChunkToWrite chunk;  // as it lies in its slots
    SpaceId space;
    codec::Shape shape;
    uint8_t method = 0;
    bool may_stay = false;
  };
  void Encode(std::shared_ptr<Encoding> encoding);
  // What is on its way to the store, and hasn't been given to it, isn't, for it was cleared.
  void ForgetEncodings(absl::FunctionRef<bool(const Encoding& encoding)> which) ABSL_LOCKS_EXCLUDED(mutex_);
  // One on its way back.
  struct Decoding {
    codec::Shape shape;
    ssd::ShardShape raw;
    Slots slots;
    std::function<void(uint32_t shard, uint32_t layers)> arrived;
  };
  void Decode(Ticket ticket, const Decoding& decoding);
  void EndRead(Ticket ticket, absl::Status status);

  // The space's number in the store; a space that it hasn't met gets one.
  uint32_t NumberOf(SpaceId id, const core::SpaceSpec& space);
  void Meet(SpaceId id, uint32_t number, const core::SpaceSpec& spec);
  bool MeetFound(const ssd::FoundSpace& found);
  std::optional<SpaceId> NameOf(uint32_t number);
  void NoteUnserved(const ssd::FoundChunk& chunk);
  // Whether a chunk of the space can be so; counts those that can't.
  bool Fits(SpaceId space, const ssd::FoundChunk& chunk);

  const ssd::Checksums checksums_;
  Ear* ear_ = nullptr;
  std::function<void(const core::PlacesFreed& freed)> freed_;
  mutable absl::Mutex mutex_;
  struct Met {
    uint32_t number;                   // in the store
    std::vector<uint32_t> units;       // [group] of a record, which is a slot; all shards of a group have slots of one size
    std::vector<uint32_t> shards;      // [group]
    std::vector<codec::Shape> shapes;  // [group]
  };
  absl::flat_hash_map<SpaceId, Met> met_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint32_t, SpaceId> name_of_ ABSL_GUARDED_BY(mutex_);
  // Where what was found lies of spaces that nobody serves, until it is freed: other records of theirs nobody wants any more.
  absl::flat_hash_set<uint64_t> unserved_ ABSL_GUARDED_BY(mutex_);
  uint64_t misfits_ ABSL_GUARDED_BY(mutex_) = 0;  // of what was found
  std::optional<bool> writable_ ABSL_GUARDED_BY(mutex_);
  std::string why_not_ ABSL_GUARDED_BY(mutex_);
  std::string warned_of_ ABSL_GUARDED_BY(mutex_);
  absl::Time warned_ ABSL_GUARDED_BY(mutex_);
  std::optional<ssd::Recovery> recovery_ ABSL_GUARDED_BY(mutex_);
  std::vector<Bytes> moved_ ABSL_GUARDED_BY(mutex_);
  TierBusy busy_ ABSL_GUARDED_BY(mutex_){core::Tier::kSsd};
  absl::flat_hash_map<Ticket, std::shared_ptr<Encoding>> encodings_ ABSL_GUARDED_BY(mutex_);  // that the store hasn't yet
  absl::flat_hash_map<Ticket, EncodedChunk> encoded_ ABSL_GUARDED_BY(mutex_);                 // that it is writing
  absl::flat_hash_map<Ticket, Decoding> decodings_ ABSL_GUARDED_BY(mutex_);                   // that it is reading
  TaskThread encodes_, decodes_;       // apart: engines wait for the latter
  std::unique_ptr<ssd::Store> store_;  // last: its threads call this
};

}  // namespace kvist::daemon

#endif  // KVIST_DAEMON_SSD_TIER_H_

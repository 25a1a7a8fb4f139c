#ifndef KVIST_STORAGE_SSD_STORE_STATE_H_
#define KVIST_STORAGE_SSD_STORE_STATE_H_

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "storage/ssd/catalog.h"
#include "storage/ssd/commits.h"
#include "storage/ssd/hands.h"
#include "storage/ssd/rebuild.h"
#include "storage/ssd/scrubber.h"
#include "storage/ssd/segment_records.h"
#include "storage/ssd/store.h"
#include "storage/ssd/store_device.h"
#include "storage/ssd/store_directory.h"
#include "storage/ssd/store_spaces.h"
#include "storage/ssd/tails.h"

namespace kvist::ssd {

inline bool operator<(const ChunkId& a, const ChunkId& b) {
  return std::tie(a.space, a.group, a.key, a.position) < std::tie(b.space, b.group, b.key, b.position);
}

// What joins the parts of a store: store.cc opens and ends it; store_writes.cc has what is written and freed, store_reads.cc what is read, store_clears.cc
// what is cleared, store_segments.cc the segments' rows, and those that are wanted back, store_catalog.cc what goes into the catalog; store_recovery.cc
// the start, store_tails.cc what that looks for that has lost its rows, store_losses.cc what the scrubber finds, and what is given up.
//
// Threads: a keeper, which has all that isn't said to be another's, and on which nothing waits; the devices'; the catalog's; and one that may wait
//   for the disk and for the owner.
class Store::State final : private StoreDevice::Listener, private RowSink, private RebuildSink, private Scrubber::Owner {
 public:
  State(StoreOptions options, StoreOwner* owner)
      : options_(std::move(options)),
        owner_(owner),
        hands_(options_.hands != nullptr ? *options_.hands : Threads()),
        keeper_(hands_.MakeQueue()),
        beside_(hands_.MakeQueue()) {}
  ~State() override;

  absl::Status Open();
  void Start();
  void Register(std::span<std::byte> memory);
  uint32_t OpenSpace(const SpaceDigest& digest, std::string description);
  void Write(ChunkToWrite chunk);
  void Read(std::vector<ChunkToRead> chunks);
  absl::Status CheckRead(const ChunkToRead& chunk) const;
  void Flush();
  void Free(const ChunkId& id, uint32_t units, std::vector<Place> places, bool replaced);
  void Leave(const ChunkId& id, uint32_t units, std::vector<Place> places);
  void Clear(std::optional<uint32_t> space, std::function<void(absl::Status)> done);
  void Hide(uint32_t space, std::vector<ChunkId> chunks, std::function<void(absl::Status)> done);
  void NotePins(std::vector<PinChange> changes);
  void NoteUses(std::vector<UsesNote> notes);
  void SettlePins(std::function<void(absl::Status)> done);
  Status status() const;

 private:
  struct Killed {
    std::vector<Place> places;
    uint32_t units = 0;
    bool left = false;  // its row may stay (Leave)
  };
  // A chunk on its way to the disk.
  struct OneWrite {
    ChunkToWrite chunk;
    SpaceDigest space;
    uint64_t sequence = 0;
    uint32_t waiting = 0;  // shards
    std::vector<Place> places;
    int error = 0;
    bool cleared = false;          // or hidden
    bool ended = false;            // all shards are durable
    bool committing = false;       // its row is on its way
    std::vector<Killed> replaces;  // what lies elsewhere, and isn't wanted when this is durable
  };
  // The writes of one chunk that run at the same time: the row of the latest stays.
  struct Writing {
    std::set<uint64_t> running;
    uint64_t rows_from = 0;  // writes below this have no row of theirs any more
  };
  struct OneRead {
    Ticket ticket = 0;
    uint32_t waiting = 0;
    absl::Status status;
    std::shared_ptr<const std::function<void(uint32_t shard, uint32_t layers)>> arrived;  // or null
  };
  // A record that says that a space was cleared, on its way.
  struct OneClear {
    ClearRow row;
    uint32_t tries = 0;
    bool again = false;  // its segment is wanted back: it has been in force for long
    std::unique_ptr<std::byte, decltype(&std::free)> slot{nullptr, &std::free};
    std::function<void(absl::Status)> done;
  };
  static constexpr absl::Duration kLookAgain = absl::Milliseconds(1);  // whether what is on its way has ended
  static constexpr uint32_t kShardBits = 10;
  static_assert(kShardsMax <= 1U << kShardBits);
  static constexpr uint64_t kClearTicket = uint64_t{1} << 63;

  void Step(std::string_view step) const {
    if (options_.before_step) options_.before_step(step);
  }
  // Does it on the keeper, and waits: for others than the keeper, and those on which nothing of the keeper's waits.
  void AskKeeper(absl::FunctionRef<void()> task);
  StoreDevice& DeviceOf(Place place) { return *devices_[ssd::DeviceOf(place.segment)]; }
  uint32_t segment_units() const { return static_cast<uint32_t>(options_.segment / kUnit); }

  // store.cc
  absl::Status KeepSegmentSize();
  absl::Status OpenDirectories();
  absl::Status OpenCatalog();
  // Whether each directory has what the catalog knows there.
  absl::Status CheckThatAllIsThere() const;
  void Withhold();
  absl::Status OpenDevices();

  // store_writes.cc
  static absl::Status StatusOf(int error);  // as the owner hears it
  static bool HoldsRecord(std::span<std::byte> slot, const ShardShape& shape);
  void BeginWrite(ChunkToWrite chunk);
  absl::Status WhyNot(const ChunkToWrite& chunk, const SpaceRow* space) const;
  void ShardEnded(const Writer::Outcome& outcome);
  void SettleWrites(const ChunkId& id);
  void CommitWrite(uint64_t number);
  void EndWrite(uint64_t number, const absl::Status& status);
  void KillAll(const Killed& killed);
  void BeginFree(const ChunkId& id, Killed killed, bool replaced);
  // Frees what was left of these chunks after all; their ids.
  std::vector<ChunkId> FreeLeft(absl::FunctionRef<bool(const ChunkId& id, const Killed& left)> which);

  // store_clears.cc
  void BeginClear(OneClear clear);
  void PutClear(const ClearRow& row, CatalogBatch* batch);
  void WriteClear(uint64_t number);
  void ClearEnded(uint64_t number, const Writer::Outcome& outcome);
  void ClearAgain(uint32_t segment);
  void EndClear(uint64_t number, const absl::Status& status);
  void SettleHidden(uint64_t below, std::function<void(absl::Status)> done);

  // store_segments.cc
  void PutSegment(uint32_t segment, SegmentState state, std::function<void()> then);
  void AskFor(const SegmentHeader& header);

  // store_catalog.cc
  // What the catalog is told with every change: of records before this it has the rows, as far as they will have any. 0: it isn't to be told, for
  // records may still be found that have lost theirs.
  uint64_t Settled() const;
  uint64_t SettledByWrites() const;
  // `then` when no start will look for rows of what has been given to Write so far; not OK: this process won't get there.
  void WhenSettled(std::function<void(const absl::Status&)> then);
  void WhenRecovered(std::function<void()> then);  // well or not
  void RunSettled();
  // Changes that must come, and what is done when they are durable: nothing, when the catalog takes no more.
  void Must(CatalogBatch batch, std::function<void()> then);
  void CheckCatalog();
  void CatalogChanged();
  void SayWritable();

  // Of the devices; on their threads.
  void ShardWritten(const Writer::Outcome& outcome) override;
  void ShardRead(const Reader::Progress& progress) override;
  void Announced(const SegmentHeader& header) override;
  void Settled(uint32_t segment) override;
  void Fenced(uint32_t segment) override;
  void Empty(uint32_t segment) override;
  void WantsBack(const SegmentHeader& header) override;
  void Writable(uint32_t device, bool writable, const std::string& why) override;

  // store_recovery.cc
  void NoteKnown();
  void Recover();
  void NoteClear(const ClearRow& row, bool committed);
  void EraseDead(std::vector<ChunkId> dead);
  bool RowIsOnItsWay(const ChunkId& id) const;
  uint64_t ClearedBelow(const SpaceDigest& space) const ABSL_LOCKS_EXCLUDED(mutex_);
  Standing WhereLies(const ChunkRow& row);
  Standing StandingOf(const ChunkRow& row);
  void LeaveWithheld(std::vector<ChunkRow> rows);
  std::vector<ChunkRow> Sift(std::vector<ChunkRow> rows);
  bool HandOver(const std::vector<ChunkRow>& rows);
  bool CommitFound(std::vector<ChunkRow>* rows);
  // Puts rows for what was found, but for what was written or freed meanwhile, which is newer; `done` has those that were put.
  using PutDone = std::function<void(std::vector<ChunkRow> put, const absl::Status& status)>;
  void PutFound(std::vector<ChunkRow> rows, PutDone done);
  void PutFoundNow(std::vector<ChunkRow> rows, PutDone done);
  void BeginAnew();
  void LoadRows();
  void EndLoad();
  void EndWhenPut();
  void ReadRecords(std::vector<SegmentToRead> segments, AtGap at_gap);
  void BeginRebuild();
  // Has the devices flush these; `then` hears which the disk refused.
  void FlushFound(const std::vector<uint32_t>& segments, std::function<void(const std::vector<uint32_t>& failed)> then);
  void FenceFound(uint32_t segment);
  void GoOnRebuilding();
  void EndRecovery(absl::Status status);
  void TellOfPinsAndUses();
  bool Take(RowBatch rows) override;               // of a load or a rebuild; on its thread
  void Loaded(const LoadReport& report) override;  //
  std::optional<uint32_t> NumberOf(const SpaceDigest& digest, std::string_view description) override;
  bool Believes(const RecordHeader& record) const override;
  void Rebuilt(const RebuildReport& report) override;

  // store_tails.cc
  void BeginTails();
  void FlushTails();
  bool IsWhole(const ChunkRow& row);
  void CommitAdopted(std::vector<ChunkRow> rows);

  // store_losses.cc
  // Rows of such places; nothing while the catalog can't be loaded to its end.
  std::optional<std::vector<PlaceWanted>> RowsThatLead(absl::FunctionRef<bool(Place)> there);
  void TellGivenUp();
  std::vector<SegmentHeader> FullSegments() override;
  bool IsStill(const SegmentHeader& segment) override;
  std::vector<PlaceWanted> WantedIn(std::span<const Scrubber::Hole> holes) override;
  void Damaged(std::vector<PlaceWanted> records) override;

  StoreOptions options_;  // as they were given, but for the size of segments that are there; Open alone changes it
  StoreOwner* const owner_;
  Hands& hands_;
  std::vector<SegmentHeader> GoodOf(uint32_t device) const;

  // Fixed once it is open.
  StoreId store_;
  std::vector<SegmentHeader> found_;    // of all devices
  std::map<uint32_t, int> unreadable_;  // segments, and the errno by which the disk refused one of their headers
  std::set<uint32_t> withheld_;         // of them, those that are left alone: they hold something, and nobody knows what
  std::vector<size_t> files_;           // [device] of segments
  bool rebuild_ = false;
  std::string message_;
  std::unique_ptr<SegmentRecords> records_;
  std::unique_ptr<Catalog> catalog_;
  std::vector<std::unique_ptr<StoreDevice>> devices_;
  std::unique_ptr<Scrubber> scrubber_;  // null: never
  StoreSpaces spaces_;
  std::atomic<bool> closing_ = false;
  std::atomic<bool> recovering_ = true;

  // The keeper's.
  std::unique_ptr<Commits> commits_;
  std::unique_ptr<PinRows> pin_rows_;
  std::map<std::pair<uint32_t, std::string>, PinRow> pins_;  // by space and name, as they are now; until it has recovered
  std::unique_ptr<UseRows> use_rows_;
  bool wishes_told_ = false;
  std::optional<absl::Status> recovery_over_;
  std::atomic<int> putting_ = 0;            // calls of PutFound whose rows aren't on their way yet
  std::atomic<bool> tails_unread_ = false;  // some records couldn't be read: a later start is to look for them again
  std::map<uint32_t, SegmentRow> segments_;
  uint64_t sequence_ = 0;
  uint64_t next_write_ = 0;
  std::map<uint64_t, OneWrite> writes_;
  std::map<uint64_t, uint64_t>
      rowless_;  // of them, those whose rows aren't on their way: the lowest sequence number of their records
  std::vector<std::function<void()>> when_recovered_;
  std::multimap<uint64_t, std::function<void(const absl::Status&)>>
      when_settled_;  // when all writes before this have their rows
  std::map<ChunkId, Writing> writing_;
  struct RowPut {
    uint64_t number = 0;  // of the write
    std::vector<Place> places;
  };
  // The rows of chunks of which a write runs, or of which the owner may not have heard yet when it called Free.
  std::map<ChunkId, RowPut> rows_put_;
  std::map<ChunkId, Killed> left_;  // where rows lead, though the owner has forgotten it
  std::set<uint32_t> given_up_;     // segments whose fence is durable, of which the owner is still to hear
  bool telling_ = false;
  static constexpr absl::Duration kTellAgain = absl::Milliseconds(100);
  absl::Duration tell_again_ = kTellAgain;  // longer with each time in a row that the catalog could not be loaded
  uint64_t next_clear_ = 0;
  std::map<uint64_t, OneClear> clearing_;
  std::vector<uint64_t> clears_waiting_;             // of clearing_: until the catalog has space
  std::map<SpaceDigest, ClearRow> clear_records_;    // in force, and where they lie
  std::map<SpaceDigest, uint64_t> clears_asked_;     // the latest whose row says so
  bool may_speak_ = false;                           // the owner hears
  std::vector<std::optional<std::string>> why_not_;  // [device] "": it can be written; nothing: it isn't ready yet
  std::optional<std::pair<bool, std::string>> last_said_;
  // Durable by a new row, or freed, since the start, while it recovers: what is found of them is older. (What is only being written
  // counts as found: it may fail.)
  std::set<ChunkId> touched_;
  // Of them, those that were committed to a catalog that may have to be started over: the rows that they have.
  std::map<ChunkId, ChunkRow> rows_since_;
  std::shared_ptr<Rebuild> rebuilding_;

  // The loader's or the rebuild's.
  enum class Stage : uint8_t { kRows, kTails };
  Stage stage_ = Stage::kRows;
  std::vector<ClearRow> tail_clears_;
  Tails tails_;
  Recovery recovery_;
  absl::Time recovery_began_;
  std::map<uint32_t, uint64_t> live_found_;  // units, by segment
  std::vector<UseRow> uses_found_;
  // By a load that may end in damage: chunks, and what their rows said. A newer record of one was written by a process that never called it
  // durable, an older one isn't what the owner has: of neither it would keep the place.
  struct HandedOver {
    uint64_t sequence = 0;
    uint64_t places = 0;  // a hash
  };
  absl::flat_hash_map<uint64_t, HandedOver> handed_over_;
  std::map<uint32_t, SegmentHeader> usable_;
  std::vector<FoundSpace> untold_spaces_;
  absl::Notification recovery_ended_;
  bool started_ = false;  // Start's, then the destructor's

  mutable absl::Mutex mutex_;
  std::map<SpaceDigest, uint64_t> cleared_ ABSL_GUARDED_BY(mutex_);  // what is below isn't found any more
  uint64_t next_read_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<uint64_t, OneRead> reads_ ABSL_GUARDED_BY(mutex_);
  std::string catalog_trouble_ ABSL_GUARDED_BY(mutex_);

  const std::unique_ptr<TaskQueue> keeper_;
  const std::unique_ptr<TaskQueue> beside_;  // what waits for the disk or the owner
};

}  // namespace kvist::ssd

#endif  // KVIST_STORAGE_SSD_STORE_STATE_H_

#ifndef KVIST_STORAGE_SSD_CATALOG_H_
#define KVIST_STORAGE_SSD_CATALOG_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "storage/ssd/catalog_rows.h"

namespace kvist::ssd {

// Changes that become durable together, or not at all. What is put replaces a row of the same name; of changes to one row the last counts.
class CatalogBatch {
 public:
  void Put(const SpaceRow& row) { Add(Encode(row)); }
  void Put(const SegmentRow& row) { Add(Encode(row)); }
  void Put(const ClearRow& row) { Add(Encode(row)); }
  void Put(const PinRow& row) { Add(Encode(row)); }
  void Put(const ChunkRow& row) { Add(Encode(row)); }
  void Put(const UseRow& row) { Add(Encode(row)); }
  void Erase(const ChunkId& chunk) { AddErase(ChunkRowKey(chunk)); }
  void EraseSegment(uint32_t number) { AddErase(SegmentKey(number)); }
  void EraseClear(const SpaceDigest& space) { AddErase(ClearKey(space)); }
  void ErasePin(uint32_t space, std::string_view name) { AddErase(PinKey(space, name)); }
  void EraseUse(uint32_t period, uint32_t part) { AddErase(UseKey(period, part)); }
  // Says that all that a rebuild finds is in the catalog, with this batch at the latest.
  void FinishRebuild() { finishes_rebuild_ = true; }
  // Says that with this batch the catalog tells of all records that count and have lower sequence numbers (MetaRow::settled).
  void Settle(uint64_t sequence) { settled_ = std::max(settled_, sequence); }

  // All of another batch, behind what is in this one.
  void Append(const CatalogBatch& other) {
    changes_.insert(changes_.end(), other.changes_.begin(), other.changes_.end());
    bytes_ += other.bytes_;
    finishes_rebuild_ = finishes_rebuild_ || other.finishes_rebuild_;
    Settle(other.settled_);
  }

  bool finishes_rebuild() const { return finishes_rebuild_; }
  uint64_t settled() const { return settled_; }
  size_t changes() const { return changes_.size(); }
  size_t bytes() const { return bytes_; }

  struct Change {
    EncodedRow row;
    bool erase = false;  // `row` is a key alone
  };
  const std::vector<Change>& list() const { return changes_; }

 private:
  void Add(EncodedRow row) {
    bytes_ += row.bytes.size();
    changes_.push_back({std::move(row), false});
  }
  void AddErase(std::string key) {
    bytes_ += key.size();
    const size_t key_bytes = key.size();
    changes_.push_back({{std::move(key), key_bytes}, true});
  }

  std::vector<Change> changes_;
  size_t bytes_ = 0;
  bool finishes_rebuild_ = false;
  uint64_t settled_ = 0;
};

// Some rows, of one kind or several.
struct RowBatch {
  std::vector<SpaceRow> spaces;
  std::vector<SegmentRow> segments;
  std::vector<ClearRow> clears;
  std::vector<PinRow> pins;
  std::vector<ChunkRow> chunks;
  std::vector<UseRow> uses;

  size_t rows() const { return spaces.size() + segments.size() + clears.size() + pins.size() + chunks.size() + uses.size(); }
};

struct LoadReport {
  // OK: these are all rows that could be read. Cancelled: the sink had enough, or the catalog was closed or started over.
  // DataLoss, Unavailable: damage, or the disk doesn't give it; the rest is lost (IsLost): StartOver, then rebuild.
  absl::Status status;
  uint64_t rows = 0;
  uint64_t skipped = 0;  // rows that don't parse

  bool IsLost() const { return absl::IsDataLoss(status) || absl::IsUnavailable(status); }
};

// Takes what is loaded. Threads: called on a thread of the catalog's, one call at a time.
class RowSink {
 public:
  virtual ~RowSink() = default;
  // At most Catalog::kLoadRows rows, or a row of uses more; in the order spaces, segments, clears, pins, chunks, uses, of which a chunk counts as a row; of chunks lower
  // positions come first, so a parent before its children, and of uses earlier periods. The next ones are read when it returns: whoever is behind waits here, not for ever. False: no more.
  virtual bool Take(RowBatch rows) = 0;
  // The last call.
  virtual void Loaded(const LoadReport& report) = 0;
};

// How a catalog was found.
struct OpenReport {
  enum Kind {
    kNew,       // there was none
    kClean,     // as it was left at a clean end
    kUnclean,   // after a crash: whole (but an older copy can't be excluded by it alone)
    kSetAside,  // what was there couldn't be used; this one is empty
  };
  Kind kind = kNew;
  StoreId store;
  uint64_t generation = 0;  // of this open
  // Rows are missing until the segments' headers were read, and FinishRebuild was committed: it is new, was set aside, or a crash came
  // before a former rebuild's end.
  bool rebuild_pending = false;
  uint64_t settled = 0;      // the highest of what batches said to Settle
  std::string message;       // kSetAside: what was wrong, and where it lies now
  uint32_t quarantined = 0;  // catalogs that lie aside
};

struct CatalogStats {
  uint64_t commits = 0;  // batches that are durable
  uint64_t groups = 0;   // flushes these took
  uint64_t failed = 0;   // batches that aren't
  uint64_t waiting = 0;
  uint64_t skipped = 0;    // rows that didn't parse, in all loads
  uint64_t set_aside = 0;  // since the process began, at opening or by StartOver
};

// Which chunks are on disk, and where; it says so after kill -9 and power cuts, too. A row is a claim: whoever reads at a place checks
// by the record's header that it holds what was wanted, so a stale row costs a miss and nothing else.
//
// Order: data is written and flushed, then its rows are committed, then the store is called durable. Rows are erased, and that is
//   committed, before what they told of is overwritten.
// Commits become durable in the order of the calls, each whole; `done` is called in that order, too, after the disk has it. What waits is
//   written together.
// Clears are filters: a chunk row with a lower sequence number than its space's clear is dead though it may still be there, and is loaded
//   all the same (the loader has the clears before).
//
// Threads: any may call; `done` and sinks run on the catalog's threads: they hand over and return, and don't destroy the catalog.
// Lifecycle: an implementation's Open; its destructor finishes what was asked, stops a load, and marks a clean end.
class Catalog {
 public:
  using Done = std::function<void(const absl::Status&)>;
  static constexpr size_t kLoadRows = 4096;

  virtual ~Catalog() = default;

  virtual const OpenReport& report() const = 0;
  virtual CatalogStats stats() const = 0;

  // Errors, at once: ResourceExhausted  too much waits: again when a `done` has come; nothing was taken, `done` isn't called.
  // Errors, in `done`: ResourceExhausted  the disk is full; later commits may succeed, and none does before this one surely isn't there.
  //                    Unavailable  the disk fails; DataLoss  the catalog is damaged. This one and all later ones fail until StartOver:
  //                      what couldn't be flushed once is never trusted to have been flushed later.
  //   A commit that failed, and behind which none has succeeded, may be found all the same after a restart: what its rows lead to is still
  //   there, since nothing is overwritten without a later commit.
  virtual absl::Status Commit(CatalogBatch batch, Done done) = 0;

  // Hands all rows of this moment to `sink`, while others commit. What is changed meanwhile the sink's owner knows better.
  // Errors: FailedPrecondition  one is running, or the catalog can't be used.
  virtual absl::Status Load(RowSink* sink) = 0;

  // This life's end is not to be called clean, though all that it committed is there: the next one finds what a crash leaves.
  virtual void EndUnclean() = 0;

  // Moves what is there aside and begins again, empty, with a rebuild pending; after the commits that wait. A running load is cancelled.
  // Errors, in `done`: as Commit's.
  virtual void StartOver(std::string why, Done done) = 0;
};

}  // namespace kvist::ssd

#endif  // KVIST_STORAGE_SSD_CATALOG_H_

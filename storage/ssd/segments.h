#ifndef KVIST_STORAGE_SSD_SEGMENTS_H_
#define KVIST_STORAGE_SSD_SEGMENTS_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "storage/ssd/format.h"

namespace kvist::ssd {

// Bookkeeping of one device's segments: where the next record goes, and how much of each segment is still wanted. Numbers only, no I/O.
//
// Lifecycle of a segment:  kFree -Prepare-> kPrepared -Ready, Append-> kOpen -Append-> kClosing -Settled-> kFull -Release-> kFree
//   kPrepared and kClosing are the writer's: its file is being made, its last records are on their way. Fence ends any of them: a
//   segment that the disk failed to write is never written again while the daemon lives, and Release leaves it so.
// Lifecycle of a record: Append (live) -> Kill. Which segment to release, and what of it to write again elsewhere, is the caller's
//   choice; it releases when nothing of the segment is live any more *and* the catalog has forgotten durably what was there.
// Numbers: segment i of device d is i * kDevicesMax + d, so DeviceOf tells from a place where it is.
// Threads: one.
class Segments {
 public:
  enum class State : uint8_t { kFree, kPrepared, kOpen, kClosing, kFull, kFenced };
  struct Options {
    uint32_t device = 0;    // below kDevicesMax
    uint32_t segments = 0;  // the device's capacity
    uint32_t units = 0;     // of a segment, both headers included; at least 4
  };
  explicit Segments(Options options);

  // A segment as it was found at the start: `header` is of its last use, so much of it is live. It is kFull: nothing is appended behind
  // what another process left. Segments beyond the capacity, which has become smaller, aren't used again once they are released.
  void Restore(const SegmentHeader& header, uint32_t live_units);

  // A segment that was found, and of which nobody knows what it holds: fenced.
  void Withhold(uint32_t segment);

  // Records in a segment that was restored or withheld are wanted, as the catalog tells later than the headers.
  void AddLive(uint32_t segment, uint32_t units);
  // Epochs of further uses are above this.
  void RaiseEpoch(uint64_t epoch) { epoch_ = std::max(epoch_, epoch); }

  // Begins another use of a free segment, with an epoch above all that were; the lowest one, whose file is there already, most likely.
  // Nothing when none is free.
  std::optional<SegmentHeader> Prepare(const StoreId& store, const Secret& secret);
  // It can be written. / It can't, for want of space: it is free again.
  void Ready(uint32_t segment);
  void Refuse(uint32_t segment);

  // Makes the segment in which records of so many units find place the open one, closing one that is too full: what is appended now, up to
  // that, lies in one segment. Its number; nothing when none is ready.
  std::optional<uint32_t> MakeRoom(uint32_t units);
  // A place for a record of `units` (at most units_max()) behind the last one; in the prepared segment when the open one is too full.
  // Nothing when there is none that is ready. All units are live.
  std::optional<Place> Append(uint32_t units);
  // Nothing of this closing segment is on its way any more.
  void Settled(uint32_t segment);
  // The record at `place` isn't wanted any more.
  void Kill(Place place, uint32_t units);
  void Fence(uint32_t segment);
  // A full segment without anything live is free again; a fenced one stays fenced.
  void Release(uint32_t segment);

  // Whether it lies beyond the capacity, which was larger once: not used again once it is released.
  bool IsSurplus(uint32_t segment) const { return IndexOf(segment) >= options_.segments; }

  // Whether any that holds something does.
  bool HasSurplus() const;

  // Full segments, the least live first, at most `count`.
  std::vector<uint32_t> Candidates(uint32_t count) const;

  State state(uint32_t segment) const { return Of(segment).state; }
  uint32_t live_units(uint32_t segment) const { return Of(segment).live; }
  // The header of its last use; none when it never had one.
  const SegmentHeader* header(uint32_t segment) const;
  uint32_t units_max() const { return options_.units - 2; }  // of a record
  uint32_t free_segments() const { return free_; }
  uint64_t live_units() const { return live_; }
  uint64_t capacity_units() const { return uint64_t{options_.segments} * units_max(); }
  bool has_prepared() const { return prepared_.has_value(); }
  // What the open segment has left; 0 without one.
  uint32_t open_units() const { return open_ ? options_.units - 1 - cursor_ : 0; }
  const Options& options() const { return options_; }

  // Counts anew and stops the process when something disagrees; for tests.
  void CheckInvariants() const;

 private:
  struct Segment {
    State state = State::kFree;
    bool ready = false;      // of a prepared one
    uint32_t live = 0;       // units
    SegmentHeader header{};  // epoch 0: no use yet
  };
  uint32_t IndexOf(uint32_t segment) const { return segment / kDevicesMax; }
  uint32_t NumberOf(uint32_t index) const { return index * kDevicesMax + options_.device; }
  const Segment& Of(uint32_t segment) const;
  Segment& Of(uint32_t segment);
  // Of a free one, which isn't free any more.
  Segment& TakeFound(uint32_t segment);

  Options options_;
  std::vector<Segment> segments_;
  std::optional<uint32_t> open_;      // segment
  std::optional<uint32_t> prepared_;  // segment
  uint32_t cursor_ = 0;               // in the open one: the unit of the next record
  uint64_t epoch_ = 0;                // the highest that was
  uint32_t free_ = 0;
  uint64_t live_ = 0;
};

}  // namespace kvist::ssd

#endif  // KVIST_STORAGE_SSD_SEGMENTS_H_

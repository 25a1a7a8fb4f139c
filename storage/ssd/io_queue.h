#ifndef KVIST_STORAGE_SSD_IO_QUEUE_H_
#define KVIST_STORAGE_SSD_IO_QUEUE_H_

#include <cstdint>
#include <deque>
#include <vector>

#include "storage/ssd/device.h"

namespace kvist::ssd {

// Who asked for something: hears of its end, in which it may ask for more.
class IoOwner {
 public:
  virtual ~IoOwner() = default;
  // All of it is done (0), or not (an errno); nothing touches its bytes any more.
  virtual void Ended(uint64_t tag, int error) = 0;
};

// What waits for a device. Extents are cut into pieces, and so many bytes of pieces are in flight as the device needs to be busy: more
// would only queue where nobody can pass. Reads go first; while there are any, writes have a small part of the device only.
//
// Threads: the device's owner. No clock, no I/O of its own: Pump submits, Complete takes what the device says, TellNext tells whose it was. They are
//   apart so that the device has all it may have before anybody looks at what it has brought: an owner may take as long for a piece (its
//   checksum) as the device for a few.
class IoQueue {
 public:
  struct Options {
    Bytes piece = MiB(1);        // the last one of an extent: up to half as much again
    Bytes read_budget = MiB(8);  // in flight; see probe.h
    // Of what is left to read that isn't urgent no more than half is in flight (and up to a piece), or this: disks that give all at once (virtual ones do)
    // have nothing to do while the last of it is looked at, so that should be little. Others lose little by it: what they need in flight is their latency
    // times their rate, and a disk that needs more than this takes a round trip more at the end.
    Bytes last_reads = MiB(2);
    Bytes write_budget = MiB(8);  // in flight while nobody reads
    Bytes write_beside_reads = MiB(1);
  };
  enum class Lane : uint8_t {
    // Reads that somebody waits for: until all that have begun are told of no other begins, so they have the device to themselves, and asking for others
    // doesn't keep anybody from hearing of them.
    kUrgent,
    kRead,
    kWrite,
    kControl,  // syncs and allocations
  };
  using Handle = uint32_t;  // valid until its owner has heard the end

  IoQueue(Device* device, Options options);

  // `io.tag` is what the owner will hear.
  Handle Submit(Lane lane, IoOwner* owner, const Io& io);
  // It ends with ECANCELED as soon as it is quiet, or with 0 when it was all in flight already and went well.
  void Cancel(Handle handle);
  void Pump();
  void Complete(const Completion& completion);
  // An owner hears of an end that was completed; false when all have.
  bool TellNext();
  bool telling() const { return !ended_.empty(); }
  void set_options(Options options) { options_ = options; }

  Bytes waiting_to_write() const { return waiting_[static_cast<int>(Lane::kWrite)]; }  // not yet in flight
  Bytes reading() const { return reading_; }                                           // in flight
  Bytes writing() const { return writing_; }
  const Options& options() const { return options_; }
  bool idle() const { return in_flight_ == 0 && live_ == 0; }  // and all ends are told

 private:
  struct Extent {
    IoOwner* owner = nullptr;
    Io io;
    Lane lane = Lane::kRead;
    uint64_t submitted = 0;  // bytes
    uint32_t pieces = 0;     // in flight
    int error = 0;
    bool queued = false;
  };
  struct Piece {
    Handle extent = 0;
    Bytes bytes{};
  };
  static constexpr int kLanes = 4;

  bool Issue(Lane lane);
  Bytes ReadsWanted() const;
  void Finish(Handle handle);

  Device* const device_;
  Options options_;
  std::vector<Extent> extents_;
  std::vector<Handle> free_extents_;
  std::vector<Piece> pieces_;
  std::vector<uint32_t> free_pieces_;
  std::deque<Handle> queues_[kLanes];
  std::deque<Handle> ended_;  // and not told
  Bytes waiting_[kLanes] = {};
  Bytes reading_{};
  Bytes writing_{};
  bool issued_ = false;     // since the last Kick
  uint32_t urgent_ = 0;     // extents of that lane that have begun, and whose end isn't told
  uint32_t in_flight_ = 0;  // pieces
  uint32_t live_ = 0;       // extents
};

}  // namespace kvist::ssd

#endif  // KVIST_STORAGE_SSD_IO_QUEUE_H_

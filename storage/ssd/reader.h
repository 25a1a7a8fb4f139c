#ifndef KVIST_STORAGE_SSD_READER_H_
#define KVIST_STORAGE_SSD_READER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "storage/ssd/io_queue.h"
#include "storage/ssd/record.h"
#include "storage/ssd/sealer.h"
#include "storage/ssd/segments.h"

namespace kvist::ssd {

// Reads records of a device straight into slots and checks every byte before it says that it is there.
//
// Lifecycle of a shard: Read -> Progress, as often as more of its runs are there -> one Progress with `ended`, when nothing touches the
//   slot any more: kGood and no error, or what was wrong. What was announced before a failure is good: runs are announced in order, each
//   after its own checksum, and the header's seal was the first that was checked.
// Order: chunk by chunk, or, for loads that are waited for by layer, layer by layer over all shards of the call, and then layer 0 of all
//   of them goes before everything else that waits. No unit is read twice: a unit that two layers share comes with the first.
// Threads: the device's owner.
class Reader final : private IoOwner {
 public:
  struct Options {
    Bytes piece = MiB(1);  // a read has whole runs up to this, or one run
    // Checked at a time, or one run, so that the device can be looked at: 6 us where memory is fast, 25 where the disk has just written it.
    Bytes check_step = KiB(64);
  };
  struct Shard {
    uint64_t ticket = 0;        // the caller's; none that is being read
    std::byte* slot = nullptr;  // on a 4 KiB boundary, room for the whole record; the reader's until the end
    Place place{};
    uint64_t epoch = 0;  // of the segment's use, when the place was looked up; 0: whichever is now
    Identity identity{};
    // What the record must say of itself: as it was stored. Of what a codec has made the run is known to the unit only.
    Codec codec = Codec::kRaw;
    uint32_t runs = 0;
    Bytes run_bytes{};
  };
  enum class Order : uint8_t { kWhole, kByLayer };
  struct Progress {
    uint64_t ticket = 0;
    uint32_t runs = 0;  // so many, from the first, are there
    bool ended = false;
    Verdict verdict = Verdict::kGood;
    int error = 0;  // an errno of the read, ECANCELED after Cancel: nothing is said of the record then
  };

  Reader(IoQueue* queue, const Segments* segments, Options options);

  void Read(std::span<const Shard> shards, Order order);
  // Checks some more of what has come; false when there is nothing to check.
  bool CheckNext();
  bool checking() const { return !to_check_.empty(); }
  // It ends soon, with ECANCELED or as it would have. Nothing happens when it isn't being read.
  void Cancel(uint64_t ticket);

  std::vector<Progress> TakeProgress() { return std::exchange(progress_, {}); }
  size_t reading() const { return reads_.size(); }

  struct Counters {
    uint64_t records = 0;               // good ones
    uint64_t bytes = 0;                 // of them
    uint64_t verdicts[kVerdicts] = {};  // of all that were read without an error
    uint64_t errors = 0;
  };
  const Counters& counters() const { return counters_; }

 private:
  // A read of whole units, up to the last unit of its last run.
  struct Part {
    IoQueue::Handle handle = 0;
    uint32_t first_unit = 0;  // of the record
    uint32_t end_unit = 0;
    uint32_t end_run = 0;  // runs that are there with it and all before it
    bool waiting = false;
    bool there = false;
  };
  struct OneRead {
    Shard shard;
    std::vector<Part> parts;
    uint32_t waiting = 0;   // parts in the queue or in flight
    uint32_t checked = 0;   // parts whose runs have been checked
    uint32_t runs = 0;      // good ones
    bool checking = false;  // something that has come isn't checked yet: it is in to_check_, and doesn't end
    bool run_failed = false;
    Verdict verdict = Verdict::kGood;
    int error = 0;
    bool has_header = false;
    RecordHeader header{};

    bool decided() const { return verdict != Verdict::kGood || error != 0; }
  };

  void Ended(uint64_t tag, int error) override;
  std::vector<Part> PartsOf(const Shard& shard, Order order) const;
  void SubmitPart(uint64_t number, uint32_t part, IoQueue::Lane lane);
  void CheckSome(OneRead* read);
  void CancelParts(OneRead* read);
  void End(uint64_t number);

  IoQueue* const queue_;
  const Segments* const segments_;
  const Options options_;
  Sealer sealer_;
  uint64_t next_number_ = 0;
  absl::flat_hash_map<uint64_t, OneRead> reads_;       // by number
  absl::flat_hash_map<uint64_t, uint64_t> number_of_;  // by ticket
  std::deque<uint64_t> to_check_;                      // numbers
  std::vector<Progress> progress_;
  Counters counters_;
};

}  // namespace kvist::ssd

#endif  // KVIST_STORAGE_SSD_READER_H_

#ifndef KVIST_STORAGE_SSD_WRITER_H_
#define KVIST_STORAGE_SSD_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "storage/ssd/io_queue.h"
#include "storage/ssd/record.h"
#include "storage/ssd/sealer.h"
#include "storage/ssd/segments.h"

namespace kvist::ssd {

// Appends shards to a device's segments and says of each when it is durable. No thread, no clock: its owner calls.
//
// Lifecycle of a shard: Write -> sealed and written, in the order of the calls -> an Outcome, when nothing reads its slot any more.
// Durable: a record's Outcome says 0 after an fdatasync that was begun when it *and all before it in its segment* were written. So
//   whoever reads a segment from its start finds every durable record without a gap. One fdatasync serves what was written
//   meanwhile: it is asked for when options.sync_bytes are, when nothing more is on its way, and, after Flush, at once.
// Errors: a write or a sync that fails fences its segment: nothing of it is retried and trusted, all of it that isn't durable yet ends with
//   that error, and the caller may write it again, elsewhere it goes. fenced() names the segment: what was durable there is to be given up.
//   Want of space, or of whatever else a new file takes, is no such error: starved() says that nothing can be appended until a segment is
//   released or Retry is called.
// Segments: the next one is made ready while the open one still has room, its file with all of its space; so a full disk is met where no
//   record has been promised a place, and no writing waits for the file system.
// Uses:     with options.announce nothing is written to a segment before its owner has heard of the use (TakeAnnounced) and has said
//   Admit: so that its epoch and secret can be committed elsewhere first.
// Spaces:   a shard that comes with its space's description has a kSpace record with that before it in its segment, so that records can be
//   understood by the segment alone. It counts as wanted no more than a header does.
// Threads: the device's owner.
class Writer final : private IoOwner {
 public:
  struct Options {
    StoreId store{};
    Bytes sync_bytes = MiB(32);   // more: fewer syncs, later outcomes
    Bytes sealed_ahead = MiB(2);  // sealed while the device is busy with others
    Bytes seal_step = MiB(1);     // sealed between two looks at the device
    uint32_t queue_max = 1024;    // shards that wait
    Bytes bytes_per_second{};     // for endurance; 0: as fast as it goes
    bool announce = false;
    std::function<Secret()> draw_secret = DrawSecret;  // another one in simulations only
  };
  struct Shard {
    uint64_t ticket = 0;        // the caller's
    std::byte* slot = nullptr;  // on a 4 KiB boundary; the writer fills its header place
    // As SealRecord wants it. Sequence numbers rise from call to call, but for clears, which may be written again with that they had; the
    // record fits into a segment, its space's description beside it.
    RecordHeader header{};
    Checksums checksums = Checksums::kCompute;
    std::optional<std::string_view> description = std::nullopt;  // of its space; lives as long as the writer
  };
  struct Outcome {
    uint64_t ticket = 0;
    Place place{};  // where it is durable; nowhere with an error
    uint32_t units = 0;
    int error = 0;  // 0, or an errno
  };

  Writer(IoQueue* queue, Segments* segments, Options options);

  // false: as many wait as may.
  bool Write(const Shard& shard);
  // What has been accepted so far becomes durable without waiting for company.
  void Flush();
  // Begins what can be begun, and seals a step. To be called after Write, Flush, ends and Retry; not before wake_at() again when nothing
  // else happens.
  void Pump(absl::Time now);
  // The use that this header was announced for may be written.
  void Admit(const SegmentHeader& header);
  // Ends every shard that hasn't got a place with `error`.
  void GiveUp(int error);
  // Tries to make a segment's file again, where it was refused, also when no shard waits for it.
  void Retry() { retry_ = true; }

  // Shards wait, and there is no segment for them: all are in use, or the disk is full.
  bool starved() const { return starved_; }
  // 0, or the errno by which the last segment was refused its file: for want of space, of descriptors, of a permission.
  int no_file() const { return no_file_; }
  // When the rate lets the next shard go; InfinitePast when there is more to seal, InfiniteFuture when it waits for something else.
  absl::Time wake_at() const { return wake_at_; }
  bool idle() const { return waiting_.empty() && uses_pending_ == 0; }
  size_t waiting() const { return waiting_.size(); }
  bool full() const { return waiting_.size() >= options_.queue_max; }

  // Since the last call.
  std::vector<Outcome> TakeOutcomes() { return std::exchange(outcomes_, {}); }
  std::vector<uint32_t> TakeFenced() { return std::exchange(fenced_, {}); }
  std::vector<SegmentHeader> TakeAnnounced() { return std::exchange(announced_, {}); }
  // Segments that are full, all of their records durable.
  std::vector<uint32_t> TakeSettled() { return std::exchange(settled_, {}); }

  struct Counters {
    uint64_t records = 0;  // durable
    uint64_t bytes = 0;    // of them, headers and padding included
    uint64_t syncs = 0;
    uint64_t write_errors = 0;
    uint64_t sync_errors = 0;
    uint64_t refused_files = 0;  // allocations
  };
  const Counters& counters() const { return counters_; }

 private:
  struct Use;  // of a segment
  // The record with the last place, on its way to be one.
  struct Sealing {
    Use* use = nullptr;
    uint32_t entry = 0;
    std::byte* slot = nullptr;
    RecordSealing record;
  };
  enum class Step : uint8_t { kAllocate, kWrite, kSync };

  void Ended(uint64_t tag, int error) override;
  void PrepareNext();
  bool BeginSealing(absl::Time now);
  void Describe(Use* use, const Shard& shard);
  void BeginUse(Use* use);
  bool SealingIn(const Use& use) const { return sealing_ && sealing_->use == &use; }
  uint32_t Append(Use* use, const Shard* shard, Place place, uint32_t units);
  void WriteEntry(Use* use, uint32_t entry, std::byte* bytes);
  void Allocated(Use* use, int error);
  void Written(Use* use, uint32_t entry, int error);
  void Synced(Use* use, int error);
  void Fail(Use* use, int error);
  void MaybeSync(Use* use);
  void MaybeRetire(Use* use);
  Use* UseOf(uint32_t segment);
  uint64_t Tag(const Use& use, Step step, uint32_t entry) const;
  bool RateAllows(absl::Time now);

  IoQueue* const queue_;
  Segments* const segments_;
  Options options_;
  Sealer sealer_;
  std::deque<Shard> waiting_;
  std::vector<std::unique_ptr<Use>> uses_;  // two or three
  std::optional<Sealing> sealing_;
  uint32_t next_use_ = 0;
  uint64_t uses_pending_ = 0;  // records with a place and without an outcome
  uint64_t accepted_ = 0;      // shards
  uint64_t ended_ = 0;         //
  uint64_t flush_until_ = 0;   // of accepted_
  uint64_t last_sequence_ = 0;
  bool starved_ = false;
  int no_file_ = 0;
  bool retry_ = false;
  double credit_ = 0;  // bytes that the rate allows now
  absl::Time credited_ = absl::InfinitePast();
  absl::Time wake_at_ = absl::InfiniteFuture();
  std::vector<Outcome> outcomes_;
  std::vector<uint32_t> fenced_;
  std::vector<SegmentHeader> announced_;
  std::vector<uint32_t> settled_;
  Counters counters_;

 public:
  ~Writer() override;
};

}  // namespace kvist::ssd

#endif  // KVIST_STORAGE_SSD_WRITER_H_

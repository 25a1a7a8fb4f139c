#ifndef KVIST_STORAGE_SSD_SCRUBBER_H_
#define KVIST_STORAGE_SSD_SCRUBBER_H_

#include <cstdint>
#include <span>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "storage/base/units.h"
#include "storage/ssd/segment_records.h"
#include "storage/ssd/store.h"

namespace kvist::ssd {

// Reads what was written, again and again and slowly, so that what a disk has lost is found before somebody waits for it: a record whose
// payload isn't as it was written, and places where the catalog has one and there is none.
//
// Lifecycle: made -> Begin: a pass, and another one `every` after that one began -> End, within a record.
// What the disk refuses to give is counted and not called damage: a cable may be put back. The rest of that segment waits for the next pass.
// Threads: one of its own, on which it reads and calls the owner; any may call.
class Scrubber {
 public:
  // Units of a segment where no good record begins, though one may have.
  struct Hole {
    SegmentHeader segment;
    uint32_t from = 0, to = 0;
  };
  // Whose records they are. Calls may wait, but not for the scrubber.
  class Owner {
   public:
    virtual ~Owner() = default;
    // Segments to which nothing is written any more, in their use of now.
    virtual std::vector<SegmentHeader> FullSegments() = 0;
    // Nothing was written there since: what was read before this call is of that use.
    virtual bool IsStill(const SegmentHeader& segment) = 0;
    // What is wanted in these holes, and isn't there.
    virtual std::vector<PlaceWanted> WantedIn(std::span<const Hole> holes) = 0;
    // These were wanted, and nobody can read them.
    virtual void Damaged(std::vector<PlaceWanted> records) = 0;
  };
  struct Options {
    // A pass begins so long after the one before began; it reads so fast that it takes about half of that
    absl::Duration every;
    Bytes rate_min = MiB(4);  // a second; a small store is done soon
  };

  Scrubber(SegmentRecords* records, Owner* owner, Options options);
  ~Scrubber();
  Scrubber(const Scrubber&) = delete;
  Scrubber& operator=(const Scrubber&) = delete;

  void Begin();
  // Returns when it has ended; begins no more.
  void End();
  Store::Scrubbed scrubbed() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Run();
  void Pass(absl::Time began);
  class Source;
  // What lies behind the last record of a segment goes to `tails`: segments have such an end, so it is looked at when the pass ends.
  void ReadSegment(const SegmentHeader& header, std::vector<Hole>* tails);
  void Tell(const std::vector<Hole>& holes);
  // Waits until so much may have been read.
  bool Pace(Bytes read);
  bool SleepUntil(absl::Time when) ABSL_LOCKS_EXCLUDED(mutex_);
  bool Ending() const ABSL_LOCKS_EXCLUDED(mutex_);

  SegmentRecords& records_;
  Owner& owner_;
  const Options options_;
  // The thread's, of this pass.
  absl::Time began_;
  double rate_ = 0;  // bytes a second
  Bytes read_{};
  mutable absl::Mutex mutex_;
  absl::CondVar told_;  // begun_ or ending_
  bool begun_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  Store::Scrubbed scrubbed_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;  // last: it uses the others
};

}  // namespace kvist::ssd

#endif  // KVIST_STORAGE_SSD_SCRUBBER_H_

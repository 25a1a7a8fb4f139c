#ifndef KVIST_STORAGE_SSD_DRIVE_H_
#define KVIST_STORAGE_SSD_DRIVE_H_

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "storage/ssd/device.h"
#include "storage/ssd/io_queue.h"
#include "storage/ssd/reader.h"
#include "storage/ssd/segments.h"
#include "storage/ssd/writer.h"

namespace kvist::ssd {

// All there is of one device (a directory), joined: who owns it gives shards to writer() and reader(), calls Turn, and takes outcomes and progress.
// Threads: the device's owner.
class Drive {
 public:
  struct Options {
    Segments::Options segments;
    IoQueue::Options queue;
    Writer::Options writer;
    Reader::Options reader;
  };
  Drive(std::unique_ptr<Device> device, const Options& options)
      : device_(std::move(device)),
        segments_(options.segments),
        queue_(device_.get(), options.queue),
        writer_(&queue_, &segments_, options.writer),
        reader_(&queue_, &segments_, options.reader) {}

  // Begins what can be begun. While what has come is being looked at the writer has its turn, in which it may seal a MiB, once in kLookTurns: reads go first.
  void Begin(absl::Time now) {
    if (!looking() || ++look_turns_ % kLookTurns == 0) writer_.Pump(now);
    queue_.Pump();
  }
  // Waits until something has ended, somebody calls device().Wake or it is `until`. While a large record is being sealed, or not all that has come has been
  // looked at, it doesn't wait, but takes what there is. Whoever has to tell what came of Begin does that first: this may take for ever.
  void Wait(absl::Time until) {
    if (looking() && !device_->HasNews()) return;
    ended_.clear();
    device_->Wait(looking() ? absl::InfinitePast() : std::min(until, writer_.wake_at()), &ended_);
    for (const Completion& completion : ended_) queue_.Complete(completion);
  }
  // Gives the device what it may have, then looks at a part of what has come, of which there may be an outcome or progress then; false when there is
  // none.
  bool LookAtNext() {
    queue_.Pump();
    return reader_.CheckNext() || queue_.TellNext();
  }
  // So often between two Waits: a device that gives all at once (virtual disks do), but says so when the first is there, has nothing to do from
  // then on until somebody takes the others.
  static constexpr int kLooks = 4;
  void Turn(absl::Time now, absl::Time until) {
    Begin(now);
    Wait(until);
    for (int looks = 0; looks < kLooks && LookAtNext(); ++looks) {}
  }

  Device& device() { return *device_; }
  Segments& segments() { return segments_; }
  IoQueue& queue() { return queue_; }
  Writer& writer() { return writer_; }
  Reader& reader() { return reader_; }
  // Whether something that has come isn't looked at yet.
  bool looking() const { return reader_.checking() || queue_.telling(); }
  bool idle() const { return writer_.idle() && reader_.reading() == 0 && queue_.idle(); }

 private:
  static constexpr uint32_t kLookTurns = 16;  // with kLooks some 4 MiB

  std::unique_ptr<Device> device_;
  Segments segments_;
  IoQueue queue_;
  Writer writer_;
  Reader reader_;
  std::vector<Completion> ended_;
  uint32_t look_turns_ = 0;
};

}  // namespace kvist::ssd

#endif  // KVIST_STORAGE_SSD_DRIVE_H_

#ifndef KVIST_STORAGE_SSD_DEVICE_H_
#define KVIST_STORAGE_SSD_DEVICE_H_

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "storage/base/units.h"

namespace kvist::ssd {

// One thing to be done with a segment's file.
struct Io {
  enum class Kind : uint8_t {
    kRead,      // of bytes that are there: behind the file's end is an error
    kWrite,     // within the file
    kSync,      // all writes that had ended well before this was submitted are on the disk when it ends well
    kAllocate,  // makes the file, all of its space and its name durable; nothing to do where they are
  };
  Kind kind = Kind::kRead;
  uint32_t segment = 0;
  ByteOffset offset{};           // of reads and writes: a multiple of 4 KiB
  std::span<std::byte> bytes{};  // on a boundary and a multiple of 4 KiB, at most 1 GiB; belongs to the device until the end
  uint64_t tag = 0;              // the caller's
};

// What came of it. `error` is 0, and then all of it is done, or an errno: ENOSPC, EIO, ENOENT for a segment without file, ENODATA for
// a read behind the end. Short reads and writes are continued, interrupted ones repeated: nobody hears of them.
struct Completion {
  uint64_t tag = 0;
  int error = 0;
};

// The segment files of one directory. The thread that owns it submits, and waits for ends here as well: there is no other thread to
// hand them over from, and a simulated device has no threads at all.
//
// Threads: one, the owner, for all but Wake. Any thread may create it; the first call of Submit, Wait or Register makes its thread the owner.
// Order:   none between operations in flight.
// Ending:  the destructor waits for what is in flight; on the owner's thread, or when nothing is.
class Device {
 public:
  static constexpr uint32_t kDepth = 256;  // of real disks: more than the deepest queue that the probe tries

  virtual ~Device() = default;

  // Begins `io` now or with the next Kick or Wait; never blocks. At most depth() may be in flight: one more stops the process.
  virtual void Submit(const Io& io) = 0;
  // Begins all that has been submitted.
  virtual void Kick() = 0;
  // Waits for an end, for Wake, or until `until` (MonotonicNow's clock), and appends all ends that are there. A time in the past: looks
  // without waiting.
  virtual void Wait(absl::Time until, std::vector<Completion>* ended) = 0;
  // Whether a Wait may have something to tell, or to begin, at once. A look at memory, no call of the kernel's; a device that can't tell says that it
  // may. The owner's thread.
  virtual bool HasNews() const { return true; }
  // Makes the running or next Wait return. Any thread.
  virtual void Wake() = 0;
  virtual uint32_t depth() const = 0;
  // The segment's file goes, and its space is free when this returns: as long as the file system takes, milliseconds. Nothing of it is in
  // flight. What can't be removed stays. The owner's thread.
  virtual void Remove(uint32_t segment) = 0;

  // Reads into and writes from this memory will cost less; it must be touched already, or this takes as long as touching it. Pieces of
  // at most 1 GiB are pinned at once, so the owner's loop registers a pool piece by piece. The memory outlives the device.
  // Errors: ResourceExhausted  the system allows no more pinned memory (names RLIMIT_MEMLOCK); I/O works all the same.
  virtual absl::Status Register(std::span<std::byte> piece) = 0;

  // How it works here, for the log: "io_uring, direct I/O". `warnings`: what is slower than it could be, and why; a sentence each.
  struct Report {
    std::string how;
    std::vector<std::string> warnings;
    bool direct = true;
  };
  const Report& report() const { return report_; }

 protected:
  explicit Device(Report report) : report_(std::move(report)) {}

 private:
  const Report report_;
};

// Whether an errno says that there is no room on the file system (for this user, of this length): other files may go and make some.
inline bool MeansNoSpace(int error) { return error == ENOSPC || error == EDQUOT || error == EFBIG; }
// Whether the disk itself fails. Else it is what the process or the file system lacks: space, descriptors, a permission. It may come.
inline bool IsOfTheDisk(int error) { return error == EIO || error == ENXIO || error == ENODEV || error == EUCLEAN; }

struct DeviceOptions {
  std::string directory;  // exists
  Bytes segment_bytes{};  // length of each file: a multiple of 4 KiB
  Bytes keep_free{};      // of the file system: a file that would leave less meets ENOSPC
  bool io_uring = true;   // false: don't even try
  uint32_t threads = 8;   // in flight at the same time where io_uring isn't to be had
};

// io_uring where the system allows it, else threads that call pread and pwrite; the report says which, and why.
// Errors: those of opening the directory and of writing a first file there; InvalidArgument names the option.
absl::StatusOr<std::unique_ptr<Device>> OpenDevice(const DeviceOptions& options);

}  // namespace kvist::ssd

#endif  // KVIST_STORAGE_SSD_DEVICE_H_

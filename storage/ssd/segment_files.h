#ifndef KVIST_STORAGE_SSD_SEGMENT_FILES_H_
#define KVIST_STORAGE_SSD_SEGMENT_FILES_H_

#include <cstdint>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "storage/base/mutex.h"
#include "storage/base/unique_fd.h"
#include "storage/base/units.h"

namespace kvist::ssd {

// The descriptors of a directory's segment files, each opened when it is first needed and kept.
// Threads: any.
class SegmentFiles {
 public:
  // Writes a file to see whether the file system takes direct I/O, and removes it. `keep_free`: see Make.
  // Errors: those of the system, naming the directory.
  static absl::StatusOr<SegmentFiles> Create(const std::string& directory, Bytes segment_bytes, Bytes keep_free = {});
  // To read what is there: makes and changes nothing. Direct I/O for each file whose file system takes it.
  static absl::StatusOr<SegmentFiles> ToRead(const std::string& directory, Bytes segment_bytes);

  SegmentFiles(SegmentFiles&& o) noexcept;
  SegmentFiles& operator=(SegmentFiles&&) = delete;

  struct File {
    int fd = -1;
    int error = 0;  // errno, when there is none
  };
  // The segment's file, which exists.
  File Open(uint32_t segment) ABSL_LOCKS_EXCLUDED(mutex_);
  // The same, and makes it when it doesn't. Its length is not set. ENOSPC where its space, once it has all of it, would leave less than
  // keep_free of the file system.
  File Make(uint32_t segment) ABSL_LOCKS_EXCLUDED(mutex_);

  // It goes, and its space with it, whoever else has it open. What can't be removed stays.
  void Remove(uint32_t segment) ABSL_LOCKS_EXCLUDED(mutex_);

  int directory_fd() const { return directory_.get(); }
  Bytes segment_bytes() const { return segment_bytes_; }
  bool direct() const { return direct_; }
  // A sentence for the log, when it isn't.
  std::string WhyNotDirect() const;

 private:
  SegmentFiles(UniqueFd directory, Bytes segment_bytes, bool direct, int access);
  File OpenWith(uint32_t segment, int flags) ABSL_LOCKS_EXCLUDED(mutex_);
  bool LeavesEnough(const std::string& name) const;

  UniqueFd directory_;
  Bytes segment_bytes_;
  bool direct_;
  int access_;  // O_RDONLY or O_RDWR
  Bytes keep_free_{};
  Mutex mutex_;
  absl::flat_hash_map<uint32_t, UniqueFd> open_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvist::ssd

#endif  // KVIST_STORAGE_SSD_SEGMENT_FILES_H_

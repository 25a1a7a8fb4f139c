#include "storage/ssd/segment_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/status.h"
#include "storage/ssd/format.h"
#include "storage/ssd/segment_header.h"

namespace kvist::ssd {
namespace {

// Whether a unit can be written to `name` with these flags: file systems refuse direct I/O when a file is opened, or only when it is
// written (because their unit is larger than ours). 0 or an errno.
int TryToWrite(int directory, const char* name, int flags) {
  const UniqueFd fd(openat(directory, name, O_RDWR | O_CREAT | O_CLOEXEC | flags, 0600));
  if (!fd) return errno;
  alignas(kUnit.value) static const std::byte zeros[kUnit.value] = {};
  const ssize_t written = pwrite(fd.get(), zeros, sizeof zeros, 0);
  return written == static_cast<ssize_t>(sizeof zeros) ? 0 : written < 0 ? errno : EIO;
}

// Whether a unit of it can be read as it was opened; what else fails is no matter of how.
bool ReadsDirectly(const UniqueFd& fd) {
  if (!fd) return errno != EINVAL;
  alignas(kUnit.value) std::byte unit[kUnit.value];
  return pread(fd.get(), unit, sizeof unit, 0) >= 0 || errno != EINVAL;
}

}  // namespace

absl::StatusOr<SegmentFiles> SegmentFiles::Create(const std::string& directory, Bytes segment_bytes, Bytes keep_free) {
  KVIST_ASSIGN_OR_RETURN(SegmentFiles files, ToRead(directory, segment_bytes));
  files.access_ = O_RDWR;
  files.keep_free_ = keep_free;
  const int fd = files.directory_.get();
  const char* const name = "direct-io-test";
  int error = TryToWrite(fd, name, O_DIRECT);
  files.direct_ = error != EINVAL;
  if (!files.direct_) error = TryToWrite(fd, name, 0);
  unlinkat(fd, name, 0);
  if (error != 0) return ErrnoStatus(absl::StrCat("writing a file in the SSD directory ", directory), error);
  return files;
}

absl::StatusOr<SegmentFiles> SegmentFiles::ToRead(const std::string& directory, Bytes segment_bytes) {
  if (segment_bytes < kUnit * 4 || segment_bytes.value % kUnit.value != 0)
    return absl::InvalidArgumentError(
        absl::StrCat("segment_bytes: ", segment_bytes.value, " isn't a multiple of 4 KiB, at least four of them"));
  UniqueFd fd(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return ErrnoStatus(absl::StrCat("opening the SSD directory ", directory), errno);
  return SegmentFiles(std::move(fd), segment_bytes, /*direct=*/true, O_RDONLY);
}

SegmentFiles::SegmentFiles(UniqueFd directory, Bytes segment_bytes, bool direct, int access)
    : directory_(std::move(directory)), segment_bytes_(segment_bytes), direct_(direct), access_(access) {}

SegmentFiles::SegmentFiles(SegmentFiles&& o) noexcept
    : directory_(std::move(o.directory_)),
      segment_bytes_(o.segment_bytes_),
      direct_(o.direct_),
      access_(o.access_),
      keep_free_(o.keep_free_) {
  MutexLock lock(&o.mutex_);
  open_ = std::move(o.open_);
}

std::string SegmentFiles::WhyNotDirect() const {
  return "the SSD tier's bytes go through the page cache, which takes memory and time: its file system refuses direct I/O; "
         "put ssd.path on "
         "one that takes it (ext4, xfs)";
}

SegmentFiles::File SegmentFiles::Open(uint32_t segment) { return OpenWith(segment, 0); }
SegmentFiles::File SegmentFiles::Make(uint32_t segment) {
  if (!LeavesEnough(SegmentFileName(segment))) return {-1, ENOSPC};
  return OpenWith(segment, O_CREAT);
}

void SegmentFiles::Remove(uint32_t segment) {
  if (const File file = Open(segment); file.fd >= 0) (void)!ftruncate(file.fd, 0);
  unlinkat(directory_.get(), SegmentFileName(segment).c_str(), 0);
  MutexLock lock(&mutex_);
  open_.erase(segment);
}

bool SegmentFiles::LeavesEnough(const std::string& name) const {
  struct stat file {};
  const bool there = fstatat(directory_.get(), name.c_str(), &file, 0) == 0;
  const Bytes has{there ? static_cast<uint64_t>(file.st_blocks) * 512 : 0};  // POSIX's unit of st_blocks
  if (has >= segment_bytes_) return true;
  struct statvfs system {};
  if (fstatvfs(directory_.get(), &system) != 0) return true;
  return Bytes{uint64_t{system.f_bavail} * system.f_frsize} >= segment_bytes_ - has + keep_free_;
}

SegmentFiles::File SegmentFiles::OpenWith(uint32_t segment, int flags) {
  {
    MutexLock lock(&mutex_);
    const auto it = open_.find(segment);
    if (it != open_.end()) return {it->second.get()};
  }
  const std::string name = SegmentFileName(segment);
  flags |= access_ | O_CLOEXEC;
  UniqueFd fd(openat(directory_.get(), name.c_str(), flags | (direct_ ? O_DIRECT : 0), 0600));
  if (access_ == O_RDONLY && !ReadsDirectly(fd)) fd = UniqueFd(openat(directory_.get(), name.c_str(), flags, 0600));
  if (!fd) return {-1, errno};
  MutexLock lock(&mutex_);
  return {
      open_.try_emplace(segment, std::move(fd)).first->second.get()};  // two may have opened it: one of them closes its own
}

}  // namespace kvist::ssd

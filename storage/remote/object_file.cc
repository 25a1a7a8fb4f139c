#include "storage/remote/object_file.h"

#include <fcntl.h>
#include <openssl/rand.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "storage/base/check.h"
#include "storage/base/status.h"
#include "storage/base/xxh3.h"

namespace kvist::remote {
namespace {

absl::Status FileStatus(std::string_view what, const std::string& path, int error) {
  const std::string text = absl::StrCat("shared directory: ", absl::string_view(what.data(), what.size()), " ", path);
  const absl::Status status = ErrnoStatus(text, error);
  switch (error) {
    case EIO:
    case ESTALE:
    case ETIMEDOUT:
    case ENOTCONN:
    case EHOSTDOWN:
    case EREMOTEIO: return absl::UnavailableError(status.message());
    case EDQUOT:
    case EFBIG:
    case ENOSPC: return absl::ResourceExhaustedError(status.message());
    case EACCES:
    case EPERM:
    case EROFS: return absl::PermissionDeniedError(status.message());
    default: return status;
  }
}

}  // namespace

std::string ObjectFiles::PathOf(const std::string& name) const {
  const uint64_t hash = XXH3_64bits(name.data(), name.size());
  return absl::StrCat(directory_, "/", absl::Hex(hash & 0xff, absl::kZeroPad2), "/",
                      absl::Hex(hash >> 8 & 0xff, absl::kZeroPad2), "/", name);
}

absl::StatusOr<ObjectFiles::Opened> ObjectFiles::Open(const std::string& name) const {
  Before("open");
  const std::string path = PathOf(name);
  Opened opened;
  opened.file = UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!opened.file) {
    if (errno == ENOENT || errno == ENOTDIR) return opened;
    opened.found = Found::kNotOurs;
    if (errno == ELOOP || errno == ENXIO) return opened;
    return FileStatus("open", path, errno);
  }
  struct stat about {};
  if (::fstat(opened.file.get(), &about) != 0) return FileStatus("stat", path, errno);
  opened.found = S_ISREG(about.st_mode) ? Found::kYes : Found::kNotOurs;
  opened.bytes = static_cast<uint64_t>(about.st_size);
  return opened;
}

absl::StatusOr<size_t> ObjectFiles::Read(const UniqueFd& file, uint64_t at, std::span<std::byte> into) const {
  Before("read");
  size_t done = 0;
  while (done < into.size()) {
    const ssize_t n = ::pread(file.get(), into.data() + done, into.size() - done, static_cast<off_t>(at + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return FileStatus("read", directory_, errno);
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  return done;
}

absl::StatusOr<ObjectFiles::Draft> ObjectFiles::Create(const std::string& name) const {
  Before("open");
  const std::string target = PathOf(name);
  const std::string folder = target.substr(0, target.rfind('/'));
  uint64_t random = 0;
  KVIST_CHECK(RAND_bytes(reinterpret_cast<unsigned char*>(&random), sizeof random) == 1);
  const std::string path = absl::StrCat(folder, "/.", name, ".", absl::Hex(random, absl::kZeroPad16));
  for (int attempt = 0;; ++attempt) {
    UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0640));
    if (file) return Draft(this, std::move(file), path, target);
    if (errno != ENOENT || attempt > 0) return FileStatus("create", path, errno);
    for (const std::string& level : {folder.substr(0, folder.rfind('/')), folder})
      if (::mkdir(level.c_str(), 0750) != 0 && errno != EEXIST) return FileStatus("make the folder", level, errno);
  }
}

ObjectFiles::Draft::~Draft() {
  if (file_) ::unlink(path_.c_str());
}

absl::Status ObjectFiles::Draft::Append(std::span<const std::byte> bytes) {
  files_->Before("write");
  while (!bytes.empty()) {
    const ssize_t n = ::write(file_.get(), bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return FileStatus("write", path_, errno);
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

absl::Status ObjectFiles::Draft::Publish() {
  files_->Before("sync");
  if (::fsync(file_.get()) != 0) return FileStatus("sync", path_, errno);
  files_->Before("rename");
  if (::rename(path_.c_str(), target_.c_str()) != 0) return FileStatus("rename", target_, errno);
  file_.reset();
  return absl::OkStatus();
}

absl::Status ObjectFiles::Remove(const std::string& name) const {
  Before("remove");
  const std::string path = PathOf(name);
  if (::unlink(path.c_str()) != 0 && errno != ENOENT && errno != ENOTDIR) return FileStatus("remove", path, errno);
  return absl::OkStatus();
}

}  // namespace kvist::remote

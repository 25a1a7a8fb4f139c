#include "storage/ssd/directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "storage/base/status.h"

namespace kvist::ssd {
namespace {

namespace fs = std::filesystem;

constexpr char kSuffix[] = ".quarantine-";

std::string FolderOf(const std::string& path) {
  const std::string folder = fs::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

// The numbers of the quarantines of `path`, rising. What can't be listed has none.
std::vector<uint64_t> NumbersOf(const std::string& path) {
  const std::string prefix = fs::path(path).filename().string() + kSuffix;
  std::vector<uint64_t> numbers;
  std::error_code ignored;
  for (fs::directory_iterator it(FolderOf(path), ignored), end; !ignored && it != end; it.increment(ignored)) {
    const std::string name = it->path().filename().string();
    uint64_t number = 0;
    const char* const last = name.data() + name.size();
    if (name.compare(0, prefix.size(), prefix) != 0) continue;
    const auto [rest, error] = std::from_chars(name.data() + prefix.size(), last, number);
    if (error == std::errc() && rest == last) numbers.push_back(number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

}  // namespace

absl::Status MakeDirectory(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) == 0) return SyncDirectoryOf(path);
  return errno == EEXIST ? absl::OkStatus() : ErrnoStatus(absl::StrCat("making the directory ", path), errno);
}

absl::Status SyncDirectoryOf(const std::string& path) {
  const std::string folder = FolderOf(path);
  const UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return ErrnoStatus(absl::StrCat("opening ", folder), errno);
  return ::fsync(fd.get()) == 0 ? absl::OkStatus() : ErrnoStatus(absl::StrCat("flushing ", folder), errno);
}

absl::Status ReplaceFile(const std::string& path, std::span<const std::byte> bytes) {
  const std::string made = path + ".new";
  const UniqueFd file(::open(made.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) return ErrnoStatus(absl::StrCat("creating ", made), errno);
  const ssize_t put = ::write(file.get(), bytes.data(), bytes.size());
  if (put != static_cast<ssize_t>(bytes.size()))  // a short write says nothing
    return ErrnoStatus(absl::StrCat("writing ", made), put < 0 ? errno : ENOSPC);
  if (::fdatasync(file.get()) != 0) return ErrnoStatus(absl::StrCat("flushing ", made), errno);
  if (std::rename(made.c_str(), path.c_str()) != 0) return ErrnoStatus(absl::StrCat("renaming ", made), errno);
  return SyncDirectoryOf(path);
}

absl::StatusOr<UniqueFd> LockFile(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) return ErrnoStatus(absl::StrCat("opening ", path), errno);
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) return fd;
  if (errno != EWOULDBLOCK) return ErrnoStatus(absl::StrCat("locking ", path), errno);
  return absl::FailedPreconditionError(absl::StrCat(
      path, " is locked: another kvistd uses this directory; stop it, or give this one a directory of its own (ssd.path)"));
}

absl::StatusOr<std::string> Quarantine(const std::string& path, uint32_t keep) {
  std::error_code error;
  if (fs::symlink_status(path, error).type() == fs::file_type::not_found) return std::string();
  std::vector<uint64_t> numbers = NumbersOf(path);
  const auto named = [&](uint64_t number) { return absl::StrCat(path, kSuffix, number); };
  const uint64_t number = numbers.empty() ? 1 : numbers.back() + 1;
  const std::string to = named(number);
  if (std::rename(path.c_str(), to.c_str()) != 0) return ErrnoStatus(absl::StrCat("moving ", path, " aside"), errno);
  KVIST_RETURN_IF_ERROR(SyncDirectoryOf(path));
  numbers.push_back(number);
  for (size_t i = 0; i + keep < numbers.size(); ++i)
    fs::remove_all(named(numbers[i]), error);  // what stays is tried the next time
  return keep == 0 ? std::string() : to;
}

uint32_t Quarantined(const std::string& path) { return static_cast<uint32_t>(NumbersOf(path).size()); }

}  // namespace kvist::ssd

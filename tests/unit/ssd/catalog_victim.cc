// A process that works on a catalog until it kills itself, or to its end. It interposes the calls by which RocksDB makes things durable:
// they count, they fail when told to, and what they have flushed is written down, so that a test can cut off the rest, as a power cut does.
//
// usage: catalog_victim FOLDER SEED ACKS FLUSHED STEP NTH BATCHES [start-over-at | fault]
//   ACKS      an 'a' is appended to this file for each commit that was called durable, and with "unflushed" an 'f' for each that failed
//   FLUSHED   a line "inode size" is appended to this file for each flush of a file
//   STEP NTH  dies before the NTH such step; "flush" is one, too; "" or 0: never
//   last      "over=N": StartOver before the N-th batch of this life; "eio=N", "enospc=N": the N-th flush fails with EIO, the N-th and 20 more
//             writes of a log with ENOSPC; "unflushed=N": the N-th flush of a log and 2 more do, behind writes that went well
// exits with 0 at its end, 3 when a commit failed as it was told to, and later ones did what catalog.h says of that; 1 otherwise
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "storage/base/check.h"
#include "storage/ssd/rocks_catalog.h"
#include "tests/unit/ssd/catalog_history.h"

namespace {

std::atomic<int> flushed_file{-1};
std::atomic<long> flushes{0}, log_writes{0}, log_flushes{0};
std::atomic<long> die_at_flush{0}, eio_at_flush{0}, enospc_at{0}, unflushed_at{0};  // 0: never

[[noreturn]] void Die() {
  ::kill(::getpid(), SIGKILL);
  for (;;) ::pause();
}

bool IsLog(int fd) {
  char link[64], path[PATH_MAX];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t length = ::readlink(link, path, sizeof path);
  return length > 4 && std::memcmp(path + length - 4, ".log", 4) == 0;
}

int Flush(int fd, long number) {
  if (flushed_file.load() < 0) return static_cast<int>(::syscall(number, fd));
  const long n = ++flushes;
  if (n == die_at_flush) Die();
  if (n == eio_at_flush) {
    errno = EIO;
    return -1;
  }
  if (unflushed_at > 0 && IsLog(fd)) {
    const long log_flush = ++log_flushes;
    if (log_flush >= unflushed_at && log_flush <= unflushed_at + 2) {
      errno = ENOSPC;
      return -1;
    }
  }
  struct stat info {};
  ::fstat(fd, &info);  // before: what comes while it runs may not be part of it
  const int result = static_cast<int>(::syscall(number, fd));
  if (result == 0 && S_ISREG(info.st_mode)) {
    char line[64];
    const int length = std::snprintf(line, sizeof line, "%lu %lu\n", static_cast<unsigned long>(info.st_ino),
                                     static_cast<unsigned long>(info.st_size));
    KVIST_CHECK(::syscall(SYS_write, flushed_file.load(), line, length) == length);
  }
  return result;
}

}  // namespace

// Visible, so that RocksDB calls these and not libc's.
extern "C" {
__attribute__((visibility("default"))) int fdatasync(int fd) { return Flush(fd, SYS_fdatasync); }
__attribute__((visibility("default"))) int fsync(int fd) { return Flush(fd, SYS_fsync); }
__attribute__((visibility("default"))) ssize_t write(int fd, const void* bytes, size_t length) {
  if (enospc_at > 0 && IsLog(fd)) {
    const long n = ++log_writes;
    if (n >= enospc_at && n <= enospc_at + 20) {
      errno = ENOSPC;
      return -1;
    }
  }
  return ::syscall(SYS_write, fd, bytes, length);
}
}

namespace kvist::ssd {
namespace {

int Work(char** argv) {
  const std::string folder = argv[1], step = argv[5], extra = argv[8] == nullptr ? "" : argv[8];
  const uint64_t seed = std::strtoull(argv[2], nullptr, 10);
  const int acks = ::open(argv[3], O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  flushed_file = ::open(argv[4], O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  KVIST_CHECK(acks >= 0 && flushed_file >= 0);
  std::atomic<long> left{std::atol(argv[6])};
  const uint64_t batches = std::strtoull(argv[7], nullptr, 10);
  const auto number = [&](const char* name) {
    return extra.rfind(name, 0) == 0 ? std::atol(extra.c_str() + std::strlen(name)) : 0L;
  };
  const long over = number("over=");
  if (step == "flush") die_at_flush = left.load();

  RocksCatalogOptions options;
  options.folder = folder;
  options.write_buffer = KiB(64);
  options.group_bytes_max = KiB(2);  // several groups
  options.before_step = [&](std::string_view at) {
    if (at == step && --left == 0) Die();
  };
  auto opened = RocksCatalog::Open(options);
  if (!opened.ok()) {
    std::fprintf(stderr, "%s\n", opened.status().ToString().c_str());
    return 1;
  }
  std::unique_ptr<RocksCatalog> catalog = *std::move(opened);
  const test::Loaded loaded = test::LoadNow(catalog.get());
  KVIST_CHECK(loaded.report.status.ok());
  const uint64_t first = test::ProgressOf(loaded.rows);
  eio_at_flush = number("eio=") == 0 ? 0 : flushes + number("eio=");
  enospc_at = number("enospc=");
  unflushed_at = number("unflushed=");
  std::atomic<long> failed{0}, wrong{0}, recovered{0};
  const bool full = enospc_at > 0 || unflushed_at > 0;
  for (uint64_t i = first; i < first + batches; ++i) {
    if (over > 0 && i == first + static_cast<uint64_t>(over)) {
      catalog->StartOver("the test wants it", [](const absl::Status& status) { KVIST_CHECK(status.ok()); });
      return catalog.reset(), 0;
    }
    const auto done = [&](const absl::Status& status) {
      if (status.ok()) {
        recovered += failed > 0 ? 1 : 0;
        KVIST_CHECK(::syscall(SYS_write, acks, "a", 1) == 1);
        return;
      }
      ++failed;
      if (unflushed_at > 0) KVIST_CHECK(::syscall(SYS_write, acks, "f", 1) == 1);
      if (full ? !absl::IsResourceExhausted(status) : !absl::IsUnavailable(status)) {
        ++wrong;
        std::fprintf(stderr, "unexpected: %s\n", status.ToString().c_str());
      }
    };
    for (;;) {  // the queue is bounded; its room comes back with the callbacks
      const absl::Status taken = catalog->Commit(test::BatchOf(seed, i), done);
      if (taken.ok()) break;
      KVIST_CHECK(absl::IsResourceExhausted(taken));
    }
    if (full && failed > 0 && recovered == 0) {  // the space comes back after some tries: bounded by the injected failures
      CatalogBatch probe;
      test::CommitNow(catalog.get(), std::move(probe)).IgnoreError();
    }
  }
  catalog.reset();
  if (wrong > 0) return 1;
  if (failed == 0) return 0;
  return full == (recovered > 0) ? 3 : 1;  // no space is got over; a failed flush never is
}

}  // namespace
}  // namespace kvist::ssd

int main(int argc, char** argv) {
  KVIST_CHECK(argc >= 8);
  return kvist::ssd::Work(argv);
}

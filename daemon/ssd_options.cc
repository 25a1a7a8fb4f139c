#include "daemon/ssd_options.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "storage/base/byte_text.h"
#include "storage/base/status.h"

namespace kvist::daemon {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kFreePart = 10;  // the disk is there for others, too

// What a directory, which may not be there yet, may take: of what is free, and of what lies in it.
absl::StatusOr<Bytes> RoomIn(const std::string& directory) {
  std::error_code error;
  fs::path there = directory;
  while (!fs::exists(there, error) && there.has_relative_path()) there = there.parent_path();
  const fs::space_info space = fs::space(there, error);
  if (error) return ErrnoStatus(absl::StrCat("ssd.path: asking for the room in ", there.string()), error.value());
  uint64_t own = 0;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    std::error_code gone;
    if (const uint64_t size = fs::file_size(it->path(), gone); !gone) own += size;
  }
  return std::max(Bytes{space.available + own} / kFreePart,
                  Bytes{own});  // nothing is given up because others have filled the disk
}

}  // namespace

absl::StatusOr<ssd::StoreOptions> StoreOptionsOf(const Options& options) {
  ssd::StoreOptions store;
  store.directories = absl::StrSplit(options.ssd.path, ':');
  store.bytes_per_second = options.ssd.write_rate;
  store.scrub_every = options.ssd.scrub_every;
  store.capacity = options.ssd.capacity;
  const uint64_t devices = store.directories.size();
  if (store.capacity == Bytes{}) {
    Bytes each{UINT64_MAX};
    for (const std::string& directory : store.directories) {
      KVIST_ASSIGN_OR_RETURN(const Bytes room, RoomIn(directory));
      each = std::min(each, room);
    }
    store.capacity = each * devices;
  }
  const Bytes each = store.capacity / devices;
  store.segment = std::clamp(MiB(1) * (each / kSegments / MiB(1)), kSegmentBytesMin, kSegmentBytes);
  if (each < kCapacityMin) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "ssd.capacity: ", PrintBytes(each), " for each directory, and a tier wants at least ", PrintBytes(kCapacityMin),
        ": free some space, set ssd.capacity, name other directories in "
        "ssd.path, or set ssd.enabled = false"));
  }
  return store;
}

}  // namespace kvist::daemon

#include "storage/ssd/store_directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "storage/base/status.h"
#include "storage/base/unique_fd.h"
#include "storage/base/xxh3.h"
#include "storage/ssd/directory.h"
#include "storage/ssd/sealer.h"
#include "storage/ssd/segment_header.h"

namespace kvist::ssd {
namespace {

namespace fs = std::filesystem;

constexpr char kStoreFile[] = "store";

uint64_t ChecksumOf(const StoreFile& file) { return XXH3_64bits(&file, offsetof(StoreFile, checksum)); }

// Whole, in one or more calls; short when the file is, or with an errno.
size_t ReadAt(int fd, void* to, size_t size, uint64_t offset) {
  size_t done = 0;
  while (done < size) {
    const ssize_t n = pread(fd, static_cast<char*>(to) + done, size - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n == 0) errno = 0;
    if (n <= 0) break;
    done += static_cast<size_t>(n);
  }
  return done;
}

absl::Status WriteStoreFile(const std::string& path, const StoreId& store, uint32_t device) {
  StoreFile file{kStoreMagic, kFormatVersion, device, store, 0};
  file.checksum = ChecksumOf(file);
  return ReplaceFile(absl::StrCat(path, "/", kStoreFile), std::as_bytes(std::span(&file, 1)));
}

enum class Read : uint8_t { kGood, kMissing, kDamaged, kLater };

Read ReadStoreFile(int directory, StoreFile* file) {
  const UniqueFd fd(openat(directory, kStoreFile, O_RDONLY | O_CLOEXEC));
  if (!fd) return errno == ENOENT ? Read::kMissing : Read::kDamaged;
  if (ReadAt(fd.get(), file, sizeof *file, 0) != sizeof *file || file->magic != kStoreMagic) return Read::kDamaged;
  const bool whole = file->checksum == ChecksumOf(*file) && file->device < kDevicesMax;
  if (file->version > kFormatVersion) return Read::kLater;
  return whole && file->version == kFormatVersion ? Read::kGood : Read::kDamaged;
}

std::vector<uint32_t> ListSegments(int directory) {
  std::vector<uint32_t> segments;
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(fdopendir(openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC)),
                                                    &closedir);
  if (listing == nullptr) return segments;
  while (const dirent* entry = readdir(listing.get())) {
    absl::string_view name(entry->d_name);
    uint32_t segment = 0;
    if (absl::ConsumePrefix(&name, "segment-") && absl::SimpleAtoi(name, &segment) &&
        SegmentFileName(segment) == entry->d_name)
      segments.push_back(segment);
  }
  std::sort(segments.begin(), segments.end());
  return segments;
}

// Both headers of a segment's file, of whatever store: the one with the higher epoch when both are good.
StoreDirectory::Found ReadHeaders(int directory, uint32_t segment, uint64_t units, const std::optional<StoreId>& store) {
  StoreDirectory::Found found{segment, Verdict::kBlank, {}, 0};
  const UniqueFd fd(openat(directory, SegmentFileName(segment).c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) found.unreadable = errno;
  for (const uint64_t unit : {uint64_t{0}, units - 1}) {
    std::array<std::byte, kUnit.value> bytes{};
    if (!fd) continue;
    if (ReadAt(fd.get(), bytes.data(), bytes.size(), unit * kUnit.value) != bytes.size()) {
      if (errno != 0) found.unreadable = errno;
      continue;
    }
    SegmentHeader says{};
    std::memcpy(&says, bytes.data(), sizeof says);
    SegmentHeader header{};
    const Verdict verdict = CheckSegmentHeader(bytes, store.value_or(says.store), segment, units, &header);
    const bool better = verdict == Verdict::kGood ? found.verdict != Verdict::kGood || header.epoch > found.header.epoch
                                                  : found.verdict == Verdict::kBlank;
    if (better) found = {segment, verdict, header, found.unreadable};
  }
  return found;
}

}  // namespace

absl::StatusOr<Bytes> SegmentBytesIn(const std::vector<std::string>& directories) {
  uint64_t newest = 0, units = 0;
  for (const std::string& directory : directories) {
    std::error_code error;
    for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
      const std::string name = it->path().filename().string();
      std::array<std::byte, kUnit.value> bytes{};
      if (!absl::StartsWith(name, "segment-")) continue;
      const UniqueFd fd(::open(it->path().c_str(), O_RDONLY | O_CLOEXEC));
      if (!fd || ::pread(fd.get(), bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) continue;
      SegmentHeader says{}, header{};
      std::memcpy(&says, bytes.data(), sizeof says);
      if (SegmentFileName(says.segment) != name || says.epoch <= newest ||
          CheckSegmentHeader(bytes, says.store, says.segment, says.units, &header) != Verdict::kGood)
        continue;
      newest = header.epoch;
      units = header.units;
    }
    if (error && error != std::errc::no_such_file_or_directory)
      return ErrnoStatus(absl::StrCat("listing ", directory), error.value());
  }
  if (newest == 0)
    return absl::NotFoundError(absl::StrCat("no segment in ", absl::StrJoin(directories, ", "), " was ever used"));
  return kUnit * units;
}

absl::StatusOr<StoreDirectory> ReadStoreDirectory(const std::string& path, uint64_t segment_units, uint32_t device,
                                                  const std::optional<StoreId>& join) {
  if (device >= kDevicesMax)
    return absl::InvalidArgumentError(absl::StrCat("a store has at most ", kDevicesMax, " directories"));
  const UniqueFd directory(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory) return ErrnoStatus(absl::StrCat("opening the SSD directory ", path), errno);

  StoreDirectory found;
  StoreFile file{};
  const Read read = ReadStoreFile(directory.get(), &file);
  if (read == Read::kLater) {
    return absl::FailedPreconditionError(absl::StrCat(path, " was made by a later version of kvist (format ", file.version,
                                                      ", this one knows ", kFormatVersion,
                                                      "): start that version, or name another directory in ssd.path"));
  }
  const std::vector<uint32_t> segments = ListSegments(directory.get());
  if (read == Read::kGood) {
    found.store = file.store;
    found.device = file.device;
  } else {
    // The store that most of the segments are of; on what they don't say, the caller's word.
    std::map<std::pair<StoreId, uint32_t>, int> votes;
    for (const uint32_t segment : segments) {
      const StoreDirectory::Found use = ReadHeaders(directory.get(), segment, segment_units, std::nullopt);
      if (use.verdict == Verdict::kGood) ++votes[{use.header.store, DeviceOf(segment)}];
    }
    const auto most =
        std::max_element(votes.begin(), votes.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    const bool recovered = most != votes.end();
    found.origin = recovered ? StoreDirectory::Origin::kRecovered : StoreDirectory::Origin::kMade;
    found.store = recovered ? most->first.first : join ? *join : StoreId{DrawSecret()};
    found.device = recovered ? most->first.second : device;
  }
  if ((join && *join != found.store) || device != found.device) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is directory ", found.device, " of ", join && *join != found.store ? "another" : "this",
                     " store, not ", device, " of this one: name the directories in ssd.path as they were, or empty it"));
  }
  for (const uint32_t segment : segments) {
    if (DeviceOf(segment) == found.device)
      found.segments.push_back(ReadHeaders(directory.get(), segment, segment_units, found.store));
  }
  return found;
}

absl::StatusOr<StoreDirectory> OpenStoreDirectory(const std::string& path, uint64_t segment_units, uint32_t device,
                                                  const std::optional<StoreId>& join) {
  KVIST_RETURN_IF_ERROR(MakeDirectory(path));
  KVIST_ASSIGN_OR_RETURN(StoreDirectory found, ReadStoreDirectory(path, segment_units, device, join));
  if (found.origin != StoreDirectory::Origin::kFound) KVIST_RETURN_IF_ERROR(WriteStoreFile(path, found.store, found.device));
  return found;
}

}  // namespace kvist::ssd

#ifndef KVIST_STORAGE_SSD_DIRECTORY_H_
#define KVIST_STORAGE_SSD_DIRECTORY_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/base/unique_fd.h"

// What a store does with whole directories. Errors are of the file system, and name the path.
namespace kvist::ssd {

// Makes the directory, for its owner alone, when it isn't there.
absl::Status MakeDirectory(const std::string& path);

// Makes the names in the folder that holds `path` durable.
absl::Status SyncDirectoryOf(const std::string& path);

// Replaces the file at `path`, or makes it, for its owner alone: after a crash it is the old one or the new one. By way of "<path>.new".
absl::Status ReplaceFile(const std::string& path, std::span<const std::byte> bytes);

// Holds the file at `path` locked until the descriptor is closed, however the process ends.
// Errors: FailedPrecondition  another process has it: two daemons on one store.
absl::StatusOr<UniqueFd> LockFile(const std::string& path);

// Moves `path`, whatever it is, to "<path>.quarantine-<n>", n higher than any there, and removes all but the newest `keep` of them.
// Where it lies now; "" when nothing was there (or `keep` is 0).
absl::StatusOr<std::string> Quarantine(const std::string& path, uint32_t keep);

// How many lie there.
uint32_t Quarantined(const std::string& path);

}  // namespace kvist::ssd

#endif  // KVIST_STORAGE_SSD_DIRECTORY_H_

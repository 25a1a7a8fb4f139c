#ifndef KVIST_STORAGE_BASE_KEPT_FILE_H_
#define KVIST_STORAGE_BASE_KEPT_FILE_H_

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace kvist {

// Has `path` hold `text`, whole or not at all, for its user alone, and waits until the disk has it. Two calls for one path: one after the other.
// Errors: those of the system; then the file is as it was, or, where its directory couldn't be synced, as it is to be until a power cut may undo it.
absl::Status KeepFile(const std::string& path, const std::string& text);

// What such a file holds. Errors: NotFound  it isn't there.  ResourceExhausted  it is longer than `most` bytes. Others of the system.
absl::StatusOr<std::string> ReadKeptFile(const std::string& path, size_t most);

}  // namespace kvist

#endif  // KVIST_STORAGE_BASE_KEPT_FILE_H_

#ifndef KVIST_STORAGE_BASE_PRIVATE_FILE_H_
#define KVIST_STORAGE_BASE_PRIVATE_FILE_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace kvist {

inline constexpr size_t kPrivateFileMax = 64 * 1024;

// What stands in a file that holds a secret, its first kPrivateFileMax bytes. `key` is the setting that names the file, for errors, none of
// which says what stands there.
//
// Errors: FailedPrecondition  users beside its owner and group may read, write or run it; has the command that mends it.  Those of files.
absl::StatusOr<std::string> ReadPrivateFile(std::string_view key, const std::string& path);

}  // namespace kvist

#endif  // KVIST_STORAGE_BASE_PRIVATE_FILE_H_

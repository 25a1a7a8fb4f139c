#ifndef KVIST_STORAGE_REMOTE_REDIS_STATUS_H_
#define KVIST_STORAGE_REMOTE_REDIS_STATUS_H_

#include <string_view>

#include "absl/status/status.h"

namespace kvist::remote {

// What a Redis server's error line ("OOM command not allowed ..") means to us. The one place that knows.
absl::Status RedisStatus(std::string_view line);
// Under the key lies something else than a string.
bool IsWrongType(std::string_view line);

}  // namespace kvist::remote

#endif  // KVIST_STORAGE_REMOTE_REDIS_STATUS_H_

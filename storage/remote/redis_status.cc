#include "storage/remote/redis_status.h"

#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace kvist::remote {

absl::Status RedisStatus(std::string_view line) {
  const std::string_view code = line.substr(0, line.find(' '));
  const std::string text = absl::StrCat("redis: ", absl::CEscape({line.data(), line.size()}));
  if (code == "OOM") return absl::ResourceExhaustedError(text);
  for (const std::string_view later : {"LOADING", "BUSY", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "MOVED", "ASK"})
    if (code == later) return absl::UnavailableError(text);
  for (const std::string_view forbidden : {"NOAUTH", "WRONGPASS", "NOPERM", "DENIED"})
    if (code == forbidden) return absl::PermissionDeniedError(text);
  return absl::FailedPreconditionError(text);  // READONLY, MISCONF, an unknown command: somebody has to change something
}

bool IsWrongType(std::string_view line) { return line.substr(0, line.find(' ')) == "WRONGTYPE"; }

}  // namespace kvist::remote

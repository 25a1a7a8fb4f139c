#include "daemon/metrics/health.h"

#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/check.h"

namespace kvist::metrics {

Health::Health(const std::vector<std::string>& parts) {
  for (const std::string& name : parts) parts_.push_back({name, nullptr, true});
}

void Health::Watch(const std::string& part, Check check) {
  absl::MutexLock lock(&mutex_);
  const auto found = std::find_if(parts_.begin(), parts_.end(), [&](const Part& p) { return p.name == part; });
  KVIST_CHECK(found != parts_.end());
  found->check = std::move(check);
}

void Health::Mind(const std::string& part, Check check) {
  absl::MutexLock lock(&mutex_);
  parts_.push_back({part, std::move(check), false});
}

void Health::Stopping() {
  absl::MutexLock lock(&mutex_);
  stopping_ = true;
}

std::vector<Health::Row> Health::Look() const {
  std::vector<Part> parts;
  bool stopping = false;
  {
    absl::MutexLock lock(&mutex_);
    parts = parts_;
    stopping = stopping_;
  }
  std::vector<Row> rows;
  for (const Part& part : parts) {
    rows.push_back({part.name,
                    stopping                ? absl::UnavailableError("kvistd is stopping")
                    : part.check == nullptr ? absl::UnavailableError("kvistd is starting: it is not there yet")
                                            : part.check(),
                    part.needed});
  }
  return rows;
}

Health::Check SocketInPlace(const std::string& path) {
  struct stat bound {};
  const bool found = ::stat(path.c_str(), &bound) == 0;
  return [path, bound, found]() -> absl::Status {
    struct stat now {};
    if (!found || ::stat(path.c_str(), &now) != 0)
      return absl::UnavailableError(absl::StrCat(path, " is gone: nobody new can connect; restart kvistd"));
    if (now.st_ino != bound.st_ino || now.st_dev != bound.st_dev)
      return absl::UnavailableError(absl::StrCat(path, " is another's now: nobody new can connect; restart kvistd"));
    return absl::OkStatus();
  };
}

}  // namespace kvist::metrics

#include "storage/base/status.h"

#include "absl/strings/str_cat.h"

namespace kvist {

absl::Status ErrnoStatus(std::string_view what, int error_number) {
  return absl::ErrnoToStatus(error_number, absl::string_view(what.data(), what.size()));
}

}  // namespace kvist

#ifndef KVIST_STORAGE_BASE_STATUS_H_
#define KVIST_STORAGE_BASE_STATUS_H_

#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Returns from the calling function when `expr` (an absl::Status) is not OK.
#define KVIST_RETURN_IF_ERROR(expr)                                                    \
  do {                                                                                 \
    if (::absl::Status kvist_status = (expr); !kvist_status.ok()) return kvist_status; \
  } while (false)

// Declares or assigns `lhs` from `expr` (an absl::StatusOr<T>), or returns its error.
#define KVIST_ASSIGN_OR_RETURN(lhs, expr) KVIST_ASSIGN_OR_RETURN_(KVIST_CONCAT_(kvist_or_, __LINE__), lhs, expr)
#define KVIST_ASSIGN_OR_RETURN_(tmp, lhs, expr)  \
  auto tmp = (expr);                             \
  if (!tmp.ok()) return std::move(tmp).status(); \
  lhs = *std::move(tmp)
#define KVIST_CONCAT_(a, b) KVIST_CONCAT2_(a, b)
#define KVIST_CONCAT2_(a, b) a##b

namespace kvist {

// The status of a failed system call: `what` was tried, errno says why. The one place where errno becomes a status.
absl::Status ErrnoStatus(std::string_view what, int error_number);

}  // namespace kvist

#endif  // KVIST_STORAGE_BASE_STATUS_H_

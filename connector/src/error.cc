#include "connector/src/error.h"

#include <exception>
#include <new>
#include <stdexcept>

namespace kvist::connector {
namespace {

thread_local std::string last_error;

}  // namespace

kvist_status CodeOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk: return KVIST_OK;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kNotFound: return KVIST_INVALID_ARGUMENT;
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kAlreadyExists: return KVIST_FAILED_PRECONDITION;
    case absl::StatusCode::kResourceExhausted: return KVIST_RESOURCE_EXHAUSTED;
    case absl::StatusCode::kUnavailable: return KVIST_UNAVAILABLE;
    case absl::StatusCode::kDeadlineExceeded: return KVIST_DEADLINE_EXCEEDED;
    case absl::StatusCode::kAborted: return KVIST_ABORTED;
    case absl::StatusCode::kCancelled: return KVIST_CANCELLED;
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated: return KVIST_PERMISSION_DENIED;
    case absl::StatusCode::kDataLoss: return KVIST_DATA_LOSS;
    default: return KVIST_INTERNAL;
  }
}

kvist_status Report(const absl::Status& status) {
  if (!status.ok()) last_error.assign(status.message().data(), status.message().size());
  return CodeOf(status.code());
}

kvist_status ReportThrown() noexcept {
  try {
    throw;
  } catch (const std::bad_alloc&) {
  } catch (const std::length_error&) {
  } catch (const std::exception& error) {
    try {
      return Report(absl::InternalError(error.what()));
    } catch (...) {}
  } catch (...) { return CodeOf(absl::StatusCode::kInternal); }
  last_error = "out of memory";  // short enough to need none
  return KVIST_RESOURCE_EXHAUSTED;
}

const char* LastError() { return last_error.c_str(); }

}  // namespace kvist::connector

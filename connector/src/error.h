#ifndef KVIST_CONNECTOR_SRC_ERROR_H_
#define KVIST_CONNECTOR_SRC_ERROR_H_

#include <kvist/kvist.h>

#include <string>

#include "absl/status/status.h"

namespace kvist::connector {

// Maps a status to the ABI's code and keeps its message for kvist_error() on this thread.
kvist_status Report(const absl::Status& status);
// The same of the exception that is being handled: none passes the ABI.
kvist_status ReportThrown() noexcept;
// The code alone.
kvist_status CodeOf(absl::StatusCode code);
// This thread's last message.
const char* LastError();

}  // namespace kvist::connector

#endif  // KVIST_CONNECTOR_SRC_ERROR_H_

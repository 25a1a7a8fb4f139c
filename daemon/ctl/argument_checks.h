#ifndef KVIST_DAEMON_CTL_ARGUMENT_CHECKS_H_
#define KVIST_DAEMON_CTL_ARGUMENT_CHECKS_H_

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "daemon/endpoint/address.h"
#include "storage/base/units.h"

// Arguments from text. Each returns "" when the text is one, and has set it; else what it was instead, and what is allowed.
namespace kvist::ctl {

// The id of a `noun`: of a kvistd a number, of a controller NODE/NUMBER.
std::string CheckId(const std::string& text, absl::string_view noun);
std::string CheckAddress(const std::string& text, endpoint::Address* address);
// A time between two looks of `top`.
std::string CheckInterval(const std::string& text, absl::Duration* interval);
std::string CheckQuota(const std::string& text, Bytes* quota);
// How long an answer, or a job, may be waited for.
std::string CheckTimeout(const std::string& text, std::optional<absl::Duration>* timeout);
// How long a pin may last.
std::string CheckLasts(const std::string& text, absl::Duration* lasts);

}  // namespace kvist::ctl

#endif  // KVIST_DAEMON_CTL_ARGUMENT_CHECKS_H_

#include "daemon/ctl/argument_checks.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "daemon/ctl/human.h"

namespace kvist::ctl {
namespace {

constexpr absl::Duration kTimeMax = absl::Minutes(10);  // the daemon waits no longer
constexpr absl::Duration kPinTimeMax = absl::Hours(24 * 365);

}  // namespace

std::string CheckId(const std::string& text, absl::string_view noun) {
  uint64_t number = 0;
  return absl::SimpleAtoi(text.substr(text.rfind('/') + 1), &number)
             ? ""
             : absl::StrCat("\"", text, "\"; allowed: the number of a ", noun, ", of a controller NODE/NUMBER");
}

std::string CheckAddress(const std::string& text, endpoint::Address* address) {
  const std::optional<endpoint::Address> parsed = endpoint::ParseAddress(text);
  if (!parsed.has_value()) return absl::StrCat("\"", text, "\"; allowed: ", endpoint::kAddressAllowed);
  *address = *parsed;
  return "";
}

std::string CheckInterval(const std::string& text, absl::Duration* interval) {
  absl::Duration duration;
  if (!absl::ParseDuration(text, &duration) || duration < absl::Milliseconds(100) || duration > absl::Hours(1))
    return absl::StrCat("\"", text, "\"; allowed: a duration with a unit such as 1s or 500ms, from 100ms to 1h");
  *interval = duration;
  return "";
}

std::string CheckQuota(const std::string& text, Bytes* quota) {
  const std::optional<Bytes> bytes = ParseBytes(text);
  if (!bytes.has_value() || *bytes == Bytes{})
    return absl::StrCat("\"", text, "\"; allowed: bytes, or with a unit such as 8GiB (B, KiB, MiB, GiB, TiB)");
  *quota = *bytes;
  return "";
}

std::string CheckTimeout(const std::string& text, std::optional<absl::Duration>* timeout) {
  absl::Duration duration;
  if (!absl::ParseDuration(text, &duration) || duration < absl::Milliseconds(1) || duration > kTimeMax) {
    return absl::StrCat("\"", text, "\"; allowed: a duration with a unit such as 5s or 500ms, from 1ms to ",
                        absl::FormatDuration(kTimeMax));
  }
  *timeout = duration;
  return "";
}

std::string CheckLasts(const std::string& text, absl::Duration* lasts) {
  absl::Duration duration;
  if (!absl::ParseDuration(text, &duration) || duration < absl::Seconds(1) || duration > kPinTimeMax)
    return absl::StrCat("\"", text, "\"; allowed: a duration with a unit such as 30m or 12h, from 1s to a year");
  *lasts = duration;
  return "";
}

}  // namespace kvist::ctl

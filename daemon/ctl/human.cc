#include "daemon/ctl/human.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "storage/base/byte_text.h"

namespace kvist::ctl {
namespace {

// "A UNIT" or "A UNIT B SMALLER".
std::string TwoUnits(int64_t seconds, int64_t unit, const char* name, int64_t smaller, const char* smaller_name) {
  const int64_t rest = seconds % unit / smaller;
  return rest == 0 ? absl::StrCat(seconds / unit, " ", name)
                   : absl::StrCat(seconds / unit, " ", name, " ", rest, " ", smaller_name);
}

// Three digits that count, without zeros behind the point.
std::string ThreeDigits(double value) {
  const int decimals = value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  std::string number = absl::StrFormat("%.*f", decimals, value);
  if (decimals > 0) number.erase(number.find_last_not_of('0') + 1);
  if (number.back() == '.') number.pop_back();
  return number;
}

}  // namespace

std::string HumanRate(double bytes_per_second) {
  static constexpr const char* kUnits[] = {"B/s", "kB/s", "MB/s", "GB/s", "TB/s"};
  double value = bytes_per_second;
  size_t unit = 0;
  for (; value >= 999.5 && unit + 1 < std::size(kUnits); ++unit) value /= 1000;
  return absl::StrCat(unit == 0 ? absl::StrFormat("%.0f", value) : ThreeDigits(value), " ", kUnits[unit]);
}

std::string HumanLatency(double seconds) {
  static constexpr const char* kUnits[] = {"ns", "us", "ms", "s"};
  double value = seconds * 1e9;
  size_t unit = 0;
  for (; value >= 999.5 && unit + 1 < std::size(kUnits); ++unit) value /= 1000;
  return absl::StrCat(unit == 0 ? absl::StrFormat("%.0f", value) : ThreeDigits(value), " ", kUnits[unit]);
}

std::optional<Bytes> ParseBytes(absl::string_view text) {
  const bool bare = !text.empty() && absl::ascii_isdigit(static_cast<unsigned char>(text.back()));
  return kvist::ParseBytes(bare ? absl::StrCat(text, "B") : std::string(text));
}

std::string HumanBytes(Bytes bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  auto value = static_cast<double>(bytes.value);
  size_t unit = 0;
  // 1023.5 would be printed as "1024".
  for (; value >= (unit == 0 ? 1024 : 1023.5) && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  const int decimals = unit == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  std::string number = absl::StrFormat("%.*f", decimals, value);
  if (decimals > 0) number.erase(number.find_last_not_of('0') + 1);
  if (number.back() == '.') number.pop_back();
  return absl::StrCat(number, " ", kUnits[unit]);
}

std::string HumanCount(uint64_t count) {
  std::string digits = absl::StrCat(count);
  for (size_t at = digits.size(); at > 3; at -= 3) digits.insert(at - 3, ",");
  return digits;
}

std::string HumanShare(uint64_t part, uint64_t whole) {
  if (whole == 0) return "-";
  return absl::StrFormat("%.1f %%", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

std::string HumanDuration(absl::Duration duration) {
  if (duration < absl::Seconds(1)) return absl::StrCat(absl::ToInt64Milliseconds(duration), " ms");
  constexpr int64_t kMinute = 60, kHour = 60 * kMinute, kDay = 24 * kHour;
  const int64_t seconds = absl::ToInt64Seconds(duration);
  if (seconds < kMinute) return absl::StrCat(seconds, " s");
  if (seconds < kHour) return TwoUnits(seconds, kMinute, "min", 1, "s");
  if (seconds < kDay) return TwoUnits(seconds, kHour, "h", kMinute, "min");
  return TwoUnits(seconds, kDay, "d", kHour, "h");
}

}  // namespace kvist::ctl

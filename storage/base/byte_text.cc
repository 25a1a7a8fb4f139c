#include "storage/base/byte_text.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace kvist {
namespace {

struct Unit {
  absl::string_view name;
  uint64_t bytes;
};
constexpr Unit kUnits[] = {{"TiB", 1ull << 40}, {"GiB", 1ull << 30}, {"MiB", 1ull << 20}, {"KiB", 1ull << 10}, {"B", 1}};

}  // namespace

std::optional<Bytes> ParseBytes(absl::string_view text) {
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  const absl::string_view name = absl::StripLeadingAsciiWhitespace(text.substr(digits));
  uint64_t count = 0;
  if (!absl::SimpleAtoi(text.substr(0, digits), &count)) return std::nullopt;
  for (const Unit& unit : kUnits) {
    if (name != unit.name) continue;
    if (count > std::numeric_limits<uint64_t>::max() / unit.bytes) return std::nullopt;
    return Bytes{count * unit.bytes};
  }
  return std::nullopt;
}

std::string PrintBytes(Bytes bytes) {
  for (const Unit& unit : kUnits) {
    if (bytes.value > 0 && bytes.value % unit.bytes == 0) return absl::StrCat(bytes.value / unit.bytes, unit.name);
  }
  return absl::StrCat(bytes.value, "B");
}

}  // namespace kvist

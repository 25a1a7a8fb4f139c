#include "storage/remote/redis_slots.h"

#include <algorithm>
#include <array>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "storage/remote/net_address.h"

namespace kvist::remote {
namespace {

constexpr std::array<uint16_t, 256> kCrc16 = [] {
  std::array<uint16_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte << 8;
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 0x8000) != 0 ? crc << 1 ^ 0x1021 : crc << 1;
    table[byte] = static_cast<uint16_t>(crc);
  }
  return table;
}();

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

std::optional<uint16_t> Slot(absl::string_view text) {
  uint32_t slot = 0;
  if (!absl::SimpleAtoi(text, &slot) || slot >= kRedisSlots) return std::nullopt;
  return static_cast<uint16_t>(slot);
}

// "10.0.0.2:6379", "::1:6379", ":6379" (the host that was asked); with another host in its place, if one is given.
std::optional<std::string> AddressOf(absl::string_view text, absl::string_view asked, absl::string_view name = {}) {
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos) return std::nullopt;
  const absl::string_view port = text.substr(colon + 1);
  absl::string_view host = text.substr(0, colon);
  if (host.empty()) host = asked;
  if (!name.empty()) host = name;
  if (host.empty() || host == "?") return std::nullopt;
  const bool bracket = absl::StrContains(host, ':') && host.front() != '[';
  std::string address = bracket ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
  const auto endpoint = Endpoint::Parse(address);
  if (!endpoint.ok() || !endpoint->unix_path.empty() || endpoint->port == 0) return std::nullopt;
  return address;
}

}  // namespace

uint16_t RedisSlotOf(std::string_view tag) {
  uint32_t crc = 0;
  for (const char c : tag) crc = (crc << 8 & 0xffff) ^ kCrc16[crc >> 8 ^ static_cast<uint8_t>(c)];
  return static_cast<uint16_t>(crc % kRedisSlots);
}

std::optional<RedisRedirect> RedirectIn(std::string_view line, std::string_view asked) {
  const std::vector<absl::string_view> words = absl::StrSplit(View(line), ' ');
  if (words.size() != 3 || (words[0] != "MOVED" && words[0] != "ASK")) return std::nullopt;
  const std::optional<uint16_t> slot = Slot(words[1]);
  std::optional<std::string> address = AddressOf(words[2], View(asked));
  if (!slot.has_value() || !address.has_value()) return std::nullopt;
  return RedisRedirect{*slot, *std::move(address), words[0] == "ASK"};
}

// ID HOST:PORT[@PORT][,NAME[,..]] FLAGS MASTER PING PONG EPOCH STATE SLOTS..
std::vector<RedisSlotRange> SlotsIn(std::string_view nodes, std::string_view asked, bool by_name) {
  constexpr size_t kFields = 8;  // before the slots
  std::vector<RedisSlotRange> ranges;
  for (const absl::string_view line : absl::StrSplit(View(nodes), '\n')) {
    const std::vector<absl::string_view> fields = absl::StrSplit(line, absl::ByAnyChar(" \r"), absl::SkipEmpty());
    if (fields.size() <= kFields) continue;
    const std::vector<absl::string_view> flags = absl::StrSplit(fields[2], ',');
    if (std::find(flags.begin(), flags.end(), "master") == flags.end()) continue;
    const std::vector<absl::string_view> names = absl::StrSplit(fields[1], ',');
    const absl::string_view name = by_name && names.size() > 1 ? names[1] : absl::string_view();
    const std::optional<std::string> address = AddressOf(names[0].substr(0, names[0].find('@')), View(asked), name);
    if (!address.has_value()) continue;
    for (size_t i = kFields; i < fields.size(); ++i) {
      if (fields[i].front() == '[') continue;  // on its way from here or to here; nobody's but the one's who has it
      const size_t dash = fields[i].find('-');
      const std::optional<uint16_t> first = Slot(fields[i].substr(0, dash));
      const std::optional<uint16_t> last = dash == absl::string_view::npos ? first : Slot(fields[i].substr(dash + 1));
      if (first.has_value() && last.has_value() && *first <= *last) ranges.push_back({*first, *last, *address});
      if (ranges.size() == kRedisSlots) return ranges;  // there can't be more
    }
  }
  return ranges;
}

}  // namespace kvist::remote

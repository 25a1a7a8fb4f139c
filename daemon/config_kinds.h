#ifndef KVIST_DAEMON_CONFIG_KINDS_H_
#define KVIST_DAEMON_CONFIG_KINDS_H_

#include <sched.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "daemon/config_keys.h"
#include "daemon/controller/node_name.h"
#include "daemon/listen_address.h"
#include "daemon/remote_url.h"
#include "storage/base/byte_text.h"
#include "storage/base/utf8.h"

// The kinds of values that keys have: how each is read from TOML, checked, printed, and what an error says is allowed. Each makes
// the row of a key of its kind; `field` finds that key's field in Options (KVIST_FIELD). For config_keys.cc, which is the table.
namespace kvist::daemon {

inline constexpr size_t kGroupNameMax = 32;  // LOGIN_NAME_MAX of shadow's groupadd

template <class T>
const T* As(const ConfigValue& value) {
  return std::get_if<T>(&value.data);
}

// A TOML string; `text` is UTF-8 without control characters. C's escapes are not TOML's.
inline std::string TomlString(absl::string_view text) {
  return absl::StrCat("\"", absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"\"", "\\\""}}), "\"");
}

// A key whose TOML value is read by `read` (const ConfigValue& -> std::optional of the field's type) and so on.
template <class Field, class Read, class Holds, class Print>
ConfigKey MakeKey(absl::string_view section, absl::string_view name, Field field, bool is_text, std::string allowed,
                  Read read, Holds holds, Print print) {
  return {.section = section,
          .name = name,
          .is_text = is_text,
          .allowed = std::move(allowed),
          .assign =
              [field, read](const ConfigValue& value, Options* options) {
                auto result = read(value);
                if (!result) return false;
                field(*options) = *std::move(result);
                return true;
              },
          .holds = [field, holds](const Options& options) { return holds(field(options)); },
          .print = [field, print](const Options& options) { return print(field(options)); },
          .copy = [field](const Options& from, Options* to) { field(*to) = field(from); }};
}

inline std::optional<std::string> ReadText(const ConfigValue& value) {
  const std::string* text = As<std::string>(value);
  return text == nullptr ? std::nullopt : std::optional(*text);
}

template <class Field>
ConfigKey Path(absl::string_view section, absl::string_view name, Field field, size_t length_max) {
  return MakeKey(
      section, name, field, true,
      absl::StrCat("an absolute path of at most ", length_max, " bytes of UTF-8, or \"\" for the default"), ReadText,
      [length_max](const std::string& path) {
        return path.empty() || (path[0] == '/' && path.size() <= length_max && IsUtf8(path) &&
                                std::none_of(path.begin(), path.end(), absl::ascii_iscntrl));
      },
      [](const std::string& path) { return TomlString(path); });
}

// Absolute paths, separated by ':'.
template <class Field>
ConfigKey Paths(absl::string_view section, absl::string_view name, Field field, size_t length_max) {
  return MakeKey(
      section, name, field, true,
      absl::StrCat("absolute paths, separated by ':', at most ", length_max,
                   " bytes of UTF-8 in all, or \"\" for the default"),
      ReadText,
      [length_max](const std::string& paths) {
        const std::vector<absl::string_view> parts = absl::StrSplit(paths, ':');
        return paths.empty() ||
               (paths.size() <= length_max && IsUtf8(paths) &&
                std::none_of(paths.begin(), paths.end(), absl::ascii_iscntrl) &&
                std::all_of(parts.begin(), parts.end(), [](absl::string_view path) { return absl::StartsWith(path, "/"); }));
      },
      [](const std::string& paths) { return TomlString(paths); });
}

template <class Field>
ConfigKey Address(absl::string_view section, absl::string_view name, Field field) {
  return MakeKey(
      section, name, field, true,
      "an IP address and a port from 1 on, such as \"127.0.0.1:9415\" or \"[::1]:9415\", or \"\" for none", ReadText,
      [](const std::string& text) { return text.empty() || ParseListenAddress(text).has_value(); },
      [](const std::string& text) { return TomlString(text); });
}

template <class Field>
ConfigKey RemoteStore(absl::string_view section, absl::string_view name, Field field) {
  return MakeKey(
      section, name, field, true,
      "\"redis://HOST:PORT[/DATABASE]\", \"rediss://...\" by TLS, \"redis:///PATH/TO/SOCKET\", \"file:///DIRECTORY\", "
      "\"s3://BUCKET[/PREFIX]\", or \"\" for none; passwords belong in remote.credentials_file",
      ReadText, [](const std::string& text) { return text.empty() || RemoteUrl::Parse(text).ok(); },
      [](const std::string& text) { return TomlString(text); });
}

template <class Field>
ConfigKey S3Endpoint(absl::string_view section, absl::string_view name, Field field) {
  return MakeKey(
      section, name, field, true,
      "\"http://HOST[:PORT]\" or \"https://HOST[:PORT]\" without a path, or \"\" for the default", ReadText,
      [](const std::string& text) {
        absl::string_view host = text;
        if (!absl::ConsumePrefix(&host, "http://")) absl::ConsumePrefix(&host, "https://");
        return text.empty() ||
               (host.size() < text.size() && !host.empty() && std::all_of(host.begin(), host.end(), [](char c) {
                  return absl::ascii_isgraph(static_cast<unsigned char>(c)) && c != '/' && c != '@' && c != '"' && c != '\\';
                }));
      },
      [](const std::string& text) { return TomlString(text); });
}

template <class Field>
ConfigKey Name(absl::string_view section, absl::string_view name, Field field) {
  return MakeKey(
      section, name, field, true, "1 to 64 letters, digits, '.', '_' and '-'", ReadText,
      [](const std::string& text) { return IsTenantName(text); }, [](const std::string& text) { return TomlString(text); });
}

template <class Field>
ConfigKey Group(absl::string_view section, absl::string_view name, Field field) {
  return MakeKey(
      section, name, field, true, "the name of a group, or \"\" for the daemon's own", ReadText,
      [](const std::string& group) {
        return group.size() <= kGroupNameMax && std::all_of(group.begin(), group.end(), [](char c) {
                 return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
               });
      },
      [](const std::string& group) { return TomlString(group); });
}

template <class Field>
ConfigKey NodeName(absl::string_view section, absl::string_view name, Field field) {
  return MakeKey(
      section, name, field, true, absl::StrCat(controller::kNodeNameAllowed, ", or \"\" for the default"), ReadText,
      [](const std::string& node) { return node.empty() || controller::IsNodeName(node); },
      [](const std::string& node) { return TomlString(node); });
}

template <class Field>
ConfigKey Choice(absl::string_view section, absl::string_view name, Field field, std::vector<absl::string_view> choices) {
  return MakeKey(
      section, name, field, true,
      absl::StrJoin(choices, ", ",
                    [](std::string* out, absl::string_view choice) { absl::StrAppend(out, "\"", choice, "\""); }),
      ReadText,
      [choices](const std::string& text) { return std::find(choices.begin(), choices.end(), text) != choices.end(); },
      [](const std::string& text) { return TomlString(text); });
}

template <class Field>
ConfigKey Flag(absl::string_view section, absl::string_view name, Field field) {
  return MakeKey(
      section, name, field, false, "true, false",
      [](const ConfigValue& value) {
        const bool* flag = As<bool>(value);
        return flag == nullptr ? std::nullopt : std::optional(*flag);
      },
      [](bool) { return true; }, [](bool flag) { return flag ? "true" : "false"; });
}

template <class Number, class Field>
ConfigKey Integer(absl::string_view section, absl::string_view name, Field field, Number min, Number max,
                  absl::string_view note = "") {
  return MakeKey(
      section, name, field, false, absl::StrCat("an integer from ", min, " to ", max, note),
      [](const ConfigValue& value) -> std::optional<Number> {
        const int64_t* number = As<int64_t>(value);
        if (number == nullptr || !std::in_range<Number>(*number)) return std::nullopt;
        return static_cast<Number>(*number);
      },
      [min, max](Number number) { return number >= min && number <= max; },
      [](Number number) { return absl::StrCat(number); });
}

template <class Field>
ConfigKey Mode(absl::string_view section, absl::string_view name, Field field) {
  return MakeKey(
      section, name, field, true, "an octal file mode as a string, \"0600\" to \"0777\", that lets the owner read and write",
      [](const ConfigValue& value) -> std::optional<uint32_t> {
        const std::string* text = As<std::string>(value);
        if (text == nullptr || text->size() < 3 || text->size() > 4) return std::nullopt;
        uint32_t mode = 0;
        for (const char digit : *text) {
          if (digit < '0' || digit > '7') return std::nullopt;
          mode = mode * 8 + static_cast<uint32_t>(digit - '0');
        }
        return mode;
      },
      [](uint32_t mode) { return mode <= 0777 && (mode & 0600) == 0600; },
      [](uint32_t mode) { return absl::StrFormat("\"%04o\"", mode); });
}

inline std::optional<Bytes> ReadBytes(const ConfigValue& value) {
  if (const int64_t* number = As<int64_t>(value)) {
    return *number < 0 ? std::nullopt : std::optional(Bytes{static_cast<uint64_t>(*number)});
  }
  const std::string* text = As<std::string>(value);
  return text == nullptr ? std::nullopt : ParseBytes(*text);
}

struct SizeRange {
  Bytes min;
  Bytes max;
  Bytes multiple{1};
};

// A size of which 0 means that the daemon chooses.
template <class Field>
ConfigKey Size(absl::string_view section, absl::string_view name, Field field, SizeRange range) {
  const std::string multiple = range.multiple > Bytes{1} ? absl::StrCat(", a multiple of ", PrintBytes(range.multiple)) : "";
  return MakeKey(
      section, name, field, false,
      absl::StrCat("bytes, or a string with a unit such as \"4GiB\" (B, KiB, MiB, GiB, TiB), from ", PrintBytes(range.min),
                   " to ", PrintBytes(range.max), multiple, "; 0 for the default"),
      ReadBytes,
      [range](Bytes bytes) {
        return bytes == Bytes{} || (bytes >= range.min && bytes <= range.max && bytes.value % range.multiple.value == 0);
      },
      [](Bytes bytes) { return bytes == Bytes{} ? "0" : absl::StrCat("\"", PrintBytes(bytes), "\""); });
}

template <class Field>
ConfigKey Duration(absl::string_view section, absl::string_view name, Field field, absl::Duration min, absl::Duration max) {
  return MakeKey(
      section, name, field, true,
      absl::StrCat("a string with a unit such as \"60s\" or \"500ms\" (ms, s, m, h), from ", absl::FormatDuration(min),
                   " to ", absl::FormatDuration(max)),
      [](const ConfigValue& value) -> std::optional<absl::Duration> {
        const std::string* text = As<std::string>(value);
        absl::Duration duration;
        if (text == nullptr || !absl::ParseDuration(*text, &duration)) return std::nullopt;
        return duration;
      },
      [min, max](absl::Duration duration) { return duration >= min && duration <= max; },
      [](absl::Duration duration) { return absl::StrCat("\"", absl::FormatDuration(duration), "\""); });
}

template <class Field>
ConfigKey Share(absl::string_view section, absl::string_view name, Field field) {
  return MakeKey(
      section, name, field, false, "a number above 0 and at most 1",
      [](const ConfigValue& value) -> std::optional<double> {
        if (const double* number = As<double>(value)) return *number;
        if (const int64_t* number = As<int64_t>(value)) return static_cast<double>(*number);
        return std::nullopt;
      },
      [](double share) { return share > 0 && share <= 1; },  // not a NaN either
      [](double share) {
        const std::string text = absl::StrFormat("%.17g", share);
        return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;
      });
}

template <class Field>
ConfigKey CpuList(absl::string_view section, absl::string_view name, Field field) {
  return MakeKey(
      section, name, field, false, absl::StrCat("a list of CPU numbers such as [0, 1], each from 0 to ", CPU_SETSIZE - 1),
      [](const ConfigValue& value) -> std::optional<std::vector<int>> {
        const auto* numbers = As<std::vector<int64_t>>(value);
        if (numbers == nullptr || !std::all_of(numbers->begin(), numbers->end(), std::in_range<int, int64_t>))
          return std::nullopt;
        return std::vector<int>(numbers->begin(), numbers->end());
      },
      [](const std::vector<int>& cpus) {
        return std::all_of(cpus.begin(), cpus.end(), [](int c) { return c >= 0 && c < CPU_SETSIZE; });
      },
      [](const std::vector<int>& cpus) { return absl::StrCat("[", absl::StrJoin(cpus, ", "), "]"); });
}

// A map of Options; `key_holds` says which keys there may be, the rest is as for MakeKey.
template <class Field, class Read, class Holds, class Print>
ConfigMap MakeMap(absl::string_view section, Field field, bool is_text, absl::string_view key_noun, std::string key_allowed,
                  std::function<bool(absl::string_view)> key_holds, std::string value_allowed, Read read, Holds holds,
                  Print print) {
  return {.section = section,
          .key_noun = key_noun,
          .is_text = is_text,
          .key_allowed = std::move(key_allowed),
          .value_allowed = std::move(value_allowed),
          .key_holds = std::move(key_holds),
          .assign =
              [field, read, holds](const std::string& key, const ConfigValue& value, Options* options) {
                auto result = read(value);
                if (!result || !holds(*result)) return false;
                field(*options)[key] = *std::move(result);
                return true;
              },
          .holds = [field, holds](const std::string& key, const Options& options) { return holds(field(options).at(key)); },
          .print =
              [field, print](const Options& options) {
                std::map<std::string, std::string> printed;
                for (const auto& [key, value] : field(options)) printed[key] = print(value);
                return printed;
              },
          .copy = [field](const Options& from, Options* to) { field(*to) = field(from); }};
}

}  // namespace kvist::daemon

#endif  // KVIST_DAEMON_CONFIG_KINDS_H_

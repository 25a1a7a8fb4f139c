#include "daemon/config_keys.h"

#include <sched.h>
#include <sys/un.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "daemon/listen_address.h"

namespace kvist::daemon {
namespace {

// A path of a unix socket ends with a zero in sockaddr_un.
constexpr size_t kSocketPathMax = sizeof(sockaddr_un::sun_path) - 1;
constexpr size_t kPathMax = 4095;      // PATH_MAX less its zero
constexpr size_t kGroupNameMax = 32;   // LOGIN_NAME_MAX of shadow's groupadd
constexpr size_t kTenantNameMax = 64;  // stands in tables and metrics

// "section", "name", and a lambda that finds the field in a const or other Options: so no name is written twice.
#define KVIST_FIELD(section, name) \
#section, #name, [](auto& o) -> auto& { return o.section.name; }

template <class T>
const T* As(const ConfigValue& value) {
  return std::get_if<T>(&value.data);
}

std::string Quote(absl::string_view text) { return absl::StrCat("\"", absl::Utf8SafeCEscape(text), "\""); }

// A TOML string; `text` is UTF-8 without control characters. C's escapes are not TOML's.
std::string TomlString(absl::string_view text) {
  return absl::StrCat("\"", absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"\"", "\\\""}}), "\"");
}

// Whether a TOML file can hold the text.
bool IsUtf8(absl::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  for (size_t i = 0; i < text.size();) {
    const unsigned first = byte(i);
    const size_t length = first < 0x80 ? 1 : first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
    if (length == 0) return false;
    for (size_t k = 1; k < length; ++k) {
      if ((byte(i + k) & 0xc0) != 0x80) return false;
    }
    const unsigned second = byte(i + 1);
    const bool overlong = (first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90);
    const bool no_character = (first == 0xed && second >= 0xa0) || (first == 0xf4 && second >= 0x90);
    if (overlong || no_character) return false;
    i += length;
  }
  return true;
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

std::optional<std::string> ReadText(const ConfigValue& value) {
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

template <class Field>
ConfigKey Address(absl::string_view section, absl::string_view name, Field field) {
  return MakeKey(
      section, name, field, true,
      "an IP address and a port from 1 on, such as \"127.0.0.1:9415\" or \"[::1]:9415\", or \"\" for none", ReadText,
      [](const std::string& text) { return text.empty() || ParseListenAddress(text).has_value(); },
      [](const std::string& text) { return TomlString(text); });
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

struct ByteUnit {
  absl::string_view name;
  uint64_t bytes;
};
constexpr ByteUnit kByteUnits[] = {
    {"TiB", 1ull << 40}, {"GiB", 1ull << 30}, {"MiB", 1ull << 20}, {"KiB", 1ull << 10}, {"B", 1}};

std::optional<Bytes> ReadBytes(const ConfigValue& value) {
  if (const int64_t* number = As<int64_t>(value)) {
    return *number < 0 ? std::nullopt : std::optional(Bytes{static_cast<uint64_t>(*number)});
  }
  const std::string* text = As<std::string>(value);
  if (text == nullptr) return std::nullopt;
  const size_t digits = std::min(text->find_first_not_of("0123456789"), text->size());
  const absl::string_view unit_name = absl::StripLeadingAsciiWhitespace(absl::string_view(*text).substr(digits));
  uint64_t count = 0;
  if (!absl::SimpleAtoi(absl::string_view(*text).substr(0, digits), &count)) return std::nullopt;
  for (const ByteUnit& unit : kByteUnits) {
    if (unit_name != unit.name) continue;
    if (count > std::numeric_limits<uint64_t>::max() / unit.bytes) return std::nullopt;
    return Bytes{count * unit.bytes};
  }
  return std::nullopt;
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

template <class Row>
Row Live(std::string about, Row key) {
  key.about = std::move(about);
  key.live = true;
  return key;
}

// The smallest slot: less could hold nothing. And what a pool may have.
constexpr Bytes kQuotaMin = kPageOfMemory;
constexpr Bytes kQuotaMax = GiB(16384);

std::string QuotaAllowed() {
  return absl::StrCat("bytes, or a string with a unit such as \"8GiB\" (B, KiB, MiB, GiB, TiB), from ",
                      PrintBytes(kQuotaMin), " to ", PrintBytes(kQuotaMax));
}

// "uid:N", the tenant of a uid that has no other.
bool IsUidTenant(absl::string_view name) { return absl::ConsumePrefix(&name, "uid:") && IsTenantUid(name); }

ConfigKey AtStart(std::string about, ConfigKey key) {
  key.about = std::move(about);
  return key;
}

}  // namespace

std::string FullName(const ConfigKey& key) { return absl::StrCat(key.section, ".", key.name); }

std::string FullName(const ConfigMap& map, absl::string_view key) { return absl::StrCat(map.section, ".", TomlKey(key)); }

std::string TomlKey(absl::string_view key) {
  const bool bare = !key.empty() && std::all_of(key.begin(), key.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-';
  });
  return bare ? std::string(key) : Quoted(key);
}

std::string PrintBytes(Bytes bytes) {
  for (const ByteUnit& unit : kByteUnits) {
    if (bytes.value > 0 && bytes.value % unit.bytes == 0) return absl::StrCat(bytes.value / unit.bytes, unit.name);
  }
  return absl::StrCat(bytes.value, "B");
}

const std::vector<ConfigKey>& ConfigKeys() {
  static const auto* const keys = new std::vector<ConfigKey>{
      AtStart("A directory of this daemon's own, locked while it runs. Default: /var/lib/kvist for root, else "
              "$XDG_STATE_HOME/kvist or ~/.local/state/kvist.",
              Path(KVIST_FIELD(daemon, state_dir), kPathMax)),

      AtStart("Engines connect here. Default: /run/kvist/engine.sock for root, else $XDG_RUNTIME_DIR/kvist/engine.sock or "
              "/tmp/kvist-UID/engine.sock.",
              Path(KVIST_FIELD(session, socket), kSocketPathMax)),
      AtStart("Mode of the engines' socket: whoever may write to it may connect.", Mode(KVIST_FIELD(session, socket_mode))),
      AtStart("Group of the engines' socket; kvistd must be a member of it.", Group(KVIST_FIELD(session, socket_group))),
      // One descriptor each, and systemd's LimitNOFILE is larger.
      Live("How many sockets of engines may be open at a time, half-open ones too. A session takes 5 MiB. Lowering it ends "
           "none that is there.",
           Integer<uint32_t>(KVIST_FIELD(session, connections_max), 1, 65536)),
      AtStart("How many of them one user may have, so that no user can take all.",
              Integer<uint32_t>(KVIST_FIELD(session, connections_per_uid), 1, 65536)),
      AtStart("Pins the thread that owns the index; for benchmarks.",
              Integer<int32_t>(KVIST_FIELD(session, reactor_cpu), -1, CPU_SETSIZE - 1, "; -1 leaves it to the kernel")),

      AtStart("kvistctl connects here. Default: admin.sock in the directory where the engines' socket is by default.",
              Path(KVIST_FIELD(admin, socket), kSocketPathMax)),
      AtStart("Mode of the operators' socket: whoever may write to it may clear the cache.",
              Mode(KVIST_FIELD(admin, socket_mode))),
      AtStart("Group of the operators' socket; kvistd must be a member of it.", Group(KVIST_FIELD(admin, socket_group))),

      // One smallest slot; what SlotAllocator can number.
      AtStart("Memory for KV. Default: a quarter of what is available at the start, cgroups' limits counted.",
              Size(KVIST_FIELD(pool, bytes), {.min = kPageOfMemory, .max = GiB(16384)})),
      AtStart(
          "What moves between sizes of slots; holds at least one slot of every engine's chunks. Default: 64 MiB, less for "
          "a pool below 1 GiB.",
          Size(KVIST_FIELD(pool, slab_bytes), {.min = kPageOfMemory, .max = GiB(16), .multiple = kPageOfMemory})),
      AtStart("Threads that touch the pool's memory after the start, at the lowest priority; 0 leaves it to first use.",
              Integer<uint32_t>(KVIST_FIELD(pool, touch_threads), 0, 256)),
      AtStart("Locks the pool's memory where the limits allow it, so that it is never swapped out.",
              Flag(KVIST_FIELD(pool, lock))),
      AtStart("Whether each load checks that the pool's bytes are what was stored: a chunk whose aren't fails that load, "
              "and is never served "
              "again. \"never\" trusts ECC memory, and that kvistd itself never mixes up chunks; \"always\" is for memory "
              "without ECC, at "
              "the cost of a checksum a load.",
              Choice(KVIST_FIELD(pool, verify), {"never", "always"})),

      // The most that the shared-memory engine takes.
      AtStart(
          "Threads that copy for engines on CPUs. More copy faster until memory is the limit, and take cores from engines.",
          Integer<uint32_t>(KVIST_FIELD(copy, threads), 1, 256)),
      AtStart("Pins those threads; for benchmarks.", CpuList(KVIST_FIELD(copy, cpus))),

      Live("A lease lasts at most so long. Longer: an engine that forgets to release keeps memory longer. Those that were "
           "granted before a change stay.",
           Duration(KVIST_FIELD(lease, max), absl::Milliseconds(1), absl::Hours(24))),
      Live("What the leases of one engine may keep, as a share of the pool.", Share(KVIST_FIELD(lease, share))),
      Live("A chunk that not all ranks have stored goes after so long.",
           Duration(KVIST_FIELD(lease, half_store), absl::Milliseconds(1), absl::Hours(24))),

      Live("What the pins of one tenant may keep, as a share of its quota (without one: of the pool).",
           Share(KVIST_FIELD(pin, share))),
      Live("What the private allocations of one engine may take (KV that it swaps out), as a share of the pool.",
           Share(KVIST_FIELD(swap, share))),

      AtStart("Prometheus and health checks read here, without a password: /metrics, /livez, /readyz. \"\" switches it off.",
              Address(KVIST_FIELD(metrics, listen))),
      AtStart("Whether metrics.listen may be an address that other machines reach.",
              Flag(KVIST_FIELD(metrics, allow_remote))),
      AtStart("How many of the tenants that [tenants] names have series of their own; all others are summed as one.",
              Integer<uint32_t>(KVIST_FIELD(metrics, tenants_max), 0, 1000)),

      Live("What is logged: this level and those that matter more.",
           Choice(KVIST_FIELD(log, level), {"trace", "debug", "info", "warn", "error"})),
      Live("Lines of the log: text for people, json for programs.", Choice(KVIST_FIELD(log, format), {"text", "json"})),
  };
  return *keys;
}

const std::vector<ConfigMap>& ConfigMaps() {
  static const auto* const maps = new std::vector<ConfigMap>{
      // For engines that connect from then on.
      Live("Users (uids) that share KV: those of one tenant. A uid that isn't listed is a tenant of its own, \"uid:N\".",
           MakeMap(
               "tenants", [](auto& o) -> auto& { return o.tenants; }, true, "UID", "a uid in decimal, 0 to 4294967294",
               IsTenantUid, "a string of 1 to 64 letters, digits, '.', '_' and '-'", ReadText,
               [](const std::string& name) { return IsTenantName(name); },
               [](const std::string& name) { return TomlString(name); })),
      Live("How much of the pool a tenant may have; without a quota, all of it. At its quota a tenant evicts its own "
           "chunks. A "
           "reload also ends what `kvistctl quota set` has set.",
           MakeMap(
               "quotas", [](auto& o) -> auto& { return o.quotas; }, false, "TENANT",
               "a tenant that [tenants] names, or \"uid:N\" in quotes for a uid that it doesn't",
               [](absl::string_view name) { return IsTenantName(name) || IsUidTenant(name); }, QuotaAllowed(), ReadBytes,
               [](Bytes quota) { return CheckQuota(quota).empty(); },
               [](Bytes quota) { return absl::StrCat("\"", PrintBytes(quota), "\""); })),
  };
  return *maps;
}

bool IsTenant(absl::string_view name, const std::map<std::string, std::string>& tenants) {
  return IsUidTenant(name) ||
         std::any_of(tenants.begin(), tenants.end(), [name](const auto& tenant) { return tenant.second == name; });
}

std::string CheckQuota(Bytes bytes) { return bytes < kQuotaMin || bytes > kQuotaMax ? QuotaAllowed() : ""; }

bool IsTenantUid(absl::string_view text) {
  uint32_t uid = 0;
  return absl::SimpleAtoi(text, &uid) && absl::StrCat(uid) == text && uid != std::numeric_limits<uint32_t>::max();
}

bool IsTenantName(absl::string_view text) {
  return !text.empty() && text.size() <= kTenantNameMax && std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
  });
}

std::optional<ConfigProblem> FindContradiction(const Options& options) {
  const Options::Pool& pool = options.pool;
  if (pool.bytes != Bytes{} && pool.slab_bytes > pool.bytes) {
    return ConfigProblem{
        "pool", "slab_bytes",
        absl::StrCat(PrintBytes(pool.slab_bytes), "; allowed: at most pool.bytes, ", PrintBytes(pool.bytes))};
  }
  if (!options.admin.socket.empty() && options.admin.socket == options.session.socket) {
    return ConfigProblem{"admin", "socket",
                         absl::StrCat(Quoted(options.admin.socket), "; allowed: another path than session.socket")};
  }
  for (const auto& [tenant, quota] : options.quotas) {
    if (IsTenant(tenant, options.tenants)) continue;
    return ConfigProblem{"quotas", tenant,
                         absl::StrCat("no engine can be of this tenant; allowed: one that [tenants] gives to a uid, or "
                                      "\"uid:N\" in quotes for a uid that it doesn't name")};
  }
  const std::optional<ListenAddress> metrics = ParseListenAddress(options.metrics.listen);
  if (metrics.has_value() && !metrics->loopback && !options.metrics.allow_remote) {
    return ConfigProblem{
        "metrics", "listen",
        absl::StrCat(Quoted(options.metrics.listen),
                     "; allowed: a loopback address, because whoever reaches it may read without a password; "
                     "metrics.allow_remote = true allows others")};
  }
  return std::nullopt;
}

std::vector<std::string> ConfigWarnings(const Options& options) {
  std::vector<std::string> warnings;
  for (const auto& [tenant, quota] : options.quotas) {
    const absl::string_view uid = absl::StripPrefix(tenant, "uid:");
    if (const auto other = options.tenants.find(std::string(uid)); uid != tenant && other != options.tenants.end()) {
      warnings.push_back(absl::StrCat("quotas.", TomlKey(tenant), ": uid ", uid, " is of tenant ", other->second,
                                      ", so nobody is of this one"));
    }
    if (quota <= options.pool.bytes) continue;
    warnings.push_back(absl::StrCat("quotas.", TomlKey(tenant), ": ", PrintBytes(quota), " is more than the whole pool, ",
                                    PrintBytes(options.pool.bytes), ", and limits nothing"));
  }
  return warnings;
}

std::string Quoted(absl::string_view text) {
  constexpr size_t kShown = 80;
  return Quote(text.substr(0, kShown)) + (text.size() > kShown ? "..." : "");
}

}  // namespace kvist::daemon

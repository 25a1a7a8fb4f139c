#include "daemon/config_keys.h"

#include <sched.h>
#include <sys/un.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "daemon/config_kinds.h"
#include "daemon/rpc/client_name.h"
#include "storage/base/byte_text.h"

namespace kvist::daemon {
namespace {

// A path of a unix socket ends with a zero in sockaddr_un.
constexpr size_t kSocketPathMax = sizeof(sockaddr_un::sun_path) - 1;
constexpr size_t kPathMax = 4095;      // PATH_MAX less its zero
constexpr size_t kTenantNameMax = 64;  // stands in tables and metrics

// "section", "name", and a lambda that finds the field in a const or other Options: so no name is written twice.
#define KVIST_FIELD(section, name) \
#section, #name, [](auto& o) -> auto& { return o.section.name; }

template <class Row>
Row Live(std::string about, Row key) {
  key.about = std::move(about);
  key.live = true;
  return key;
}

// Four of the smallest segments (ssd_options.h).
constexpr Bytes kSsdMin = MiB(64);
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
  return bare ? std::string(key) : TomlString(key);
}

const std::vector<ConfigKey>& ConfigKeys() {
  static const auto* const keys = new std::vector<ConfigKey>{
      AtStart("A directory of this daemon's own, locked while it runs. Default: /var/lib/kvist for root, else "
              "$XDG_STATE_HOME/kvist or ~/.local/state/kvist.",
              Path(KVIST_FIELD(daemon, state_dir), kPathMax)),
      AtStart("What the controller API on this daemon's admin socket calls it; a kvist-controller has names of its own. "
              "Default: the host's name.",
              NodeName(KVIST_FIELD(daemon, node))),

      AtStart("Engines connect here. Default: /run/kvist/engine.sock for root, else $XDG_RUNTIME_DIR/kvist/engine.sock or "
              "/tmp/kvist-UID/engine.sock.",
              Path(KVIST_FIELD(session, socket), kSocketPathMax)),
      AtStart("Mode of the engines' socket: whoever may write to it may connect.", Mode(KVIST_FIELD(session, socket_mode))),
      AtStart("Group of the engines' socket; kvistd must be a member of it.", Group(KVIST_FIELD(session, socket_group))),
      // One descriptor each, and systemd's LimitNOFILE is larger.
      Live("How many sockets of engines may be open at a time, half-open ones too. A session takes 5 MiB. Lowering it ends "
           "none that is there.",
           Integer<uint32_t>(KVIST_FIELD(session, connections_max), 1, 65536)),
      AtStart("How many of them one user may have, and never more than half, so that no user can take all.",
              Integer<uint32_t>(KVIST_FIELD(session, connections_per_uid), 1, 65536)),
      AtStart("Pins the thread that owns the index; for benchmarks.",
              Integer<int32_t>(KVIST_FIELD(session, reactor_cpu), -1, CPU_SETSIZE - 1, "; -1 leaves it to the kernel")),

      AtStart("kvistctl connects here. Default: admin.sock in the directory where the engines' socket is by default.",
              Path(KVIST_FIELD(admin, socket), kSocketPathMax)),
      AtStart("Mode of the operators' socket: whoever may write to it may clear the cache.",
              Mode(KVIST_FIELD(admin, socket_mode))),
      AtStart("Group of the operators' socket; kvistd must be a member of it.", Group(KVIST_FIELD(admin, socket_group))),
      AtStart("The same API over TCP, for other machines: an IP address and a port. 0.0.0.0 is every address of IPv4, [::] "
              "of IPv6 and IPv4. By TLS only, so it takes all three files of [tls], and for "
              "clients that "
              "[roles] names. \"\" switches it off.",
              Address(KVIST_FIELD(admin, listen))),

      AtStart("A file with this kvistd's certificate, and those between it and its CA (PEM). It, the key and ca_file are "
              "looked at "
              "again every few seconds: new ones need no restart, and ones that don't fit each other are left alone, with a "
              "warning.",
              Path(KVIST_FIELD(tls, certificate_file), kPathMax)),
      AtStart("A file with that certificate's key (PEM, without a password), closed to other users.",
              Path(KVIST_FIELD(tls, key_file), kPathMax)),
      AtStart("A file of certificates (PEM) by which those of clients have to be signed.",
              Path(KVIST_FIELD(tls, ca_file), kPathMax)),

      // One smallest slot; what SlotAllocator can number.
      AtStart("Memory for KV. Default: a quarter of what is available at the start, cgroups' limits counted; or as much as "
              "was kept "
              "(pool.keep).",
              Size(KVIST_FIELD(pool, bytes), {.min = kPageOfMemory, .max = GiB(16384)})),
      AtStart(
          "What moves between sizes of slots; holds at least one slot of every engine's chunks. Default: 64 MiB, less for "
          "a pool below 1 GiB.",
          Size(KVIST_FIELD(pool, slab_bytes), {.min = kPageOfMemory, .max = GiB(16), .multiple = kPageOfMemory})),
      AtStart("Threads of each NUMA node that touch the pool's memory after the start, at the lowest priority; 0 leaves it "
              "to first use.",
              Integer<uint32_t>(KVIST_FIELD(pool, touch_threads), 0, 256)),
      AtStart("Locks the pool's memory where the limits allow it, so that it is never swapped out.",
              Flag(KVIST_FIELD(pool, lock))),
      AtStart("Whether what the pool holds outlives kvistd, where a service manager keeps files for it (systemd: "
              "FileDescriptorStoreMax). \"auto\": unless the pool would lose its huge pages by that, which "
              "/sys/kernel/mm/transparent_hugepage/shmem_enabled decides; \"always\": then, too, and copies for engines on "
              "CPUs are up "
              "to a sixth slower.",
              Choice(KVIST_FIELD(pool, keep), {"auto", "always", "never"})),
      AtStart("Whether each load checks that the pool's bytes are what was stored: a chunk whose aren't fails that load, "
              "and is never served "
              "again. \"never\" trusts ECC memory, and that kvistd itself never mixes up chunks; \"always\" is for memory "
              "without ECC, at "
              "the cost of a checksum a load.",
              Choice(KVIST_FIELD(pool, verify), {"never", "always"})),

      AtStart("Whether KV is kept on disk, too: what the pool has no room for is found there, and what was flushed survives "
              "kvistd.",
              Flag(KVIST_FIELD(ssd, enabled))),
      AtStart(
          "Where: one or more directories, separated by ':', each on a disk of its own; in the same order at each start. "
          "Default: \"ssd\" in daemon.state_dir.",
          Paths(KVIST_FIELD(ssd, path), kPathMax)),
      // The smallest tier that there is (ssd_options.h); what places can name.
      AtStart("Disk space for KV, all directories together. Default: a tenth of what is free there at the start, or what it "
              "has there already.",
              Size(KVIST_FIELD(ssd, capacity), {.min = kSsdMin, .max = GiB(1024) * 1024})),
      AtStart("How much is written to each disk in a second at most; 0 for no limit. Less spares flash; what isn't written "
              "before its slot is needed is dropped.",
              Size(KVIST_FIELD(ssd, write_rate), {.min = MiB(1), .max = GiB(1024)})),
      AtStart(
          "How often all that was written is read again, slowly, so that what a disk loses is found before an engine asks "
          "for it; 0 for never.",
          Duration(KVIST_FIELD(ssd, scrub_every), absl::ZeroDuration(), absl::Hours(24 * 365))),
      AtStart("Whether KV on disk is left alone where the engine computes it sooner than it would be read, by what the "
              "engine reports and "
              "how fast the disk is; if not it is always read.",
              Flag(KVIST_FIELD(ssd, gate))),
      AtStart("How long a clean stop may write what isn't on disk yet; 0 to write nothing.",
              Duration(KVIST_FIELD(ssd, stop_flush), absl::ZeroDuration(), absl::Hours(1))),

      AtStart(
          "A store beyond this node, in which nodes share KV: \"redis://HOST:PORT[/DATABASE]\" (of a cluster: any of its "
          "servers; rediss:// by TLS, redis:///PATH/TO/SOCKET), \"file:///DIRECTORY\" (NFS, say), \"s3://BUCKET[/PREFIX]\"; "
          "\"\" for none.",
          RemoteStore(KVIST_FIELD(remote, store))),
      AtStart("That tier's name: operators call it remote:NAME.", Name(KVIST_FIELD(remote, name))),
      AtStart(
          "A file of 64 hexadecimal digits, the same on all nodes that share the store: names there are made with it, and "
          "encryption. Default: remote.secret in daemon.state_dir, made at the first start; then no other node finds what "
          "this one "
          "stores.",
          Path(KVIST_FIELD(remote, secret_file), kPathMax)),
      AtStart("A file with the store's user and password, or its access and secret key, readable by kvistd alone.",
              Path(KVIST_FIELD(remote, credentials_file), kPathMax)),
      AtStart("A file of certificates (PEM) that the store's has to be signed by. Default: those of the system.",
              Path(KVIST_FIELD(remote, ca_file), kPathMax)),
      AtStart("Whether KV is encrypted there (AES-256-GCM, by the secret). Without, whoever may write to the store may "
              "forge it.",
              Flag(KVIST_FIELD(remote, encrypt))),
      AtStart("Whether KV is encoded there without loss (storage/codec): a third less of it, at the price of a core's time.",
              Choice(KVIST_FIELD(remote, codec), {"none", "lossless"})),
      AtStart("How long a lookup waits for the store at most, where not all is found on this node.",
              Duration(KVIST_FIELD(remote, lookup_wait), absl::Milliseconds(1), absl::Seconds(10))),
      AtStart("How long reading may take; then the load fails, and the engine computes.",
              Duration(KVIST_FIELD(remote, read_timeout), absl::Milliseconds(10), absl::Seconds(30))),
      AtStart("How long writing may take; as long its slots are held.",
              Duration(KVIST_FIELD(remote, write_timeout), absl::Milliseconds(10), absl::Seconds(30))),
      AtStart("How much is read and written there in a second at most; 0 for no limit.",
              Size(KVIST_FIELD(remote, rate), {.min = MiB(1), .max = GiB(1024)})),
      AtStart("Redis: what was written goes by itself after so long; 0 for never.",
              Duration(KVIST_FIELD(remote, expire_after), absl::ZeroDuration(), absl::Hours(24 * 365))),
      AtStart("S3: where, such as \"https://minio.example:9000\". Default: AWS's, in the region.",
              S3Endpoint(KVIST_FIELD(remote, s3_endpoint))),
      AtStart("S3: the region that requests are signed for.", Name(KVIST_FIELD(remote, s3_region))),
      AtStart("S3: whether the bucket is in the path, not in the host's name; most stores but AWS want that.",
              Flag(KVIST_FIELD(remote, s3_path_style))),

      // The most that the shared-memory engine takes.
      AtStart(
          "Threads that copy for engines on CPUs. More copy faster until memory is the limit, and take cores from engines.",
          Integer<uint32_t>(KVIST_FIELD(copy, threads), 1, 256)),
      AtStart("Pins those threads; for benchmarks.", CpuList(KVIST_FIELD(copy, cpus))),
      AtStart(
          "Small pages of GPUs may go through 192 MiB of kvistd's on each GPU and be scattered there by its kernel, where "
          "kvistd finds that faster than page by page; "
          "false: never, and no kernel of an engine ever waits for it.",
          Flag(KVIST_FIELD(copy, gpu_kernel))),

      Live("A lease lasts at most so long. Longer: an engine that forgets to release keeps memory longer. Those that were "
           "granted before a change stay.",
           Duration(KVIST_FIELD(lease, max), absl::Milliseconds(1), absl::Hours(24))),
      Live("What the leases of one engine may keep, as a share of the pool.", Share(KVIST_FIELD(lease, share))),
      Live("A chunk that not all ranks have stored goes after so long.",
           Duration(KVIST_FIELD(lease, half_store), absl::Milliseconds(1), absl::Hours(24))),

      AtStart("Which chunks go when the pool is full: \"lhd\" those whose room is worth least, as chunks like them have "
              "shown; \"lru\" those "
              "that were used longest ago.",
              Choice(KVIST_FIELD(eviction, policy), {"lhd", "lru"})),

      Live("What the pins of one tenant may keep, as a share of its quota (without one: of what all quotas leave of the "
           "pool).",
           Share(KVIST_FIELD(pin, share))),
      Live("What the private allocations of one engine may take (KV that it swaps out), as a share of the pool; and those "
           "of a "
           "tenant, as a share of its quota (without one: of what all quotas leave of the pool).",
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
           "chunks. While all quotas together fit into the pool they are also kept for their tenants: a tenant "
           "that has no more than its quota loses nothing to others that have more than theirs, or none: those share "
           "what all quotas leave, and nothing while that is nothing and the pool is full. Quotas that are more than the "
           "pool only "
           "limit: then who uses most of his gives way. A "
           "reload also ends what `kvistctl quota set` has set.",
           MakeMap(
               "quotas", [](auto& o) -> auto& { return o.quotas; }, false, "TENANT",
               "a tenant that [tenants] names, or \"uid:N\" in quotes for a uid that it doesn't",
               [](absl::string_view name) { return IsTenantName(name) || IsUidTenant(name); }, QuotaAllowed(), ReadBytes,
               [](Bytes quota) { return CheckQuota(quota).empty(); },
               [](Bytes quota) { return absl::StrCat("\"", PrintBytes(quota), "\""); })),
      Live(
          "What clients may do that come over TCP (admin.listen), by a name in their certificates: \"read\" asks, "
          "\"operate\" also "
          "changes. One that isn't listed may do nothing, whoever has signed its certificate. On the socket its mode and "
          "group decide.",
          MakeMap(
              "roles", [](auto& o) -> auto& { return o.roles; }, true, "CLIENT", rpc::kClientNameAllowed, rpc::IsClientName,
              "\"read\", \"operate\"", ReadText, [](const std::string& role) { return role == "read" || role == "operate"; },
              [](const std::string& role) { return TomlString(role); })),
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

std::string WithoutSecrets(absl::string_view text) {
  const size_t colon = text.find(":/");
  if (colon == absl::string_view::npos) return std::string(text);
  const size_t begin = std::min(text.find_first_not_of('/', colon + 1), text.size());
  absl::string_view rest = text.substr(begin);
  std::string shown(text.substr(0, begin));
  if (const size_t at = rest.rfind('@'); at != absl::string_view::npos) {
    shown += "***";
    rest = rest.substr(at);
  }
  const size_t query = rest.find('?');
  return absl::StrCat(shown, rest.substr(0, query), query == absl::string_view::npos ? "" : "?***");
}

std::string Quoted(absl::string_view whole) {
  constexpr size_t kShown = 80;
  const std::string without = WithoutSecrets(whole);  // before it is cut: an '@' may be behind that
  const absl::string_view text = without;
  return absl::StrCat("\"", absl::Utf8SafeCEscape(text.substr(0, kShown)), "\"") + (text.size() > kShown ? "..." : "");
}

}  // namespace kvist::daemon

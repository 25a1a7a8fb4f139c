#include "daemon/config_rules.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "daemon/config_keys.h"
#include "daemon/endpoint/tls_files.h"
#include "daemon/listen_address.h"
#include "storage/base/byte_text.h"

namespace kvist::daemon {

endpoint::TlsFiles TlsFilesOf(const Options& options) {
  return {options.tls.certificate_file, options.tls.key_file, options.tls.ca_file};
}

std::vector<ConfigProblem> FindContradictions(const Options& options) {
  std::vector<ConfigProblem> problems;
  const Options::Pool& pool = options.pool;
  if (pool.bytes != Bytes{} && pool.slab_bytes > pool.bytes) {
    problems.push_back({"pool",
                        "slab_bytes",
                        absl::StrCat(PrintBytes(pool.slab_bytes), "; allowed: at most pool.bytes, ", PrintBytes(pool.bytes)),
                        {"pool.bytes"}});
  }
  if (!options.admin.socket.empty() && options.admin.socket == options.session.socket) {
    problems.push_back({"admin",
                        "socket",
                        absl::StrCat(Quoted(options.admin.socket), "; allowed: another path than session.socket"),
                        {"session.socket"}});
  }
  for (const auto& [tenant, quota] : options.quotas) {
    if (IsTenant(tenant, options.tenants)) continue;
    problems.push_back({"quotas",
                        tenant,
                        absl::StrCat("no engine can be of this tenant; allowed: one that [tenants] gives to a uid, or "
                                     "\"uid:N\" in quotes for a uid that it doesn't name"),
                        {"tenants"}});
  }
  if (const endpoint::TlsFiles files = TlsFilesOf(options); !options.admin.listen.empty() && !files.complete()) {
    problems.push_back({"admin",
                        "listen",
                        absl::StrCat(Quoted(options.admin.listen), "; allowed: \"\", as long as ", endpoint::Missing(files),
                                     " aren't there: over TCP kvistd serves by TLS only, to other machines and to its own"),
                        {"tls.certificate_file", "tls.key_file", "tls.ca_file"}});
  }
  const std::optional<ListenAddress> metrics = ParseListenAddress(options.metrics.listen);
  if (metrics.has_value() && !metrics->loopback && !options.metrics.allow_remote) {
    problems.push_back(
        {"metrics",
         "listen",
         absl::StrCat(Quoted(options.metrics.listen),
                      "; allowed: a loopback address, because whoever reaches it may read without a password; "
                      "metrics.allow_remote = true allows others"),
         {"metrics.allow_remote"}});
  }
  return problems;
}

std::vector<std::string> ConfigWarnings(const Options& options) {
  std::vector<std::string> warnings;
  double together = 0;  // might not fit into an integer
  for (const auto& [tenant, quota] : options.quotas) {
    together += static_cast<double>(quota.value);
    const absl::string_view uid = absl::StripPrefix(tenant, "uid:");
    if (const auto other = options.tenants.find(std::string(uid)); uid != tenant && other != options.tenants.end()) {
      warnings.push_back(absl::StrCat("quotas.", TomlKey(tenant), ": uid ", uid, " is of tenant ", other->second,
                                      ", so nobody is of this one"));
    }
    if (quota <= options.pool.bytes) continue;
    warnings.push_back(absl::StrCat("quotas.", TomlKey(tenant), ": ", PrintBytes(quota), " is more than the whole pool, ",
                                    PrintBytes(options.pool.bytes), ", and limits nothing"));
  }
  if (together > static_cast<double>(options.pool.bytes.value) && !options.quotas.empty()) {
    warnings.push_back(absl::StrCat("quotas: together they are more than the whole pool, ", PrintBytes(options.pool.bytes),
                                    ", so they limit their tenants and keep nothing for them"));
  }
  if (options.admin.listen.empty() && !options.roles.empty())
    warnings.push_back(
        "roles: nobody comes over TCP, because admin.listen is empty; on the socket its mode and group decide");
  if (!options.admin.listen.empty() && options.roles.empty())
    warnings.push_back("admin.listen: [roles] is empty, so nobody may do anything there");
  return warnings;
}

}  // namespace kvist::daemon

#ifndef KVIST_DAEMON_OPTIONS_H_
#define KVIST_DAEMON_OPTIONS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "storage/base/units.h"

namespace kvist::daemon {

// Everything a kvistd can be told. Each field is one configuration key, [section] name = value, with the same words; the comment
// says the unit, the default's reason and what raising it does. Paths that are empty get a default from FillDefaults().
struct Options {
  struct Daemon {
    std::string state_dir;  // locked while the daemon runs. Default /var/lib/kvist (root), else $XDG_STATE_HOME/kvist
    // What this kvistd is called as the controller of itself (proto/controller.proto). Default: the host's name
    std::string node;
    bool operator==(const Daemon&) const = default;
  } daemon;

  struct Session {
    // Engines connect here. Default /run/kvist/engine.sock (root), else $XDG_RUNTIME_DIR/kvist/engine.sock.
    std::string socket;
    uint32_t socket_mode = 0660;
    std::string socket_group;         // group of the socket; "" leaves the process's own
    uint32_t connections_max = 1024;  // sockets, also half-open ones. More: more memory (5 MiB each once welcomed)
    // Of them, never more than half, so that no user keeps all others out. More: fewer users beside each other.
    uint32_t connections_per_uid = 512;
    int32_t reactor_cpu = -1;  // pins the reactor; -1 lets the kernel choose. For benchmarks
    bool operator==(const Session&) const = default;
  } session;

  struct Admin {
    std::string socket;  // kvistctl connects here. Default beside the engine socket: admin.sock
    uint32_t socket_mode = 0660;
    std::string socket_group;
    std::string listen;  // the same API by TLS over TCP, for clients that [roles] names; "" for none
    bool operator==(const Admin&) const = default;
  } admin;

  // By what this kvistd shows who it is over TCP, and whom it believes (daemon/endpoint/tls_files.h).
  struct Tls {
    std::string certificate_file;
    std::string key_file;
    std::string ca_file;
    bool operator==(const Tls&) const = default;
  } tls;

  struct Pool {
    Bytes bytes{};       // 0: a quarter of the memory that is available at start
    Bytes slab_bytes{};  // 0: 64 MiB, less for a small pool. The unit that moves between slot sizes; holds at least one slot
    // Touch the pool's memory in the background at the lowest priority, so many for each NUMA node; 0 leaves it to first use. One touched 6.5 GB/s
    // in huge pages on an idle core (Xeon, 2026-11-26).
    uint32_t touch_threads = 2;
    bool lock = true;  // mlock where the limits allow
    // Whether the pool outlives this process where a service manager keeps files (warm_pool.h): "auto" not if that costs its huge pages.
    std::string keep = "auto";
    // "always": each store writes checksums, each load asks them first. For memory without ECC; see cuda/README.md for what it costs
    std::string verify = "never";
    bool operator==(const Pool&) const = default;
  } pool;

  struct Ssd {
    bool enabled = true;  // keep chunks on disk, too
    std::string path;     // directories, one a device, separated by ':'. Default "ssd" in daemon.state_dir
    Bytes
        capacity{};  // 0: a tenth of what their file systems have free, and of what the tier has there already; never less than that
    Bytes write_rate{};                            // a second and device, at most, for endurance; 0: as fast as it goes
    absl::Duration scrub_every = absl::Hours(24);  // all that was written is read again once in that time; 0: never
    bool gate = true;  // what an engine computes sooner than it is read is left to it (daemon/core/gate.cc)
    absl::Duration stop_flush = absl::Seconds(10);  // what isn't on disk is written at a clean stop, for so long at most
    bool operator==(const Ssd&) const = default;
  } ssd;

  struct Remote {
    std::string store;            // where (remote_url.h); "" for none
    std::string name = "shared";  // the tier is called remote:NAME
    // 64 hex digits, the same on all nodes that share. Default remote.secret in daemon.state_dir, made there
    std::string secret_file;
    std::string credentials_file;  // the store's: remote_options.h draws it
    std::string ca_file;           // whom to believe with TLS; "" whom the system believes
    bool encrypt = false;          // what lies there, by AES-256-GCM with the secret
    std::string codec = "none";    // or "lossless": less goes over the network, and each byte costs more time
    absl::Duration lookup_wait = absl::Milliseconds(50);  // longer: a slow store is felt more, and hits more
    absl::Duration read_timeout = absl::Seconds(5);
    absl::Duration write_timeout = absl::Seconds(10);
    Bytes rate{};                                        // a second, reads and writes together; 0: as fast as it goes
    absl::Duration expire_after = absl::ZeroDuration();  // Redis: objects go by themselves; zero: never
    std::string s3_endpoint;                             // "": AWS's of the region
    std::string s3_region = "us-east-1";
    bool s3_path_style = false;  // the bucket in the path, as most stores but AWS want it
    bool operator==(const Remote&) const = default;
  } remote;

  struct Copy {
    // Copying threads for CPU engines. 2 reach 20 to 30 GB/s (reference/limits.md); more take cores from engines.
    uint32_t threads = 2;
    std::vector<int> cpus;  // pins them; for benchmarks
    // Small pages go to and from GPUs through memory of kvistd's there, and by its kernel, where that is found to be faster (cuda/path_choice.h)
    bool gpu_kernel = true;
    bool operator==(const Copy&) const = default;
  } copy;

  struct Lease {
    absl::Duration max = absl::Seconds(60);         // a lease lasts at most so long
    double share = 0.5;                             // of the pool that one instance's leases may keep
    absl::Duration half_store = absl::Seconds(30);  // a chunk that not all ranks have stored goes after so long
    bool operator==(const Lease&) const = default;
  } lease;

  struct Eviction {
    std::string policy = "lhd";  // or "lru": daemon/core/eviction_policy.h
    bool operator==(const Eviction&) const = default;
  } eviction;

  struct Pin {
    double share = 0.5;  // of a tenant's quota that its pins may keep
    bool operator==(const Pin&) const = default;
  } pin;

  struct Swap {
    double share = 0.25;  // of the pool that one instance's private allocations may take
    bool operator==(const Swap&) const = default;
  } swap;

  struct Metrics {
    std::string listen = "127.0.0.1:9415";  // /metrics, /livez, /readyz over HTTP, for everybody who reaches it; "" for none
    bool allow_remote = false;              // listen may be an address that other machines reach
    uint32_t tenants_max = 32;  // of those named in [tenants], by name, have series of their own; more make scrapes larger
    bool operator==(const Metrics&) const = default;
  } metrics;

  struct Log {
    std::string level = "info";   // trace, debug, info, warn, error
    std::string format = "text";  // text or json
    bool operator==(const Log&) const = default;
  } log;

  // uid (as decimal text) -> tenant. A uid that isn't listed is a tenant of its own, "uid:N". Two uids with one tenant share KV.
  std::map<std::string, std::string> tenants;
  // Tenant -> the most of the pool that it may have. One that isn't listed may have all of it.
  std::map<std::string, Bytes> quotas;
  // Client that comes over TCP (daemon/rpc/client_name.h) -> "read" or "operate". One that isn't listed may do nothing.
  std::map<std::string, std::string> roles;

  bool operator==(const Options&) const = default;

  // Errors: InvalidArgument  names the key, what was found and what is allowed.
  absl::Status Validate() const;
};

}  // namespace kvist::daemon

#endif  // KVIST_DAEMON_OPTIONS_H_

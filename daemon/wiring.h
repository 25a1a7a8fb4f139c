#ifndef KVIST_DAEMON_WIRING_H_
#define KVIST_DAEMON_WIRING_H_

#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "cuda/copy_engine.h"
#include "daemon/file_keeper.h"
#include "daemon/node.h"
#include "daemon/options.h"
#include "daemon/rpc/node_control.h"
#include "daemon/session/lower_tier.h"
#include "storage/ssd/device.h"

namespace kvist::daemon {

// Parts that tests and benchmarks replace. Everything that is empty is the product's own.
struct Parts {
  // Makes the copy engine; the product's copies through shared memory, and GPU memory by the CUDA driver (cuda/copy_engines.h). With another
  // one no GPU memory is served.
  std::function<std::unique_ptr<cuda::CopyEngine>(cuda::CopyEngine::Done done)> copy_engine;
  // Makes the tier below the slots, and how the core uses it; the product's is of [ssd] (ssd_tier.h).
  std::function<std::unique_ptr<session::DiskTier>(session::LowerTier::Ear* ear)> disk_tier;
  core::CoreOptions::Disk disk = {};
  // Opens the SSD tier's devices (StoreOptions::open_device).
  std::function<absl::StatusOr<std::unique_ptr<ssd::Device>>(const ssd::DeviceOptions&)> ssd_device;
  // What the SSD tier's store calls before each step (StoreOptions::before_step), and what hears of chunks that it gives up.
  std::function<void(std::string_view step)> ssd_step;
  std::function<void(const core::PlacesFreed& freed)> ssd_freed;
  // The pool hands out slot numbers with no memory behind them: for an index of a million chunks. Needs `copy_engine`, too.
  bool pool_without_memory = false;
  // The NUMA nodes that the pool is spread over; none: those that this process may use.
  std::vector<int> numa_nodes;
  // Who keeps the pool for the next kvistd, and has that of the last one; nobody: it ends with this process.
  std::optional<FileKeeper> keeper;
  // None: Unimplemented. Called until the daemon is destroyed.
  ReloadCall reload;
};

// One node's kvistd without its main(): pool, core, reactor, copy engines, session listener and admin server, joined.
//
// Lifecycle: Start serves when it returns -> the destructor stops taking sessions, ends those there are, waits until every copy is
//   quiet, and frees.
// Threads: Start, Apply and destroy on one; node() and RunOnReactor from any.
class Daemon {
 public:
  // `options` must be valid and have its paths filled in (FillDefaults in daemon/config.h). Errors: those of the parts, with the
  // key to change.
  static absl::StatusOr<std::unique_ptr<Daemon>> Start(const Options& options, Parts parts = {});
  ~Daemon();
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  rpc::NodeControl& node();

  // Puts the live keys of `options` (config_keys.h) in force but [log], each on the thread that uses it: all of them, or none.
  // Errors: Aborted  the reactor didn't get to it in time; everything stays as it was.
  absl::Status Apply(const Options& options, absl::Time deadline);

  // Runs a task on the reactor's thread, soon.
  void RunOnReactor(std::function<void()> task);

 private:
  Daemon();
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvist::daemon

#endif  // KVIST_DAEMON_WIRING_H_

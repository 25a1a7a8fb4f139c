#ifndef KVIST_DAEMON_OBSERVATION_H_
#define KVIST_DAEMON_OBSERVATION_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/endpoint/tls_files_in_force.h"
#include "daemon/metrics/figures.h"
#include "daemon/options.h"
#include "daemon/remote_tier.h"
#include "daemon/session/listener.h"
#include "daemon/session/reactor.h"
#include "daemon/ssd_tier.h"

namespace kvist::daemon {

// The side of a daemon that monitoring sees: /metrics, /livez and /readyz, from before its parts are there until after they are gone.
//
// Live: the reactor isn't there yet, or does a task of ours within a second. Ready: pool, reactor, engine socket and admin socket are
// there and well.
// Lifecycle: Start -> PoolMapped, ReactorStarted, SsdStarted, RemoteStarted, TlsFilesUsed, EngineSocketOpen, AdminSocketOpen, in any order -> Stopping -> the reactor
//   stops -> destroyed, before the reactor, the tiers and the TLS files are.
// Threads: Start, destroy and those calls on one; Count from any.
class Observation {
 public:
  // A port that another process has costs a warning in the log and nothing else: several kvistds of several users may share a machine,
  // and a cache must not stay away because nobody watches it. With [metrics] listen = "" there is no port either.
  // Errors: Unavailable  [metrics] listen is no address of this machine.
  static absl::StatusOr<std::unique_ptr<Observation>> Start(const Options& options);
  ~Observation();
  Observation(const Observation&) = delete;
  Observation& operator=(const Observation&) = delete;

  void PoolMapped(Bytes capacity);
  // `add` puts in what the reactor doesn't know, on its thread.
  void ReactorStarted(session::Reactor* reactor, std::function<void(metrics::Figures*)> add);
  // /readyz?verbose says how it does; the node is ready whatever that is, for DRAM goes on.
  void SsdStarted(const SsdTier* ssd);
  // It was to be there and isn't, and why.
  void SsdMissing(const std::string& why);
  // The same of the store beyond the node.
  void RemoteStarted(const RemoteTier* remote);
  void RemoteMissing(const std::string& why);
  // So does whether they are well: who is connected goes on.
  void TlsFilesUsed(const endpoint::TlsFilesInForce* files);
  void EngineSocketOpen(const std::string& path);
  void AdminSocketOpen(const std::string& path);
  void Stopping();

  // A connection of an engine has ended.
  void Count(session::Ending ending);

 private:
  struct State;
  explicit Observation(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Names of tenants that get series of their own: the first tenants_max of those in [tenants], in the order of their names.
std::vector<std::string> TenantsWithSeries(const Options& options);

}  // namespace kvist::daemon

#endif  // KVIST_DAEMON_OBSERVATION_H_

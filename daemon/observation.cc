#include "daemon/observation.h"

#include <spdlog/spdlog.h>

#include <atomic>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "daemon/listen_address.h"
#include "daemon/metrics/health.h"
#include "daemon/metrics/http_server.h"
#include "daemon/metrics/node_metrics.h"
#include "daemon/metrics/single_flight.h"
#include "daemon/ssd_view.h"
#include "storage/base/check.h"
#include "storage/base/clock.h"

namespace kvist::daemon {
namespace {

constexpr absl::Duration kReactorTime = absl::Seconds(1);  // a turn takes less than a millisecond

constexpr char kPool[] = "pool";
constexpr char kReactor[] = "reactor";
constexpr char kEngineSocket[] = "engine socket";
constexpr char kAdminSocket[] = "admin socket";
constexpr char kSsdTier[] = "SSD tier";
constexpr char kRemoteStore[] = "remote store";
constexpr char kTlsFiles[] = "TLS files";

}  // namespace

struct Observation::State {
  metrics::Health health{{kPool, kReactor, kEngineSocket, kAdminSocket}};
  std::atomic<uint64_t> refused{0}, exited{0}, hung_up{0}, broke_protocol{0};

  struct Done {};  // the answer to a question that has none
  struct Asking {  // the reactor
    std::unique_ptr<metrics::SingleFlight<Done>> turn;
    std::unique_ptr<metrics::SingleFlight<metrics::Figures>> figures;
  };
  absl::Mutex mutex;
  std::shared_ptr<Asking> asking ABSL_GUARDED_BY(mutex);  // null: no reactor yet

  std::optional<metrics::NodeMetrics> node_metrics;
  std::unique_ptr<metrics::HttpServer> server;  // last: its threads use the above

  std::shared_ptr<Asking> Ask() {
    absl::MutexLock lock(&mutex);
    return asking;
  }

  absl::Status Live() {
    const std::shared_ptr<Asking> reactor = Ask();
    if (reactor == nullptr) return absl::OkStatus();
    if (reactor->turn->Get(MonotonicNow() + kReactorTime).ok()) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat("the reactor has done nothing for ", absl::FormatDuration(kReactorTime)));
  }

  absl::StatusOr<std::shared_ptr<const metrics::Figures>> Figures() {
    const std::shared_ptr<Asking> reactor = Ask();
    if (reactor == nullptr) return absl::UnavailableError("there is no reactor yet");
    return reactor->figures->Get(MonotonicNow() + kReactorTime);
  }
};

Observation::Observation(std::unique_ptr<State> state) : state_(std::move(state)) {}
Observation::~Observation() = default;

absl::StatusOr<std::unique_ptr<Observation>> Observation::Start(const Options& options) {
  auto state = std::make_unique<State>();
  State* raw = state.get();
  metrics::Figures before;
  before.traffic = session::Activity(TenantsWithSeries(options)).ended();
  before.ssd = FiguresOf(nullptr, options);
  raw->node_metrics.emplace([raw] { return raw->Figures(); }, std::move(before));
  const std::optional<ListenAddress> address = ParseListenAddress(options.metrics.listen);
  if (address.has_value()) {
    metrics::HttpServer::Options http;
    http.host = address->host;
    http.port = address->port;
    http.metrics = &*raw->node_metrics;
    http.health = &raw->health;
    http.live = [raw] { return raw->Live(); };
    auto server = metrics::HttpServer::Create(std::move(http));
    if (server.ok()) {
      raw->server = *std::move(server);
    } else if (absl::IsAlreadyExists(server.status())) {
      spdlog::warn("there are no metrics: {}; another [metrics] listen helps", std::string(server.status().message()));
    } else {
      return absl::UnavailableError(absl::StrCat("[metrics] listen: ", server.status().message()));
    }
  }
  return std::unique_ptr<Observation>(new Observation(std::move(state)));
}

void Observation::PoolMapped(Bytes capacity) {
  state_->health.Watch(kPool, [capacity] {
    return capacity > Bytes{} ? absl::OkStatus() : absl::FailedPreconditionError("it has no memory: raise [pool] bytes");
  });
}

void Observation::ReactorStarted(session::Reactor* reactor, std::function<void(metrics::Figures*)> add) {
  State* raw = state_.get();
  auto asking = std::make_shared<State::Asking>();
  asking->turn = std::make_unique<metrics::SingleFlight<State::Done>>(
      [reactor](auto answer) { reactor->Run([answer = std::move(answer)] { answer({}); }); });
  asking->figures =
      std::make_unique<metrics::SingleFlight<metrics::Figures>>([raw, reactor, add = std::move(add)](auto answer) {
        reactor->Run([raw, reactor, add, answer = std::move(answer)] {
          metrics::Figures figures;
          figures.core = reactor->core().status();
          figures.traffic = reactor->Traffics();
          figures.latencies = reactor->latencies();
          figures.connections = {raw->refused, raw->exited, raw->hung_up, raw->broke_protocol};
          add(&figures);
          answer(std::move(figures));
        });
      });
  {
    absl::MutexLock lock(&raw->mutex);
    raw->asking = std::move(asking);
  }
  raw->health.Watch(kReactor, [raw] { return raw->Live(); });
}

void Observation::SsdStarted(const SsdTier* ssd) {
  state_->health.Mind(kSsdTier, [ssd] {
    const std::string trouble = TroubleOf(ssd->status());
    return trouble.empty() ? absl::OkStatus() : absl::UnavailableError(trouble);
  });
}

void Observation::SsdMissing(const std::string& why) {
  state_->health.Mind(kSsdTier, [why] { return absl::UnavailableError(why); });
}

void Observation::RemoteStarted(const RemoteTier* remote) {
  state_->health.Mind(kRemoteStore, [remote] {
    const RemoteTier::Status status = remote->status();
    if (status.reachable) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat("remote:", status.name, " isn't asked: ", status.why_not));
  });
}

void Observation::RemoteMissing(const std::string& why) {
  state_->health.Mind(kRemoteStore, [why] { return absl::UnavailableError(why); });
}

void Observation::TlsFilesUsed(const endpoint::TlsFilesInForce* files) {
  state_->health.Mind(kTlsFiles, [files] { return files->trouble(); });
}

void Observation::EngineSocketOpen(const std::string& path) {
  state_->health.Watch(kEngineSocket, metrics::SocketInPlace(path));
}
void Observation::AdminSocketOpen(const std::string& path) {
  state_->health.Watch(kAdminSocket, metrics::SocketInPlace(path));
}
void Observation::Stopping() { state_->health.Stopping(); }

void Observation::Count(session::Ending ending) {
  switch (ending) {
    case session::Ending::kRefused: ++state_->refused; break;
    case session::Ending::kExited: ++state_->exited; break;
    case session::Ending::kHungUp: ++state_->hung_up; break;
    case session::Ending::kBrokeProtocol: ++state_->broke_protocol; break;
  }
}

std::vector<std::string> TenantsWithSeries(const Options& options) {
  std::set<std::string> names;
  for (const auto& [uid, tenant] : options.tenants) names.insert(tenant);
  std::vector<std::string> first(names.begin(), names.end());
  if (first.size() > options.metrics.tenants_max) first.resize(options.metrics.tenants_max);
  return first;
}

}  // namespace kvist::daemon

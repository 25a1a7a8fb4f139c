#include "daemon/observation.h"

#include <httplib.h>

#include <catch2/catch.hpp>
#include <functional>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "daemon/core/core.h"
#include "storage/base/check.h"
#include "storage/base/clock.h"
#include "storage/pool/slot_allocator.h"
#include "tests/support/free_port.h"

namespace kvist::daemon {
namespace {

using Catch::Contains;

class NoCopies final : public cuda::CopyEngine {
 public:
  void Submit(cuda::Copy) override { KVIST_CHECK(false); }
  void Cancel(OpId) override { KVIST_CHECK(false); }
  void Arrived() override {}
  void Look() override {}
};

// An observation with a reactor over an empty core.
struct Observed {
  uint16_t port = test::FreePort();
  pool::SlotAllocator slots = *pool::SlotAllocator::Create({.regions = {KiB(64)}, .slab_bytes = KiB(64)});
  core::Core core{{}, &slots};
  NoCopies copies;
  std::unique_ptr<session::Reactor> reactor = session::Reactor::Create({}, &core, [](SlotRef) { return nullptr; }).value();
  std::unique_ptr<Observation> observation;

  Observed() {
    Options options;
    options.metrics.listen = absl::StrCat("127.0.0.1:", port);
    observation = Observation::Start(options).value();
    reactor->SetCopyEngine(&copies);
  }
  ~Observed() {
    reactor->Stop();
    observation.reset();
  }
  httplib::Result Get(const std::string& path) const {
    httplib::Client client("127.0.0.1", port);
    client.set_read_timeout(60);
    auto result = client.Get(path);
    REQUIRE(result);
    return result;
  }
};

// Whether it holds within 20 s: a reactor that has no processor for a second counts as hanging.
bool Soon(const std::function<bool()>& holds) {
  const absl::Time until = MonotonicNow() + absl::Seconds(20);
  while (!holds()) {
    if (MonotonicNow() > until) return false;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return true;
}

TEST_CASE("Observation answers before there is a reactor: alive, not ready, and nothing counted") {
  const Observed observed;
  CHECK(observed.Get("/livez")->status == 200);
  const auto ready = observed.Get("/readyz");
  CHECK(ready->status == 503);
  for (const char* part : {"pool: ", "reactor: ", "engine socket: ", "admin socket: "})
    CHECK_THAT(ready->body, Contains(part));
  CHECK_THAT(observed.Get("/metrics")->body, Contains("kvist_reactor_up 0\n") && Contains("kvist_sessions 0\n"));
}

TEST_CASE("Observation says that a reactor hangs, still shows what it knows, and recovers") {
  Observed observed;
  absl::Notification entered, release;
  observed.reactor->Start();
  observed.observation->ReactorStarted(observed.reactor.get(), [](metrics::Figures* f) { f->pool_capacity = KiB(64); });
  CHECK(Soon([&] { return observed.Get("/livez")->status == 200; }));
  CHECK(Soon([&] {
    const std::string text = observed.Get("/metrics")->body;
    return (Contains("kvist_reactor_up 1\n") && Contains("capacity_bytes{tier=\"dram\"} 65536\n")).match(text);
  }));
  observed.reactor->Run([&] {
    entered.Notify();
    release.WaitForNotification();
  });
  entered.WaitForNotification();
  const auto hung = observed.Get("/livez");
  CHECK(hung->status == 503);
  CHECK_THAT(hung->body, Contains("reactor"));
  CHECK_THAT(observed.Get("/readyz")->body, Contains("reactor: "));
  CHECK_THAT(observed.Get("/metrics")->body,
             Contains("kvist_reactor_up 0\n") && Contains("capacity_bytes{tier=\"dram\"} 65536\n"));
  release.Notify();
  CHECK(Soon([&] { return observed.Get("/livez")->status == 200; }));
  CHECK(Soon([&] { return Contains("kvist_reactor_up 1\n").match(observed.Get("/metrics")->body); }));
  observed.observation->Stopping();
  CHECK_THAT(observed.Get("/readyz")->body, Contains("stopping"));
}

TEST_CASE("Observation counts how connections ended") {
  Observed observed;
  observed.reactor->Start();
  observed.observation->ReactorStarted(observed.reactor.get(), [](metrics::Figures*) {});
  observed.observation->Count(session::Ending::kRefused);
  observed.observation->Count(session::Ending::kExited);
  observed.observation->Count(session::Ending::kExited);
  const std::string body = observed.Get("/metrics")->body;
  CHECK_THAT(body, Contains("kvist_connections_refused_total 1\n") && Contains("cause=\"exited\"} 2\n") &&
                       Contains("cause=\"broke_protocol\"} 0\n"));
}

TEST_CASE("TenantsWithSeries takes the first names of the configuration, each once") {
  Options options;
  options.tenants = {{"1", "red"}, {"2", "blue"}, {"3", "red"}, {"4", "green"}};
  CHECK(TenantsWithSeries(options) == std::vector<std::string>{"blue", "green", "red"});
  options.metrics.tenants_max = 2;
  CHECK(TenantsWithSeries(options) == std::vector<std::string>{"blue", "green"});
  options.metrics.tenants_max = 0;
  CHECK(TenantsWithSeries(options).empty());
}

}  // namespace
}  // namespace kvist::daemon

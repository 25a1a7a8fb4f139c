#include "daemon/metrics/http_server.h"

#include <httplib.h>
#include <prometheus/metric_family.h>
#include <sys/socket.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <vector>

#include "storage/base/unique_fd.h"

namespace kvist::metrics {
namespace {

using Catch::Contains;

class OneGauge : public prometheus::Collectable {
 public:
  std::vector<prometheus::MetricFamily> Collect() const override {
    prometheus::MetricFamily family{"kvist_test", "A test.", prometheus::MetricType::Gauge, {}};
    family.metric.emplace_back().gauge.value = 7;
    return {family};
  }
};

struct Served {
  OneGauge metrics;
  Health health{{"pool", "reactor"}};
  std::atomic<bool> live{true};
  std::unique_ptr<HttpServer> server = Make(0).value();

  absl::StatusOr<std::unique_ptr<HttpServer>> Make(uint16_t port) {
    HttpServer::Options options;
    options.host = "127.0.0.1";
    options.port = port;
    options.metrics = &metrics;
    options.health = &health;
    options.live = [this] { return live ? absl::OkStatus() : absl::UnavailableError("it hangs"); };
    return HttpServer::Create(std::move(options));
  }
  httplib::Result Get(const std::string& path) const {
    httplib::Client client("127.0.0.1", server->port());
    auto result = client.Get(path);
    REQUIRE(result);
    return result;
  }
};

TEST_CASE("HttpServer answers /metrics in Prometheus's text format") {
  const Served served;
  const httplib::Result answer = served.Get("/metrics");
  CHECK(answer->status == 200);
  CHECK_THAT(answer->get_header_value("Content-Type"), Contains("text/plain; version=0.0.4"));
  CHECK(answer->body == "# HELP kvist_test A test.\n# TYPE kvist_test gauge\nkvist_test 7\n");
}

TEST_CASE("HttpServer tells live from ready, and names what isn't") {
  Served served;
  CHECK(served.Get("/livez")->status == 200);
  CHECK(served.Get("/readyz")->status == 503);
  served.health.Watch("pool", [] { return absl::OkStatus(); });
  CHECK_THAT(served.Get("/readyz")->body, Contains("reactor: ") && !Contains("pool"));
  served.health.Watch("reactor", [] { return absl::OkStatus(); });
  CHECK(served.Get("/readyz")->status == 200);
  CHECK(served.Get("/readyz")->body == "ok\n");
  CHECK(served.Get("/readyz?verbose")->body == "[+] pool ok\n[+] reactor ok\nready\n");
  served.health.Mind("SSD tier", [] { return absl::UnavailableError("full"); });
  CHECK(served.Get("/readyz")->status == 200);
  CHECK(served.Get("/readyz")->body == "ok\n");
  CHECK(served.Get("/readyz?verbose")->status == 200);
  CHECK(served.Get("/readyz?verbose")->body == "[+] pool ok\n[+] reactor ok\n[!] SSD tier: full\nready\n");
  served.health.Watch("pool", [] { return absl::UnavailableError("drained"); });
  const httplib::Result verbose = served.Get("/readyz?verbose");
  CHECK(verbose->status == 503);
  CHECK(verbose->body == "[-] pool: drained\n[+] reactor ok\n[!] SSD tier: full\nnot ready\n");
  CHECK(served.Get("/readyz")->body == "pool: drained\n");
  CHECK(served.Get("/livez")->status == 200);
  served.live = false;
  CHECK(served.Get("/livez")->status == 503);
  CHECK(served.Get("/livez")->body == "it hangs\n");
  CHECK(served.Get("/metrics")->status == 200);
}

TEST_CASE("HttpServer refuses what it doesn't have") {
  Served served;
  CHECK(served.Get("/")->status == 404);
  CHECK_THAT(served.Get("/")->body, Contains("/metrics, /livez and /readyz"));
  httplib::Client client("127.0.0.1", served.server->port());
  CHECK(client.Post("/metrics", std::string(1 << 20, 'x'), "text/plain")->status >= 400);
  CHECK(served.Get("/livez")->status == 200);
}

TEST_CASE("HttpServer says that a port is taken, and leaves it when it ends") {
  Served served;
  const uint16_t port = served.server->port();
  CHECK(absl::IsAlreadyExists(served.Make(port).status()));
  served.server.reset();
  served.server = served.Make(port).value();
  CHECK(served.Get("/livez")->status == 200);
}

TEST_CASE("HttpServer serves while others hold connections on which they say nothing") {
  Served served;
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 8; ++i) {
    UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(served.server->port());
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    silent.push_back(std::move(fd));
  }
  httplib::Client client("127.0.0.1", served.server->port());
  client.set_read_timeout(60);
  const auto answer = client.Get("/livez");
  REQUIRE(answer);
  CHECK(answer->status == 200);
}

}  // namespace
}  // namespace kvist::metrics

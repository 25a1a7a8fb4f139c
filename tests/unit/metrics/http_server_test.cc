#include "daemon/metrics/http_server.h"

#include <httplib.h>
#include <poll.h>
#include <prometheus/metric_family.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "storage/base/clock.h"
#include "storage/base/unique_fd.h"
#include "tests/support/slow_callers.h"

namespace kvist::metrics {
namespace {

using Catch::Contains;
using Catch::EndsWith;

class OneGauge : public prometheus::Collectable {
 public:
  std::vector<prometheus::MetricFamily> Collect() const override {
    prometheus::MetricFamily family{
        "kvist_test" + std::string(name_bytes, 'x'), "A test.", prometheus::MetricType::Gauge, {}};
    family.metric.emplace_back().gauge.value = 7;
    return {family};
  }

  std::atomic<size_t> name_bytes = 0;  // more than usual
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

TEST_CASE("HttpServer answers once and whole, however many parts of it are asked for") {
  Served served;
  served.metrics.name_bytes = 2000;
  const std::string whole = served.Get("/metrics")->body;
  for (const std::string name : {"Range", "RANGE", "range"}) {
    std::string ranges = "bytes=-";
    for (int i = 0; i < 2000; ++i) ranges += ",-";
    httplib::Client client("127.0.0.1", served.server->port());
    const httplib::Result answer = client.Get("/metrics", {{name, ranges}});
    REQUIRE(answer);
    CHECK(answer->status == 200);
    CHECK(answer->body == whole);
  }
}

TEST_CASE("HttpServer says that a port is taken, and leaves it when it ends") {
  Served served;
  const uint16_t port = served.server->port();
  CHECK(absl::IsAlreadyExists(served.Make(port).status()));
  served.server.reset();
  served.server = served.Make(port).value();
  CHECK(served.Get("/livez")->status == 200);
}

TEST_CASE("HttpServer answers whoever asks while others hold connections, say nothing, or a byte a second") {
  const Served served;
  const uint16_t port = served.server->port();
  const test::SlowCallers silent(port, 64, "");
  const test::SlowCallers slow(port, 64, "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n");
  // Until all had their time: some have been closed then, and others are there.
  const absl::Time end = MonotonicNow() + absl::Seconds(30);
  while ((silent.made_again() < 64 || slow.made_again() < 64) && MonotonicNow() < end) {
    httplib::Client client("127.0.0.1", port);
    client.set_read_timeout(10);
    const auto answer = client.Get("/livez");
    REQUIRE(answer);
    CHECK(answer->status == 200);
  }
  CHECK(silent.made_again() >= 64);
  CHECK(slow.made_again() >= 64);
}

TEST_CASE("HttpServer answers whoever asks while more hold connections than it takes") {
  const Served served;
  const test::SlowCallers silent(served.server->port(), 400, "");
  const absl::Time end = MonotonicNow() + absl::Seconds(30);
  while (silent.made_again() < 400 && MonotonicNow() < end) CHECK(served.Get("/livez")->status == 200);
  CHECK(silent.made_again() >= 400);
}

TEST_CASE("HttpServer answers somebody who asks only after more have come than it takes") {
  std::string answer;
  for (int i = 0; i < 10 && answer.empty();
       ++i) {  // it has a moment of grace, which may be over before this thread has a processor again
    const Served served;
    const UniqueFd late = test::ConnectTo(served.server->port());
    const test::SlowCallers silent(served.server->port(), 300, "");
    const std::string request = "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n";
    if (::send(late.get(), request.data(), request.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(request.size())) continue;
    pollfd answered{late.get(), POLLIN, 0};
    REQUIRE(::poll(&answered, 1, 10'000) == 1);
    answer.resize(4096);
    answer.resize(static_cast<size_t>(std::max<ssize_t>(0, ::recv(late.get(), answer.data(), answer.size(), 0))));
  }
  CHECK_THAT(answer, Contains("200 OK"));
}

TEST_CASE("HttpServer closes a connection whose answer isn't taken") {
  Served served;
  served.metrics.name_bytes = size_t{64} << 20;  // more than the kernel keeps for a socket
  const UniqueFd socket = test::ConnectTo(served.server->port());
  const std::string request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
  REQUIRE(::send(socket.get(), request.data(), request.size(), 0) == static_cast<ssize_t>(request.size()));
  pollfd hang_up{socket.get(), POLLRDHUP, 0};
  REQUIRE(::poll(&hang_up, 1, 120'000) == 1);  // a sanitizer takes its time to write so much
  std::string part(size_t{1} << 20, '\0');
  size_t taken = 0;
  for (ssize_t n = 0; (n = ::recv(socket.get(), part.data(), part.size(), 0)) > 0;) taken += static_cast<size_t>(n);
  CHECK(taken < served.metrics.name_bytes);
  CHECK(served.Get("/livez")->status == 200);
}

TEST_CASE("HttpServer takes a request in parts, and answers one whose sender has said all") {
  const Served served;
  const UniqueFd socket = test::ConnectTo(served.server->port());
  for (const std::string part : {"GET /li", "vez HTTP/1.1\r\nHost: local", "host\r\n\r", "\n"}) {
    REQUIRE(::send(socket.get(), part.data(), part.size(), 0) == static_cast<ssize_t>(part.size()));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // else the kernel makes them one
  }
  REQUIRE(::shutdown(socket.get(), SHUT_WR) == 0);
  std::string answer(4096, '\0');
  size_t size = 0;
  for (ssize_t n = 0; (n = ::recv(socket.get(), answer.data() + size, answer.size() - size, 0)) > 0;)
    size += static_cast<size_t>(n);
  answer.resize(size);
  CHECK_THAT(answer, Contains("200 OK") && Contains("Connection: close") && EndsWith("\r\n\r\nok\n"));
}

}  // namespace
}  // namespace kvist::metrics

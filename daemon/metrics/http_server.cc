#include "daemon/metrics/http_server.h"

#include <prometheus/text_serializer.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/metrics/http_port.h"
#include "storage/base/check.h"

namespace kvist::metrics {
namespace {

constexpr size_t kBodyMax = 1 << 10;  // nobody has anything to send

void Say(httplib::Response& response, bool good, const std::string& text) {
  response.status = good ? 200 : 503;
  response.set_content(text, "text/plain; charset=utf-8");
}

std::string Verbose(const std::vector<Health::Row>& rows) {
  std::string text;
  for (const Health::Row& row : rows) {
    if (row.status.ok()) {
      absl::StrAppend(&text, "[+] ", row.part, " ok\n");
    } else {
      absl::StrAppend(&text, row.needed ? "[-] " : "[!] ", row.part, ": ", row.status.message(), "\n");
    }
  }
  return text;
}

std::string Failing(const std::vector<Health::Row>& rows) {
  std::string text;
  for (const Health::Row& row : rows) {
    if (row.needed && !row.status.ok()) absl::StrAppend(&text, row.part, ": ", row.status.message(), "\n");
  }
  return text;
}

}  // namespace

struct HttpServer::State {
  Options options;
  HttpPort server;
  int port = 0;

  void Route() {
    server.Get("/metrics", [this](const httplib::Request&, httplib::Response& response) {
      const prometheus::TextSerializer serializer;
      response.set_content(serializer.Serialize(options.metrics->Collect()), "text/plain; version=0.0.4; charset=utf-8");
    });
    server.Get("/livez", [this](const httplib::Request&, httplib::Response& response) {
      const absl::Status live = options.live();
      Say(response, live.ok(), live.ok() ? "ok\n" : absl::StrCat(live.message(), "\n"));
    });
    server.Get("/readyz", [this](const httplib::Request& request, httplib::Response& response) {
      const std::vector<Health::Row> rows = options.health->Look();
      const std::string failing = Failing(rows);
      const bool ready = failing.empty();
      if (request.has_param("verbose")) {
        Say(response, ready, absl::StrCat(Verbose(rows), ready ? "ready\n" : "not ready\n"));
      } else {
        Say(response, ready, ready ? "ok\n" : failing);
      }
    });
    server.set_error_handler([](const httplib::Request&, httplib::Response& response) {
      if (response.body.empty() && response.status == 404)
        response.set_content("nothing here: there are /metrics, /livez and /readyz\n", "text/plain; charset=utf-8");
    });
  }
};

HttpServer::HttpServer(std::unique_ptr<State> state) : state_(std::move(state)) {}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Create(Options options) {
  KVIST_CHECK(options.metrics != nullptr && options.health != nullptr && options.live != nullptr);
  auto state = std::make_unique<State>();
  state->options = std::move(options);
  HttpPort& server = state->server;
  server.set_payload_max_length(kBodyMax);
  // Not httplib's own choice, SO_REUSEPORT: by that two kvistds would share a port, and each answer half the scrapes.
  server.set_socket_options([](socket_t fd) {
    const int yes = 1;
    ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  });
  state->Route();

  const std::string& host = state->options.host;
  errno = 0;
  if (state->options.port == 0) {
    state->port = server.bind_to_any_port(host);
  } else {
    state->port = server.bind_to_port(host, state->options.port) ? state->options.port : -1;
  }
  if (state->port < 0) {
    const int error = errno;
    const std::string where = absl::StrCat(host, " port ", state->options.port);
    if (error == EADDRINUSE) return absl::AlreadyExistsError(absl::StrCat("another process listens on ", where));
    return absl::UnavailableError(
        absl::StrCat("can't listen on ", where, ": ", error == 0 ? "no such address" : std::strerror(error)));
  }
  server.Start();
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(state)));
}

HttpServer::~HttpServer() = default;

uint16_t HttpServer::port() const { return static_cast<uint16_t>(state_->port); }

}  // namespace kvist::metrics

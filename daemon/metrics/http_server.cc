#include "daemon/metrics/http_server.h"

#include <httplib.h>
#include <prometheus/text_serializer.h>
#include <pthread.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <semaphore>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/check.h"

namespace kvist::metrics {
namespace {

constexpr size_t kThreads = 4;         // a scraper, a prober, and two people
constexpr ptrdiff_t kWaitingMax = 64;  // accepted, not yet answered; more wait in the kernel's backlog
constexpr auto kPatience = std::chrono::seconds(2);
constexpr size_t kBodyMax = 1 << 10;  // nobody has anything to send

// A pool of threads whose queue is bounded: the accepting thread waits when it is full.
class BoundedPool : public httplib::TaskQueue {
 public:
  void enqueue(std::function<void()> task) override {
    room_.acquire();
    pool_.enqueue([this, task = std::move(task)] {
      task();
      room_.release();
    });
  }
  void shutdown() override { pool_.shutdown(); }

 private:
  std::counting_semaphore<kWaitingMax> room_{kWaitingMax};
  httplib::ThreadPool pool_{kThreads};
};

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
  httplib::Server server;
  std::thread thread;
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
  httplib::Server& server = state->server;
  server.new_task_queue = [] { return new BoundedPool; };
  server.set_read_timeout(kPatience);
  server.set_write_timeout(kPatience);
  server.set_keep_alive_max_count(1);  // no caller keeps a thread
  server.set_keep_alive_timeout(2);    // for the first request, too; kPatience
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
  State* raw = state.get();
  state->thread = std::thread([raw] { raw->server.listen_after_bind(); });
  ::pthread_setname_np(state->thread.native_handle(), "kvist-metrics");
  while (!server.is_running()) std::this_thread::yield();  // else the stop of a server that never ran would be lost
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(state)));
}

HttpServer::~HttpServer() {
  state_->server.stop();
  state_->thread.join();
}

uint16_t HttpServer::port() const { return static_cast<uint16_t>(state_->port); }

}  // namespace kvist::metrics

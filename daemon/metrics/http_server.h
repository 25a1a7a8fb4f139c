#ifndef KVIST_DAEMON_METRICS_HTTP_SERVER_H_
#define KVIST_DAEMON_METRICS_HTTP_SERVER_H_

#include <prometheus/collectable.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/metrics/health.h"

namespace kvist::metrics {

// Answers GET and HEAD on one TCP port:
//
//   /metrics          the collectable's families in Prometheus's text format
//   /livez            200 "ok" while `live` is OK, else 503 and why: restart what doesn't live
//   /readyz           200 "ok" when all of `health` is, else 503 and what isn't: send no work to what isn't ready
//   /readyz?verbose   the same status with a line for each part: "[+] pool ok", "[-] reactor: why", "[!] SSD tier: why" for what can be
//                     done without
//
// A caller has 2 s to send its request and 2 s to take the answer, and keeps nobody waiting (http_port.h). There is no authentication: what
// it tells are counts and the names of tenants, and it changes nothing.
// Lifecycle: Create serves when it returns -> the destructor answers those that are being answered, and closes the port.
// Threads: Create and destroy on one. What is given here is called on the server's threads, several at once.
class HttpServer {
 public:
  struct Options {
    std::string host;   // an IP address
    uint16_t port = 0;  // 0: any
    // Borrowed until the destructor has ended.
    const prometheus::Collectable* metrics = nullptr;
    const Health* health = nullptr;
    std::function<absl::Status()> live;
  };

  // Errors: AlreadyExists  somebody listens there.  Unavailable  no such address on this machine, or not ours to take.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Create(Options options);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  uint16_t port() const;

 private:
  struct State;
  explicit HttpServer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace kvist::metrics

#endif  // KVIST_DAEMON_METRICS_HTTP_SERVER_H_

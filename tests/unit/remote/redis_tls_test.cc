// TLS with a real server and certificates of the test's own.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "storage/remote/redis_store.h"
#include "tests/support/free_port.h"
#include "tests/support/redis_server.h"
#include "tests/support/scripted_server.h"
#include "tests/unit/remote/asked.h"

namespace kvist::remote {
namespace {

// A server with a certificate of its own; beside it lies a stranger's.
struct TlsServer {
  TlsServer() {
    for (const std::string name : {"server", "stranger"}) {
      const std::string command = absl::StrCat(
          "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost ",
          "-addext subjectAltName=DNS:localhost,IP:127.0.0.1 -keyout ", folder / name, ".key -out ", folder / name,
          ".crt 2>", folder / "log");
      REQUIRE(std::system(command.c_str()) == 0);
    }
    redis = std::make_unique<test::RedisServer>(
        std::vector<std::string>{"--tls-port", absl::StrCat(port), "--bind", "127.0.0.1", "-::1", "--tls-cert-file",
                                 folder / "server.crt", "--tls-key-file", folder / "server.key", "--tls-ca-cert-file",
                                 folder / "server.crt", "--tls-auth-clients", "optional", "--requirepass", "secret"});
  }
  test::TempDir folder;
  const uint16_t port = test::FreePort();
  std::unique_ptr<test::RedisServer> redis;
};

// Hands on what comes on a unix socket to a port, and back; while it is stalled it reads nothing of its clients.
class Stalling {
 public:
  explicit Stalling(uint16_t port)
      : server_([this, port](int client) {
          const int upstream = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
          sockaddr_in address{};
          address.sin_family = AF_INET;
          address.sin_port = htons(port);
          address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
          bool goes_on = ::connect(upstream, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
          while (goes_on) {
            const short events = stalled ? 0 : POLLIN;
            pollfd ready[2] = {{client, events, 0}, {upstream, POLLIN, 0}};
            ::poll(ready, 2, 10);
            for (int i = 0; i < 2; ++i) {
              char buffer[4096];
              if (ready[i].revents == 0 || (i == 0 && stalled)) continue;
              const ssize_t n = ::recv(ready[i].fd, buffer, sizeof buffer, 0);
              goes_on = goes_on && n > 0 && ::send(ready[1 - i].fd, buffer, static_cast<size_t>(n), MSG_NOSIGNAL) == n;
            }
          }
          ::close(upstream);
        }) {}
  std::string address() const { return server_.address(); }
  std::atomic<bool> stalled = false;

 private:
  test::ScriptedServer server_;
};

TEST_CASE("RedisStore speaks TLS with whom it knows, and with nobody else") {
  TlsServer server;
  const test::TempDir& folder = server.folder;
  const uint16_t port = server.port;
  RedisOptions options;
  options.address = absl::StrCat("127.0.0.1:", port);
  options.password = "secret";
  options.tls = {true, folder / "server.crt", "", "", ""};
  options.connect_timeout = absl::Seconds(5);
  const auto body = Pattern(5 << 20, 1);
  std::vector<std::byte> read(body.size());
  const auto put = [&] {
    const auto store = RedisStore::Create(options);
    REQUIRE(store.ok());
    const absl::Status status = Ask(store->get(), Kind::kPut, {PutOf("object", {}, body)})[0].status;
    if (status.ok()) {
      const Outcome outcome = Ask(store->get(), Kind::kGet, {GetOf("object", {}, read)})[0];
      CHECK((outcome.status.ok() && outcome.found == Found::kYes && read == body));
    }
    return status;
  };
  CHECK(put().ok());
  options.address = absl::StrCat("localhost:", port);
  CHECK(put().ok());
  options.address = absl::StrCat("127.0.0.1:", port);
  options.tls.cert_file = folder / "server.crt";
  options.tls.key_file = folder / "server.key";
  CHECK(put().ok());
  options.tls = {true, folder / "stranger.crt", "", "", ""};
  CHECK(absl::IsUnavailable(put()));
  options.tls = {true, folder / "server.crt", "", "", "other.example"};
  CHECK(absl::IsUnavailable(put()));
  CHECK(put().message().find("certificate") != std::string::npos);
  options.tls = {};  // plain words to a TLS port
  CHECK(absl::IsUnavailable(put()));
}

TEST_CASE("RedisStore sends nothing by TLS that was given up, in place of what comes next") {
  TlsServer server;
  Stalling proxy(server.port);
  RedisOptions options;
  options.address = proxy.address();
  options.password = "secret";
  options.tls = {true, server.folder / "server.crt", "", "", "localhost"};
  options.connect_timeout = absl::Seconds(5);
  options.linger = absl::Seconds(60);
  options.connections = 1;
  const auto store = *RedisStore::Create(options);
  const auto body = Pattern(10, 1);
  REQUIRE(Ask(store.get(), Kind::kPut, {PutOf("n-is-there", {}, body)})[0].status.message() == "");
  // More commands than the socket takes, each a record of TLS; one of them is sealed and not sent, the others not even that. Each batch
  // has the store write once more, of which a socket that is nearly full wouldn't tell it.
  proxy.stalled = true;
  std::vector<Answer<Outcome>> answers(40);
  for (const auto& answer : answers) {
    const std::vector<Operation> operations(50, Named("n-isnt-one"));
    REQUIRE(store->Submit({Kind::kExists, operations, In(absl::Milliseconds(500))}, answer.Done()).ok());
    absl::SleepFor(absl::Milliseconds(2));
  }
  for (const auto& answer : answers)
    for (const Outcome& outcome : answer.Wait()) REQUIRE(absl::IsDeadlineExceeded(outcome.status));
  Answer<Outcome> there;
  REQUIRE(store->Submit({Kind::kExists, {Named("n-is-there")}, In(absl::Seconds(20))}, there.Done()).ok());
  proxy.stalled = false;
  const Outcome outcome = there.Wait()[0];
  CHECK(outcome.status.message() == "");
  CHECK(outcome.found == Found::kYes);
}

}  // namespace
}  // namespace kvist::remote

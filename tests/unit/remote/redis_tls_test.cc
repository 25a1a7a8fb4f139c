// TLS with a real server and certificates of the test's own.
#include <catch2/catch.hpp>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "storage/remote/redis_store.h"
#include "tests/support/free_port.h"
#include "tests/support/redis_server.h"
#include "tests/unit/remote/asked.h"

namespace kvist::remote {
namespace {

TEST_CASE("RedisStore speaks TLS with whom it knows, and with nobody else") {
  test::TempDir folder;
  for (const std::string name : {"server", "stranger"}) {
    const std::string command = absl::StrCat(
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost ",
        "-addext subjectAltName=DNS:localhost,IP:127.0.0.1 -keyout ", folder / name, ".key -out ", folder / name, ".crt 2>",
        folder / "log");
    REQUIRE(std::system(command.c_str()) == 0);
  }
  const uint16_t port = test::FreePort();
  test::RedisServer server({"--tls-port", absl::StrCat(port), "--bind", "127.0.0.1", "-::1", "--tls-cert-file",
                            folder / "server.crt", "--tls-key-file", folder / "server.key", "--tls-ca-cert-file",
                            folder / "server.crt", "--tls-auth-clients", "optional", "--requirepass", "secret"});
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

}  // namespace
}  // namespace kvist::remote

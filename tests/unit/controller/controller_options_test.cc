#include "daemon/controller_options.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <string>
#include <vector>

namespace kvist::daemon {
namespace {

std::string WhyNot(const std::string& text, const std::vector<std::string>& nodes = {}) {
  const auto options = ParseControllerOptions(text, "f", nodes);
  REQUIRE(options.status().code() == absl::StatusCode::kInvalidArgument);
  return std::string(options.status().message());
}

TEST_CASE("ParseControllerOptions takes a file, and nodes on top of it") {
  const auto options = ParseControllerOptions(
      "[controller]\nsocket = \"/run/c.sock\"\nsocket_mode = \"0600\"\nsocket_group = \"ops\"\n"
      "[log]\nlevel = \"warn\"\nformat = \"json\"\n[nodes]\nb = \"unix:/b\"\n\"a.1\" = \"unix:/a\"\n",
      "f", {"b=unix:/other=b", "c=unix:/c"});
  INFO(options.status().ToString());
  REQUIRE(options.ok());
  CHECK(options->socket == "/run/c.sock");
  CHECK(options->socket_mode == 0600);
  CHECK(options->socket_group == "ops");
  CHECK(options->log.level == "warn");
  CHECK(options->log.format == "json");
  CHECK(options->nodes == std::vector<ControllerOptions::Node>{
                              {"a.1", {.socket = "/a"}}, {"b", {.socket = "/other=b"}}, {"c", {.socket = "/c"}}});

  const auto least = ParseControllerOptions("", "", {"a=unix:/a"});
  REQUIRE(least.ok());
  CHECK(least->socket_mode == 0660);
  CHECK_THAT(least->socket, Catch::EndsWith("/controller.sock"));
}

TEST_CASE("ParseControllerOptions takes TCP, for clients and to nodes, with all that TLS needs") {
  const std::string tls = "[tls]\ncertificate_file = \"/c\"\nkey_file = \"/k\"\nca_file = \"/a\"\n";
  const auto options = ParseControllerOptions(
      "[controller]\nlisten = \"[::]:9417\"\n" + tls + "[roles]\n\"cn:prometheus\" = \"read\"\n\"dns:r\" = \"operate\"\n",
      "f", {"b=tls:node-b.example:9416"});
  INFO(options.status().ToString());
  REQUIRE(options.ok());
  CHECK(options->listen == "[::]:9417");
  CHECK(options->tls == endpoint::TlsFiles{"/c", "/k", "/a"});
  CHECK(options->roles == std::map<std::string, std::string>{{"cn:prometheus", "read"}, {"dns:r", "operate"}});
  CHECK(options->nodes == std::vector<ControllerOptions::Node>{{"b", {.host = "node-b.example", .port = 9416}}});

  CHECK_THAT(WhyNot("[controller]\nlisten = \"127.0.0.1:9417\"\n", {"a=unix:/a"}),
             Catch::StartsWith("controller.listen: \"127.0.0.1:9417\"; allowed: ") &&
                 Catch::Contains("tls.certificate_file, tls.key_file, tls.ca_file"));
  CHECK(WhyNot("[tls]\nca_file = \"/a\"\n", {"b=tls:b:1"}) ==
        "nodes.b: tls:b:1 takes tls.certificate_file, tls.key_file, too");
  CHECK_THAT(WhyNot("[controller]\nlisten = \"everywhere\"\n"),
             Catch::StartsWith("f:2:1: controller.listen: \"everywhere\"; allowed: "));
  CHECK_THAT(WhyNot("[roles]\n\"dns:r\" = \"admin\"\nrouter = \"read\"\n"),
             Catch::Contains("f:2:1: roles.\"dns:r\": \"admin\"; allowed: \"read\", \"operate\"") &&
                 Catch::Contains("f:3:1: roles.\"router\": the client; allowed: \"dns:NAME\""));
  CHECK_THAT(WhyNot("[tls]\nkey = \"/k\"\n"),
             Catch::Contains("tls.key: unknown; allowed: certificate_file, key_file, ca_file"));
}

TEST_CASE("ParseControllerOptions says of every error where it is and what is allowed") {
  CHECK(WhyNot("") == "nodes: there are none; name them under [nodes], or by --node");
  CHECK_THAT(WhyNot("[nodes]\na = \"10.0.0.1:7070\"\n"),
             Catch::StartsWith("f:2:1: nodes.a: \"10.0.0.1:7070\"; allowed: unix:PATH") && Catch::Contains("tls:HOST:PORT"));
  CHECK_THAT(WhyNot("[nodes]\na = \"unix:relative\"\n"), Catch::Contains("absolute path"));
  CHECK_THAT(WhyNot("[nodes]\na = \"unix:/" + std::string(107, 'p') + "\"\n"), Catch::Contains("nodes.a"));
  CHECK_THAT(WhyNot("[nodes]\na = 7\n"), Catch::Contains("nodes.a: no string"));
  CHECK_THAT(WhyNot("[nodes]\n\"a/b\" = \"unix:/a\"\n"), Catch::Contains("nodes.a/b: the name; allowed: 1 to 64 letters"));
  CHECK_THAT(WhyNot("[controller]\nsockt = \"/a\"\n"),
             Catch::Contains("controller.sockt: unknown; allowed: socket, socket_mode"));
  CHECK_THAT(WhyNot("[log]\nlevel = \"loud\"\n"), Catch::StartsWith("f:2:1: log.level: \"loud\"; allowed: \"trace\""));
  CHECK_THAT(WhyNot("[admin]\nsocket = \"/a\"\n"),
             Catch::Contains("the sections [controller], [tls], [roles], [log], [nodes]"));
  CHECK_THAT(WhyNot("nodes = 3\n"), Catch::Contains("f:1:"));
  CHECK_THAT(WhyNot("[nodes\n"), Catch::StartsWith("f:1:"));
  CHECK_THAT(WhyNot("", {"node-a"}), Catch::StartsWith("--node: \"node-a\": no \"=\""));
  const std::string two = WhyNot("[nodes]\na = 7\nb = 8\n", {"c"});
  CHECK(std::count(two.begin(), two.end(), '\n') == 2);
}

}  // namespace
}  // namespace kvist::daemon

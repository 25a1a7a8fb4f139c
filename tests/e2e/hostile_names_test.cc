// Row 32 of the fault matrix: names that were chosen to be a path, a terminal's command, another name, or too much. None is used as a
// path, all are limited in length, and no two of them are taken for one.
#include <catch2/catch.hpp>

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/session/registration.h"
#include "tests/support/bystander.h"
#include "tests/support/ctl.h"
#include "tests/support/daemon_process.h"
#include "tests/support/fake_engine.h"
#include "tests/support/raw_client.h"
#include "tests/support/temp_dir.h"

namespace session = kvist::session::v1;
using kvist::test::Bystander;
using kvist::test::DaemonProcess;
using kvist::test::Eventually;
using kvist::test::FakeEngine;
using kvist::test::FdsFallTo;
using kvist::test::kProvoked;
using kvist::test::RawClient;
using kvist::test::StatusOf;
using kvist::test::TempDir;

namespace {

// What a name may be, and what it may not.
const std::vector<std::string> kAllowed = {
    "_default",
    "default",
    "DEFAULT",
    "*",
    "null",
    "0",
    "uid:0",
    "uid:1000",
    "t",
    "..",
    ".",
    "../",
    "../../../../tmp/kvist-escape",
    "/etc/passwd",
    "/tmp/kvist-escape",
    "~/.ssh/id_rsa",
    "engine.sock",
    "state/../escape",
    "C:\\escape",
    "\\\\host\\share",
    "-rf",
    "--set",
    "$(touch kvist-escape)",
    "`touch kvist-escape`",
    "; touch kvist-escape",
    "| sh",
    "%s%s%n",
    "{}",
    "'",
    "\"",
    "a b",
    " a",
    "a ",
    "a,b",
    "a|b",
    "a/b",
    "a:b",
    "a=b",
    "<script>",
    "CON",
    "caf\u00e9",
    "cafe\u0301",
    "\u0430",
    "a",
    "A",
    "\u202ekcab",
    "\u200b",
    "\ufeff",
    "\U0001f600",
    std::string(254, 'x'),
    std::string(255, 'x'),
    std::string(255, '/'),
};
const std::vector<std::string> kRefused = {
    std::string(1, '\0'),
    std::string("a\0b", 3),
    std::string("\0a", 2),
    std::string("a\0", 2),
    "\n",
    "a\nb",
    "a\r",
    "\t",
    "\x1b[31mred",
    "\x7f",
    "a\x01",
    std::string(256, 'x'),
    std::string(4096, 'x'),
    std::string(60'000, 'x'),
    "\xff",
    "\xc3",
    "\xc0\xaf",
    "\xed\xa0\x80",
    "a\xf8",
};

using SetName = void (*)(session::Hello*, const std::string&);
struct Field {
  const char* name;
  SetName set;
  bool of_space;
};
const Field kFields[] = {
    {"instance", [](session::Hello* h, const std::string& v) { h->set_instance(v); }, false},
    {"model", [](session::Hello* h, const std::string& v) { h->mutable_space()->set_model(v); }, true},
    {"revision", [](session::Hello* h, const std::string& v) { h->mutable_space()->set_revision(v); }, true},
    {"kv_dtype", [](session::Hello* h, const std::string& v) { h->mutable_space()->set_kv_dtype(v); }, true},
    {"layout", [](session::Hello* h, const std::string& v) { h->mutable_space()->set_layout(v); }, true},
};

// A name is 1 to 255 bytes, a revision may be empty.
session::ClientFrame Named(const Field& field, const std::string& name) {
  session::ClientFrame frame = RawClient::GoodHello();
  frame.mutable_hello()->set_role(session::Hello::ROLE_SCHEDULER);
  field.set(frame.mutable_hello(), name);
  return frame;
}

std::set<std::string> FilesUnder(const std::string& dir) {
  std::set<std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(dir)) files.insert(entry.path());
  return files;
}

}  // namespace

TEST_CASE("Row 32: hostile names over the wire are no paths, are limited, and name spaces of their own") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), kProvoked);
  Bystander bystander(daemon);
  // A thread of kvistd's writes its jobs down when it starts.
  REQUIRE(Eventually([&] { return std::filesystem::exists(dir / "state/jobs"); }));
  const std::set<std::string> files = FilesUnder(dir.path());
  const size_t fds = daemon.OpenFds();
  std::map<std::string, std::string> owners;  // digest -> field and name
  std::string plain;                          // digest of GoodHello
  uint32_t accepted = 0, refused = 0, collisions = 0;
  for (const Field& field : kFields) {
    for (const std::string& name : kAllowed) {
      INFO(field.name << " = " << name);
      RawClient client(daemon);
      client.SendBytes(Named(field, name).SerializeAsString(), {});
      const auto answer = client.Receive();
      REQUIRE(answer != nullptr);
      INFO(answer->refused().message());
      REQUIRE(answer->has_welcome());
      ++accepted;
      const std::string& digest = answer->welcome().space_digest();
      if (field.of_space) {
        collisions += !owners.emplace(digest, field.name + (" " + name)).second;
      } else {
        if (plain.empty()) plain = digest;
        CHECK(digest == plain);  // who asks is not part of what is asked for
      }
    }
    for (const std::string& name : kRefused) {
      INFO(field.name << " of " << name.size() << " bytes");
      RawClient client(daemon);
      session::ClientFrame frame = Named(field, name);
      std::string bytes;
      if (!frame.SerializeToString(&bytes)) continue;
      client.SendBytes(bytes, {});
      const auto answer = client.Receive();
      REQUIRE(answer != nullptr);
      REQUIRE(answer->has_refused());
      CHECK(answer->refused().code() == static_cast<int>(absl::StatusCode::kInvalidArgument));
      CHECK(answer->refused().message().size() < 300);  // it doesn't repeat the name
      ++refused;
    }
  }
  {
    RawClient client(daemon);
    client.SendBytes(Named(kFields[0], "").SerializeAsString(), {});
    CHECK_THAT(client.Receive()->refused().message(), Catch::Contains("instance"));
  }
  CHECK(owners.count(plain) == 0);
  std::set<std::string> escaped;
  const std::set<std::string> now = FilesUnder(dir.path());
  std::set_symmetric_difference(now.begin(), now.end(), files.begin(), files.end(), std::inserter(escaped, escaped.end()));
  for (const char* path : {"/tmp/kvist-escape", "/kvist-escape", "kvist-escape"}) {
    if (std::filesystem::exists(path)) escaped.insert(path);
  }
  std::printf("row 32: %u hostile names accepted, %u refused by name; escapes %zu, collisions %u of %zu spaces\n", accepted,
              refused, escaped.size(), collisions, owners.size());
  CHECK(escaped == std::set<std::string>());
  CHECK(collisions == 0);
  CHECK(refused > 40);
  // What operators read of them is well formed.
  CHECK_NOTHROW(StatusOf(daemon));
  CHECK(FdsFallTo(daemon, fds));
}

TEST_CASE("Row 32: names of a megabyte end their connection, and the connector doesn't send them") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), kProvoked);
  Bystander bystander(daemon);
  for (const Field& field : kFields) {
    RawClient client(daemon);
    const std::string bytes = Named(field, std::string(1 << 20, 'x')).SerializeAsString();
    const int buffer = 4 << 20;
    ::setsockopt(client.socket(), SOL_SOCKET, SO_SNDBUFFORCE, &buffer, sizeof buffer);
    if (::send(client.socket(), bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0) {
      WARN("a packet of a megabyte can't be sent here");  // without the right to a larger buffer
      continue;
    }
    CHECK(client.HungUp());
  }
  for (const bool of_model : {true, false}) {
    FakeEngine::Options options = FakeEngine::On(daemon.socket());
    (of_model ? options.model : options.instance) = std::string(1 << 20, 'x');
    FakeEngine engine(options);
    CHECK(engine.status.code == KVIST_INVALID_ARGUMENT);
    CHECK(engine.status.message.size() < 1000);
  }
}

TEST_CASE("Row 32: no split of names over fields and tenants gives the same space twice") {
  std::map<kvist::SpaceDigest, std::vector<std::string>> owners;
  uint32_t collisions = 0;
  const auto add = [&](const std::string& tenant, const std::string& model, const std::string& revision,
                       const std::string& dtype) {
    session::Hello hello = RawClient::GoodHello().hello();
    hello.set_role(session::Hello::ROLE_SCHEDULER);
    hello.mutable_space()->set_model(model);
    hello.mutable_space()->set_revision(revision);
    hello.mutable_space()->set_kv_dtype(dtype);
    const auto registration = kvist::session::CheckHello(hello, {}, tenant, kvist::session::Peer{});
    if (!registration.ok()) return;
    std::vector<std::string> owner{tenant, model, revision, dtype};
    const auto [found, is_new] = owners.emplace(registration->space.digest, owner);
    collisions += !is_new && found->second != owner;
  };
  // Every way of cutting a text into four fields.
  for (const std::string text : {"_default_default", "a/../b/../c/../d", "aaaaaaaaaaaa", "uid:0uid:0uid:0"}) {
    for (size_t i = 0; i <= text.size(); ++i) {
      for (size_t j = i; j <= text.size(); ++j) {
        for (size_t k = j; k <= text.size(); ++k)
          add(text.substr(0, i), text.substr(i, j - i), text.substr(j, k - j), text.substr(k));
      }
    }
  }
  for (const std::string& name : kAllowed) {
    for (const std::string tenant : {"_default", "default", "uid:0", "uid:1", "", "t"}) {
      add(tenant, name, "", "u8");
      add(tenant, "m", name, "u8");
      add(tenant, "m", "", name);
      add(name, "m", "", "u8");
    }
  }
  std::printf("row 32: %zu descriptions of tenants and models, digests that collide %u\n", owners.size(), collisions);
  CHECK(collisions == 0);
  CHECK(owners.size() > 1500);
}

TEST_CASE("Row 32: a configured tenant can't take the name of a user who has none") {
  TempDir dir;
  const auto start = [&](const std::string& tenant) {
    std::string out;
    return kvist::test::RunProgram(
        {kvist::test::BinDir() + "/kvistd", "--set", "daemon.state_dir=" + dir.path() + "/state", "--set",
         "session.socket=" + dir.path() + "/no/such/folder/e.sock", "--set", "tenants.1000=" + tenant},
        &out);
  };
  for (const std::string tenant : {"uid:0", "uid:1000", "../x", "a/b", "\"\"", "caf\u00e9", "a b", "a\nb"}) {
    INFO(tenant);
    CHECK(start(tenant) != 0);
    CHECK(!std::filesystem::exists(dir.path() + "/state"));  // refused before anything was made
  }
  CHECK(start(std::string(65, 'x')) != 0);
}

#include "daemon/config_commands.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "daemon/config_in_force.h"
#include "daemon/config_keys.h"
#include "daemon/config_text.h"
#include "tests/support/temp_dir.h"

namespace kvist::daemon {
namespace {

using Catch::Contains;
using Catch::StartsWith;

struct Outcome {
  bool right;
  std::string out;
  std::string err;
};

Outcome Config(ConfigCommand command, const ConfigSources& sources, ConfigFormat format = ConfigFormat::kText) {
  std::ostringstream out, err;
  const bool right = RunConfigCommand(command, sources, format, out, err);
  return {right, out.str(), err.str()};
}

// As kvistd does it when all can be put in force.
absl::StatusOr<ConfigInForce::Changes> Reload(ConfigInForce* config) {
  absl::StatusOr<ConfigInForce::Next> next = config->Reread();
  if (!next.ok()) return next.status();
  const ConfigInForce::Changes changes = next->changes;
  config->Take(*std::move(next));
  return changes;
}

// Sources whose paths don't depend on who runs the tests.
struct Sources {
  test::TempDir dir;
  ConfigSources sources{.file = dir / "kvistd.toml",
                        .overrides = {"daemon.state_dir=" + dir / "s", "session.socket=" + dir / "e",
                                      "admin.socket=" + dir / "a", "pool.bytes=1GiB"}};
  explicit Sources(const std::string& text) { Write(text); }
  void Write(const std::string& text) const { std::ofstream(sources.file) << text; }
};

TEST_CASE("config check says ok, or every error with its place") {
  const Sources good("[copy]\nthreads = 9\n");
  const Outcome ok = Config(ConfigCommand::kCheck, good.sources);
  CHECK(ok.right);
  CHECK(ok.out == good.sources.file + ": ok\n");
  CHECK(ok.err == "");
  CHECK(nlohmann::json::parse(Config(ConfigCommand::kCheck, good.sources, ConfigFormat::kJson).out) ==
        nlohmann::json{{"file", good.sources.file},
                       {"ok", true},
                       {"errors", nlohmann::json::array()},
                       {"warnings", nlohmann::json::array()}});

  const Sources odd("[quotas]\n\"uid:7\" = \"2GiB\"\n");
  const Outcome warned = Config(ConfigCommand::kCheck, odd.sources);
  CHECK(warned.right);
  CHECK(warned.out == odd.sources.file + ": ok\n");
  CHECK(warned.err ==
        "kvistd: warning: quotas.\"uid:7\": 2GiB is more than the whole pool, 1GiB, and limits nothing\n"
        "kvistd: warning: quotas: together they are more than the whole pool, 1GiB, so they limit their tenants and "
        "keep nothing for them\n");

  const Sources bad("[copy]\nthreads = 0\nthread = 1\n");
  const Outcome wrong = Config(ConfigCommand::kCheck, bad.sources);
  CHECK_FALSE(wrong.right);
  CHECK(wrong.out == "");
  CHECK_THAT(wrong.err, Contains("kvistd: " + bad.sources.file + ":2:11: copy.threads: the integer 0; allowed: "));
  CHECK_THAT(wrong.err, Contains("kvistd: " + bad.sources.file + ":3:1: copy.thread: unknown key"));
  const auto json = nlohmann::json::parse(Config(ConfigCommand::kCheck, bad.sources, ConfigFormat::kJson).out);
  CHECK(json["ok"] == false);
  CHECK(json["errors"].size() == 2);

  const Outcome missing = Config(ConfigCommand::kCheck, {.file = "/nowhere/kvistd.toml", .overrides = {}});
  CHECK_FALSE(missing.right);
  CHECK_THAT(missing.err, Contains("/nowhere/kvistd.toml"));
}

TEST_CASE("config check sees what a start would refuse after the defaults are filled in") {
  Sources sources("[pool]\nslab_bytes = \"2GiB\"\n");
  const Outcome wrong = Config(ConfigCommand::kCheck, sources.sources);
  CHECK_FALSE(wrong.right);
  CHECK_THAT(wrong.err, Contains("pool.slab_bytes: 2GiB; allowed: at most pool.bytes, 1GiB"));

  // The other one is the default's; the place is that of the one which can be changed.
  Sources same("[session]\nsocket = \"/run/kvist/admin.sock\"\n");
  same.sources.overrides = {"pool.bytes=1GiB"};
  if (::geteuid() == 0) {
    CHECK_THAT(Config(ConfigCommand::kDiff, same.sources).err,
               StartsWith("kvistd: " + same.sources.file + ":2:10: admin.socket: "));
  }
}

TEST_CASE("config check and a reload ask this machine; config dump and diff take what is meant for another") {
  Sources sources("[session]\nsocket_group = \"no-such-group\"\n");
  const std::string place = sources.sources.file + ":2:16: session.socket_group: ";
  CHECK_THAT(Config(ConfigCommand::kCheck, sources.sources).err, StartsWith("kvistd: " + place));
  CHECK(Config(ConfigCommand::kDump, sources.sources).right);
  CHECK_THAT(Config(ConfigCommand::kDiff, sources.sources).out, Contains("no-such-group"));

  sources.Write("");
  ConfigInForce config = ConfigInForce::Load(sources.sources).value();
  sources.Write("[lease]\nmax = \"1s\"\n[copy]\ncpus = [1023]\n");
  CHECK_THAT(std::string(Reload(&config).status().message()),
             StartsWith(sources.sources.file + ":4:8: copy.cpus: CPU 1023; allowed: "));
  CHECK(config.options().lease.max == Options().lease.max);
}

TEST_CASE("config default explains every key, and reads back as the defaults") {
  const std::string text = Config(ConfigCommand::kDefault, {.file = "/nowhere", .overrides = {}}).out;
  CHECK(PrintConfig(ParseConfig(text, "f").value()) == PrintConfig(Options()));
  const std::string words = absl::StrReplaceAll(text, {{"\n# ", " "}});
  const auto json = nlohmann::json::parse(Config(ConfigCommand::kDefault, {}, ConfigFormat::kJson).out);
  for (const ConfigKey& key : ConfigKeys()) {
    INFO(FullName(key));
    CHECK_FALSE(key.about.empty());
    CHECK_THAT(words, Contains(key.about + (key.live ? " A reload puts it in force." : " A change needs a restart.") +
                               " Allowed: " + key.allowed + "\n" + std::string(key.name) + " = " + key.print(Options())));
    const auto& about = json[std::string(key.section)][std::string(key.name)];
    CHECK(about["about"] == key.about);
    CHECK(about["needs_restart"] == !key.live);
  }
  for (const ConfigMap& map : ConfigMaps()) {
    INFO(map.section);
    CHECK_THAT(words, Contains(absl::StrCat("[", map.section, "] ", map.about, " A reload puts it in force. Allowed: ",
                                            map.key_allowed, " = ", map.value_allowed)));
    CHECK(json[std::string(map.section)][std::string(map.key_noun)]["about"] == map.about);
  }
  CHECK(json["copy"]["cpus"]["default"] == nlohmann::json::array());
  CHECK(json["lease"]["share"]["default"] == 0.5);
  for (const absl::string_view line : absl::StrSplit(text, '\n')) CHECK(line.size() <= 120);
}

TEST_CASE("config dump is what kvistd would run with, and reads back") {
  const Sources sources("[lease]\nmax = \"90s\"\n[tenants]\n7 = \"blue\"\n");
  const Outcome dump = Config(ConfigCommand::kDump, sources.sources);
  REQUIRE(dump.right);
  const Options read = ParseConfig(dump.out, "dump").value();
  CHECK(PrintConfig(read) == dump.out);
  CHECK(read.lease.max == absl::Seconds(90));
  CHECK(read.pool.bytes == GiB(1));
  CHECK(read.pool.slab_bytes == MiB(64));  // filled in
  CHECK(read.tenants.at("7") == "blue");
  const auto json = nlohmann::json::parse(Config(ConfigCommand::kDump, sources.sources, ConfigFormat::kJson).out);
  CHECK(json["session"]["socket"] == sources.dir / "e");
  CHECK(json["session"]["connections_max"] == 1024);
  CHECK(json["pool"]["lock"] == true);
  CHECK(json["pool"]["bytes"] == "1GiB");
  CHECK(json["tenants"] == nlohmann::json{{"7", "blue"}});
  CHECK(json["quotas"] == nlohmann::json::object());
  for (const ConfigKey& key : ConfigKeys()) CHECK(json[std::string(key.section)].contains(std::string(key.name)));
  CHECK_FALSE(Config(ConfigCommand::kDump, Sources("[pol]\n").sources).right);
}

TEST_CASE("config dump and diff write names whole, however long, and as TOML reads them") {
  const std::string name = absl::StrCat("uri:spiffe://a/", std::string(200, 'x'), "/O'Neil\\");
  const std::string entry = absl::StrCat("\"", name, "\\\" = \"read\"");  // the backslash twice
  const Sources sources(absl::StrCat("[roles]\n", entry, "\n"));
  const Outcome dump = Config(ConfigCommand::kDump, sources.sources);
  REQUIRE(dump.right);
  CHECK_THAT(dump.out, Contains(absl::StrCat("[roles]\n", entry, "\n")));
  const absl::StatusOr<Options> read = ParseConfig(dump.out, "dump");
  REQUIRE(read.ok());
  CHECK(read->roles == std::map<std::string, std::string>{{name, "read"}});
  CHECK_THAT(Config(ConfigCommand::kDiff, sources.sources).out,
             Contains(absl::StrCat("roles.", entry, "  # default: none\n")));
  const auto json = nlohmann::json::parse(Config(ConfigCommand::kDump, sources.sources, ConfigFormat::kJson).out);
  CHECK(json["roles"][name] == "read");
}

TEST_CASE("config diff prints only what is not as by default") {
  const Sources sources("[lease]\nmax = \"90s\"\nshare = 0.5\n[copy]\ncpus = [1, 2]\n[tenants]\n7 = \"blue\"\n");
  CHECK(Config(ConfigCommand::kDiff, sources.sources).out == "daemon.state_dir = \"" + sources.dir / "s" +
                                                                 "\"  # default: \"\"\n"
                                                                 "session.socket = \"" +
                                                                 sources.dir / "e" +
                                                                 "\"  # default: \"\"\n"
                                                                 "admin.socket = \"" +
                                                                 sources.dir / "a" +
                                                                 "\"  # default: \"\"\n"
                                                                 "pool.bytes = \"1GiB\"  # default: 0\n"
                                                                 "copy.cpus = [1, 2]  # default: []\n"
                                                                 "lease.max = \"1m30s\"  # default: \"1m\"\n"
                                                                 "tenants.7 = \"blue\"  # default: none\n");
  const auto json = nlohmann::json::parse(Config(ConfigCommand::kDiff, sources.sources, ConfigFormat::kJson).out);
  CHECK(json[5] == nlohmann::json{{"key", "lease.max"}, {"value", "1m30s"}, {"default", "1m"}});
  CHECK(json[6]["default"].is_null());
  CHECK(Config(ConfigCommand::kDiff, {}).out == "");
}

TEST_CASE("ConfigInForce takes live keys over and remembers which need a restart") {
  const Sources sources("[lease]\nmax = \"90s\"\n[copy]\nthreads = 3\n[tenants]\n7 = \"blue\"\n8 = \"red\"\n");
  ConfigInForce config = ConfigInForce::Load(sources.sources).value();
  CHECK(Reload(&config)->live.empty());

  sources.Write("[lease]\nmax = \"30s\"\n[copy]\nthreads = 4\n[tenants]\n7 = \"green\"\n9 = \"red\"\n");
  ConfigInForce::Changes changes = Reload(&config).value();
  CHECK(changes.live == std::vector<std::string>{"lease.max", "tenants.7", "tenants.8", "tenants.9"});
  CHECK(changes.restart == std::vector<std::string>{"copy.threads"});
  CHECK(config.options().lease.max == absl::Seconds(30));
  CHECK(config.options().copy.threads == 3);
  CHECK(config.options().tenants == std::map<std::string, std::string>{{"7", "green"}, {"9", "red"}});

  sources.Write(
      "[copy]\nthreads = 3\n[lease]\nmax = \"30s\"\n[tenants]\n7 = \"green\"\n9 = \"red\"\n[quotas]\nred = \"1MiB\"\n");
  CHECK(Reload(&config)->live == std::vector<std::string>{"quotas.red"});
  CHECK(config.options().quotas == std::map<std::string, Bytes>{{"red", MiB(1)}});
  sources.Write("[copy]\nthreads = 4\n[lease]\nmax = \"30s\"\n[tenants]\n7 = \"green\"\n9 = \"red\"\n");
  CHECK(Reload(&config)->live == std::vector<std::string>{"quotas.red"});
  CHECK(config.options().quotas.empty());

  changes = Reload(&config).value();  // still waits for its restart
  CHECK(changes.live.empty());
  CHECK(changes.restart == std::vector<std::string>{"copy.threads"});
}

TEST_CASE("ConfigInForce finds the same again as long as nobody takes it") {
  const Sources sources("[lease]\nmax = \"90s\"\n");
  ConfigInForce config = ConfigInForce::Load(sources.sources).value();
  sources.Write("[lease]\nmax = \"30s\"\n");
  for (int tries = 0; tries < 2; ++tries) {
    const ConfigInForce::Next next = config.Reread().value();
    CHECK(next.changes.live == std::vector<std::string>{"lease.max"});
    CHECK(next.options.lease.max == absl::Seconds(30));
    CHECK(config.options().lease.max == absl::Seconds(90));
  }
  CHECK(Reload(&config)->live == std::vector<std::string>{"lease.max"});
  CHECK(config.options().lease.max == absl::Seconds(30));
  CHECK(Reload(&config)->live.empty());
}

TEST_CASE("ConfigInForce changes nothing when anything is wrong") {
  const Sources sources("[lease]\nmax = \"90s\"\n");
  ConfigInForce config = ConfigInForce::Load(sources.sources).value();
  const std::string before = PrintConfig(config.options());
  for (const char* wrong :
       {"[lease]\nmax = \"30s\"\nshare = 2\n", "[lease]\nmax = \"30s\"\n[pool]\nslab_bytes = \"2GiB\"\n"}) {
    sources.Write(wrong);
    const absl::StatusOr<ConfigInForce::Changes> changes = Reload(&config);
    REQUIRE_FALSE(changes.ok());
    CHECK_THAT(std::string(changes.status().message()),
               StartsWith(sources.sources.file + ":") || StartsWith("pool.slab_bytes"));
    CHECK(PrintConfig(config.options()) == before);
  }
  std::remove(sources.sources.file.c_str());
  CHECK_FALSE(Reload(&config).ok());
  CHECK(PrintConfig(config.options()) == before);
  sources.Write("[lease]\nmax = \"30s\"\n");
  CHECK(Reload(&config)->live == std::vector<std::string>{"lease.max"});
}

TEST_CASE("ConfigInForce keeps a default that was found at the start") {
  // pool.bytes and the paths are left out: what they were filled with then must not count as a change now.
  test::TempDir dir;
  ConfigInForce config = ConfigInForce::Load({.file = "",
                                              .overrides = {"session.socket=" + dir / "e", "admin.socket=" + dir / "a",
                                                            "daemon.state_dir=" + dir / "s"}})
                             .value();
  const Bytes pool = config.options().pool.bytes;
  const ConfigInForce::Changes changes = Reload(&config).value();
  CHECK(changes.live.empty());
  CHECK(changes.restart.empty());
  CHECK(config.options().pool.bytes == pool);
}

}  // namespace
}  // namespace kvist::daemon

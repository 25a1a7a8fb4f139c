#include "daemon/config.h"

#include <grp.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "daemon/config_keys.h"
#include "daemon/config_rules.h"
#include "daemon/config_text.h"
#include "tests/support/certificates.h"
#include "tests/support/temp_dir.h"

namespace kvist::daemon {
namespace {

Options Good(const std::string& text, const std::vector<std::string>& overrides = {}) {
  absl::StatusOr<Options> options = ParseConfig(text, "f", overrides);
  INFO(options.status().ToString());
  REQUIRE(options.ok());
  return *options;
}

std::string Refusal(const std::string& text, const std::vector<std::string>& overrides = {}) {
  const absl::StatusOr<Options> options = ParseConfig(text, "f", overrides);
  REQUIRE(options.status().code() == absl::StatusCode::kInvalidArgument);
  return std::string(options.status().message());
}

// For every key a value that isn't its default, as TOML. A key without one fails the test below.
std::string OtherValue(const ConfigKey& key) {
  const std::string name = absl::StrCat(key.section, ".", key.name);
  if (name == "daemon.state_dir" || absl::EndsWith(name, ".socket")) return absl::StrCat("\"/somewhere/", key.section, "\"");
  if (absl::EndsWith(name, ".socket_mode")) return "\"0600\"";
  if (name == "admin.listen") return "\"[::]:9416\"";
  if (absl::StartsWith(name, "tls.")) return absl::StrCat("\"/etc/kvist/", key.name, ".pem\"");
  if (absl::EndsWith(name, ".socket_group")) return "\"kvist-users\"";
  if (name == "daemon.node") return "\"node-a.rack_7\"";
  if (name == "session.connections_max") return "7";
  if (name == "session.connections_per_uid") return "5";
  if (name == "session.reactor_cpu") return "3";
  if (name == "pool.bytes") return "\"3GiB\"";
  if (name == "pool.slab_bytes") return "\"8MiB\"";
  if (name == "pool.touch_threads") return "4";
  if (name == "pool.lock") return "false";
  if (name == "pool.verify") return "\"always\"";
  if (name == "pool.keep") return "\"never\"";
  if (name == "ssd.enabled") return "false";
  if (name == "ssd.path") return "\"/one/disk:/another\"";
  if (name == "ssd.capacity") return "\"2TiB\"";
  if (name == "ssd.write_rate") return "\"300MiB\"";
  if (name == "ssd.gate") return "false";
  if (name == "copy.gpu_kernel") return "false";
  if (name == "remote.store") return "\"rediss://cache.example:6380/3\"";
  if (name == "remote.name") return "\"rack-7\"";
  if (absl::StartsWith(name, "remote.") && absl::EndsWith(name, "_file")) return "\"/etc/kvist/secrets\"";
  if (name == "remote.encrypt" || name == "remote.s3_path_style") return "true";
  if (name == "remote.codec") return "\"lossless\"";
  if (name == "remote.lookup_wait") return "\"75ms\"";
  if (name == "remote.read_timeout" || name == "remote.write_timeout") return "\"3s\"";
  if (name == "remote.rate") return "\"200MiB\"";
  if (name == "remote.expire_after") return "\"72h\"";
  if (name == "remote.s3_endpoint") return "\"http://127.0.0.1:9000\"";
  if (name == "remote.s3_region") return "\"eu-north-1\"";
  if (name == "ssd.scrub_every") return "\"2h\"";
  if (name == "ssd.stop_flush") return "\"30s\"";
  if (name == "copy.threads") return "5";
  if (name == "copy.cpus") return "[1, 0]";
  if (name == "lease.max") return "\"1m30s\"";
  if (absl::EndsWith(name, ".share")) return "0.125";
  if (name == "lease.half_store") return "\"500ms\"";
  if (name == "eviction.policy") return "\"lru\"";
  if (name == "metrics.listen") return "\"[::1]:9000\"";
  if (name == "metrics.allow_remote") return "true";
  if (name == "metrics.tenants_max") return "5";
  if (name == "log.level") return "\"warn\"";
  if (name == "log.format") return "\"json\"";
  FAIL("no other value for " << name);
  return "";
}

// What has to stand beside a key for its other value to be allowed.
std::vector<std::string> Beside(const ConfigKey& key) {
  if (key.section != "admin" || key.name != "listen") return {};
  return {"tls.certificate_file=/c", "tls.key_file=/k", "tls.ca_file=/a"};
}

TEST_CASE("ParseConfig gives every key its default when the file is empty") {
  CHECK(PrintConfig(Good("")) == PrintConfig(Options()));
  CHECK(PrintConfig(Good("# only a comment\n[pool]\n")) == PrintConfig(Options()));
}

TEST_CASE("ParseConfig takes every key from a file and from --set, and PrintConfig gives it back") {
  for (const ConfigKey& key : ConfigKeys()) {
    INFO(key.section << "." << key.name);
    const std::string value = OtherValue(key);
    const Options from_file = Good(absl::StrCat("[", key.section, "]\n", key.name, " = ", value, "\n"), Beside(key));
    CHECK(key.print(from_file) == value);
    CHECK(key.print(Options()) != value);
    CHECK(PrintConfig(Good(PrintConfig(from_file))) == PrintConfig(from_file));
    std::vector<std::string> overrides = Beside(key);
    overrides.push_back(absl::StrCat(key.section, ".", key.name, "=", value));
    const Options from_set = Good("", overrides);
    CHECK(PrintConfig(from_set) == PrintConfig(from_file));
  }
}

TEST_CASE("PrintConfig gives paths back with any characters that a file can hold, and ParseConfig refuses others") {
  for (const std::string path : {"/it's", "/a \"quoted\" name", "/back\\slash", "/caf\u00e9 \u20ac \U0001f600"}) {
    INFO(path);
    const Options options = Good("", {"daemon.state_dir=" + path});
    CHECK(options.daemon.state_dir == path);
    CHECK(Good(PrintConfig(options)) == options);
  }
  for (const char* bytes : {"/\xff", "/\xc3", "/\xc0\xaf", "/\xed\xa0\x80", "/\xf4\x90\x80\x80", "/\xe0\x80\xaf"}) {
    INFO(bytes);
    CHECK_THAT(std::string(ParseConfig("", "", {std::string("daemon.state_dir=") + bytes}).status().message()),
               Catch::Contains("UTF-8"));
  }
}

TEST_CASE("ParseConfig takes an address for metrics that others reach only when that is said") {
  CHECK_THAT(Refusal("[metrics]\nlisten = \"0.0.0.0:9415\"\n"),
             Catch::Contains("metrics.listen") && Catch::Contains("0.0.0.0:9415") && Catch::Contains("allow_remote = true"));
  CHECK_THAT(Refusal("", {"metrics.listen=[::]:9415"}), Catch::Contains("allow_remote = true"));
  Good("[metrics]\nlisten = \"0.0.0.0:9415\"\nallow_remote = true\n");
  Good("", {"metrics.listen=127.255.0.1:1"});
  Good("", {"metrics.listen=[::1]:65535"});
  Good("", {"metrics.listen="});
  for (const char* wrong : {"localhost:9415", "127.0.0.1", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:65536", "127.0.0.1:+1",
                            "127.0.0.1:01", "::1:9415", "[::1]", "[127.0.0.1]:1", ":9415", " 127.0.0.1:1"}) {
    INFO(wrong);
    CHECK_THAT(Refusal("", {absl::StrCat("metrics.listen=", wrong)}), Catch::Contains("an IP address and a port"));
  }
}

TEST_CASE("ParseConfig takes a TCP address for operators only with all that TLS needs") {
  const std::string listen = "[admin]\nlisten = \"10.0.0.7:9416\"\n";
  CHECK_THAT(Refusal(listen), Catch::StartsWith("f:2:10: admin.listen: \"10.0.0.7:9416\"; allowed: ") &&
                                  Catch::Contains("tls.certificate_file, tls.key_file, tls.ca_file"));
  CHECK_THAT(Refusal(listen, {"tls.certificate_file=/c", "tls.key_file=/k"}),
             Catch::Contains("tls.ca_file") && !Catch::Contains("tls.key_file"));
  CHECK_THAT(Refusal("", {"admin.listen=127.0.0.1:9416"}),
             Catch::Contains("admin.listen"));  // nor for this machine's other users
  CHECK_THAT(Refusal("", {"admin.listen=localhost:9416"}), Catch::Contains("an IP address and a port"));
  Options options = Good(listen + "[tls]\ncertificate_file = \"/c\"\nkey_file = \"/k\"\nca_file = \"/a\"\n");
  CHECK(ConfigWarnings(options).size() == 1);  // nobody may do anything there
  options.roles["cn:a"] = "read";
  CHECK(ConfigWarnings(options).empty());
  options.admin.listen = "";
  CHECK_THAT(ConfigWarnings(options)[0], Catch::StartsWith("roles: "));
}

TEST_CASE("ParseConfig gives clients roles, and PrintConfig gives them back") {
  const Options options = Good("[roles]\n\"cn:prometheus\" = \"read\"\n", {"roles.dns:router.example=operate"});
  CHECK(options.roles == std::map<std::string, std::string>{{"cn:prometheus", "read"}, {"dns:router.example", "operate"}});
  CHECK(Good(PrintConfig(options)) == options);
  CHECK(Refusal("[roles]\n\"cn:a\" = \"admin\"") ==
        "f:2:10: roles.cn:a: the string \"admin\"; allowed: \"read\", \"operate\"");
  CHECK_THAT(Refusal("[roles]\nprometheus = \"read\""),
             Catch::StartsWith("f:2:1: roles.prometheus: the key") && Catch::Contains("\"dns:NAME\""));
  for (const char* pattern : {"dns:*", "dns:*.example.com"}) {
    CHECK_THAT(Refusal(absl::StrCat("[roles]\n\"", pattern, "\" = \"read\"")),
               Catch::StartsWith(absl::StrCat("f:2:1: roles.", pattern)) && Catch::Contains("no name stands for several"));
  }
}

TEST_CASE("ParseConfig takes everything at once") {
  std::string text;
  for (const ConfigKey& key : ConfigKeys()) absl::StrAppend(&text, key.section, ".", key.name, " = ", OtherValue(key), "\n");
  const Options options = Good(text + "[tenants]\n1000 = \"blue\"\n1001 = \"blue\"\n");
  CHECK(options.session.socket == "/somewhere/session");
  CHECK(options.session.socket_mode == 0600);
  CHECK(options.session.reactor_cpu == 3);
  CHECK(options.pool.bytes == GiB(3));
  CHECK(options.pool.slab_bytes == MiB(8));
  CHECK_FALSE(options.pool.lock);
  CHECK(options.pool.verify == "always");
  CHECK(options.copy.cpus == std::vector<int>{1, 0});
  CHECK(options.lease.max == absl::Seconds(90));
  CHECK(options.lease.share == 0.125);
  CHECK(options.lease.half_store == absl::Milliseconds(500));
  CHECK(options.eviction.policy == "lru");
  CHECK(options.tenants == std::map<std::string, std::string>{{"1000", "blue"}, {"1001", "blue"}});
  CHECK(PrintConfig(Good(PrintConfig(options))) == PrintConfig(options));
}

TEST_CASE("ParseConfig reads sizes in bytes and with units") {
  CHECK(Good("[pool]\nbytes = 4194304").pool.bytes == MiB(4));
  CHECK(Good("[pool]\nbytes = \"512 MiB\"").pool.bytes == MiB(512));
  CHECK(Good("[pool]\nbytes = \"4GiB\"").pool.bytes == GiB(4));
  CHECK(Good("[pool]\nbytes = \"1TiB\"").pool.bytes == GiB(1024));
  CHECK(Good("[pool]\nslab_bytes = \"128KiB\"").pool.slab_bytes == KiB(128));
  CHECK(Good("[pool]\nslab_bytes = \"8192B\"").pool.slab_bytes == KiB(8));
  CHECK(Good("[pool]\nbytes = 0").pool.bytes == Bytes{});
  for (const char* wrong :
       {"\"4GB\"", "\"4\"", "\"GiB\"", "\"-4GiB\"", "\"4.5GiB\"", "\"\"", "-1", "4.0", "true", "4095", "\"16385GiB\"",
        "\"99999999999999999999GiB\"", "\"17592186044416TiB\"", "\"4GiB x\"", "{}", "[4]", "1979-05-27"}) {
    INFO(wrong);
    CHECK(absl::StartsWith(Refusal(absl::StrCat("[pool]\nbytes = ", wrong)), "f:2:9: pool.bytes: "));
  }
  CHECK(absl::StrContains(Refusal("[pool]\nslab_bytes = 5000"), "a multiple of 4KiB"));
}

TEST_CASE("ParseConfig says what it found, where, and what is allowed") {
  CHECK(Refusal("[pool]\nlock = true\nbytes = \"4GB\"") ==
        "f:3:9: pool.bytes: the string \"4GB\"; allowed: bytes, or a string with a unit such as \"4GiB\" (B, KiB, MiB, "
        "GiB, TiB), from 4KiB "
        "to 16TiB; 0 for the default");
  CHECK(Refusal("[log]\n\n  level = \"loud\"") ==
        "f:3:11: log.level: the string \"loud\"; allowed: \"trace\", \"debug\", \"info\", \"warn\", \"error\"");
  CHECK(Refusal("[pool]\nlock = 1") == "f:2:8: pool.lock: the integer 1; allowed: true, false");
  CHECK(Refusal("[session]\nsocket_mode = 432") ==
        "f:2:15: session.socket_mode: the integer 432; allowed: an octal file mode as a string, \"0600\" to \"0777\", "
        "that lets the owner read "
        "and write");
  CHECK(Refusal("[copy]\nthreads = 0") == "f:2:11: copy.threads: the integer 0; allowed: an integer from 1 to 256");
  CHECK(Refusal("[copy]\ncpus = [0, \"x\"]") ==
        "f:2:8: copy.cpus: an array that holds more than integers; allowed: a list of CPU numbers such as [0, 1], each "
        "from 0 to 1023");
  CHECK(Refusal("[lease]\nshare = 1.5") == "f:2:9: lease.share: the number 1.5; allowed: a number above 0 and at most 1");
  CHECK(Refusal("[lease]\nmax = 60") ==
        "f:2:7: lease.max: the integer 60; allowed: a string with a unit such as \"60s\" or \"500ms\" (ms, s, m, h), from "
        "1ms to 24h");
  CHECK(Refusal("[admin]\nsocket = \"run/a.sock\"") ==
        "f:2:10: admin.socket: the string \"run/a.sock\"; allowed: an absolute path of at most 107 bytes of UTF-8, or "
        "\"\" for the "
        "default");
  CHECK(Refusal("[pool.bytes]\nx = 1") ==
        "f:1:1: pool.bytes: a table; allowed: bytes, or a string with a unit such as \"4GiB\" (B, KiB, MiB, GiB, TiB), "
        "from 4KiB to 16TiB; 0 "
        "for the default");
}

TEST_CASE("ParseConfig refuses impossible values of every kind") {
  struct Case {
    const char* section;
    const char* line;
  };
  const std::string long_path = absl::StrCat("socket = \"/", std::string(107, 'x'), "\"");
  const std::string long_group = absl::StrCat("socket_group = \"", std::string(33, 'x'), "\"");
  const Case cases[] = {
      {"session", long_path.c_str()},
      {"session", long_group.c_str()},
      {"session", "socket = \"/a\\u0000b\""},
      {"session", "socket = \"/a\\nb\""},
      {"session", "socket_mode = \"0060\""},
      {"session", "socket_mode = \"1777\""},
      {"session", "socket_mode = \"0680\""},
      {"session", "socket_mode = \"66\""},
      {"session", "socket_mode = \"00660\""},
      {"session", "socket_group = \"a b\""},
      {"session", "connections_max = 0"},
      {"session", "connections_max = 65537"},
      {"session", "connections_max = 4294967297"},
      {"session", "reactor_cpu = -2"},
      {"session", "reactor_cpu = 1024"},
      {"daemon", "state_dir = \"state\""},
      {"daemon", "node = \"a node\""},
      {"pool", "touch_threads = -1"},
      {"copy", "cpus = [-1]"},
      {"copy", "cpus = [1024]"},
      {"copy", "cpus = [4294967296]"},
      {"copy", "cpus = 0"},
      {"lease", "share = 0"},
      {"lease", "share = nan"},
      {"lease", "share = inf"},
      {"lease", "share = \"half\""},
      {"lease", "max = \"0s\""},
      {"lease", "max = \"-1s\""},
      {"lease", "max = \"inf\""},
      {"lease", "max = \"25h\""},
      {"lease", "max = \"60\""},
      {"lease", "max = \"1 s\""},
      {"log", "level = \"\""},
      {"log", "format = \"JSON\""},
  };
  for (const Case& c : cases) {
    INFO(c.section << " " << c.line);
    const std::string refusal = Refusal(absl::StrCat("[", c.section, "]\n", c.line));
    CHECK(absl::StartsWith(refusal, "f:2:"));
    CHECK(absl::StrContains(refusal, "; allowed: "));
    CHECK(refusal.find('\n') == std::string::npos);
  }
}

TEST_CASE("ParseConfig shows no password of a URL that it refuses") {
  const std::string far(100, 'x');
  for (const std::string url : {"redis://me:hunter2@h:1", "redis:/me:hunter2@h:1", "redis://me:hun@ter2@h:1/?a=hunter2",
                                "redis://h:1/x?password=hunter2", "s3://hunter2@b", "https://hunter2@h/"}) {
    INFO(url);
    for (const std::string key : {"store", "s3_endpoint", "lookup_wait"}) {
      if (key == "s3_endpoint" || url[0] != 's') {
        const absl::StatusOr<Options> file = ParseConfig(absl::StrCat("[remote]\n", key, " = \"", url, "/ \"\n"), "f");
        CHECK_FALSE(file.ok());
        CHECK_FALSE(absl::StrContains(file.status().message(), "hunter2"));
        CHECK_FALSE(absl::StrContains(file.status().message(), "ter2"));
      }
      CHECK_FALSE(absl::StrContains(Refusal("", {absl::StrCat("remote.", key, "=", url, "/ ")}), "ter2"));
    }
    CHECK_FALSE(absl::StrContains(Refusal("", {absl::StrCat("remote.store ", url)}), "ter2"));
  }
  CHECK_FALSE(absl::StrContains(Refusal("", {"remote.store=redis://me:hunter2" + far + "@h"}), "hunter2"));
  CHECK_THAT(Refusal("", {"remote.store=redis://me:hunter2@h:1"}), Catch::Contains("\"redis://***@h:1\""));
}

TEST_CASE("ParseConfig names the key that was meant") {
  CHECK(
      Refusal("[pool]\nbyte = 1") ==
      "f:2:1: pool.byte: unknown key (did you mean bytes?); allowed: bytes, slab_bytes, touch_threads, lock, keep, verify");
  CHECK(absl::StrContains(Refusal("[pool]\nslab-bytes = 1"), "(did you mean slab_bytes?)"));
  CHECK(absl::StrContains(Refusal("[session]\nsokcet = \"/a\""), "(did you mean socket?)"));
  CHECK(absl::StrContains(Refusal("[session]\nstate_dir = \"/a\""), "(did you mean daemon.state_dir?)"));
  CHECK(Refusal("[pool]\nzzz = 1") ==
        "f:2:1: pool.zzz: unknown key; allowed: bytes, slab_bytes, touch_threads, lock, keep, verify");
  CHECK(Refusal("[pol]\nbytes = 1") ==
        "f:1:2: [pol]: unknown section (did you mean pool?); allowed: daemon, session, admin, tls, pool, ssd, remote, copy, "
        "lease, "
        "eviction, "
        "pin, swap, "
        "metrics, "
        "log, "
        "tenants, quotas, roles");
  CHECK(absl::StrContains(Refusal("[tenant]\n"), "(did you mean tenants?)"));
  CHECK(absl::StartsWith(Refusal("[pool]\n[xyzzy]\n"), "f:2:2: [xyzzy]: unknown section; allowed: "));
  CHECK(absl::StrContains(Refusal(absl::StrCat("[pool]\n", std::string(100000, 'x'), " = 1")), "unknown key; allowed"));
}

TEST_CASE("ParseConfig refuses what isn't a section") {
  CHECK(absl::StartsWith(Refusal("bytes = 4"),
                         "f:1:1: bytes: a key outside of any section; allowed: keys under one of daemon, "));
  CHECK(Refusal("pool = 4") == "f:1:1: [pool]: the integer 4; allowed: a section, [pool]");
  CHECK(absl::StartsWith(Refusal("[[pool]]\nbytes = 4"), "f:1:3: [pool]: "));
}

TEST_CASE("ParseConfig says where the TOML is wrong") {
  CHECK(absl::StartsWith(Refusal("[pool]\nbytes = 4GiB\n"), "f:2:"));
  CHECK(absl::StartsWith(Refusal("[pool]\nlock = true\nlock = false\n"), "f:3:"));
  CHECK(absl::StartsWith(Refusal("[pool\n"), "f:1:"));
  CHECK(absl::StartsWith(Refusal("[pool]\nbytes = \"\xff\"\n"), "f:2:"));
  CHECK(absl::StartsWith(Refusal(absl::StrCat("a = ", std::string(100000, '['))), "f:1:"));
}

TEST_CASE("ParseConfig maps uids to tenants") {
  CHECK(Good("[tenants]\n0 = \"root.team-1_x\"").tenants.at("0") == "root.team-1_x");
  CHECK(Good("", {"tenants.1000=true"}).tenants.at("1000") == "true");
  CHECK(Good("", {"tenants.1000=\"quoted\""}).tenants.at("1000") == "quoted");
  CHECK(Refusal("[tenants]\nalice = \"blue\"") ==
        "f:2:1: tenants.alice: the key \"alice\"; allowed: a uid in decimal, 0 to 4294967294");
  CHECK(absl::StartsWith(Refusal("[tenants]\n007 = \"blue\""), "f:2:1: tenants.007: "));
  CHECK(absl::StartsWith(Refusal("[tenants]\n4294967295 = \"blue\""), "f:2:1: "));
  CHECK(absl::StartsWith(Refusal("[tenants]\n-1 = \"blue\""), "f:2:1: "));
  CHECK(absl::StartsWith(Refusal("[tenants]\n1 = 5"), "f:2:5: tenants.1: the integer 5; allowed: "));
  // Else whoever writes this could share with a uid that has no tenant of its own.
  CHECK(absl::StartsWith(Refusal("[tenants]\n1 = \"uid:2\""), "f:2:5: tenants.1: the string \"uid:2\"; allowed: "));
  CHECK(absl::StartsWith(Refusal("[tenants]\n1 = \"\""), "f:2:5: "));
  CHECK(absl::StartsWith(Refusal(absl::StrCat("[tenants]\n1 = \"", std::string(65, 'x'), "\"")), "f:2:5: "));
}

TEST_CASE("ParseConfig gives tenants quotas, and PrintConfig gives them back") {
  const Options options =
      Good("[tenants]\n1 = \"team.a\"\n[quotas]\n\"team.a\" = \"8GiB\"\n\"uid:1000\" = 4096\n", {"quotas.uid:7=2 MiB"});
  CHECK(options.quotas == std::map<std::string, Bytes>{{"team.a", GiB(8)}, {"uid:1000", KiB(4)}, {"uid:7", MiB(2)}});
  CHECK_THAT(PrintConfig(options),
             Catch::Contains("[quotas]\n\"team.a\" = \"8GiB\"\n\"uid:1000\" = \"4KiB\"\n\"uid:7\" = \"2MiB\"\n"));
  CHECK(Good(PrintConfig(options)) == options);

  const std::string allowed =
      "; allowed: bytes, or a string with a unit such as \"8GiB\" (B, KiB, MiB, GiB, TiB), from 4KiB to 16TiB";
  CHECK(Refusal("[quotas]\n\"uid:1\" = \"8GB\"") == "f:2:11: quotas.uid:1: the string \"8GB\"" + allowed);
  CHECK(Refusal("[quotas]\n\"uid:1\" = 4095") == "f:2:11: quotas.uid:1: the integer 4095" + allowed);  // less than any slot
  CHECK(Refusal("", {"quotas.uid:1=17TiB"}) == "--set: quotas.uid:1: the string \"17TiB\"" + allowed);
  for (const char* name : {"", "a b", "uid:", "uid:07", "uid:4294967295", "uid:x"}) {
    INFO(name);
    CHECK_THAT(Refusal(absl::StrCat("[quotas]\n\"", name, "\" = \"8GiB\"")),
               Catch::StartsWith("f:2:1: quotas.") && Catch::Contains("; allowed: a tenant that [tenants] names, or "));
  }
  // Most likely a slip: nobody would be held to it.
  CHECK_THAT(Refusal("[tenants]\n1 = \"blue\"\n[quotas]\nbleu = \"8GiB\""),
             Catch::StartsWith("f:4:8: quotas.bleu: no engine can be of this tenant; allowed: "));
  Options wrong;
  wrong.quotas["uid:1"] = Bytes{1};
  CHECK(wrong.Validate().message() == "quotas.\"uid:1\": \"1B\"" + allowed);
}

TEST_CASE("ConfigWarnings tells which quotas limit nothing, and when together they keep nothing") {
  Options options = Good("[tenants]\n5 = \"blue\"\n[quotas]\nblue = \"8GiB\"\n\"uid:5\" = \"1GiB\"\n\"uid:6\" = \"4GiB\"");
  options.pool.bytes = GiB(4);
  CHECK(ConfigWarnings(options) ==
        std::vector<std::string>{"quotas.blue: 8GiB is more than the whole pool, 4GiB, and limits nothing",
                                 "quotas.\"uid:5\": uid 5 is of tenant blue, so nobody is of this one",
                                 "quotas: together they are more than the whole pool, 4GiB, so they limit their tenants and "
                                 "keep nothing for them"});
  options = Good("[quotas]\n\"uid:5\" = \"1GiB\"\n\"uid:6\" = \"3GiB\"");
  options.pool.bytes = GiB(4);
  CHECK(ConfigWarnings(options).empty());
}

TEST_CASE("--set takes TOML values, bare words and units") {
  CHECK(Good("", {"pool.bytes=4GiB"}).pool.bytes == GiB(4));
  CHECK(Good("", {"pool.bytes=4194304"}).pool.bytes == MiB(4));
  CHECK(Good("", {"pool.bytes=512 MiB"}).pool.bytes == MiB(512));
  CHECK(Good("", {"pool.lock=false"}).pool.lock == false);
  CHECK(Good("", {"lease.max=500ms"}).lease.max == absl::Milliseconds(500));
  CHECK(Good("", {"admin.socket_mode=0600"}).admin.socket_mode == 0600);
  CHECK(Good("", {"session.socket=/run/x=y.sock"}).session.socket == "/run/x=y.sock");
  CHECK(Good("", {"copy.cpus=[0, 1]"}).copy.cpus == std::vector<int>{0, 1});
  CHECK(Good("", {"log.level=debug"}).log.level == "debug");
  CHECK(Good("", {"session.socket_group=100"}).session.socket_group == "100");
  CHECK(Good("", {"session.socket="}).session.socket.empty());
}

TEST_CASE("--set wins over the file, and a later one over an earlier one") {
  CHECK(Good("[copy]\nthreads = 3", {"copy.threads=4", "copy.threads=5"}).copy.threads == 5);
}

TEST_CASE("--set goes through the same checks") {
  CHECK(absl::StartsWith(Refusal("", {"pool.byte=4"}), "--set: pool.byte: unknown key (did you mean bytes?); allowed: "));
  CHECK(absl::StartsWith(Refusal("", {"pol.bytes=4"}), "--set: [pol]: unknown section (did you mean pool?); allowed: "));
  CHECK(Refusal("", {"pool.lock=maybe"}) == "--set: pool.lock: the string \"maybe\"; allowed: true, false");
  CHECK(Refusal("", {"copy.threads=0"}) == "--set: copy.threads: the integer 0; allowed: an integer from 1 to 256");
  CHECK(absl::StartsWith(Refusal("", {"pool.lock=true\nvalue2=1"}),
                         "--set: pool.lock: the string \"true\\nvalue2=1\"; allowed: "));
  CHECK(absl::StartsWith(Refusal("", {"tenants.bob=x"}), "--set: tenants.bob: "));
  for (const char* wrong : {"", "pool", "pool.bytes", "pool=4", "=", "bytes=4.5"}) {
    INFO(wrong);
    CHECK(absl::StrContains(Refusal("", {wrong}), "; allowed: section.key=value"));
  }
}

TEST_CASE("ParseConfig refuses keys that contradict each other, at the place of one of them") {
  CHECK(Refusal("[pool]\nslab_bytes = \"64MiB\"\nbytes = \"32MiB\"") ==
        "f:2:14: pool.slab_bytes: 64MiB; allowed: at most pool.bytes, 32MiB");
  CHECK(absl::StartsWith(Refusal("[pool]\nbytes = \"32MiB\"", {"pool.slab_bytes=64MiB"}), "--set: pool.slab_bytes: "));
  CHECK(Refusal("[session]\nsocket = \"/a\"\n[admin]\nsocket = \"/a\"") ==
        "f:4:10: admin.socket: \"/a\"; allowed: another path than session.socket");
}

// A machine with CPUs 0, 1 and 3, and 1 GiB of memory.
std::string Lacking(const std::string& text, const std::vector<std::string>& overrides = {}) {
  const Machine machine{.cpus = {0, 1, 3}, .memory = {.bytes = GiB(1), .source = "a cgroup"}};
  const absl::StatusOr<Options> options = ParseConfig(text, "f", overrides, machine);
  if (options.ok()) return "";
  CHECK(options.status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(ParseConfig(text, "f", overrides).ok());  // for some machine it is right
  return std::string(options.status().message());
}

TEST_CASE("ParseConfig refuses what a machine hasn't got, at its place") {
  CHECK(Lacking("") == "");
  CHECK(Lacking("[copy]\ncpus = [3, 0]\n[session]\nreactor_cpu = 1\n[pool]\nbytes = \"1GiB\"\n") == "");
  CHECK(Lacking("[copy]\ncpus = [0, 99]\n") ==
        "f:2:8: copy.cpus: CPU 99; allowed: CPUs that this process may use here, 0-1, 3");
  CHECK(Lacking("[session]\nreactor_cpu = 2\n") ==
        "f:2:15: session.reactor_cpu: CPU 2; allowed: CPUs that this process may use here, 0-1, 3");
  CHECK(Lacking("[pool]\nbytes = \"16TiB\"\n") == "f:2:9: pool.bytes: 16TiB; allowed: at most 1GiB, by a cgroup");
  CHECK_THAT(Lacking("", {"pool.bytes=2GiB"}), Catch::StartsWith("--set: pool.bytes: 2GiB; allowed: at most 1GiB"));
  CHECK_THAT(Lacking("[session]\nsocket_group = \"no-such-group\"\n"),
             Catch::StartsWith("f:2:16: session.socket_group: \"no-such-group\", which no group is called here; allowed: "));
  CHECK(Lacking("[admin]\nsocket_group = \"root\"\n") == "");
}

TEST_CASE("ParseConfig refuses sockets in directories that can't be made, and files that aren't there but wanted") {
  const test::TempDir dir;
  const std::string file = dir / "file", none = dir / "none";
  std::ofstream(file) << "x";
  CHECK(Lacking("", {"session.socket=" + dir / "made/engine.sock", "admin.socket=" + dir / "admin.sock"}) == "");
  CHECK(Lacking("[admin]\nsocket = \"" + none + "/none/admin.sock\"\n") ==
        "f:2:10: admin.socket: \"" + none + "/none/admin.sock\", where there is neither " + none + "/none nor " + none +
            " to make it in; allowed: a path in a directory that is there, or that lacks only its last part");
  CHECK_THAT(Lacking("", {"session.socket=" + file + "/engine.sock"}), Catch::Contains(file + " is no directory"));

  const std::string tls = "tls.certificate_file=" + file + "\ntls.key_file=" + none + "\ntls.ca_file=" + dir.path();
  const std::vector<std::string> named = absl::StrSplit(tls, '\n');
  CHECK(Lacking("", named) == "");  // nobody listens
  std::vector<std::string> used = named;
  used.push_back("admin.listen=127.0.0.1:9416");
  CHECK(Lacking("", used) == "--set: tls.key_file: \"" + none +
                                 "\": No such file or directory; allowed: a file that kvistd can read\n"
                                 "--set: tls.ca_file: \"" +
                                 dir.path() + "\": it is a directory; allowed: a file that kvistd can read");
  for (const std::string key : {"secret_file", "credentials_file", "ca_file"}) {
    const std::string remote = "[remote]\n" + key + " = \"" + none + "\"\n";
    CHECK(Lacking(remote) == "");
    CHECK_THAT(Lacking(remote, {"remote.store=rediss://127.0.0.1:1"}),
               Catch::StartsWith(absl::StrCat("f:2:", key.size() + 4, ": remote.", key, ": \"", none)));
  }
}

TEST_CASE("ParseConfig refuses directories, sockets and addresses that a start couldn't have") {
  const test::TempDir dir;
  const auto begins = [](const std::string& text, const std::string& begin) {
    INFO(text);
    CHECK_THAT(Lacking(text), Catch::StartsWith(begin));
  };
  CHECK(Lacking("[daemon]\nstate_dir = \"" + dir / "not/yet/there" + "\"\n") == "");
  CHECK_FALSE(std::filesystem::exists(dir / "not"));
  begins("[daemon]\nstate_dir = \"/dev/null/x\"\n", "f:2:13: daemon.state_dir: /dev/null/x: /dev/null is no directory");
  begins("[daemon]\nstate_dir = \"/proc/abc\"\n", "f:2:13: daemon.state_dir: /proc/abc: ");
  std::filesystem::create_directory(dir / "open");
  std::filesystem::permissions(dir / "open", std::filesystem::perms::all);
  begins("[daemon]\nstate_dir = \"" + dir / "open" + "\"\n",
         "f:2:13: daemon.state_dir: " + dir / "open" + " belongs to uid ");

  begins("[session]\nsocket = \"" + dir / "open" + "\"\n",
         "f:2:10: session.socket: \"" + dir / "open" + "\", which is there and is no socket");
  begins("[admin]\nsocket = \"/proc/admin.sock\"\n", "f:2:10: admin.socket: \"/proc/admin.sock\": ");
  std::filesystem::create_directory_symlink(dir / "open", dir / "link");
  for (const std::string other : {"/open/./a.sock", "/link/a.sock", "/open/../open/a.sock"})
    begins("[session]\nsocket = \"" + dir.path() + "/open/a.sock\"\n[admin]\nsocket = \"" + dir.path() + other + "\"\n",
           "f:4:10: admin.socket: \"" + dir.path() + other + "\", which is session.socket, ");
}

TEST_CASE("FindLacks asks for addresses where it asks for all") {
  Machine machine = ThisMachine();
  const auto said = [&](const std::string& address) {
    const std::string text = "[metrics]\nlisten = \"" + address + ":9415\"\nallow_remote = true\n";
    return std::string(ParseConfig(text, "f", {}, machine).status().message());
  };
  const std::string nobodys = "192.0.2.1";  // RFC 5737: TEST-NET-1
  CHECK(said(nobodys) == "");               // a start may come before its network
  machine.asks_all = true;
  CHECK_THAT(said(nobodys),
             Catch::StartsWith("f:2:10: metrics.listen: \"192.0.2.1:9415\": this machine hasn't that address; allowed: "));
  CHECK(said("127.0.0.1") == "");
  CHECK(said("0.0.0.0") == "");
}

TEST_CASE("FindLacks goes by what this user may do") {
  if (::geteuid() != 0) {
    WARN("skipped: takes root, to be another user");
    return;
  }
  const pid_t other = ::fork();
  REQUIRE(other >= 0);
  if (other == 0) {
    const Machine machine{.cpus = {0}, .memory = {.bytes = GiB(1), .source = "a cgroup"}};
    const bool changed = ::setgroups(0, nullptr) == 0 && ::setgid(65534) == 0 && ::setuid(65534) == 0;
    const auto refused = [&](const char* text, const char* key) {
      const absl::StatusOr<Options> options = ParseConfig(text, "f", {}, machine);
      return absl::StrContains(options.status().message(), key);
    };
    const bool right =
        refused("[daemon]\nstate_dir = \"/root/abc\"\n", "f:2:13: daemon.state_dir: /root/abc: Permission denied") &&
        refused("[session]\nsocket = \"/etc/a.sock\"\n", "f:2:10: session.socket: ") &&
        refused("[session]\nsocket = \"/etc/new/a.sock\"\n", "f:2:10: session.socket: ") &&
        refused("[admin]\nsocket_group = \"root\"\n",
                "f:2:16: admin.socket_group: \"root\", of which this process is no member") &&
        !refused("[admin]\nsocket_group = \"nogroup\"\n", "admin.socket_group");
    ::_exit(changed && right ? 0 : 1);
  }
  int status = 0;
  REQUIRE(::waitpid(other, &status, 0) == other);
  CHECK(status == 0);
}

TEST_CASE("FindLacks asks for TLS files that fit, and where it asks for all, for a certificate in time") {
  const test::CertificateAuthority certificates;
  certificates.Sign("node", "DNS:node");
  certificates.Sign("other", "DNS:other");
  certificates.Sign("old", "DNS:old", -1);
  Machine machine = ThisMachine();
  const auto said = [&](const std::string& certificate, const std::string& key) {
    const std::string text =
        absl::StrCat("[admin]\nlisten = \"127.0.0.1:9416\"\n[tls]\ncertificate_file = \"", certificates.file(certificate),
                     "\"\nkey_file = \"", certificates.file(key), "\"\nca_file = \"", certificates.file("ca.crt"), "\"\n");
    return std::string(ParseConfig(text, "f", {}, machine).status().message());
  };
  CHECK(said("node.crt", "node.key") == "");
  CHECK_THAT(said("node.crt", "other.key"),
             Catch::StartsWith("f:5:12: tls.key_file: ") && Catch::Contains("isn't the key of"));
  CHECK_THAT(said("node.key", "node.key"),
             Catch::StartsWith("f:4:20: tls.certificate_file: ") && Catch::Contains("no certificate"));
  CHECK(said("old.crt", "old.key") == "");  // a start waits for the next one
  machine.asks_all = true;
  CHECK(said("node.crt", "node.key") == "");
  CHECK_THAT(said("old.crt", "old.key"),
             Catch::StartsWith("f:4:20: tls.certificate_file: ") && Catch::Contains("whose time is over"));
}

TEST_CASE("FindLacks asks for disks where it asks for all") {
  const test::TempDir dir;
  Machine machine = ThisMachine();
  const auto said = [&](const std::string& ssd) {
    return std::string(ParseConfig("[ssd]\n" + ssd, "f", {}, machine).status().message());
  };
  const std::string missing = "path = \"" + dir / "no/ssd" + "\"\n", both = dir / "a" + ":" + dir / "b";
  const std::string large = "capacity = \"1024TiB\"\npath = \"" + both + "\"\n";
  CHECK(said(missing + large.substr(0, large.find('\n') + 1)) == "");  // a start serves from DRAM
  machine.asks_all = true;
  CHECK(said("path = \"" + dir / "ssd" + "\"\n") == "");
  CHECK_THAT(said(missing),
             Catch::StartsWith("f:2:8: ssd.path: ") && Catch::Contains("there is no directory " + dir / "no"));
  CHECK_THAT(said("path = \"/dev/null/x\"\n"), Catch::StartsWith("f:2:8: ssd.path: \"/dev/null/x\": "));
  CHECK_THAT(said(large),
             Catch::StartsWith("f:2:12: ssd.capacity: 1024TiB, of which 1024TiB in ssd.path \"" + both + "\"; allowed: "));
  CHECK(said("enabled = false\n" + large) == "");
}

TEST_CASE("FindLacks names the key of a default that this machine hasn't room for") {
  const test::TempDir dir;
  Options options;
  options.session.socket = dir / "none/none/engine.sock";
  options.pool.bytes = GiB(16384);
  const std::vector<ConfigProblem> lacks = FindLacks(options, ThisMachine());
  REQUIRE(lacks.size() == 2);
  CHECK(lacks[0].name == "socket");
  CHECK(lacks[1].name == "bytes");
  CHECK_THAT(lacks[1].text, Catch::StartsWith("16TiB; allowed: at most "));
}

TEST_CASE("ParseConfig tells every error, a line each, in the order of the file, then those of --set") {
  const absl::StatusOr<Options> options = ParseConfig("x = 1\n[pool]\nbyte = 1\nlock = 1\n[pol]\n[log]\nlevel = \"a\\nb\"\n",
                                                      "f", {"copy.threads=0", "nonsense"});
  const std::vector<std::string> lines = ErrorLines(options.status());
  const char* begins[] = {"f:1:1: x: ",         "f:3:1: pool.byte: ",    "f:4:8: pool.lock: ",   "f:5:2: [pol]: ",
                          "f:7:9: log.level: ", "--set: copy.threads: ", "--set: \"nonsense\"; "};
  REQUIRE(lines.size() == std::size(begins));
  for (size_t i = 0; i < lines.size(); ++i) CHECK_THAT(lines[i], Catch::StartsWith(begins[i]));
}

TEST_CASE(
    "ParseConfig tells what contradicts itself and what the machine lacks beside what it can't read, but nothing of that") {
  const Machine machine{.cpus = {0}, .memory = {.bytes = GiB(1), .source = "a cgroup"}};
  const auto lines = [&](const std::string& text) { return ErrorLines(ParseConfig(text, "f", {}, machine).status()); };
  const std::vector<std::string> all = lines(
      "[metrics]\nlisten = \"0.0.0.0:1\"\n[copy]\ncpus = [9]\nthreads = 0\n[pool]\nslab_bytes = \"64MiB\"\nbytes = "
      "\"32MiB\"\n[quotas]\nblue = \"8GiB\"\nred = \"8GiB\"\n");
  const char* begins[] = {"f:2:10: metrics.listen: ",  "f:4:8: copy.cpus: CPU 9", "f:5:11: copy.threads: ",
                          "f:7:14: pool.slab_bytes: ", "f:10:8: quotas.blue: ",   "f:11:7: quotas.red: "};
  REQUIRE(all.size() == std::size(begins));
  for (size_t i = 0; i < all.size(); ++i) CHECK_THAT(all[i], Catch::StartsWith(begins[i]));
  for (const std::string text :
       {"[metrics]\nlisten = \"0.0.0.0:1\"\nallow_remote = 1\n", "[pool]\nslab_bytes = \"64MiB\"\nbytes = \"32GB\"\n",
        "[quotas]\nblue = \"8GiB\"\n[tenants]\n1 = \"a b\"\n", "[quotas]\nblue = \"8GiB\"\n[tenant]\n1 = \"blue\"\n",
        "[admin]\nlisten = \"127.0.0.1:1\"\n[tls]\nkey = \"/k\"\n"}) {
    INFO(text);
    CHECK(lines(text).size() == 1);
  }
}

TEST_CASE("Options::Validate names the key, what it is and what it may be") {
  Options options;
  CHECK(options.Validate().ok());
  options.lease.share = std::numeric_limits<double>::quiet_NaN();
  CHECK(absl::StartsWith(options.Validate().message(), "lease.share: nan"));
  options = Options();
  options.copy.threads = 300;
  CHECK(options.Validate() == absl::InvalidArgumentError("copy.threads: 300; allowed: an integer from 1 to 256"));
  options = Options();
  options.tenants["x"] = "y";
  CHECK(options.Validate().message() == "tenants.\"x\"; allowed: a uid in decimal, 0 to 4294967294");
  options = Options();
  options.tenants["1"] = "a b";
  CHECK(absl::StartsWith(options.Validate().message(), "tenants.1: \"a b\"; allowed: "));
  options = Options();
  options.pool.bytes = MiB(2);
  options.pool.slab_bytes = MiB(4);
  CHECK(options.Validate().message() == "pool.slab_bytes: 4MiB; allowed: at most pool.bytes, 2MiB");
}

TEST_CASE("LoadConfig reads files, and says which one it can't read") {
  const std::string path = absl::StrCat("/tmp/kvist-config-test-", getpid(), ".toml");
  std::ofstream(path) << "[copy]\nthreads = 9\nthread = 1\n";
  absl::StatusOr<LoadedConfig> options = LoadConfig({.file = path, .overrides = {}}, {});
  CHECK(absl::StartsWith(options.status().message(), path + ":3:1: copy.thread: unknown key (did you mean threads?)"));
  std::ofstream(path) << "[copy]\nthreads = 9\n";
  options = LoadConfig({.file = path, .overrides = {"copy.cpus=[2]"}}, {});
  REQUIRE(options.ok());
  CHECK(options->written.copy.threads == 9);
  CHECK(options->written.copy.cpus == std::vector<int>{2});
  std::remove(path.c_str());
  options = LoadConfig({.file = path, .overrides = {}}, {});
  CHECK(options.status().code() == absl::StatusCode::kNotFound);
  CHECK(absl::StrContains(options.status().message(), path));
  CHECK_FALSE(LoadConfig({.file = "/tmp", .overrides = {}}, {}).ok());
  CHECK(absl::StrContains(LoadConfig({.file = "/dev/zero", .overrides = {}}, {}).status().message(), "longer than"));
  CHECK(LoadConfig({}, {}).ok());
}

}  // namespace
}  // namespace kvist::daemon

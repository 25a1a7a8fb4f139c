#include "daemon/ctl/commands.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "daemon/ctl/node_client.h"
#include "daemon/ctl/table.h"
#include "daemon/rpc/admin_server.h"
#include "storage/base/unique_fd.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/daemon/fake_node.h"

namespace kvist::ctl {
namespace {

using Catch::Contains;
using Catch::StartsWith;

struct Outcome {
  int code;
  std::string out;
  std::string err;
  std::vector<std::string> questions;
};

// kvistctl, as if typed; `answer` is what its user says when asked, nothing when there is no terminal.
Outcome Ctl(std::vector<std::string> arguments, std::optional<std::string> answer = std::nullopt) {
  std::ostringstream out, err;
  std::vector<std::string> questions;
  const Terminal terminal{.out = out, .err = err, .ask = [&](const std::string& question) {
                            if (answer) questions.push_back(question);
                            return answer;
                          }};
  const int code = Run(arguments, terminal);
  return {code, out.str(), err.str(), questions};
}

// A daemon's admin side over a FakeNode.
struct Served {
  test::TempDir dir;
  std::string socket = dir / "admin.sock";
  FakeNode node;
  std::unique_ptr<rpc::AdminServer> server =
      rpc::AdminServer::Create({.socket = socket, .mode = 0600, .group = "", .node = &node}).value();
};

TEST_CASE("kvistctl status shows the node to people") {
  Served served;
  const Outcome outcome = Ctl({"--socket", served.socket, "status"});
  INFO(outcome.out << outcome.err);
  CHECK(outcome.code == kOk);
  CHECK(outcome.err.empty());
  CHECK_THAT(outcome.out, StartsWith("kvistd "));
  CHECK_THAT(outcome.out, Contains(", up 1 h 2 min, serving engines on /run/kvist/engine.sock\n"));
  CHECK_THAT(outcome.out, Contains(" POOL   USED    FULL   SLOTS  TOUCHED  LOCKED  PAGES   SLABS  REGIONS  INDEX\n"
                                   "4 GiB  1 GiB  25.0 %  12,345   50.0 %     yes  2 MiB  64 MiB        1    0 B\n"));
  CHECK_THAT(outcome.out, Contains("aaaa111111111111  blue      llama"));
  CHECK_THAT(outcome.out, Contains("9,007,199,254,740,993  512 MiB   12.5 %\n"));
  CHECK_THAT(outcome.out, Contains("25.0 %"));
  CHECK_THAT(outcome.out, !Contains("\033"));
}

TEST_CASE("kvistctl -o json prints the fields of node.proto, numbers as numbers, all of them") {
  Served served;
  const Outcome outcome = Ctl({"status", "-o", "json", "--socket", served.socket});
  REQUIRE(outcome.code == kOk);
  const nlohmann::ordered_json status = nlohmann::ordered_json::parse(outcome.out);
  std::vector<std::string> names;
  for (const auto& [name, value] : status.items()) names.push_back(name);
  CHECK(names == std::vector<std::string>{
                     "version",        "pid",       "uptime_seconds", "engine_socket", "state_dir",     "pool",
                     "spaces",         "sessions",  "instances",      "leases",        "ops",           "filling",
                     "index_bytes",    "lookups",   "chunks_asked",   "chunks_hit",    "chunks_stored", "chunks_loaded",
                     "chunks_refused", "evictions", "pins",           "allocations",   "ssd",           "remote",
                     "gpus",           "traffic",   "latencies",      "waits"});
  CHECK(status["pid"].is_number_unsigned());
  CHECK(status["uptime_seconds"] == 3725.5);
  CHECK(status["evictions"] == 0);
  CHECK(status["pool"]["capacity_bytes"] == GiB(4).value);
  CHECK(status["pool"]["locked"] == true);
  CHECK(status["spaces"][0]["chunks"] == 9'007'199'254'740'993);  // not a double
  CHECK(status["spaces"][1]["model"] == "evil\\x1b[2J\\xff");
}

TEST_CASE("kvistctl ssd shows the tier on disk, its devices and what they have found wrong") {
  Served served;
  const Outcome shown = Ctl({"ssd", "--socket", served.socket});
  INFO(shown.out << shown.err);
  CHECK(shown.code == kOk);
  CHECK(shown.out ==
        "SSD tier: on, 3 GiB of 12 GiB live, 1,234 chunks only there\n"
        "\n"
        "DEVICE  DIRECTORY             DRIVEN BY                                 WRITABLE\n"
        "     0  /var/lib/kvist/ssd    io_uring, direct I/O, registered buffers  yes\n"
        "     1  /mnt/evil\\x1b[2J\\xff  io_uring, direct I/O, registered buffers  yes\n"
        "\n"
        "DEVICE  CAPACITY   LIVE    FULL  SEGMENTS  FREE  FENCED  RELEASED\n"
        "     0     6 GiB  1 GiB  16.7 %        24    17       0        40\n"
        "     1     6 GiB  2 GiB  33.3 %        24    17       0        40\n"
        "\n"
        "DEVICE  WRITTEN  AMPLIFIED     READ      SYNCS  IN FLIGHT  WAITING\n"
        "     0   12 GiB       1.50  100 MiB  1,234,567     24 MiB        7\n"
        "     1   12 GiB          -  100 MiB  1,234,567     24 MiB        7\n"
        "\n"
        "DEVICE  WRITE ERRORS  SYNC ERRORS  READ ERRORS  BAD READS\n"
        "     0             0            0            2  none\n"
        "     1             0            0            2  3 torn, 1,200 corrupt\n"
        "\n"
        "CHUNKS WRITTEN  MOVED  RECLAIMED  READ  WRITES FAILED  READS FAILED  CORRUPT\n"
        "         5,000      0          0     0              0             0    1,203\n"
        "\n"
        "catalog: 98,765 commits, none failed; nothing is wrong with it\n"
        "recovery: 4,321 chunks found in the catalog in 340 ms; 5 can't be used\n"
        "scrub: 7,000 records read again, 4 damaged, 1 unreadable; 2 passes, the last in 1 min 40 s\n");

  const auto json = nlohmann::json::parse(Ctl({"ssd", "-o", "json", "--socket", served.socket}).out);
  CHECK(json["tier"]["state"] == "on");
  CHECK(json["devices"][0]["write_amplification"] == 1.5);
  CHECK(json["devices"][1]["write_amplification"] == 0);
  CHECK(json["devices"][1]["number"] == 1);
  CHECK(json["devices"][1]["verdicts"][2]["name"] == "corrupt");
  CHECK(json["devices"][1]["verdicts"][2]["count"] == 1200);
  CHECK(json["recovery"]["seconds"] == 0.34);
  CHECK(nlohmann::json::parse(Ctl({"status", "-o", "json", "--socket", served.socket}).out)["ssd"] == json["tier"]);
  CHECK_THAT(Ctl({"status", "--socket", served.socket}).out, Contains("SSD  CAPACITY   LIVE    FULL  CHUNKS ONLY THERE\n"
                                                                      "on     12 GiB  3 GiB  25.0 %              1,234\n"));
}

TEST_CASE("kvistctl ssd says what ails the tier, and fits 80 columns whatever that is") {
  Served served;
  rpc::SsdStatus ssd = served.node.ssd();
  const std::string why =
      "/mnt/a: making a segment's file: No space left on device; free some space, or make ssd.capacity smaller";
  ssd.tier.state = "read-only";
  ssd.tier.recovering = true;
  ssd.tier.trouble = "it takes no writes: " + why;
  ssd.devices[1].writable = false;
  ssd.devices[1].why = why;
  ssd.devices[1].directory = "/a/path/so/long/that/no/terminal/of/a/usual/width/could/ever/hold/it/beside/the/rest";
  ssd.devices[1].capacity = ssd.devices[1].live = Bytes{UINT64_MAX};
  ssd.devices[1].written = ssd.devices[1].read = Bytes{UINT64_MAX};
  ssd.devices[1].moved = Bytes{};
  ssd.devices[1].syncs = 12'345'678'901;
  ssd.devices[1].verdicts = {{"damaged_header", 12345}, {"misdirected", 12345}, {"no_record", 12345}, {"foreign", 12345}};
  ssd.commits_failed = 3;
  ssd.catalogs_set_aside = 2;
  ssd.catalog = "the catalog's directory is gone";
  ssd.recovery = {};
  ssd.encoded = {1234, GiB(3), GiB(4)};
  served.node.SetSsd(ssd);
  std::ostringstream out, err;
  const Terminal terminal{.out = out, .err = err, .ask = nullptr, .size = [] { return Terminal::Size{80, 24}; }};
  REQUIRE(Run({"ssd", "--socket", served.socket}, terminal) == kOk);
  INFO(out.str());
  std::istringstream lines(out.str());
  for (std::string line; std::getline(lines, line);) CHECK(Width(line) <= 80);
  CHECK_THAT(out.str(), StartsWith("SSD tier: read-only, ") && Contains("\nwarning: it takes no writes: /mnt/a: "));
  CHECK_THAT(out.str(), Contains("\ndevice 1 takes no writes: /mnt/a: making"));
  CHECK_THAT(out.str(), Contains("AMPLIFIED") && Contains("FENCED") && Contains("READS FAILED"));
  CHECK_THAT(out.str(), Contains("12,345 damaged_header, 12,345"));
  CHECK_THAT(out.str(), Contains("98,765 commits, 3 failed; 2 set aside; the catalog's directory is gone\n"));
  CHECK_THAT(out.str(), Contains("\n\nencoded: 1,234 chunks, 3 GiB for 4 GiB of KV\ncatalog: "));
  CHECK_THAT(out.str(), Contains("\nrecovery: what was there at the start is still being found\n"));
  CHECK_THAT(Ctl({"status", "--socket", served.socket}).out,
             Contains("\nwarning: the SSD tier: it takes no writes: /mnt/a"));
}

TEST_CASE("kvistctl status says which GPUs are served, and what became of the others") {
  Served served;
  CHECK(Ctl({"status", "--socket", served.socket}).out.find("GPU") == std::string::npos);
  served.node.SetGpus({{"Some GPU GPU-1", GiB(70), ""},
                       {"Some GPU GPU-2 \033[2J", Bytes{}, "cuEventQuery: CUDA_ERROR_ECC_UNCORRECTABLE (214)"}},
                      GiB(1));
  const std::string out = Ctl({"status", "--socket", served.socket}).out;
  INFO(out);
  CHECK_THAT(out, Contains("GPU                  STATE    ENGINES' MEMORY  POOL PINNED\n"
                           "Some GPU GPU-1       serving           70 GiB       25.0 %\n"));
  CHECK_THAT(out, Contains("\nwarning: Some GPU GPU-2 ") && Contains("(214): its engines go on"));
  CHECK(out.find('\033') == std::string::npos);
  const auto json = nlohmann::json::parse(Ctl({"status", "-o", "json", "--socket", served.socket}).out);
  CHECK(json["gpus"][0]["imported_bytes"] == 70ull << 30);
  CHECK(json["gpus"][1]["lost"] == "cuEventQuery: CUDA_ERROR_ECC_UNCORRECTABLE (214)");
  CHECK(json["pool"]["pinned_bytes"] == 1ull << 30);
}

TEST_CASE("kvistctl lookup and pins add take a prompt, and say what of it is there, space by space") {
  Served served;
  const test::TempDir dir;
  const std::string tokens = dir / "tokens";
  {
    std::ofstream file(tokens);
    for (int i = 0; i < 130; ++i) file << i << " ";
  }
  const auto ctl = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--socket", served.socket});
    return Ctl(arguments);
  };
  const Outcome found = ctl({"lookup", "--tokens", tokens});
  CHECK(found.code == kOk);
  CHECK_THAT(found.out,
             Contains("SPACE             TENANT    MODEL") && Contains("ASKED  HIT  TOKENS  IN DRAM  ON SSD  REMOTE\n"));
  CHECK_THAT(found.out,
             Contains("aaaa111111111111  blue      llama") && Contains("8    4      64       32      32       0\n"));
  const auto json = nlohmann::json::parse(ctl({"lookup", "--tokens", tokens, "--model", "llama", "-o", "json"}).out);
  REQUIRE(json["spaces"].size() == 1);
  CHECK(json["spaces"][0]["digest"] == FakeNode::kSpaceA);
  CHECK(json["spaces"][0]["key_scheme"] == "kvist.chunk.1");
  CHECK(json["spaces"][0]["chunk_tokens"] == 16);
  CHECK(json["spaces"][0]["ssd_tokens"] == 32);

  // As large as may be: 4,096 chunks, tokens of a large vocabulary.
  const std::string vast = dir / "vast", keys = dir / "keys";
  {
    std::ofstream file(vast), key_file(keys);
    for (int i = 0; i < 4096 * 16 + 5; ++i) file << 200'000 + i << ",";
    for (int i = 0; i < 4096; ++i) key_file << std::string(64, "0123456789abcdef"[i % 16]) << "\n";
  }
  for (const auto& prompt : {std::vector<std::string>{"--tokens", vast}, {"--keys", keys}}) {
    std::vector<std::string> arguments{"lookup", "-o", "json", "--model", "llama"};
    arguments.insert(arguments.end(), prompt.begin(), prompt.end());
    const Outcome whole = ctl(arguments);
    REQUIRE(whole.code == kOk);
    CHECK(nlohmann::json::parse(whole.out)["spaces"][0]["prompt_chunks"] == 4096);
  }

  const Outcome pinned = ctl({"pins", "add", "--tokens", tokens, "--space", "AAAA", "--owner", "me", "--for", "90m"});
  CHECK(pinned.code == kOk);
  CHECK_THAT(pinned.out, Contains("LASTS\n") && Contains("me     blue    llama       4      8") && Contains("1 h 30 min\n"));

  const Outcome nowhere = ctl({"lookup", "--tokens", tokens, "--tenant", "nobody"});
  CHECK(nowhere.code == kRefused);
  CHECK_THAT(nowhere.err, Contains("no space fits"));
  CHECK(ctl({"lookup"}).code == kUsage);
  CHECK(ctl({"lookup", "--tokens", tokens, "--keys", tokens}).code == kUsage);
  CHECK(ctl({"lookup", "--keys", tokens}).code == kUsage);
  CHECK_THAT(ctl({"lookup", "--keys", tokens}).err, Contains("--keys: word 1 is no chunk key"));
  CHECK(ctl({"pins", "add", "--tokens", tokens, "--for", "1000y"}).code == kUsage);
  CHECK_THAT(ctl({"lookup", "--tokens", tokens, "--space", "xyz"}).err, Contains("space.digest"));
  CHECK_THAT(ctl({"pins", "add", "--tokens", tokens, "--owner", std::string(256, 'o')}).err, Contains("owner: at most 255"));
}

TEST_CASE("kvistctl ssd says that there is no tier, and why") {
  Served served;
  rpc::SsdStatus off;
  off.tier.state = "off";
  off.tier.trouble = "ssd.enabled is false in kvistd's configuration";
  served.node.SetSsd(off);
  const Outcome said = Ctl({"ssd", "--socket", served.socket});
  CHECK(said.code == kOk);
  CHECK(said.out == "no SSD tier: ssd.enabled is false in kvistd's configuration\n");
  CHECK_THAT(Ctl({"status", "--socket", served.socket}).out,
             Contains("\nno SSD tier: ssd.enabled is false in kvistd's configuration\n\n"));
  const auto json = nlohmann::json::parse(Ctl({"ssd", "-o", "json", "--socket", served.socket}).out);
  CHECK(json["tier"]["state"] == "off");
  CHECK(json["devices"].empty());
  CHECK(Ctl({"ssd", "--socket", served.dir / "nobody.sock"}).code == kUnavailable);
}

TEST_CASE("kvistctl sessions lists who is connected") {
  Served served;
  const Outcome table = Ctl({"sessions", "--socket", served.socket});
  CHECK(table.code == kOk);
  CHECK(table.out ==
        "SESSION  INSTANCE  ROLE    RANK  TENANT  PID   UID  SPACE             MODEL         AGE  COPIES  REQUESTS\n"
        "      7  engine    worker     1  blue     42  1000  aaaa111111111111  llama  1 min 30 s       2     1,234\n");
  const auto json = nlohmann::json::parse(Ctl({"-o", "json", "sessions", "--socket", served.socket}).out);
  REQUIRE(json["sessions"].size() == 1);
  CHECK(json["sessions"][0]["uid"] == 1000);
  CHECK(json["sessions"][0]["role"] == "worker");
  CHECK(json["sessions"][0]["age_seconds"] == 90.0);
}

TEST_CASE("kvistctl clear asks first, and only clears when told yes") {
  Served served;
  const Outcome yes = Ctl({"clear", "--socket", served.socket}, "y");
  CHECK(yes.code == kOk);
  CHECK(yes.out == "cleared 17 chunks\n");
  REQUIRE(yes.questions.size() == 1);
  CHECK_THAT(yes.questions[0], StartsWith("Clear every chunk of every space?"));
  CHECK(served.node.cleared() == std::vector<std::string>{""});

  for (const char* answer : {"", "n", "maybe"}) CHECK(Ctl({"clear", "--socket", served.socket}, answer).code == kUsage);
  const Outcome nobody = Ctl({"clear", "--socket", served.socket});
  CHECK(nobody.code == kUsage);
  CHECK_THAT(nobody.err, Contains("add --yes"));
  CHECK(served.node.cleared().size() == 1);

  const Outcome forced = Ctl({"clear", "--yes", "--space", "aaaa", "--socket", served.socket, "-o", "json"});
  CHECK(forced.code == kOk);
  CHECK(nlohmann::json::parse(forced.out) == nlohmann::json{{"id", 2},
                                                            {"kind", "clear"},
                                                            {"space", "aaaa111111111111"},
                                                            {"state", "done"},
                                                            {"done", 1000},
                                                            {"total", 1000},
                                                            {"chunks", 17},
                                                            {"request", ""},
                                                            {"bytes", 0},
                                                            {"already_there", 0},
                                                            {"not_moved", 0},
                                                            {"bytes_after", 0},
                                                            {"relative_error", 0.0},
                                                            {"attention_error", 0.0},
                                                            {"trouble", ""},
                                                            {"tier", ""},
                                                            {"resumed", false},
                                                            {"seconds", 0.0},
                                                            {"bytes_per_second", 0.0},
                                                            {"seconds_left", 0.0}});
  CHECK(served.node.cleared().back() == FakeNode::kSpaceA);

  const Outcome asked = Ctl({"clear", "--tier", "ssd", "--socket", served.socket}, "y");
  REQUIRE(asked.questions.size() == 1);
  CHECK_THAT(asked.questions[0], StartsWith("Clear every chunk of every space in ssd? What lies nowhere else"));
  CHECK_THAT(asked.out, Contains("cleared 17 chunks in ssd"));
  CHECK_THAT(Ctl({"jobs", "--socket", served.socket}).out, Contains("clear ssd"));
}

TEST_CASE("kvistctl clear shows how far it is, and ^C leaves it running and says how to go on") {
  Served served;
  served.node.ClearsGoOn();
  std::ostringstream out, err;
  int looks = 0;
  Terminal terminal{.out = out, .err = err, .ask = [](const std::string&) { return std::nullopt; }};
  const auto enough = [&](absl::Duration) { return ++looks < 20 && out.str().find("75 %") == std::string::npos; };
  terminal.wait = enough;
  CHECK(Run({"clear", "--yes", "--request", "nightly", "--socket", served.socket}, terminal) == kUnavailable);
  CHECK_THAT(out.str(),
             StartsWith("job 1: 20 %, freed 25 chunks\njob 1: 50 %, freed 50 chunks\njob 1: 70 %, freed 75 chunks\n"));
  CHECK(err.str() ==
        "kvistctl: job 1 goes on in the daemon: `kvistctl jobs watch 1` shows it, `kvistctl jobs cancel 1` stops it\n");
  CHECK(served.node.jobs()[0].running());
  CHECK(served.node.jobs()[0].request == "nightly");

  out.str("");
  looks = 0;
  terminal.size = [] { return Terminal::Size{60, 24}; };
  CHECK(Run({"clear", "--yes", "--socket", served.socket}, terminal) == kUnavailable);
  CHECK_THAT(out.str(), StartsWith("\r\033[?25lclear [#######.....................]  25 %  freed 25 chunks\033[K"));
  CHECK_THAT(out.str(), Catch::EndsWith("\r\033[K\033[?25h"));  // nothing is left of the bar, and the cursor is back
}

TEST_CASE("kvistctl jobs lists, watches and cancels") {
  Served served;
  CHECK(Ctl({"jobs", "--socket", served.socket}).out == "no jobs: none runs, and none has ended lately\n");
  REQUIRE(Ctl({"clear", "--yes", "--space", "aaaa", "--socket", served.socket}).code == kOk);
  served.node.ClearsGoOn();
  const Outcome late = Ctl({"clear", "--yes", "--timeout", "1s", "--socket", served.socket});
  CHECK(late.code == kUnavailable);
  CHECK_THAT(late.err, Contains("job 2 goes on in the daemon"));
  CHECK(Ctl({"jobs", "list", "--socket", served.socket}).out ==
        "JOB  KIND   SPACE             STATE       DONE  CHUNKS\n"
        "  1  clear  aaaa111111111111  done     100.0 %      17\n"
        "  2  clear  all               running   75.0 %      75\n");

  served.node.Restarted();
  CHECK_THAT(Ctl({"jobs", "--socket", served.socket}).out, Contains("running, resumed"));
  CHECK(nlohmann::json::parse(Ctl({"jobs", "--socket", served.socket, "-o", "json"}).out)["jobs"][1]["resumed"] == true);

  const Outcome cancelled = Ctl({"jobs", "cancel", "2", "--socket", served.socket});
  CHECK(cancelled.code == kOk);
  CHECK(cancelled.out ==
        "job 2, clear: cancelled, resumed, freed 75 chunks; the others stay hidden, and go when their room is needed or "
        "with the next "
        "clear\n");
  CHECK(Ctl({"jobs", "cancel", "1", "--socket", served.socket}).out == "cleared 17 chunks\n");  // as it was
  const Outcome watched = Ctl({"jobs", "watch", "2", "--socket", served.socket});
  CHECK(watched.code == kRefused);
  CHECK_THAT(watched.out, StartsWith("job 2, clear: cancelled, resumed, freed 75 chunks"));

  const Outcome lines = Ctl({"jobs", "watch", "1", "-o", "json", "--socket", served.socket});
  CHECK(lines.code == kOk);
  CHECK(nlohmann::json::parse(lines.out)["state"] == "done");
  CHECK(std::count(lines.out.begin(), lines.out.end(), '\n') == 1);
  const auto listed = nlohmann::json::parse(Ctl({"jobs", "-o", "json", "--socket", served.socket}).out);
  CHECK(listed["jobs"].size() == 2);
  CHECK(listed["jobs"][1]["done"] == 750);

  CHECK_THAT(Ctl({"jobs", "watch", "9", "--socket", served.socket}).err, Contains("no such job"));
  for (const std::vector<std::string>& wrong :
       {std::vector<std::string>{"jobs", "cancel"}, {"jobs", "cancel", "x"}, {"jobs", "watch", "-1"}, {"jobs", "stop", "1"}})
    CHECK(Ctl(wrong).code == kUsage);
}

TEST_CASE("kvistctl's tables and help fit the terminal; without one nothing is left out") {
  Served served;
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"status"}, {"ssd"}, {"sessions"}, {"quota"}, {"pins"}, {"--help"}, {"jobs", "--help"}}) {
    INFO(command[0]);
    std::ostringstream out, err;
    const Terminal terminal{.out = out, .err = err, .ask = nullptr, .size = [] { return Terminal::Size{60, 24}; }};
    std::vector<std::string> arguments = command;
    arguments.insert(arguments.end(), {"--socket", served.socket});
    REQUIRE(Run(arguments, terminal) == kOk);
    std::istringstream lines(out.str());
    size_t tables = 0;
    for (std::string line; std::getline(lines, line); ++tables) { CHECK(Width(line) <= 60); }
    CHECK(tables > 1);
  }
  CHECK_THAT(Ctl({"sessions", "--socket", served.socket}).out, Contains("SPACE") && Contains("REQUESTS"));
}

TEST_CASE("kvistctl pins lists what engines have pinned, and removes a pin") {
  Served served;
  const Outcome list = Ctl({"pins", "--socket", served.socket});
  REQUIRE(list.code == kOk);
  CHECK_THAT(list.out, Catch::Contains("PIN") && Catch::Contains("\n  3  ") && Catch::Contains("llama-0") &&
                           Catch::Contains("48 MiB"));
  CHECK(Ctl({"pins", "list", "--socket", served.socket}).out == list.out);
  const auto json = nlohmann::json::parse(Ctl({"pins", "-o", "json", "--socket", served.socket}).out);
  CHECK(json["pins"][0]["chunks"] == 12);
  CHECK(json["pins"][0]["asked"] == 16);
  CHECK(json["pins"][0]["age_seconds"] == 5400.0);
  const Outcome removed = Ctl({"pins", "remove", "3", "--socket", served.socket});
  CHECK(removed.code == kOk);
  CHECK_THAT(removed.out, Catch::StartsWith("removed: 12 chunks of llama-0"));
  const Outcome unknown = Ctl({"pins", "remove", "4", "--socket", served.socket});
  CHECK(unknown.code == kRefused);
  CHECK_THAT(unknown.err, Catch::Contains("no pin 4"));
  const Outcome wrong = Ctl({"pins", "remove", "zz", "--socket", served.socket});
  CHECK(wrong.code == kUsage);
  CHECK_THAT(wrong.err, Catch::Contains("\"zz\"; allowed: the number of a pin"));
}

TEST_CASE("kvistctl lists more pins and sessions than a message of gRPC holds, each once and in order") {
  Served served;
  constexpr uint64_t kRows = 25'000;
  served.node.Crowd(kRows);
  for (const std::string list : {"pins", "sessions"}) {
    INFO(list);
    const Outcome all = Ctl({list, "-o", "json", "--timeout", "60s", "--socket", served.socket});
    REQUIRE(all.code == kOk);
    const auto rows = nlohmann::json::parse(all.out)[list];
    REQUIRE(rows.size() == kRows);
    for (uint64_t i = 1; i < kRows; ++i) REQUIRE(rows[i]["id"] > rows[i - 1]["id"]);
  }
}

TEST_CASE("kvistctl quota lists what each tenant has, and sets and ends quotas") {
  Served served;
  const Outcome list = Ctl({"quota", "--socket", served.socket});
  CHECK(list.code == kOk);
  CHECK(list.out ==
        "TENANT  QUOTA   USED  OF QUOTA  EVICTED  SET BY\n"
        "blue    2 GiB  1 GiB    50.0 %    1,234  configuration\n"
        "uid:7    none  3 MiB         -        0\n");
  CHECK(Ctl({"quota", "list", "--socket", served.socket}).out == list.out);
  const auto json = nlohmann::json::parse(Ctl({"quota", "list", "-o", "json", "--socket", served.socket}).out);
  CHECK(json["quotas"][0]["bytes"] == GiB(2).value);
  CHECK(json["quotas"][1]["bytes"] == 0);

  const Outcome set = Ctl({"quota", "set", "blue", "8GiB", "--socket", served.socket});
  CHECK(set.code == kOk);
  CHECK(set.out ==
        "tenant blue: quota 8 GiB, 3 MiB used; a reload or restart brings the configuration's back\n"
        "warning: more than the pool\n");
  CHECK(nlohmann::json::parse(Ctl({"quota", "set", "uid:7", "4096", "-o", "json", "--socket", served.socket}).out) ==
        nlohmann::json{{"tenant", "uid:7"},
                       {"bytes", 4096},
                       {"origin", "runtime"},
                       {"used_bytes", MiB(3).value},
                       {"evictions", 5},
                       {"note", ""}});
  CHECK_THAT(Ctl({"quota", "unset", "blue", "--socket", served.socket}).out,
             StartsWith("tenant blue: no quota, 3 MiB used;"));
  const Outcome refused = Ctl({"quota", "set", "nobody", "8GiB", "--socket", served.socket});
  CHECK(refused.code == kRefused);
  CHECK(refused.err == "kvistctl: no engine can be of tenant \"nobody\"\n");
  for (const char* bytes : {"8GB", "", "-1", "0", "8.5GiB", "99999999999999TiB", "GiB"}) {
    INFO(bytes);
    CHECK(Ctl({"quota", "set", "blue", bytes, "--socket", served.socket}).code == kUsage);
  }
  CHECK(Ctl({"quota", "set", "blue"}).code == kUsage);
  CHECK(Ctl({"quota", "unset"}).code == kUsage);
}

TEST_CASE("kvistctl reload says what is in force and what waits for a restart") {
  Served served;
  CHECK(Ctl({"reload", "--socket", served.socket}).out == "reloaded: nothing has changed\n");
  served.node.Reloads({.in_force = {"lease.max", "tenants.7"}, .needs_restart = {"pool.bytes"}});
  const Outcome reloaded = Ctl({"reload", "--socket", served.socket});
  CHECK(reloaded.code == kOk);
  CHECK(reloaded.out == "lease.max: in force now\ntenants.7: in force now\npool.bytes: needs a restart\n");
  CHECK(nlohmann::json::parse(Ctl({"reload", "-o", "json", "--socket", served.socket}).out) ==
        nlohmann::json{{"in_force", {"lease.max", "tenants.7"}}, {"needs_restart", {"pool.bytes"}}});
}

TEST_CASE("kvistctl reload passes on what is wrong with the configuration, however much that is") {
  Served served;
  std::string errors = "f:2:1: pool.bite: unknown key\nf:3:1: ";
  errors += std::string(100'000, '\xe5');
  served.node.Fail(absl::InvalidArgumentError(errors));
  const Outcome refused = Ctl({"reload", "--socket", served.socket});
  CHECK(refused.code == kRefused);
  CHECK(refused.out.empty());
  CHECK_THAT(refused.err, StartsWith("kvistctl: f:2:1: pool.bite: unknown key\nf:3:1: "));
}

TEST_CASE("kvistctl passes on what the daemon refuses") {
  Served served;
  const Outcome outcome = Ctl({"clear", "--yes", "--space", "aa", "--socket", served.socket});
  CHECK(outcome.code == kRefused);
  CHECK(outcome.out.empty());
  CHECK_THAT(outcome.err, StartsWith("kvistctl: several spaces begin with aa, give more digits: "));
  CHECK(Ctl({"clear", "--yes", "--space", "", "--socket", served.socket}).code == kUsage);
  CHECK(served.node.cleared().empty());
}

TEST_CASE("kvistctl says how to reach a daemon when there is none") {
  const test::TempDir dir;
  const Outcome missing = Ctl({"status", "--socket", dir / "admin.sock"});
  CHECK(missing.code == kUnavailable);
  CHECK_THAT(missing.err, StartsWith("kvistctl: no kvistd at " + (dir / "admin.sock") + ": is it running?"));

  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = dir / "stale.sock";
  std::memcpy(address.sun_path, path.data(), path.size());
  for (const int type : {SOCK_STREAM, SOCK_SEQPACKET}) {
    unlink(path.c_str());
    const UniqueFd fd(socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
    REQUIRE(bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    const Outcome dead = Ctl({"status", "--socket", path});
    CHECK(dead.code == kUnavailable);
    CHECK_THAT(dead.err, Contains(type == SOCK_STREAM ? "no kvistd behind" : "is no admin socket"));
  }
  if (geteuid() != 0) return;
  REQUIRE(chmod(dir.path().c_str(), 0711) == 0);
  Served served;
  REQUIRE(chmod(served.dir.path().c_str(), 0711) == 0);
  REQUIRE(seteuid(54321) == 0);
  const Outcome closed = Ctl({"status", "--socket", served.socket});
  REQUIRE(seteuid(0) == 0);
  CHECK(closed.code == kUnavailable);
  CHECK_THAT(closed.err, Contains("may not open"));
}

TEST_CASE("kvistctl doesn't wait for ever") {
  Served served;
  served.node.Hang();
  const Outcome status = Ctl({"status", "--timeout", "20ms", "--socket", served.socket});
  CHECK(status.code == kUnavailable);
  CHECK_THAT(status.err, Contains("didn't answer within 20 ms; --timeout gives it longer"));
  CHECK_THAT(Ctl({"clear", "--yes", "--timeout", "20ms", "--socket", served.socket}).err,
             Contains("if it has begun, the clear goes on in the daemon"));
  served.node.Stop();
  const Outcome stopping = Ctl({"status", "--socket", served.socket});
  CHECK(stopping.code == kUnavailable);
  CHECK_THAT(stopping.err, Contains("went away: kvistd is stopping"));
}

TEST_CASE("kvistctl refuses what it doesn't understand, before it asks anybody") {
  for (const std::vector<std::string>& wrong : {std::vector<std::string>{},
                                                {"stat"},
                                                {"status", "-o", "xml"},
                                                {"status", "--timeout", "5"},
                                                {"status", "--timeout", "0s"},
                                                {"status", "--timeout", "1h"},
                                                {"status", "extra"},
                                                {"status", "--yes"},
                                                {"status", "--socket", ""},
                                                {"status", "--address", "/a/b.sock"},
                                                {"status", "--address", "tls:a"},
                                                {"status", "--address", "unix:/a", "--socket", "/a"},
                                                {"status", "--address", "tls:a:1", "--tls-key", "/k"},
                                                {"status", "--controller", "unix:/a"},
                                                {"jobs", "--controller", "unix:/a", "--socket", "/a"},
                                                {"jobs", "cancel", "node-a/1"},
                                                {"pins", "remove", "node-a/"},
                                                {"lookup", "--keys", "/dev/null", "--node", "node-a"},
                                                {"status", "sessions"},
                                                {"--nothing", "status"}}) {
    INFO((wrong.empty() ? "" : wrong.back()));
    const Outcome outcome = Ctl(wrong);
    CHECK(outcome.code == kUsage);
    CHECK(outcome.out.empty());
    CHECK_FALSE(outcome.err.empty());
  }
}

TEST_CASE("kvistctl names the word that is no command, the one that was meant, and those that there are") {
  const auto said = [](const std::vector<std::string>& words) {
    const Outcome outcome = Ctl(words);
    CHECK(outcome.code == kUsage);
    CHECK(outcome.out.empty());
    return outcome.err;
  };
  CHECK_THAT(said({"nosuch"}), StartsWith("kvistctl: nosuch: no such command; there are: status, ssd, nodes, "));
  CHECK_THAT(said({"statsu", "--socket", "/a"}),
             StartsWith("kvistctl: statsu: no such command (did you mean status?); there are: status, "));
  CHECK_THAT(said({}), StartsWith("kvistctl: a command is missing; there are: status, "));
  CHECK_THAT(said({"--sokcet", "/a"}), StartsWith("kvistctl: --sokcet: no such option\n"));
  CHECK_THAT(said({"status", "--sokcet", "/a"}), StartsWith("kvistctl status: --sokcet: no such option\n"));
  CHECK_THAT(said({"jobs", "lsit"}),
             StartsWith("kvistctl jobs: lsit: no such command (did you mean list?); there are: list, cancel, watch\n"));
  // What else is wrong is said as before.
  CHECK_THAT(said({"status", "extra"}), Contains("not expected: extra"));
  CHECK_THAT(said({"move", "--tokens", "/dev/null"}), Contains("--from is required"));
  CHECK_THAT(said({"--socket", "", "nosuch"}), Contains("--socket"));
}

TEST_CASE("kvistctl takes a socket as an address, too") {
  Served served;
  CHECK(Ctl({"status", "--address", "unix:" + served.socket}).out == Ctl({"status", "--socket", served.socket}).out);
}

TEST_CASE("kvistctl explains itself") {
  const Outcome help = Ctl({"--help"});
  CHECK(help.code == kOk);
  CHECK_THAT(help.out, Contains("exit status: 0"));
  CHECK_THAT(Ctl({"--version"}).out, StartsWith("kvistctl "));
}

TEST_CASE("DefaultSocket is the one of the environment, or of root's daemon") {
  setenv("KVIST_ADMIN_SOCKET", "/a/b.sock", 1);
  CHECK(DefaultSocket() == "/a/b.sock");
  setenv("KVIST_ADMIN_SOCKET", "", 1);
  if (geteuid() == 0) CHECK(DefaultSocket() == "/run/kvist/admin.sock");
  unsetenv("KVIST_ADMIN_SOCKET");
}

}  // namespace
}  // namespace kvist::ctl

// kvist-bench: what kvist costs, each figure beside its limit, measured in the same run.
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "daemon/ctl/wrong_usage.h"
#include "tests/bench/subcommands.h"

namespace kvist::bench {
namespace {

enum ExitCode : int { kMeasured = 0, kFailed = 1, kWrongUsage = 2 };

struct Subcommand {
  const char* name;
  const char* what;
  absl::Status (*run)(const Settings& settings, Report* report);
  double seconds = 20;  // of measuring, by default; with what comes before it is less than 45
};
constexpr Subcommand kSubcommands[] = {
    {"lookup", "A lookup of 512 chunks in an index of a million, and of ten; the key chain beside plain SHA-256", RunLookup},
    {"clear", "Round trips during a clear of a million chunks beside a futex ping-pong; the clear with and without them",
     RunClear},
    {"directory",
     "Lookups of 512 chunks in a controller's directory of 64 nodes with a million chunks each, and what it takes",
     RunDirectory},
    {"roundtrip", "An empty request beside a futex ping-pong; what an idle daemon costs", RunRoundtrip},
    {"copy", "Stores and loads beside a hand-written copy loop", RunCopy},
    {"codec", "Encoding and decoding a shard beside memcpy, and beside byte planes and zstd; what of its values is lost",
     RunCodec},
    {"ssd", "Writing and reading the SSD tier beside bare io_uring loops on the same files", RunSsd},
    {"remote", "Shards to and from a Redis server beside a bare hiredis loop with the same server", RunRemote},
    {"restart", "A killed kvistd with a million chunks on disk: until the first is loaded, until all are found", RunRestart},
    {"overhead", "An engine that never finds anything, with kvist and without", RunOverhead, 33},
    {"policy", "Hits of eviction policies on traces of real requests beside the best possible; the core's time a block",
     RunPolicy},
    {"granularity", "Chunks of 64 to 512 tokens: what of real conversations they lose, and what they cost", RunGranularity},
};

int Main(int argc, char** argv) {
  Settings settings;
  bool json = false;
  std::optional<double> seconds;
  CLI::App app("Measures kvist beside its limits.", "kvist-bench");
  app.require_subcommand(1);
  app.failure_message(&ctl::WrongUsage);
  for (const Subcommand& subcommand : kSubcommands) {
    CLI::App* sub = app.add_subcommand(subcommand.name, subcommand.what);
    sub->add_flag("--json", json, "One object on stdout instead of a table");
    sub->add_flag("--quick", settings.quick, "Only whether it works: tiny sizes, figures that mean nothing");
    const std::string_view name = subcommand.name;
    if (name == "copy") {
      sub->add_option("--device", settings.device, "Where the engine's pages are")
          ->check(CLI::IsMember({"cpu", "cuda"}))
          ->capture_default_str();
      sub->add_option("--set", settings.kvistd, "With cuda: a setting of the kvistd that is measured, section.key=value");
    }
    if (name == "ssd" || name == "restart")
      sub->add_option("--dir", settings.directory,
                      absl::StrCat("A directory on the disk; needs ", name == "ssd" ? "4" : "13", " GiB there"))
          ->check(CLI::ExistingDirectory);
    sub->add_option("--seconds", seconds, "Time for measuring")
        ->default_str(absl::StrCat(subcommand.seconds))
        ->check(CLI::Range(0.1, 3600.0));
    if (name == "codec") {
      CLI::Option* kv =
          sub->add_option("--kv", settings.kv.path, "A file of bf16 values, [layer][K or V][token][head][head_dim]")
              ->check(CLI::ExistingFile);
      kv->needs(sub->add_option("--layers", settings.kv.layers, "Layers of that file")->needs(kv));
      kv->needs(sub->add_option("--tokens", settings.kv.tokens, "Tokens of that file")->needs(kv));
      kv->needs(sub->add_option("--heads", settings.kv.heads, "KV heads of that file")->needs(kv));
      sub->add_option("--head-dim", settings.kv.head_dim, "Values of a head's token")->capture_default_str()->needs(kv);
    }
    if (subcommand.run != RunPolicy) continue;
    CLI::Option* trace =
        sub->add_option("--trace", settings.trace, "A trace (JSON lines, plain or gzip) instead of shared/traces");
    sub->add_flag("--all", settings.all, "All of shared/traces, not conversation_dev alone")->excludes(trace);
  }
  app.footer(
      "exit status: 0 measured, also when a goal is missed; 1 something failed, or a limit is no limit; 2 wrong usage");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) { return app.exit(error) == 0 ? kMeasured : kWrongUsage; }
  spdlog::set_default_logger(
      spdlog::stderr_logger_mt("kvistd"));  // the log of a daemon in this process; stdout is for the figures
  spdlog::set_level(spdlog::level::err);

  for (const Subcommand& subcommand : kSubcommands) {
    if (!app.got_subcommand(subcommand.name)) continue;
    settings.time = settings.quick ? absl::Milliseconds(100) : absl::Seconds(seconds.value_or(subcommand.seconds));
    Report report{subcommand.name, {}};
    const absl::Status status = subcommand.run(settings, &report);
    std::printf("%s\n", json ? report.Json().c_str() : report.Table().c_str());
    if (status.ok()) return kMeasured;
    std::fprintf(stderr, "kvist-bench %s: %s\n", subcommand.name, status.ToString().c_str());
  }
  return kFailed;
}

}  // namespace
}  // namespace kvist::bench

int main(int argc, char** argv) {
  // Debian's Abseil is built with deadlock detection, which shows in the profile of a request.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  return kvist::bench::Main(argc, argv);
}

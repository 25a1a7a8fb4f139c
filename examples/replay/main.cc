// kvist-replay: replays a trace of LLM requests against kvistd and checks every byte that comes back.
//
// usage: kvist-replay --trace FILE [--dram-fraction F [--ssd-fraction F] | --socket PATH] [--block-bytes N] [--limit N] [--trace-time]
//                     [--prefill-rate N] [--json]
// exit status: 0 all is well; 1 wrong bytes, failed hooks or no daemon; 2 wrong usage or an unusable trace; 128 + n ended by signal n.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "examples/command_line.h"
#include "examples/replay/page_memory.h"
#include "examples/replay/private_daemon.h"
#include "examples/replay/progress.h"
#include "examples/replay/replay.h"
#include "examples/replay/report.h"
#include "examples/replay/stop_signal.h"
#include "examples/replay/trace.h"

namespace kvist::replay {
namespace {

constexpr int64_t kStorePatienceUs = 200'000;
constexpr double kFractionMax = 100;  // room for more than all blocks has no use; this much is for trying

constexpr uint64_t kPrefillRateMax = 1'000'000'000;  // tokens a second: faster than anything that computes them

constexpr int kFine = 0;
constexpr int kFailed = 1;
constexpr int kUsage = 2;

struct Options {
  std::string trace;
  std::string socket;  // empty: a private daemon
  double dram_fraction = 0.10;
  double ssd_fraction = 0;  // 0: no SSD tier
  uint64_t block_bytes = 64 << 10;
  uint64_t limit = std::numeric_limits<uint64_t>::max();
  bool trace_time = false;
  uint64_t prefill_rate = 0;  // 0: computing takes no time
  bool json = false;
};

int Fail(int status, absl::string_view message) {
  std::fprintf(stderr, "kvist-replay: %.*s\n", static_cast<int>(message.size()), message.data());
  return status;
}

// Says what is wrong with a fraction, or nothing. (CLI::Range lets NaN through.)
std::string CheckFraction(const std::string& text) {
  double fraction = 0;
  if (absl::SimpleAtod(text, &fraction) && fraction > 0 && fraction <= kFractionMax) return "";
  return absl::StrCat("must be above 0 and at most ", kFractionMax, "; it is ", text);
}

// Makes a number of bytes of a size such as 64KiB, or says what is wrong with it. (CLI11 takes -4096 for a number just below 2^64.)
std::string ReadBlockBytes(std::string& text) {
  const std::string given = text;
  uint64_t bytes = 0;
  if (!given.empty() && absl::ascii_isdigit(given[0])) {
    if (std::string wrong = CLI::AsSizeValue(/*kb_is_1000=*/false)(text); !wrong.empty()) return wrong;
    if (absl::SimpleAtoi(text, &bytes) && IsBlockBytes(bytes)) {
      text = absl::StrCat(bytes);
      return "";
    }
  }
  return absl::StrCat("must be ", kBlockBytesAllowed, "; it is ", given);
}

// Reads the command line. Returns kFine, or the exit status after it has said why (help is fine: *done).
int ParseOptions(int argc, char** argv, Options* options, bool* done) {
  CLI::App app("Replays a trace of LLM requests against kvistd and checks every byte that comes back.", "kvist-replay");
  app.add_option("--trace", options->trace,
                 "JSON lines, plain or gzip: timestamp (ms), input_length (tokens), hash_ids (of 512-token blocks)")
      ->required();
  auto* socket = app.add_option("--socket", options->socket,
                                "engine socket of a running kvistd; without it a private one is started and ended");
  app.add_option("--dram-fraction", options->dram_fraction,
                 "size of the private daemon's DRAM tier, as a share of the trace's unique full blocks")
      ->check(CLI::Validator(&CheckFraction, "FRACTION"))
      ->excludes(socket)
      ->capture_default_str();
  app.add_option(
         "--ssd-fraction", options->ssd_fraction,
         "the same of its SSD tier, in its temporary directory; default: none, and eviction by LRU, which models know")
      ->check(CLI::Validator(&CheckFraction, "FRACTION"))
      ->excludes(socket);
  app.add_option("--block-bytes", options->block_bytes, "KV of one 512-token block, e.g. 64KiB or 2MiB")
      ->transform(CLI::Validator(&ReadBlockBytes, "SIZE"))
      ->default_str("64KiB");
  app.add_option("--limit", options->limit, "replay only the first N requests")
      ->transform(examples::WholeNumber(1, std::numeric_limits<uint64_t>::max()).description(""))
      ->type_name("N");
  app.add_flag("--trace-time", options->trace_time,
               "send each request at its timestamp; default: as fast as possible, one at a time");
  app.add_option(
         "--prefill-rate", options->prefill_rate,
         "compute what isn't a hit at so many tokens a second, and store it as it is computed, 8,192 tokens at a time; "
         "default: it takes no time")
      ->transform(examples::WholeNumber(1, kPrefillRateMax).description(""))
      ->type_name("N");
  app.add_flag("--json", options->json, "one JSON object on stdout instead of the table");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {  // CLI11 has no other way
    *done = true;
    return app.exit(error) == 0 ? kFine : kUsage;
  }
  return kFine;
}

// Replays all requests, or those until a stop signal. Returns how long that took, in seconds.
double ReplayAll(const Options& options, const Trace& trace, Replay* replay) {
  Progress progress(trace.requests.size());
  const auto start = std::chrono::steady_clock::now();
  const double first_ms = trace.requests.front().timestamp_ms;
  for (const Request& request : trace.requests) {
    if (options.trace_time) {
      const std::chrono::duration<double, std::milli> after(request.timestamp_ms - first_ms);
      SleepUntil(start + std::chrono::duration_cast<std::chrono::steady_clock::duration>(after));  // fits: kTimestampMaxMs
    }
    if (StopSignal() != 0) break;
    replay->Run(request);
    progress.Show(replay->outcome().requests, replay->outcome().hit_ratio());
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

int Main(int argc, char** argv) {
  Options options;
  bool done = false;
  if (const int status = ParseOptions(argc, argv, &options, &done); done) return status;
  const absl::StatusOr<Trace> trace = ReadTrace(options.trace, options.limit);
  if (!trace.ok()) return Fail(kUsage, trace.status().message());

  CatchStopSignals();
  std::unique_ptr<PrivateDaemon> daemon;
  std::string daemon_text = absl::StrCat("at ", options.socket);
  if (options.socket.empty()) {
    const auto share = [&](double fraction) {
      return static_cast<uint64_t>(std::floor(fraction * static_cast<double>(trace->unique_full_blocks)));
    };
    const uint64_t slot_count = std::max<uint64_t>(1, share(options.dram_fraction));
    const uint64_t ssd_slots = options.ssd_fraction > 0 ? std::max<uint64_t>(1, share(options.ssd_fraction)) : 0;
    auto started = PrivateDaemon::Start({slot_count, options.block_bytes, ssd_slots});
    if (StopSignal() != 0) return 128 + StopSignal();
    if (!started.ok()) return Fail(kFailed, started.status().message());
    daemon = *std::move(started);
    options.socket = daemon->socket();
    daemon_text = absl::StrCat("private, ", Grouped(slot_count), " slots of DRAM (", options.dram_fraction,
                               " of the unique full blocks)");
    if (ssd_slots > 0)
      absl::StrAppend(&daemon_text, ", ", Grouped(ssd_slots), " on SSD (", options.ssd_fraction, " of them)");
  }

  auto replay = Replay::Create({.socket = options.socket,
                                .block_bytes = options.block_bytes,
                                .full_blocks_max = trace->full_blocks_max,
                                .store_patience_us = options.ssd_fraction > 0 ? kStorePatienceUs : 0,
                                .await_disk = options.ssd_fraction > 0,
                                .prefill_rate = options.prefill_rate});
  if (!replay.ok()) return Fail(kFailed, replay.status().message());
  const double seconds = ReplayAll(options, *trace, replay->get());
  const Outcome outcome = (*replay)->outcome();
  replay->reset();  // the sessions end before their daemon
  const absl::Status ended = daemon != nullptr ? daemon->Stop() : absl::OkStatus();
  daemon.reset();

  if (const int signal = StopSignal(); signal != 0) {
    return Fail(128 + signal, absl::StrCat("ended by signal ", signal, " after ", outcome.requests, " of ",
                                           trace->requests.size(), " requests"));
  }
  const std::string report =
      options.json ? Json(outcome)
                   : Table({options.trace, trace->unique_full_blocks, options.block_bytes, daemon_text, seconds}, outcome);
  std::fputs(report.c_str(), stdout);
  if (std::fflush(stdout) != 0) return Fail(kFailed, "the report could not be written to stdout");
  if (!ended.ok()) return Fail(kFailed, ended.message());
  if (!outcome.fine())
    return Fail(kFailed, absl::StrCat(outcome.wrong_bytes, " wrong bytes, ", outcome.failed_hooks, " failed hooks"));
  return kFine;
}

}  // namespace
}  // namespace kvist::replay

int main(int argc, char** argv) { return kvist::replay::Main(argc, argv); }

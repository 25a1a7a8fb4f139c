// kvist_sim_store: runs the real SSD store over simulated disks and a simulated catalog, one seed a run; as kvist_sim.
//   kvist_sim_store --seed S [--events N] [--trace]
//   kvist_sim_store --seeds N [--first S] [--events N] [--plant BUG]
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/sim/seeds.h"
#include "tests/sim/store_world.h"

namespace {

using kvist::sim::StoreWorld;

struct Totals {
  StoreWorld::Coverage coverage;
  uint64_t events = 0;
};

void PrintTotals(const Totals& t) {
  const auto& c = t.coverage;
  std::printf("%" PRIu64 " events in %" PRIu64 " lives: %" PRIu64 " ended by crashes, %" PRIu64 " by power cuts, %" PRIu64
              " of them while they recovered, %" PRIu64 " cleanly\n",
              t.events, c.lives, c.crashes, c.power_cuts, c.crashes_while_recovering, c.clean_ends);
  std::printf("catalogs: %" PRIu64 " lost, %" PRIu64 " rebuilt, %" PRIu64
              " of their last commits lost; durable chunks: %" PRIu64 " times looked for, %" PRIu64 " found, %" PRIu64
              " of them beside the catalog\n",
              c.catalogs_lost, c.rebuilds, c.rows_lost, c.looked_for, c.found, c.adopted);
  std::printf("writes: %" PRIu64 " durable, %" PRIu64 " refused; reads: %" PRIu64 " right, %" PRIu64 " refused, %" PRIu64
              " failed\n",
              c.written, c.refused, c.read, c.damaged_reads, c.failed_reads);
  std::printf("%" PRIu64 " freed, %" PRIu64 " left, %" PRIu64 " clears, %" PRIu64 " hidden, %" PRIu64
              " segments wanted back, %" PRIu64 " chunks written again, %" PRIu64 " given up\n",
              c.freed, c.left, c.cleared, c.hidden, c.wanted_back, c.written_again, c.given_up);
  std::printf("pins: %" PRIu64 " notes durable, %" PRIu64 " found; uses: %" PRIu64 " noted, %" PRIu64 " found\n",
              c.pins_noted, c.pins_found, c.uses_noted, c.uses_found);
  std::printf("disks: %" PRIu64 " errors, %" PRIu64 " lies, %" PRIu64 " times no space\n", c.errors, c.lies, c.no_space);
  // Of the fault matrix. All of it in seeds that kept every promise.
  std::printf("row 7: %" PRIu64 " power cuts; durable chunks were looked for %" PRIu64
              " times after these and other ends, 0 were missing\n",
              c.power_cuts, c.looked_for);
  std::printf("row 9: %" PRIu64 " reads, writes and syncs failed; %" PRIu64 " chunks given up, 0 served since\n", c.errors,
              c.given_up);
  std::printf("rows 11, 15: %" PRIu64
              " torn, misdirected, dropped and flipped writes, flipped files, wrong and stale rows; of %" PRIu64
              " reads %" PRIu64 " were refused, 0 gave wrong bytes\n",
              c.lies, c.read + c.damaged_reads + c.failed_reads, c.damaged_reads);
}

std::string NameOf(StoreWorld::Plant plant) {
  using Plant = StoreWorld::Plant;
  const auto name = [&](const char* what) {
    return std::to_string(static_cast<int>(plant)) + " of the store (" + what + ")";
  };
  switch (plant) {
    case Plant::kNone: break;
    case Plant::kNoFlush: return name("no flush");
    case Plant::kCommitTooEarly: return name("commits told too early");
    case Plant::kErasuresLost: return name("erasures lost");
    case Plant::kClearTooEarly: return name("clears told too early");
    case Plant::kUnchecked: return name("refused bytes served");
    case Plant::kTailsUnread: return name("records without rows not looked for");
  }
  return "";
}

std::string ReplayOf(const std::string& program, const StoreWorld::Options& options) {
  return kvist::sim::ReplayOf(program, options.seed,
                              {{"--events", options.events}, {"--plant", static_cast<uint64_t>(options.plant)}});
}

bool RunSeed(const StoreWorld::Options& options, const char* program, Totals* totals) {
  StoreWorld world(options);
  const bool kept = kvist::sim::RunAndTell(&world, options.seed, ReplayOf(program, options));
  *totals = {world.coverage(), world.events()};
  return kept;
}

}  // namespace

int main(int argc, char** argv) {
  StoreWorld::Options options;
  uint64_t first = 1, seeds = 0;
  int bug = 0;
  bool replays = false;
  CLI::App app("Runs kvist's SSD store in a simulated world");
  app.add_option("--seed", options.seed, "replay this seed");
  app.add_option("--seeds", seeds, "run so many seeds");
  app.add_option("--first", first, "the number of the first of them");
  app.add_option("--events", options.events, "events of the owner a seed")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_flag("--trace", options.trace, "print every event");
  app.add_flag("--digest", replays, "with --seed: print only the digest of all that was heard");
  app.add_option("--plant", bug, "plant this bug around the store, and succeed when a seed fails")->check(CLI::Range(1, 6));
  CLI11_PARSE(app, argc, argv);
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // an abort loses nothing
  options.plant = StoreWorld::Plant{static_cast<uint8_t>(bug)};
  if (access("/dev/shm", W_OK) == 0) setenv("TMPDIR", "/dev/shm", 0);  // segment files: no disk is waited for
  // Each life that ends by a crash leaves its descriptors open.
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);

  if (seeds > 0) {
    const auto with = [&](uint64_t seed) {
      StoreWorld::Options one = options;
      one.seed = seed;
      return one;
    };
    return kvist::sim::RunSeeds<Totals>(
        first, seeds, NameOf(options.plant), [&](uint64_t seed, Totals* mine) { return RunSeed(with(seed), argv[0], mine); },
        [&](uint64_t seed) { return ReplayOf(argv[0], with(seed)); }, PrintTotals);
  }
  if (replays) {
    StoreWorld world(options);
    return kvist::sim::PrintDigest(&world, options.seed);
  }
  Totals totals;
  const bool kept = RunSeed(options, argv[0], &totals);
  if (kept) PrintTotals(totals);
  return kept ? 0 : 1;
}

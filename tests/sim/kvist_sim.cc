// kvist_sim: runs the real core in a simulated world, one seed a run.
//   kvist_sim --seed S [--events N] [--trace]     replays one seed in this process
//   kvist_sim --seed S --kill-everywhere MOST      the same, each time with another session dying at another point
//   kvist_sim --seeds N [--first S] [--events N]  many, each in a process of its own, so that one that aborts is only one failure
//   kvist_sim_plantable --seeds N --plant BUG      with this bug in the core: succeeds when a seed fails, and says how many it took
// A failing seed prints the promise that broke and the command that replays it. Exit status 1: one failed.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <string>

#include "daemon/core/planted_bug.h"
#include "tests/sim/seeds.h"
#include "tests/sim/world.h"

namespace {

using kvist::sim::World;

// What a run tells the process that started it. Plain numbers, through a pipe.
struct Totals {
  kvist::sim::Oracle::Coverage coverage;
  uint64_t events = 0;
  uint64_t evictions = 0;
  uint64_t shortages = 0;
  uint64_t rolled_back = 0;
  uint64_t slots_moved = 0;
};

void PrintTotals(const Totals& t) {
  const auto& c = t.coverage;
  std::printf("%" PRIu64 " events; lookups: %" PRIu64 " hits (%" PRIu64 " shards stored after a clear, %" PRIu64
              " groups without their prefix), %" PRIu64 " partial, %" PRIu64 " misses\n",
              t.events, c.hits, c.hits_after_clear, c.hits_without_prefix, c.partial_hits, c.misses);
  std::printf("leases: %" PRIu64 " given, %" PRIu64 " past the budget, %" PRIu64 " expired, %" PRIu64
              " stale ones refused\n",
              c.leases, c.leases_refused, c.leases_expired, c.stale_leases);
  std::printf("copies: %" PRIu64 " loads, %" PRIu64 " stores, %" PRIu64 " completions said again, %" PRIu64
              " well after a cancel\n",
              c.loads, c.stores, c.late_completions, c.late_ok);
  std::printf("chunks: %" PRIu64 " sealed, %" PRIu64 " evicted, %" PRIu64 " refused, %" PRIu64 " skipped, %" PRIu64
              " stores refused for ghosts, %" PRIu64 " lost chunks; half stores: %" PRIu64 " shards failed, %" PRIu64
              " expired\n",
              c.sealed, t.evictions, c.chunks_refused, c.chunks_skipped, c.too_many_ghosts, c.stores_lost, c.fills_failed,
              c.fills_expired);
  std::printf("shortages: %" PRIu64 "; %" PRIu64
              " stores gave back slots of some shards of a chunk, for want of the others; %" PRIu64 " slots moved\n",
              t.shortages, t.rolled_back, t.slots_moved);
  std::printf("pins: %" PRIu64 " pinned, %" PRIu64 " past the budget, %" PRIu64 " expired, %" PRIu64
              " cleared; allocations: %" PRIu64 " given, %" PRIu64 " refused; swaps: %" PRIu64 " out, %" PRIu64
              " in, %" PRIu64 " refused, %" PRIu64 " freed under a copy\n",
              c.pins, c.pins_refused, c.pins_expired, c.pins_cleared, c.allocations, c.allocations_refused, c.swaps_out,
              c.swaps_in, c.swaps_refused, c.swaps_freed_under);
  std::printf("sessions: %" PRIu64 " refused, %" PRIu64 " died with copies in flight; %" PRIu64 " clears, %" PRIu64
              " jobs cancelled; %" PRIu64 " prompts cleared, %" PRIu64 " shards of hits stored since; %" PRIu64 " moves\n",
              c.sessions_refused, c.deaths_in_flight, c.clears, c.clears_cancelled, c.prompts_cleared,
              c.hits_after_prompt_clear, c.moves);
  std::printf("cores that died: %" PRIu64 "; %" PRIu64 " chunks went on, %" PRIu64
              " of those asked for just before; %" PRIu64 " slots rested\n",
              c.new_cores, c.chunks_kept, c.hits_kept, c.slots_in_doubt);
}

#ifdef KVIST_PLANTABLE
// For people: the line that says whether a bug was found.
std::string NameOf(kvist::core::PlantedBug bug) {
  using Bug = kvist::core::PlantedBug;
  const auto name = [&](const char* what) { return std::to_string(static_cast<int>(bug)) + " of the core (" + what + ")"; };
  switch (bug) {
    case Bug::kNone: break;
    case Bug::kPublishBeforeCompletion: return name("published before completion");
    case Bug::kSlotReusedUnderHold: return name("slot reused under a hold");
    case Bug::kGenerationNotChecked: return name("generation not checked");
    case Bug::kLeaseOfDeadSessionKept: return name("lease of a dead session kept");
    case Bug::kSealedAfterOneRank: return name("sealed after one rank");
    case Bug::kHalfStoreTakenOver: return name("half store taken over");
    case Bug::kSlotInDoubtReused: return name("slot in doubt reused");
    case Bug::kMovedUnderLoad: return name("slot moved under a load");
  }
  return "";
}
#else
std::string NameOf(kvist::core::PlantedBug) { return ""; }
#endif

std::string ReplayOf(const std::string& program, const World::Options& options) {
  return kvist::sim::ReplayOf(program, options.seed,
                              {{"--events", options.events},
                               {"--invariants-every", options.invariants_every},
                               {"--kill-at", options.kill_at},
                               {"--plant", static_cast<uint64_t>(kvist::core::planted)}});
}

bool RunSeed(const World::Options& options, const char* program, Totals* totals) {
  World world(options);
  const bool kept = kvist::sim::RunAndTell(&world, options.seed, ReplayOf(program, options));
  if (kept && options.trace) std::printf("digest %016" PRIx64 "\n", world.digest());
  *totals = {world.coverage(),  world.events(),      world.evictions(),
             world.shortages(), world.rolled_back(), world.slots_moved()};
  return kept;
}

// Kills each session of a seed before each event, a run each: deaths at every point, not where chance has them. `most` of these, spread evenly,
// or all when it is 0. Stops at the first that breaks something; the exit status.
int SweepDeaths(World::Options options, uint64_t most, const char* program) {
  World untouched(options);
  if (!kvist::sim::RunAndTell(&untouched, options.seed, ReplayOf(program, options))) return 1;
  const uint64_t points = untouched.deaths_possible();
  const uint64_t runs = most == 0 ? points : std::min(most, points);
  uint64_t in_flight = 0;
  for (uint64_t i = 0; i < runs; ++i) {
    options.kill_at = 1 + i * points / runs;
    struct {
      uint64_t in_flight;
    } died;
    const auto outcome = kvist::sim::RunApart<decltype(died)>(
        [&](auto* mine) {
          World world(options);
          const bool kept = kvist::sim::RunAndTell(&world, options.seed, ReplayOf(program, options));
          mine->in_flight = world.killed_in_flight() ? 1 : 0;
          return kept;
        },
        ReplayOf(program, options), &died);
    if (outcome != kvist::sim::Outcome::kKept) return 1;
    in_flight += died.in_flight;
  }
  std::printf("seed %" PRIu64 ": %" PRIu64 " deaths of a session, at each of %" PRIu64 " points%s; %" PRIu64
              " with copies in flight\n",
              options.seed, runs, points, runs == points ? "" : " or so many that are spread over them", in_flight);
  return in_flight > 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  World::Options options;
  uint64_t first = 1, seeds = 0, most = 0;
  int bug = 0;
  bool replays = false;
  CLI::App app("Runs kvist's core in a simulated world");
  app.add_option("--seed", options.seed, "replay this seed");
  app.add_option("--seeds", seeds, "run so many seeds");
  app.add_option("--first", first, "the number of the first of them");
  app.add_option("--events", options.events, "events of the core a seed")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--invariants-every", options.invariants_every, "events between two checks of the core's invariants")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--kill-at", options.kill_at, "with --seed: kill a session at this point");
  const CLI::Option* sweep =
      app.add_option("--kill-everywhere", most, "with --seed: a run for each such point; for so many of them, or 0: all");
  app.add_flag("--trace", options.trace, "print every event and effect");
  app.add_flag("--digest", replays, "with --seed: print only the digest of all effects");
#ifdef KVIST_PLANTABLE
  app.add_option("--plant", bug, "plant this bug in the core, and succeed when a seed fails")->check(CLI::Range(1, 8));
#endif
  CLI11_PARSE(app, argc, argv);
#ifdef KVIST_PLANTABLE
  kvist::core::planted = kvist::core::PlantedBug{bug};
#endif

  if (*sweep) return SweepDeaths(options, most, argv[0]);
  Totals totals;
  if (seeds == 0) {
    if (replays) {
      World world(options);
      return kvist::sim::PrintDigest(&world, options.seed);
    }
    const bool kept = RunSeed(options, argv[0], &totals);
    if (kept) PrintTotals(totals);
    return kept ? 0 : 1;
  }
  const auto with = [&](uint64_t seed) {
    World::Options one = options;
    one.seed = seed;
    return one;
  };
  return kvist::sim::RunSeeds<Totals>(
      first, seeds, NameOf(kvist::core::PlantedBug{bug}),
      [&](uint64_t seed, Totals* mine) { return RunSeed(with(seed), argv[0], mine); },
      [&](uint64_t seed) { return ReplayOf(argv[0], with(seed)); }, PrintTotals);
}

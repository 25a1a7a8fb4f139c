#ifndef KVIST_TESTS_SIM_SEEDS_H_
#define KVIST_TESTS_SIM_SEEDS_H_

#include <sys/wait.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <initializer_list>
#include <string>
#include <utility>

#include "tests/sim/prng.h"

namespace kvist::sim {

// The command that does a run again: all that it depends on must be among the options, of which those that are 0 are left out.
inline std::string ReplayOf(const std::string& program, uint64_t seed,
                            std::initializer_list<std::pair<const char*, uint64_t>> options) {
  std::string command = program + " --seed " + std::to_string(seed);
  for (const auto& [name, value] : options) {
    if (value != 0) command += std::string(" ") + name + " " + std::to_string(value);
  }
  return command + " --trace";
}

// Runs a world; when it breaks a promise says which, in one line that is the same in each replay, and what replays it.
template <class World>
bool RunAndTell(World* world, uint64_t seed, const std::string& replay) {
  const bool kept = world->Run();
  if (!kept) {
    std::printf("seed %" PRIu64 " broke '%s' at event %" PRIu64 ", digest %016" PRIx64 ": %s\n  replay: %s\n", seed,
                world->verdict().promise().c_str(), world->events(), world->digest(), world->verdict().detail().c_str(),
                replay.c_str());
  }
  std::fflush(stdout);
  return kept;
}

// Runs a world, and prints only what two processes must agree on; the exit status.
template <class World>
int PrintDigest(World* world, uint64_t seed) {
  const bool kept = world->Run();
  std::printf("seed %" PRIu64 " digest %016" PRIx64 " events %" PRIu64 "\n", seed, world->digest(), world->events());
  return kept ? 0 : 1;
}

// Many seeds, each in a process of its own, so that one that aborts is only one failure.
// `Totals`: what a run tells of itself, uint64_t and nothing else.

template <class Totals>
uint64_t* CountsOf(Totals* totals) {
  static_assert(sizeof(Totals) % sizeof(uint64_t) == 0);
  return reinterpret_cast<uint64_t*>(totals);
}
template <class Totals>
constexpr size_t kCounts = sizeof(Totals) / sizeof(uint64_t);

enum class Outcome { kKept, kBroken, kAborted };

// `run`: false when a promise broke, and has said which. `replay`: the command that does it again.
template <class Totals>
Outcome RunApart(const std::function<bool(Totals*)>& run, const std::string& replay, Totals* totals) {
  int fds[2];
  if (pipe(fds) != 0) std::abort();
  std::fflush(stdout);
  const pid_t child = fork();
  if (child < 0) std::abort();
  if (child == 0) {
    Totals mine;
    const bool kept = run(&mine);
    std::fflush(stdout);
    // Smaller than a pipe's buffer
    const bool told = write(fds[1], &mine, sizeof mine) == static_cast<ssize_t>(sizeof mine);
    _exit(told ? (kept ? 0 : 1) : 2);
  }
  close(fds[1]);
  const bool heard = read(fds[0], totals, sizeof *totals) == static_cast<ssize_t>(sizeof *totals);
  close(fds[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (heard && WIFEXITED(status) && WEXITSTATUS(status) <= 1)
    return WEXITSTATUS(status) == 0 ? Outcome::kKept : Outcome::kBroken;
  std::printf("a seed stopped the process (%s %d), see stderr above\n  replay: %s\n",
              WIFSIGNALED(status) ? "signal" : "exit", WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status),
              replay.c_str());
  return Outcome::kAborted;
}

// The seed with this number. Numbers stand side by side, and a Prng of the next seed draws what that of this one draws, one draw later: worlds that
// begin as neighbours would be much the same.
inline uint64_t SeedOf(uint64_t number) { return Prng(number).Next(); }

// Seeds with the numbers `first` to `first + seeds - 1`; the exit status. With a planted bug (its name, else empty): succeeds as soon as a seed breaks a promise,
// and says how many it took. A seed that stops the process has found nothing: what is tested are the promises, not the checks inside.
// Of many, every kind of thing must have happened: a simulation in which nothing is ever evicted proves little about eviction.
template <class Totals>
int RunSeeds(uint64_t first, uint64_t seeds, const std::string& planted,
             const std::function<bool(uint64_t seed, Totals*)>& run, const std::function<std::string(uint64_t seed)>& replay,
             const std::function<void(const Totals&)>& print) {
  Totals totals;
  uint64_t failed = 0;
  for (uint64_t i = 0; i < seeds; ++i) {
    Totals one;
    const uint64_t seed = SeedOf(first + i);
    const Outcome outcome = RunApart<Totals>([&](Totals* mine) { return run(seed, mine); }, replay(seed), &one);
    if (outcome == Outcome::kKept) {
      for (size_t count = 0; count < kCounts<Totals>; ++count) CountsOf(&totals)[count] += CountsOf(&one)[count];
      continue;
    }
    ++failed;
    if (planted.empty() || outcome == Outcome::kAborted) continue;
    std::printf("planted bug %s: found by the oracle after %" PRIu64 " seed%s of at most %" PRIu64 "\n", planted.c_str(),
                i + 1, i == 0 ? "" : "s", seeds);
    return 0;
  }
  if (!planted.empty()) {
    std::printf("planted bug %s: not found by %" PRIu64 " seeds, of which %" PRIu64 " stopped the process\n",
                planted.c_str(), seeds, failed);
    return 1;
  }
  std::printf("%" PRIu64 " seeds, %" PRIu64 " failed\n", seeds, failed);
  print(totals);
  for (size_t count = 0; count < kCounts<Totals> && failed == 0 && seeds >= 100; ++count) {
    if (CountsOf(&totals)[count] > 0) continue;
    std::printf("some of these never happened: the simulation proves too little\n");
    return 1;
  }
  return failed == 0 ? 0 : 1;
}

}  // namespace kvist::sim

#endif  // KVIST_TESTS_SIM_SEEDS_H_

// kvistd is killed between any two steps of its SSD tier, over and over, on one directory; what it has acknowledged as durable must be
// read back, bit for bit, or be among what it said to give up.
//
// usage: crash_loop [--cycles 50] [--seed N]
//
// A cycle: kvistd starts; all that is known to be durable is loaded and compared. An engine stores prompts and flushes until at least 200 more
// chunks are acknowledged; then a step is chosen, and it goes on, storing, flushing and clearing, until kvistd kills itself there. What is expected is
// known to this process alone. Exit status 0 when nothing was lost and no byte was wrong.
#include <unistd.h>

#include <array>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/support/crash_plan.h"
#include "tests/support/daemon_process.h"
#include "tests/support/fake_engine.h"
#include "tests/support/recovery.h"
#include "tests/support/shared_file.h"
#include "tests/support/temp_dir.h"

namespace kvist::test {
namespace {

using Key = std::array<uint8_t, 32>;
using Clock = std::chrono::steady_clock;

constexpr uint32_t kChunks = 16;            // of a prompt
constexpr uint32_t kAcknowledged = 200;     // chunks of a cycle, at least
constexpr int64_t kFlushTime = 20'000'000;  // us
constexpr auto kPatience = std::chrono::seconds(20);

// What is hit, and by which steps of the store.
struct Target {
  const char* name;
  std::vector<const char*> steps;
};
const std::vector<Target>& Targets() {
  static const std::vector<Target> targets = {
      {"data write", {"device: write"}},
      {"fdatasync", {"device: sync"}},
      {"catalog write", {"commit: write", "commit: done", "chunk: row"}},
      {"reclaim", {"free: erase", "segment: row", "segment: free", "segment: release"}},
      {"clear", {"clear: record", "clear: row", "clear: done"}},
  };
  return targets;
}

struct Tally {
  uint64_t cycles = 0, acknowledged = 0, read_back = 0, reclaimed = 0, lost = 0, wrong = 0, late = 0;
  std::map<std::string, uint64_t> kills;
};

class CrashLoop {
 public:
  CrashLoop(uint64_t seed, const std::string& dir)
      : random_(seed), dir_(dir), plan_(kvist::test::SharedFile<CrashPlan>(dir + "/plan")) {
    ::setenv("KVIST_CRASH_PLAN", (dir + "/plan").c_str(), 1);
    ::setenv("KVIST_RECLAIMED", (dir + "/reclaimed").c_str(), 1);
    ::setenv("KVISTD", (BinDir() + "/kvistd_crashing").c_str(), 1);
    // A pool of some 30 prompts; a disk of some 280: its segments are used again every few cycles.
    daemon_ = std::make_unique<DaemonProcess>(
        dir,
        std::vector<std::string>{"ssd.enabled=true", "ssd.capacity=128MiB", "ssd.path=" + dir + "/ssd", "pool.bytes=16MiB",
                                 "pool.slab_bytes=1MiB", "pool.touch_threads=0", "lease.share=0.9", "log.level=error"});
  }

  // False when kvistd did what it mustn't.
  bool Cycle() {
    const Target& target = Targets()[tally.cycles % Targets().size()];
    if (tally.cycles > 0) daemon_->Start();
    ++tally.cycles;
    FakeEngine engine(FakeEngine::On(daemon_->socket()));
    if (!engine.status.ok()) return Say("kvistd doesn't serve: " + engine.status.message);
    if (!Verify(engine)) return false;
    uint64_t acknowledged = 0;
    const Clock::time_point begun = Clock::now();
    while (acknowledged < kAcknowledged) {
      acknowledged += Work(engine);
      if (Clock::now() > begun + kPatience) return Say("so much couldn't be made durable: " + flushed_.message);
    }
    tally.acknowledged += acknowledged;
    // Armed from here on.
    const char* step = target.steps[random_() % target.steps.size()];
    std::strncpy(plan_->step, step, sizeof plan_->step - 1);
    plan_->left.store(1 + static_cast<uint32_t>(random_() % 12), std::memory_order_release);
    const Clock::time_point late = Clock::now() + kPatience;
    while (!daemon_->Ended().has_value()) {
      if (Clock::now() > late) {
        ++tally.late;
        plan_->left.store(0);
        daemon_->Kill();
        return true;
      }
      if (std::strcmp(target.name, "clear") == 0 && random_() % 4 == 0) {
        Clear(engine);
      } else {
        tally.acknowledged += Work(engine);
      }
    }
    ++tally.kills[target.name];
    return true;
  }

  // Of the last cycle.
  bool End() {
    daemon_->Start();
    FakeEngine engine(FakeEngine::On(daemon_->socket()));
    const bool right = engine.status.ok() && Verify(engine);
    return daemon_->Terminate() == 0 && right;
  }

  Tally tally;

 private:
  static bool Say(const std::string& what) {
    std::printf("crash_loop: %s\n", what.c_str());
    return false;
  }
  static std::vector<kvist_key> Prompt(const FakeEngine& engine, uint32_t p) { return engine.Keys(p * 1000, kChunks); }
  static Key Name(const kvist_key& key) {
    Key name;
    static_assert(sizeof key == sizeof name);
    std::memcpy(name.data(), &key, sizeof name);
    return name;
  }

  // Stores some prompts and flushes; how many chunks are durable that weren't. 0: kvistd has ended, or its disk is full for the moment.
  uint64_t Work(FakeEngine& engine) {
    std::vector<uint32_t> stored;
    for (int i = 0; i < 4; ++i) {
      const uint32_t p = next_++;
      if (engine.StoreAll(Prompt(engine, p)).status == KVIST_OK) stored.push_back(p);
    }
    flushed_ = engine.scheduler().Flush(kFlushTime);
    if (!flushed_.ok()) {
      ::usleep(1000);
      return 0;
    }
    uint64_t chunks = 0;
    for (const uint32_t p : stored) {
      // What was refused for want of room isn't there, and wasn't acknowledged.
      const uint32_t there = engine.scheduler().Lookup(Prompt(engine, p), 0).chunks;
      durable_[p] = there;
      chunks += there;
    }
    return chunks;
  }

  void Clear(FakeEngine&) {
    std::string out;
    const int status = RunProgram({BinDir() + "/kvistctl", "--socket", daemon_->admin_socket(), "clear", "--yes"}, &out);
    // Of those of before nothing is found when it has answered; anything when it hasn't.
    for (const auto& [p, chunks] : durable_) (status == 0 ? cleared_ : maybe_cleared_).insert(p);
    durable_.clear();
  }

  bool Verify(FakeEngine& engine) {
    if (!HasRecovered(*daemon_)) return Say("what is on the SSD tier isn't found");  // which it does while it serves
    bool right = true;
    for (auto& [p, chunks] : durable_) {
      const std::vector<kvist_key> keys = Prompt(engine, p);
      std::string wrong;
      const uint32_t found = engine.LoadAll(keys, &wrong);
      if (!wrong.empty()) {
        ++tally.wrong;
        right = Say("wrong bytes in prompt " + std::to_string(p) + ": " + wrong);
      }
      const uint32_t expected = Expected(keys, chunks, Reclaimed());  // this start may have given up more
      tally.read_back += found;
      if (found < expected) {
        tally.lost += expected - found;
        right = Say("prompt " + std::to_string(p) + ": " + std::to_string(found) + " chunks of " + std::to_string(expected) +
                    ", and " + std::to_string(engine.scheduler().Lookup(keys, 0).chunks) + " are found");
      }
      const uint32_t left = std::min(chunks, std::max(found, expected));  // more than was durable may be found
      tally.reclaimed += chunks - left;
      chunks = left;
    }
    std::erase_if(durable_, [](const auto& prompt) { return prompt.second == 0; });
    for (const uint32_t p : cleared_) {
      if (engine.scheduler().Lookup(Prompt(engine, p), 0).chunks > 0) {
        ++tally.wrong;
        right = Say("prompt " + std::to_string(p) + " was cleared, and is found");
      }
    }
    cleared_.clear();
    for (const uint32_t p : maybe_cleared_) {
      std::string wrong;
      engine.LoadAll(Prompt(engine, p), &wrong);
      if (!wrong.empty()) right = Say("wrong bytes in prompt " + std::to_string(p) + ": " + wrong);
      tally.wrong += !wrong.empty();
    }
    maybe_cleared_.clear();
    return right;
  }

  // Chunks of a prompt that must be found: none behind one that was given up.
  static uint32_t Expected(const std::vector<kvist_key>& keys, uint32_t chunks, const std::set<Key>& reclaimed) {
    for (uint32_t k = 0; k < chunks; ++k) {
      if (reclaimed.contains(Name(keys[k]))) return k;
    }
    return chunks;
  }

  // What kvistd has written down as given up, so far: only what is new is read, else a loop of N cycles would take N squared.
  const std::set<Key>& Reclaimed() {
    std::ifstream file(dir_ + "/reclaimed", std::ios::binary);
    file.seekg(static_cast<std::streamoff>(reclaimed_read_ * sizeof(Key)));
    for (Key key; file.read(reinterpret_cast<char*>(key.data()), sizeof key); ++reclaimed_read_) reclaimed_.insert(key);
    return reclaimed_;
  }

  std::mt19937_64 random_;
  const std::string dir_;
  CrashPlan* const plan_;
  std::unique_ptr<DaemonProcess> daemon_;
  uint32_t next_ = 0;                     // prompt
  Status flushed_;                        // the last flush
  std::map<uint32_t, uint32_t> durable_;  // prompt -> its first chunks that are
  std::set<uint32_t> cleared_, maybe_cleared_;
  std::set<Key> reclaimed_;  // keys of prompts that are never stored again
  uint64_t reclaimed_read_ = 0;
};

int Main(int argc, char** argv) {
  uint64_t cycles = 50, seed = 1;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string word = argv[i];
    if (word == "--cycles") cycles = std::strtoull(argv[i + 1], nullptr, 10);
    if (word == "--seed") seed = std::strtoull(argv[i + 1], nullptr, 10);
  }
  const TempDir dir;
  CrashLoop loop(seed, dir.path());
  bool right = true;
  while (right && loop.tally.cycles < cycles) right = loop.Cycle();
  right = right && loop.End();
  const Tally& tally = loop.tally;
  uint64_t killed = 0;
  for (const auto& [name, count] : tally.kills) {
    std::printf("killed in %s: %" PRIu64 "\n", name.c_str(), count);
    killed += count;
  }
  for (const Target& target : Targets()) {
    const auto kills = tally.kills.find(target.name);
    if (cycles < 50 || (kills != tally.kills.end() && kills->second * 10 >= killed)) continue;
    std::printf("crash_loop: too few kills in %s\n", target.name);
    right = false;
  }
  std::printf("seed %" PRIu64 ", not hit in time: %" PRIu64 "\n", seed, tally.late);
  std::printf("%" PRIu64 " cycles, %" PRIu64 " acknowledged, %" PRIu64 " read back, %" PRIu64 " reclaimed, %" PRIu64
              " lost, %" PRIu64 " wrong\n",
              tally.cycles, tally.acknowledged, tally.read_back, tally.reclaimed, tally.lost, tally.wrong);
  return right && tally.lost == 0 && tally.wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace kvist::test

int main(int argc, char** argv) { return kvist::test::Main(argc, argv); }

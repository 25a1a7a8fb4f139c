// Row 13 of the fault matrix: bits of the DRAM tier flip. The test finds stored shards in a running kvistd's memory by their content, and
// changes them there, through /proc.
#include <catch2/catch.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/campaign.h"
#include "tests/support/daemon_process.h"
#include "tests/support/fake_engine.h"
#include "tests/support/free_port.h"
#include "tests/support/http_get.h"
#include "tests/support/stderr_to.h"
#include "tests/support/temp_dir.h"

using kvist::test::Campaign;
using kvist::test::DaemonProcess;
using kvist::test::FakeEngine;
using kvist::test::StderrTo;
using kvist::test::TempDir;
using Clock = std::chrono::steady_clock;

namespace {

constexpr int64_t kTimeoutUs = 20'000'000;
constexpr uint64_t kChecksumsAt = 512, kHeaderBytes = 4096;  // of a slot: storage/pool/slot_header.h

// Another process's memory.
class Memory {
 public:
  explicit Memory(pid_t pid)
      : pid_(pid), fd_(::open(("/proc/" + std::to_string(pid) + "/mem").c_str(), O_RDWR | O_CLOEXEC)) {
    REQUIRE(fd_ >= 0);
  }
  ~Memory() { ::close(fd_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  // Where each of these first 8 bytes of a payload lies: slots start at multiples of 4 KiB, and so do their payloads.
  std::map<uint64_t, uint64_t> FindPayloads(const std::vector<uint64_t>& firsts) const {
    std::map<uint64_t, uint64_t> places;
    const std::vector<uint64_t> wanted = [&] {
      std::vector<uint64_t> sorted = firsts;
      std::sort(sorted.begin(), sorted.end());
      return sorted;
    }();
    std::ifstream maps("/proc/" + std::to_string(pid_) + "/maps");
    std::vector<char> block(1 << 20);
    for (std::string line; std::getline(maps, line);) {
      unsigned long begin = 0, end = 0;
      char rights[5] = "";
      if (std::sscanf(line.c_str(), "%lx-%lx %4s", &begin, &end, rights) != 3 || rights[0] != 'r' || rights[1] != 'w')
        continue;
      if (end - begin < block.size() || end - begin > (1ul << 30))
        continue;  // the pool is larger, sanitizers' maps are huge
      for (uint64_t at = begin; at < end; at += block.size()) {
        const ssize_t n = ::pread(fd_, block.data(), std::min<uint64_t>(block.size(), end - at), static_cast<off_t>(at));
        for (ssize_t i = 0; i + 8 <= n; i += 4096) {
          uint64_t word;
          std::memcpy(&word, block.data() + i, sizeof word);
          if (std::binary_search(wanted.begin(), wanted.end(), word)) places[word] = at + static_cast<uint64_t>(i);
        }
      }
    }
    return places;
  }

  void Flip(uint64_t at, unsigned bit) const {
    unsigned char byte = 0;
    REQUIRE(::pread(fd_, &byte, 1, static_cast<off_t>(at)) == 1);
    byte = static_cast<unsigned char>(byte ^ 1u << bit);
    REQUIRE(::pwrite(fd_, &byte, 1, static_cast<off_t>(at)) == 1);
  }

 private:
  pid_t pid_;
  int fd_;
};

// An engine whose stored chunks can be found in the daemon.
class Victim {
 public:
  static constexpr uint32_t kChunks = 8, kLayers = 4;

  explicit Victim(const DaemonProcess& daemon)
      : engine([&] {
          FakeEngine::Options options = FakeEngine::On(daemon.socket());
          options.layers = kLayers;
          options.deadline_us = kTimeoutUs;
          return options;
        }()) {
    REQUIRE(engine.status.message == "");
  }
  uint64_t layer_bytes() const { return 2ull * engine.options().segment_bytes * FakeEngine::kPagesPerChunk; }

  std::vector<kvist_key> Keys(uint32_t prompt) const { return engine.Keys(1000 * (prompt + 1), kChunks); }
  // Stores a prompt's chunks; the first 8 bytes of each one's payload.
  std::vector<uint64_t> Store(uint32_t prompt) {
    REQUIRE(engine.StoreAll(Keys(prompt)).chunks_copied == kChunks);
    std::vector<uint64_t> firsts(kChunks);
    for (uint32_t chunk = 0; chunk < kChunks; ++chunk)
      std::memcpy(&firsts[chunk], engine.Segment(0, pages[size_t{chunk} * FakeEngine::kPagesPerChunk], 0, 0), 8);
    return firsts;
  }
  // Loads layers of chunks into poisoned pages. Counts segments that hold neither what was stored nor the poison.
  kvist_status Load(uint32_t prompt, uint32_t first_chunk, uint32_t chunks, uint32_t first_layer = 0, uint32_t layers = 0) {
    for (uint32_t chunk = 0; chunk < kChunks; ++chunk) engine.Fill(0, Keys(prompt)[chunk], PagesOf(chunk));
    const std::vector<std::byte> stored(engine.memory(0).begin(), engine.memory(0).end());
    engine.Poison(0, pages);
    const kvist::Hit hit = engine.scheduler().Lookup(Keys(prompt), kTimeoutUs);
    hits = hit.chunks;
    if (hit.chunks < first_chunk + chunks) return KVIST_ABORTED;
    kvist_load_args args{};
    args.struct_size = sizeof args;
    args.lease = hit.lease.id();
    args.first_chunk = first_chunk;
    args.chunk_count = chunks;
    args.pages = pages.data() + size_t{first_chunk} * FakeEngine::kPagesPerChunk;
    args.page_count = size_t{chunks} * FakeEngine::kPagesPerChunk;
    args.first_layer = first_layer;
    args.layer_count = layers;
    kvist_op op = 0;
    REQUIRE(kvist_load(engine.worker(0).get(), &args, &op) == KVIST_OK);
    kvist_result result = engine.worker(0).Wait(op, kTimeoutUs);
    while (result.pages_released == 0) result = engine.worker(0).Wait(op, kTimeoutUs);
    const std::vector<std::byte> poison(engine.options().segment_bytes, std::byte{0xee});
    for (size_t at = 0; at < stored.size(); at += poison.size()) {
      const std::byte* now = engine.memory(0).data() + at;
      wrong +=
          std::memcmp(now, stored.data() + at, poison.size()) != 0 && std::memcmp(now, poison.data(), poison.size()) != 0;
    }
    return result.status;
  }
  uint32_t Hits(uint32_t prompt) { return engine.scheduler().Lookup(Keys(prompt), 0).chunks; }

  FakeEngine engine;
  const std::vector<uint32_t> pages = engine.Pages(0, kChunks);
  uint64_t wrong = 0;  // segments with bytes that never were stored
  uint32_t hits = 0;   // of the lookup of the last Load

 private:
  std::span<const uint32_t> PagesOf(uint32_t chunk) const {
    return std::span(pages).subspan(size_t{chunk} * FakeEngine::kPagesPerChunk, FakeEngine::kPagesPerChunk);
  }
};

// A kvistd whose log is the file `log` there.
std::unique_ptr<DaemonProcess> Start(const TempDir& dir, std::vector<std::string> settings) {
  const StderrTo log(dir.path() + "/log");
  return std::make_unique<DaemonProcess>(dir.path(), std::move(settings));
}

double Corruptions(uint16_t port) {
  return kvist::test::Metric(port, "kvist_corruption_detected_total{tier=\"dram\",kind=\"checksum\"}");
}

}  // namespace

TEST_CASE("Row 13: with pool.verify = always no flipped bit is served, and its chunk is a miss from then on") {
  const auto prompts = static_cast<uint32_t>(Campaign("KVIST_BIT_FLIPS", 100, 500));
  const auto seed = static_cast<uint32_t>(std::random_device()());
  INFO("seed " << seed);
  std::mt19937 random(seed);
  TempDir dir;
  const uint16_t port = kvist::test::FreePort();
  const auto started =
      Start(dir, {"pool.bytes=256MiB", "pool.verify=always", "metrics.listen=127.0.0.1:" + std::to_string(port)});
  DaemonProcess& daemon = *started;
  Victim victim(daemon);
  CHECK(Corruptions(port) == 0);
  std::vector<std::vector<uint64_t>> firsts;
  std::vector<uint64_t> all;
  for (uint32_t prompt = 0; prompt < prompts; ++prompt) {
    firsts.push_back(victim.Store(prompt));
    all.insert(all.end(), firsts.back().begin(), firsts.back().end());
  }
  const Memory memory(daemon.pid());
  const std::map<uint64_t, uint64_t> payloads = memory.FindPayloads(all);
  REQUIRE(payloads.size() == all.size());

  uint32_t detected = 0, missed = 0;
  for (uint32_t prompt = 0; prompt < prompts; ++prompt) {
    REQUIRE(victim.Load(prompt, 0, Victim::kChunks) == KVIST_OK);
    const uint32_t chunk = random() % Victim::kChunks;
    const uint64_t payload = payloads.at(firsts[prompt][chunk]);
    if (prompt % 5 == 4) {  // a checksum instead of what it is of
      memory.Flip(payload - kHeaderBytes + kChecksumsAt + random() % (8 * Victim::kLayers), random() % 8);
    } else {
      // Different places, so that no flip undoes another.
      const uint64_t bytes = Victim::kLayers * victim.layer_bytes(), first = random() % bytes;
      for (uint32_t flip = 0, flips = 1 + random() % 4; flip < flips; ++flip)
        memory.Flip(payload + (first + flip * (bytes / 4)) % bytes, random() % 8);
    }
    detected += victim.Load(prompt, 0, Victim::kChunks) == KVIST_DATA_LOSS;
    CHECK(victim.hits == Victim::kChunks);
    missed += victim.Hits(prompt) == chunk;
    // The engine computes it again, and is served again.
    const kvist_result stored = victim.engine.StoreAll(victim.Keys(prompt));
    CHECK(stored.status == KVIST_OK);
    CHECK(stored.chunks_copied == Victim::kChunks - chunk);
    CHECK(victim.Load(prompt, 0, Victim::kChunks) == KVIST_OK);
  }
  std::printf(
      "row 13: %u of %u loads over flipped bits ended with DATA_LOSS (asked: 100 %%), %lu segments with wrong bytes, "
      "%u of %u chunks were misses then\n",
      detected, prompts, victim.wrong, missed, prompts);
  CHECK(detected == prompts);
  CHECK(victim.wrong == 0);
  CHECK(missed == prompts);
  CHECK(Corruptions(port) == prompts);
  std::ifstream log(dir.path() + "/log");
  uint32_t logged = 0;
  for (std::string line; std::getline(log, line);)
    logged += line.find("held other bytes than were stored") != std::string::npos;
  CHECK(logged >= 2);  // the first at once, then ten more, then as many as came within CorruptionLog::kQuiet
  CHECK(logged < prompts / 2);
  CHECK(daemon.Terminate() == 0);
}

TEST_CASE("Row 13: a load of other layers or chunks than the flipped ones is served") {
  TempDir dir;
  const auto daemon = Start(dir, {"pool.bytes=64MiB", "pool.verify=always"});
  Victim victim(*daemon);
  const std::vector<uint64_t> firsts = victim.Store(0);
  const Memory memory(daemon->pid());
  const uint64_t payload = memory.FindPayloads(firsts).at(firsts[3]);
  memory.Flip(payload + 2 * victim.layer_bytes() + 1000, 3);  // chunk 3, layer 2
  CHECK(victim.Load(0, 0, 8, 0, 2) == KVIST_OK);
  CHECK(victim.Load(0, 0, 8, 3, 1) == KVIST_OK);
  CHECK(victim.Load(0, 0, 3) == KVIST_OK);
  CHECK(victim.Load(0, 4, 4) == KVIST_OK);
  CHECK(victim.Load(0, 3, 1, 2, 1) == KVIST_DATA_LOSS);
  CHECK(victim.Hits(0) == 3);
  CHECK(victim.wrong == 0);
}

TEST_CASE("Row 13: with pool.verify = never, the default, a flipped bit is served") {
  // Documented in daemon/options.h; and it shows that the cases above would see a wrong byte.
  TempDir dir;
  DaemonProcess daemon(dir.path(), {"pool.bytes=64MiB"});
  Victim victim(daemon);
  const std::vector<uint64_t> firsts = victim.Store(0);
  const Memory memory(daemon.pid());
  memory.Flip(memory.FindPayloads(firsts).at(firsts[3]) + 5, 0);
  CHECK(victim.Load(0, 0, 8) == KVIST_OK);
  CHECK(victim.wrong == 1);
}

TEST_CASE("Row 13: what checksums cost") {
  // Of prompts of 64 MiB; both daemons take turns, so that a busy machine disturbs both.
  constexpr int kRounds = 9;
  struct Side {
    explicit Side(const char* verify)
        : daemon(dir.path(), {"pool.bytes=256MiB", std::string("pool.verify=") + verify}), engine([&] {
            FakeEngine::Options options = FakeEngine::On(daemon.socket());
            options.layers = 16;
            options.pages = 1024;
            options.segment_bytes = 2048;
            options.deadline_us = kTimeoutUs;
            return options;
          }()) {
      REQUIRE(engine.status.message == "");
    }
    // Seconds of a store, and of a load.
    void Round(uint32_t round) {
      const uint32_t chunks = 1024 / FakeEngine::kPagesPerChunk;
      const auto keys = engine.Keys(1000 * (round + 1), chunks);
      const auto pages = engine.Pages(0, chunks);
      auto begin = Clock::now();
      REQUIRE(engine.worker(0).Wait(engine.worker(0).Store(keys, 0, pages), kTimeoutUs).status == KVIST_OK);
      store.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
      const kvist::Hit hit = engine.scheduler().Lookup(keys, kTimeoutUs);
      REQUIRE(hit.chunks == chunks);
      begin = Clock::now();
      REQUIRE(engine.worker(0).Wait(engine.worker(0).Load(hit.lease, 0, chunks, pages), kTimeoutUs).status == KVIST_OK);
      load.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
    }
    static double GigabytesPerSecond(std::vector<double> seconds) {
      std::nth_element(seconds.begin(), seconds.begin() + kRounds / 2, seconds.end());
      return 64.0 * (1 << 20) / seconds[kRounds / 2] * 1e-9;
    }
    TempDir dir;
    DaemonProcess daemon;
    FakeEngine engine;
    std::vector<double> store, load;
  } never("never"), always("always");
  for (uint32_t round = 0; round < kRounds; ++round) {
    never.Round(round);
    always.Round(round);
  }
  std::printf("row 13: load %.1f GB/s, with checksums %.1f GB/s; store %.1f GB/s, with checksums %.1f GB/s\n",
              Side::GigabytesPerSecond(never.load), Side::GigabytesPerSecond(always.load),
              Side::GigabytesPerSecond(never.store), Side::GigabytesPerSecond(always.store));
}

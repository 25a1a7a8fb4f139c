// The tier below DRAM, with a real kvistd on a real directory: what it is for, and what a kill -9 must not take.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "storage/ssd/format.h"
#include "tests/support/ctl.h"
#include "tests/support/daemon_process.h"
#include "tests/support/fake_engine.h"
#include "tests/support/files_under.h"
#include "tests/support/recovery.h"
#include "tests/support/temp_dir.h"

using kvist::test::Ctl;
using kvist::test::CtlSays;
using kvist::test::DaemonProcess;
using kvist::test::Eventually;
using kvist::test::FakeEngine;
using kvist::test::FilesUnder;
using kvist::test::HasRecovered;
using kvist::test::StatusOf;
using kvist::test::TempDir;

namespace {

constexpr uint32_t kChunks = 16;  // of a prompt
constexpr int64_t kFlushTime = 30'000'000;

// A pool of 10 prompts; a disk of some 700.
std::vector<std::string> Settings() {
  return {"ssd.enabled=true",     "ssd.capacity=512MiB",  "pool.bytes=6MiB",
          "pool.slab_bytes=1MiB", "pool.touch_threads=0", "lease.share=0.9"};
}

std::vector<kvist_key> Prompt(const FakeEngine& engine, uint32_t p) { return engine.Keys(p * 1000, kChunks); }

struct Loaded {
  uint32_t chunks = 0;
  std::string wrong;
};
Loaded LoadAll(FakeEngine& engine, uint32_t prompts) {
  Loaded loaded;
  for (uint32_t p = 0; p < prompts; ++p) {
    std::string wrong;
    loaded.chunks += engine.LoadAll(Prompt(engine, p), &wrong);
    if (loaded.wrong.empty()) loaded.wrong = wrong;
  }
  return loaded;
}

// kvistctl fsck over the tier of the kvistd in `dir`: its exit status and what it says.
std::pair<int, std::string> Fsck(const TempDir& dir, const std::vector<std::string>& more = {}) {
  std::vector<std::string> argv{
      "/bin/sh", "-c", "exec \"$0\" \"$@\" 2>&1", kvist::test::BinDir() + "/kvistctl", "fsck", "--state-dir", dir / "state"};
  argv.insert(argv.end(), more.begin(), more.end());
  std::string said;
  const int status = kvist::test::RunProgram(argv, &said);
  return {status, said};
}

// Flips a bit in each of `count` chunks of the tier's first segment, where something was written; how many.
int FlipBits(const std::string& folder, int count) {
  std::fstream file(folder + "/segment-00000000", std::ios::in | std::ios::out | std::ios::binary);
  int flipped = 0;
  for (std::streamoff at = 500'000; flipped < count && at < 3'000'000; at += 100'000) {  // records are of some 28 KiB
    std::string bytes(64, '\0');
    file.seekg(at);
    file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    if (bytes == std::string(64, '\0')) continue;  // padding
    file.seekp(at);
    file.put(static_cast<char>(bytes[0] ^ 1));
    flipped += file.good() ? 1 : 0;
  }
  return flipped;
}

uint32_t Found(FakeEngine& engine, uint32_t prompts) {
  uint32_t chunks = 0;
  for (uint32_t p = 0; p < prompts; ++p) chunks += engine.scheduler().Lookup(Prompt(engine, p), 0).chunks;
  return chunks;
}

// An engine stores that many prompts, has them flushed, and goes.
void StoreDurably(const DaemonProcess& daemon, uint32_t prompts) {
  FakeEngine engine(FakeEngine::On(daemon.socket()));
  REQUIRE(engine.status.ok());
  for (uint32_t p = 0; p < prompts; ++p) REQUIRE(engine.StoreAll(Prompt(engine, p)).status == KVIST_OK);
  uint32_t durable = 0;
  const kvist::Status flushed = engine.scheduler().Flush(kFlushTime, &durable);
  INFO(flushed.message);
  REQUIRE(flushed.ok());
  CHECK(durable >= prompts * kChunks);
}

}  // namespace

TEST_CASE("What was flushed is loaded bit for bit after kill -9") {
  const TempDir dir;
  DaemonProcess daemon(dir.path(), Settings());
  constexpr uint32_t kPrompts = 8;
  StoreDurably(daemon, kPrompts);
  daemon.Kill();
  daemon.Start();
  FakeEngine engine(FakeEngine::On(daemon.socket()));
  REQUIRE(engine.status.ok());
  REQUIRE(HasRecovered(daemon));
  CHECK(Found(engine, kPrompts) == kPrompts * kChunks);
  const Loaded loaded = LoadAll(engine, kPrompts);
  CHECK(loaded.wrong.empty());
  CHECK(loaded.chunks == kPrompts * kChunks);
}

TEST_CASE("Row 14: a kvistd whose catalog is damaged starts, finds every chunk by its record, and says so") {
  const TempDir dir;
  DaemonProcess daemon(dir.path(), Settings());
  constexpr uint32_t kPrompts = 8;
  StoreDurably(daemon, kPrompts);
  CHECK(Ctl(daemon, {"ssd"})["catalogs_set_aside"] == 0);
  daemon.Kill();
  const std::string file = GENERATE("CURRENT", "MANIFEST-");
  INFO(file);
  int damaged = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir / "state/ssd/catalog")) {
    if (entry.path().filename().string().rfind(file, 0) != 0) continue;
    std::filesystem::resize_file(entry.path(), 3);
    ++damaged;
  }
  REQUIRE(damaged > 0);
  daemon.Start();
  FakeEngine engine(FakeEngine::On(daemon.socket()));
  REQUIRE(engine.status.ok());
  REQUIRE(HasRecovered(daemon));
  const nlohmann::json ssd = Ctl(daemon, {"ssd"});
  CHECK(ssd["catalogs_set_aside"] == 1);
  CHECK(ssd["recovery"]["rebuilt"] == true);
  CHECK(ssd["recovery"]["message"] != "");
  const Loaded loaded = LoadAll(engine, kPrompts);
  CHECK(loaded.wrong.empty());
  CHECK(loaded.chunks == kPrompts * kChunks);
  std::printf("row 14: %s damaged: %u of %u chunks found by their records in %.3f s\n", file.c_str(), loaded.chunks,
              kPrompts * kChunks, ssd["recovery"]["seconds"].get<double>());
}

TEST_CASE("fsck finds a killed kvistd's tier sound, then what was damaged in it, and takes that out") {
  const TempDir dir;
  DaemonProcess daemon(dir.path(), Settings());
  constexpr uint32_t kPrompts = 8;
  StoreDurably(daemon, kPrompts);
  const auto [while_running, refusal] = Fsck(dir, {"--repair"});
  INFO(refusal);
  CHECK(while_running == 3);
  daemon.Kill();
  const auto [killed, fine] = Fsck(dir);
  INFO(fine);
  CHECK(killed == 0);
  CHECK(fine.find("sound; kvistd was killed") != std::string::npos);
  REQUIRE(FlipBits(dir / "state/ssd", 3) == 3);
  const auto [damaged, found] = Fsck(dir);
  INFO(found);
  CHECK(damaged == 1);
  CHECK(found.find("3 lead to no good record") != std::string::npos);
  CHECK(Fsck(dir, {"--repair"}).first == 0);
  CHECK(Fsck(dir).first == 0);
  daemon.Start();
  FakeEngine engine(FakeEngine::On(daemon.socket()));
  REQUIRE(engine.status.ok());
  REQUIRE(HasRecovered(daemon));
  const Loaded loaded = LoadAll(engine, kPrompts);
  CHECK(loaded.wrong.empty());
  CHECK(loaded.chunks > 0);
  CHECK(loaded.chunks < kPrompts * kChunks);
}

namespace {

// Where the records of chunks begin in a tier's segment files.
struct RecordPlace {
  std::string file;
  uint64_t offset = 0;
  uint64_t bytes = 0;  // with its header
};
std::vector<RecordPlace> RecordsUnder(const std::string& directory) {
  std::vector<RecordPlace> records;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.path().filename().string().rfind("segment-", 0) != 0) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    const uint64_t size = entry.file_size();
    for (uint64_t at = kvist::ssd::kUnit.value; at + kvist::ssd::kUnit.value < size;) {
      kvist::ssd::RecordHeader header{};
      file.seekg(static_cast<std::streamoff>(at));
      file.read(reinterpret_cast<char*>(&header), sizeof header);
      if (!file.good() || header.magic != kvist::ssd::kRecordMagic) break;
      const uint64_t bytes = (kvist::ssd::kUnit * kvist::ssd::UnitsFor({header.payload_bytes})).value;
      if (header.kind == kvist::ssd::RecordKind::kShard)
        records.push_back({entry.path(), at, kvist::ssd::kHeaderBytes.value + header.payload_bytes});
      at += bytes;
    }
  }
  return records;
}

// Turns a bit, by direct I/O where that is to be had, as kvistd reads.
void FlipBit(const std::string& path, uint64_t at) {
  constexpr uint64_t kBlock = 4096;
  int fd = ::open(path.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC);
  if (fd < 0) fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  alignas(kBlock) static std::byte block[kBlock];
  const auto first = static_cast<off_t>(at / kBlock * kBlock);
  REQUIRE(::pread(fd, block, kBlock, first) == static_cast<ssize_t>(kBlock));
  block[at % kBlock] ^= std::byte{1};
  REQUIRE(::pwrite(fd, block, kBlock, first) == static_cast<ssize_t>(kBlock));
  ::close(fd);
}

}  // namespace

TEST_CASE("row 12: bits that flip where nobody reads are found by scrubbing, all of them, and nothing else") {
  const TempDir dir;
  std::vector<std::string> settings = Settings();
  settings.push_back("ssd.scrub_every=1s");
  DaemonProcess daemon(dir.path(), settings);
  constexpr uint32_t kPrompts = 60;
  {
    FakeEngine engine(FakeEngine::On(daemon.socket()));
    REQUIRE(engine.status.ok());
    for (uint32_t p = 0; p < kPrompts; ++p) {
      REQUIRE(engine.StoreAll(Prompt(engine, p)).status == KVIST_OK);
      REQUIRE(engine.scheduler().Flush(kFlushTime).ok());
    }
  }
  REQUIRE(daemon.Terminate() == 0);  // the segments of before are full for whoever comes then
  daemon.Start();
  REQUIRE(HasRecovered(daemon));
  const std::vector<RecordPlace> records = RecordsUnder(dir / "state/ssd");
  REQUIRE(records.size() == kPrompts * kChunks);
  uint64_t flipped = 0;
  std::mt19937_64 random(Catch::rngSeed());
  const auto began = std::chrono::steady_clock::now();
  for (size_t i = 0; i < records.size(); i += 7) {
    // One in eight in a header, but for what isn't used there.
    const uint64_t header = offsetof(kvist::ssd::RecordHeader, padding);
    const uint64_t behind =
        i % 8 == 0 ? random() % header
                   : kvist::ssd::kHeaderBytes.value + random() % (records[i].bytes - kvist::ssd::kHeaderBytes.value);
    FlipBit(records[i].file, records[i].offset + behind);
    ++flipped;
  }
  const auto corrupt = [&] { return Ctl(daemon, {"ssd"})["chunks_corrupt"].get<uint64_t>(); };
  REQUIRE(Eventually([&] { return corrupt() >= flipped; }));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  const uint64_t passes = Ctl(daemon, {"ssd"})["scrub"]["passes"];
  REQUIRE(Eventually([&] { return Ctl(daemon, {"ssd"})["scrub"]["passes"] >= passes + 2; }));
  CHECK(corrupt() == flipped);
  const nlohmann::json scrub = Ctl(daemon, {"ssd"})["scrub"];
  FakeEngine engine(FakeEngine::On(daemon.socket()));
  REQUIRE(engine.status.ok());
  const Loaded loaded = LoadAll(engine, kPrompts);
  CHECK(loaded.wrong.empty());
  CHECK(loaded.chunks > 0);
  CHECK(corrupt() == flipped);  // what is left is good
  std::printf(
      "row 12: %lu of %lu flipped bits found while nobody read them (asked: 100 %%), within %.2f s, wrong chunks 0; "
      "the last pass took %.2f s\n",
      corrupt(), flipped, seconds, scrub["last_seconds"].get<double>());
}

TEST_CASE("What an engine was told is on SSD is there after kill -9, though nobody asked for a flush") {
  const TempDir dir;
  DaemonProcess daemon(dir.path(), Settings());
  constexpr uint32_t kAtOnce = 25;  // prompts: the pool overflows, so write-behind is at it when the kill comes
  uint32_t said = 0, lost = 0, wrong_bytes = 0;
  for (uint32_t cycle = 0; cycle < 4; ++cycle) {
    std::vector<std::pair<uint32_t, uint32_t>> until;  // prompt, how many chunks from its beginning on are durable
    {
      FakeEngine engine(FakeEngine::On(daemon.socket()));
      REQUIRE(engine.status.ok());
      REQUIRE(HasRecovered(daemon));
      for (uint32_t p = cycle * kAtOnce; p < (cycle + 1) * kAtOnce; ++p) (void)engine.StoreAll(Prompt(engine, p));
      const auto ask = [&] {  // how much is said
        until.clear();
        uint32_t sum = 0;
        for (uint32_t p = cycle * kAtOnce; p < (cycle + 1) * kAtOnce; ++p) {
          std::vector<uint8_t> tiers;
          if (!engine.scheduler().Where(Prompt(engine, p), &tiers).ok()) return 0u;
          const auto end = std::find_if(tiers.begin(), tiers.end(), [](uint8_t in) { return (in & KVIST_ON_SSD) == 0; });
          until.emplace_back(p, static_cast<uint32_t>(end - tiers.begin()));
          sum += until.back().second;
        }
        return sum;
      };
      REQUIRE(Eventually([&] { return ask() > 0; }));  // and what was said last counts
      daemon.Kill();
      for (const auto& [p, chunks] : until) said += chunks;
    }
    daemon.Start();
    FakeEngine engine(FakeEngine::On(daemon.socket()));
    REQUIRE(engine.status.ok());
    REQUIRE(HasRecovered(daemon));
    for (const auto& [p, chunks] : until) {
      std::string wrong;
      const uint32_t loaded = engine.LoadAll(Prompt(engine, p), &wrong);
      lost += loaded < chunks ? chunks - loaded : 0;
      wrong_bytes += wrong.empty() ? 0 : 1;
    }
  }
  std::printf("ssd: %u chunks said to be on disk before 4 kills, %u of them lost\n", said, lost);
  CHECK(lost == 0);
  CHECK(wrong_bytes == 0);
}

TEST_CASE("A clean stop writes what isn't on disk yet") {
  const TempDir dir;
  DaemonProcess daemon(dir.path(), Settings());
  {
    FakeEngine engine(FakeEngine::On(daemon.socket()));
    REQUIRE(engine.status.ok());
    REQUIRE(engine.StoreAll(Prompt(engine, 0)).status == KVIST_OK);
  }
  REQUIRE(daemon.Terminate() == 0);
  daemon.Start();
  FakeEngine engine(FakeEngine::On(daemon.socket()));
  REQUIRE(engine.status.ok());
  REQUIRE(HasRecovered(daemon));
  const Loaded loaded = LoadAll(engine, 1);
  CHECK(loaded.wrong.empty());
  CHECK(loaded.chunks == kChunks);
}

TEST_CASE("A disk holds what the pool has no room for") {
  const TempDir dir;
  DaemonProcess daemon(dir.path(), Settings());
  FakeEngine engine(FakeEngine::On(daemon.socket()));
  REQUIRE(engine.status.ok());
  constexpr uint32_t kPrompts = 100;  // ten times the pool
  for (uint32_t p = 0; p < kPrompts; ++p) {
    REQUIRE(engine.StoreAll(Prompt(engine, p)).status == KVIST_OK);
    if (p % 4 == 3) REQUIRE(engine.scheduler().Flush(kFlushTime).ok());  // not faster than the disk
  }
  const uint32_t found = Found(engine, kPrompts);
  const Loaded loaded = LoadAll(engine, kPrompts);
  std::printf("ssd: of %u chunks stored, ten pools, %u are found and %u loaded right\n", kPrompts * kChunks, found,
              loaded.chunks);
  CHECK(loaded.wrong.empty());
  CHECK(loaded.chunks >= kPrompts * kChunks * 95 / 100);
}

TEST_CASE("A load from disk gives out layer after layer, each right when it is said to be there") {
  constexpr uint32_t kLayers = 16, kPrompts = 6, kOfPrompt = 10;
  const TempDir dir;
  const std::vector<std::string> settings{"ssd.enabled=true", "ssd.capacity=2GiB", "pool.bytes=256MiB", "lease.share=0.9"};
  const auto options_of = [](const DaemonProcess& daemon, bool by_layer) {
    FakeEngine::Options options = FakeEngine::On(daemon.socket());
    options.ranks = 2;
    options.layers = kLayers;
    options.segment_bytes = 8192;  // chunks of 1 MiB a rank
    options.by_layer = by_layer;
    options.deadline_us = kFlushTime;
    return options;
  };
  const auto keys_of = [](const FakeEngine& engine, uint32_t p) { return engine.Keys(p * 1000, kOfPrompt); };
  {
    DaemonProcess daemon(dir.path(), settings);
    FakeEngine engine(options_of(daemon, false));
    REQUIRE(engine.status.ok());
    for (uint32_t p = 0; p < kPrompts; ++p) REQUIRE(engine.StoreAll(keys_of(engine, p)).status == KVIST_OK);
    uint32_t durable = 0;
    REQUIRE(engine.scheduler().Flush(kFlushTime, &durable).ok());
    daemon.Kill();
  }
  uint32_t in_parts = 0;
  for (const bool by_layer : {true, false}) {
    DaemonProcess daemon(dir.path(), settings);
    REQUIRE(HasRecovered(daemon));
    FakeEngine engine(options_of(daemon, by_layer));
    REQUIRE(engine.status.ok());
    const std::vector<uint32_t> pages = engine.Pages(0, kOfPrompt);
    for (uint32_t p = 0; p < kPrompts; ++p) {
      CAPTURE(by_layer, p);
      const std::vector<kvist_key> keys = keys_of(engine, p);
      const auto check = [&](uint32_t rank, uint32_t layers) {
        for (uint32_t c = 0; c < kOfPrompt; ++c) {
          const std::string wrong = engine.Check(
              rank, keys[c], std::span(pages).subspan(c * FakeEngine::kPagesPerChunk, FakeEngine::kPagesPerChunk), layers);
          if (!wrong.empty()) FAIL(wrong);
        }
      };
      for (uint32_t rank = 0; rank < 2; ++rank) engine.Poison(rank, pages);
      const kvist::Hit hit = engine.scheduler().Lookup(keys, kFlushTime);
      REQUIRE(hit.chunks == kOfPrompt);
      CHECK(hit.coming > 0);
      kvist_op ops[2];
      for (uint32_t rank = 0; rank < 2; ++rank) ops[rank] = engine.worker(rank).Load(hit.lease, 0, kOfPrompt, pages);
      for (uint32_t layers = 1; layers < kLayers; ++layers) {
        for (uint32_t rank = 0; rank < 2; ++rank) {
          if (ops[rank] == 0) continue;
          const kvist_result result = engine.worker(rank).Wait(ops[rank], kFlushTime, layers);
          REQUIRE((result.status == KVIST_PENDING || result.status == KVIST_OK));
          if (result.status != KVIST_PENDING) ops[rank] = 0;
          in_parts += result.status == KVIST_PENDING && result.layers < kLayers;
          check(rank, result.status == KVIST_OK ? kLayers : result.layers);
        }
      }
      for (uint32_t rank = 0; rank < 2; ++rank) {
        if (ops[rank] != 0) REQUIRE(engine.worker(rank).Wait(ops[rank], kFlushTime).status == KVIST_OK);
        check(rank, kLayers);
      }
    }
    daemon.Kill();
  }
  std::printf("%u times an engine had some layers of a load from disk before the others\n", in_parts);
  CHECK(in_parts > 0);
}

TEST_CASE("What was cleared is not found again after kill -9, what came later is") {
  const TempDir dir;
  DaemonProcess daemon(dir.path(), Settings());
  {
    FakeEngine engine(FakeEngine::On(daemon.socket()));
    REQUIRE(engine.status.ok());
    for (uint32_t p = 0; p < 4; ++p) REQUIRE(engine.StoreAll(Prompt(engine, p)).status == KVIST_OK);
    REQUIRE(engine.scheduler().Flush(kFlushTime).ok());
    std::string out;
    REQUIRE(kvist::test::RunProgram(
                {kvist::test::BinDir() + "/kvistctl", "--socket", daemon.admin_socket(), "clear", "--yes"}, &out) == 0);
    REQUIRE(engine.StoreAll(Prompt(engine, 5)).status == KVIST_OK);
    REQUIRE(engine.scheduler().Flush(kFlushTime).ok());
  }
  daemon.Kill();
  daemon.Start();
  FakeEngine engine(FakeEngine::On(daemon.socket()));
  REQUIRE(engine.status.ok());
  REQUIRE(HasRecovered(daemon));
  const Loaded kept = LoadAll(engine, 6);
  CHECK(kept.wrong.empty());
  CHECK(kept.chunks == kChunks);
}

TEST_CASE("Room is taken back from a space that no longer fits into the pool, whatever else of it lies there") {
  const TempDir dir;
  std::vector<std::string> settings = Settings();
  settings.push_back("ssd.capacity=64MiB");  // eight segments
  const auto large = [](const DaemonProcess& daemon) {
    FakeEngine::Options options = FakeEngine::On(daemon.socket(), "large");
    options.model = "large-model";
    options.segment_bytes = 4096;  // a slot of 96 KiB
    return options;
  };
  {
    DaemonProcess daemon(dir.path(), settings);
    FakeEngine engine(large(daemon));
    REQUIRE(engine.status.ok());
    REQUIRE(HasRecovered(daemon));
    const auto store = [&](uint32_t from, uint32_t to) {
      for (uint32_t p = from; p < to; ++p) {
        REQUIRE(engine.StoreAll(Prompt(engine, p)).status == KVIST_OK);
        REQUIRE(engine.scheduler().Flush(kFlushTime).ok());
      }
    };
    store(0, 6);
    REQUIRE(CtlSays(daemon, {"clear", "--yes"}).first == 0);  // their records stay, and nobody wants them
    store(6, 10);
    REQUIRE(daemon.Terminate() == 0);
  }
  settings.push_back("pool.slab_bytes=64KiB");
  DaemonProcess daemon(dir.path(), settings);
  REQUIRE(HasRecovered(daemon));
  FakeEngine engine(FakeEngine::On(daemon.socket()));
  REQUIRE(engine.status.ok());
  std::string wrong;
  uint64_t released = 0;
  for (uint32_t p = 0; p < 3000 && released < 8; ++p) {  // the disk twice over
    REQUIRE(engine.StoreAll(Prompt(engine, 20 + p)).status == KVIST_OK);
    if (p % 20 == 0) released = Ctl(daemon, {"ssd"})["devices"][0]["segments_released"];
  }
  CHECK(released >= 8);
  CHECK_FALSE(daemon.Ended().has_value());
  CHECK(engine.LoadAll(Prompt(engine, 20), &wrong) <= kChunks);
  CHECK(wrong.empty());
}

TEST_CASE(
    "row 37: a tier of a later version is left as it is, and kvistd serves from DRAM; its own version finds all of it") {
  const TempDir dir;
  DaemonProcess daemon(dir.path(), Settings());
  const std::string file = dir / "state/ssd/store";
  StoreDurably(daemon, 4);
  const auto set_version = [&](char version) {
    std::fstream store(file, std::ios::in | std::ios::out | std::ios::binary);
    store.seekp(8);  // StoreFile::version
    store.put(version);
    REQUIRE(store.good());
  };
  daemon.Kill();
  set_version(2);
  const auto before = FilesUnder(dir / "state/ssd");
  daemon.Start();
  const nlohmann::json off = StatusOf(daemon)["ssd"];
  INFO(off.dump());
  CHECK(off["state"] == "off");
  CHECK(off["trouble"].get<std::string>().find("later version") != std::string::npos);
  {
    FakeEngine engine(FakeEngine::On(daemon.socket()));
    REQUIRE(engine.status.ok());
    CHECK(Found(engine, 4) == 0);
    REQUIRE(engine.StoreAll(Prompt(engine, 7)).status == KVIST_OK);
    std::string wrong;
    CHECK(engine.LoadAll(Prompt(engine, 7), &wrong) == kChunks);
    CHECK(wrong.empty());
  }
  REQUIRE(daemon.Terminate() == 0);
  CHECK(FilesUnder(dir / "state/ssd") == before);
  set_version(1);
  daemon.Start();
  FakeEngine engine(FakeEngine::On(daemon.socket()));
  REQUIRE(engine.status.ok());
  REQUIRE(HasRecovered(daemon));
  const Loaded loaded = LoadAll(engine, 4);
  CHECK(loaded.wrong.empty());
  CHECK(loaded.chunks == 4 * kChunks);
  std::printf("row 37: later version: tier off, %u of %u chunks recovered by its own version, bytes changed 0\n",
              loaded.chunks, 4 * kChunks);
}

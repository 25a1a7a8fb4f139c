// Engines whose pages are GPU memory: this process is the engine. With the fake driver, here and in kvistd; what isn't tagged [fake] runs on a
// machine with a GPU, too (tests/cuda).
#include <catch2/catch.hpp>

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/bystander.h"
#include "tests/support/campaign.h"
#include "tests/support/child_process.h"
#include "tests/support/ctl.h"
#include "tests/support/daemon_process.h"
#include "tests/support/fake_cuda/fake_cuda.h"
#include "tests/support/fake_engine.h"
#include "tests/support/free_port.h"
#include "tests/support/http_get.h"
#include "tests/support/raw_client.h"
#include "tests/support/temp_dir.h"

using kvist::After;
using kvist::test::AtRest;
using kvist::test::Bystander;
using kvist::test::ChildProcess;
using kvist::test::DaemonProcess;
using kvist::test::Eventually;
using kvist::test::FakeEngine;
using kvist::test::StatusOf;
using kvist::test::TempDir;
using kvist::test::TestGpu;

namespace {

constexpr int64_t kTimeoutUs = 20'000'000;
const std::vector<std::string> kSmall{"pool.bytes=64MiB", "ssd.enabled=false"};

FakeEngine::Options OnGpu(const DaemonProcess& daemon, const std::string& instance = "on-gpu") {
  FakeEngine::Options options = FakeEngine::On(daemon.socket(), instance);
  options.on_gpu = true;
  options.deadline_us = kTimeoutUs;
  return options;
}

// Settings of a kvistd whose metrics tell what it has mapped.
class Metered {
 public:
  Metered() : port_(kvist::test::FreePort()) {}
  std::vector<std::string> Settings() const {
    std::vector<std::string> settings = kSmall;
    settings.push_back("metrics.listen=127.0.0.1:" + std::to_string(port_));
    return settings;
  }
  // A level, which kvistd has.
  uint64_t Level(const std::string& name) const { return static_cast<uint64_t>(kvist::test::Metric(port_, name)); }
  // Engines' GPU memory that kvistd has mapped.
  uint64_t ImportedBytes() const { return Level("kvist_gpu_imported_bytes"); }

 private:
  const uint16_t port_;
};

// A stream of the engine's, which stands until it is let go, as it would behind a long kernel.
class HeldStream {
 public:
  explicit HeldStream(TestGpu& gpu) : gpu_(gpu), word_(next_word++), stream_(gpu.MakeStream()) {
    gpu_.AwaitWord(stream_, word_, 1);
  }
  ~HeldStream() {
    LetGo();
    gpu_.End(stream_);
  }
  void LetGo() { gpu_.word(word_).store(1); }
  kvist::cuda::driver::Stream get() const { return stream_; }

 private:
  static inline uint32_t next_word = 0;
  TestGpu& gpu_;
  const uint32_t word_;
  const kvist::cuda::driver::Stream stream_;
};

// An engine whose forward pass, on a stream, writes what `key`'s chunk holds into these pages.
class Forward {
 public:
  Forward(FakeEngine& engine, const kvist_key& key, const std::vector<uint32_t>& pages) : engine_(engine), pages_(pages) {
    engine.Fill(0, key, pages);
    for (const uint32_t page : pages) {
      for (uint32_t layer = 0; layer < engine.options().layers; ++layer) {
        for (uint32_t segment = 0; segment < 2; ++segment) {
          written_.emplace_back(engine.options().segment_bytes);
          engine.Get(written_.back().data(), engine.Segment(0, page, layer, segment), written_.back().size());
        }
      }
    }
    engine.Poison(0, pages);
  }
  void WriteLayer(kvist::cuda::driver::Stream stream, uint32_t layer) {
    size_t i = 0;
    for (const uint32_t page : pages_) {
      for (uint32_t l = 0; l < engine_.options().layers; ++l) {
        for (uint32_t segment = 0; segment < 2; ++segment, ++i) {
          if (l == layer)
            engine_.gpu().Copy(stream, engine_.Segment(0, page, l, segment), written_[i].data(), written_[i].size());
        }
      }
    }
  }
  void Write(kvist::cuda::driver::Stream stream) {
    for (uint32_t layer = 0; layer < engine_.options().layers; ++layer) WriteLayer(stream, layer);
  }

 private:
  FakeEngine& engine_;
  const std::vector<uint32_t> pages_;
  std::vector<std::vector<std::byte>> written_;
};

void Sleep(int64_t us) { std::this_thread::sleep_for(std::chrono::microseconds(us)); }

}  // namespace

TEST_CASE("An engine on a GPU loads what it stored, bit for bit; so does one on a CPU") {
  TempDir dir;
  const Metered metered;
  DaemonProcess daemon(dir.path(), metered.Settings());
  FakeEngine engine(OnGpu(daemon));
  REQUIRE(engine.status.message == "");
  CHECK(metered.Level("kvist_gpus") == 1);
  CHECK(metered.ImportedBytes() >= engine.memory(0).size());
  // So its copies are the device's own affair.
  CHECK(Eventually([&] { return metered.Level("kvist_gpu_pool_pinned_bytes") == uint64_t{64} << 20; }));
  const auto keys = engine.Keys(1, 8);
  std::string wrong;
  CHECK(engine.LoadAll(keys, &wrong) == 0);
  const kvist_result stored = engine.StoreAll(keys);
  REQUIRE(stored.status == KVIST_OK);
  CHECK(stored.chunks_copied == 8);
  CHECK(engine.LoadAll(keys, &wrong) == 8);
  CHECK(wrong == "");
  FakeEngine host(FakeEngine::On(daemon.socket(), "on-cpu"));
  REQUIRE(host.status.message == "");
  CHECK(host.LoadAll(keys, &wrong) == 8);
  CHECK(wrong == "");
  const auto other = host.Keys(2000, 8);
  REQUIRE(host.StoreAll(other).status == KVIST_OK);
  CHECK(engine.LoadAll(other, &wrong) == 8);
  CHECK(wrong == "");
}

TEST_CASE("Tensor-parallel ranks on a slow GPU store and load, layer by layer, under a random plan", "[fake]") {
  std::random_device seed;
  const std::string plan = "seed=" + std::to_string(seed()) + ",delay_us=300";
  CAPTURE(plan);
  TempDir dir;
  DaemonProcess daemon(dir.path(), kSmall, "", "export KVIST_FAKE_CUDA=" + plan);
  FakeEngine::Options options = OnGpu(daemon);
  options.ranks = 2;
  options.by_layer = true;
  FakeEngine engine(options);
  REQUIRE(engine.status.message == "");
  std::string wrong;
  for (uint32_t prompt = 0; prompt < 6; ++prompt) {
    const auto keys = engine.Keys(prompt * 1000, 7);
    REQUIRE(engine.StoreAll(keys, 0, kTimeoutUs).status == KVIST_OK);
    CHECK(engine.LoadAll(keys, &wrong, kTimeoutUs) == 7);
    CHECK(wrong == "");
  }
  CHECK(Eventually([&] { return AtRest(StatusOf(daemon)); }));
}

TEST_CASE("A store waits for the stream that writes the pages, and for nothing else") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), kSmall);
  FakeEngine engine(OnGpu(daemon));
  REQUIRE(engine.status.message == "");
  const auto keys = engine.Keys(1, 1);
  const auto pages = engine.Pages(0, 1);
  Forward forward(engine, keys[0], pages);
  HeldStream stream(engine.gpu());
  forward.Write(stream.get());
  const kvist_op op = engine.worker(0).Store(keys, 0, pages, 0, After::Stream(stream.get()));
  REQUIRE(op != 0);
  // Another prompt's copies pass by.
  const auto others = engine.Keys(2000, 4);
  REQUIRE(engine.StoreAll(others, 0, kTimeoutUs, 4).status == KVIST_OK);
  std::string wrong;
  CHECK(engine.LoadAll(others, &wrong, kTimeoutUs, 4) == 4);
  CHECK(wrong == "");
  CHECK(engine.worker(0).Poll(op).status == KVIST_PENDING);
  stream.LetGo();
  CHECK(engine.worker(0).Wait(op, kTimeoutUs).status == KVIST_OK);
  CHECK(engine.LoadAll(keys, &wrong) == 1);
  CHECK(wrong == "");
}

TEST_CASE("An engine that needs the bus has it: its stores wait, its loads don't") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), kSmall);
  FakeEngine engine(OnGpu(daemon));
  REQUIRE(engine.status.message == "");
  kvist::Client& client = engine.worker(0);
  const auto keys = engine.Keys(1, 4), more = engine.Keys(2000, 4);
  const auto others = engine.Pages(0, 1);
  REQUIRE(engine.StoreAll(keys, 0, kTimeoutUs, 4).status == KVIST_OK);
  engine.Fill(0, more[0], others);
  std::string wrong;
  const auto start = std::chrono::steady_clock::now();
  REQUIRE(client.BusBusy(1'000'000).code == KVIST_OK);
  const kvist_op op = client.Store({more.data(), 1}, 0, others, 0);
  REQUIRE(op != 0);
  CHECK(engine.LoadAll(keys, &wrong, kTimeoutUs, 4) == 4);
  const kvist_result held = client.Wait(op, kTimeoutUs);
  CHECK(held.status == KVIST_OK);  // not for ever

  CHECK(held.chunks_copied == 1);
  CHECK(std::chrono::steady_clock::now() - start >= std::chrono::milliseconds(100));
  REQUIRE(client.BusBusy(0).code == KVIST_OK);
  CHECK(engine.LoadAll({more.data(), 1}, &wrong) == 1);
  CHECK(wrong == "");
  CHECK(client.BusBusy(-1).code == KVIST_INVALID_ARGUMENT);
  CHECK(client.BusBusy(1'000'001).code == KVIST_INVALID_ARGUMENT);
}

TEST_CASE("A store follows a forward pass layer by layer") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), kSmall);
  FakeEngine engine(OnGpu(daemon));
  REQUIRE(engine.status.message == "");
  const auto keys = engine.Keys(1, 1);
  const auto pages = engine.Pages(0, 1);
  Forward forward(engine, keys[0], pages);
  const kvist_op op = engine.worker(0).Store(keys, 0, pages, 0, After::Layers());
  REQUIRE(op != 0);
  for (uint32_t layer = 0; layer < engine.options().layers; ++layer) {
    HeldStream stream(engine.gpu());
    forward.WriteLayer(stream.get(), layer);
    REQUIRE(engine.worker(0).PagesReady(op, layer + 1, stream.get()).ok());
    Sleep(5'000);
    CHECK(engine.worker(0).Poll(op).layers == layer);
    stream.LetGo();
    kvist_result result = engine.worker(0).Wait(op, kTimeoutUs, layer + 1);
    CHECK(result.layers == layer + 1);
    REQUIRE(engine.gpu().IdleSoon(stream.get(), kTimeoutUs));
    // Its last layer is there before it has ended.
    if (layer + 1 == engine.options().layers && result.status == KVIST_PENDING)
      result = engine.worker(0).Wait(op, kTimeoutUs);
    CHECK(result.status == (layer + 1 == engine.options().layers ? KVIST_OK : KVIST_PENDING));
  }
  std::string wrong;
  CHECK(engine.LoadAll(keys, &wrong) == 1);
  CHECK(wrong == "");
}

TEST_CASE("A load waits for the stream that still reads the pages; a stream waits for a load, by layer, before it looks") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), kSmall, "", "export KVIST_FAKE_CUDA=seed=4,delay_us=500");
  FakeEngine engine(OnGpu(daemon));
  REQUIRE(engine.status.message == "");
  const auto keys = engine.Keys(1, 4);
  REQUIRE(engine.StoreAll(keys, 0, kTimeoutUs).status == KVIST_OK);
  const auto hit = engine.scheduler().Lookup(keys, kTimeoutUs);
  REQUIRE(hit.chunks == 4);
  const auto pages = engine.Pages(6, 4);
  engine.Poison(0, pages);
  const auto all_of_it = [&] {
    std::vector<std::byte> bytes(engine.memory(0).size());
    engine.Get(bytes.data(), engine.memory(0).data(), bytes.size());
    return bytes;
  };
  const std::vector<std::byte> before = all_of_it();
  HeldStream reads(engine.gpu());
  const kvist_op op = engine.worker(0).Load(hit.lease, 0, 4, pages, 0, After::Stream(reads.get()));
  REQUIRE(op != 0);
  // What the next forward pass computes from: the pages, as its stream finds them.
  const auto next = engine.gpu().MakeStream();
  std::vector<std::byte> seen(engine.memory(0).size());
  engine.gpu().Pin(seen.data(), seen.size());  // else the driver copies it at once, waiting for the stream
  for (uint32_t layer = 1; layer <= engine.options().layers; ++layer)
    REQUIRE(engine.worker(0).WaitOnStream(op, next, layer).ok());
  engine.gpu().Copy(next, seen.data(), engine.memory(0).data(), seen.size());
  Sleep(20'000);
  CHECK(engine.worker(0).Poll(op).status == KVIST_PENDING);
  CHECK(before == all_of_it());
  CHECK_FALSE(engine.gpu().Idle(next));
  reads.LetGo();
  REQUIRE(engine.gpu().IdleSoon(next, kTimeoutUs));
  CHECK(seen == all_of_it());
  CHECK(engine.worker(0).Wait(op, kTimeoutUs).status == KVIST_OK);
  for (uint32_t chunk = 0; chunk < 4; ++chunk)
    CHECK(engine.Check(0, keys[chunk],
                       std::span(pages).subspan(chunk * FakeEngine::kPagesPerChunk, FakeEngine::kPagesPerChunk)) == "");
  engine.gpu().End(next);
  engine.gpu().Unpin(seen.data());
}

TEST_CASE("A stream that waits for a load is released at its deadline, when it is cancelled, and when kvistd dies") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), kSmall);
  FakeEngine engine(OnGpu(daemon));
  REQUIRE(engine.status.message == "");
  const auto keys = engine.Keys(1, 2);
  REQUIRE(engine.StoreAll(keys).status == KVIST_OK);
  const auto pages = engine.Pages(4, 2);
  HeldStream never(engine.gpu());  // the load can't begin before it
  const auto waits = engine.gpu().MakeStream();
  const auto load = [&](int64_t deadline_us) {
    const auto hit = engine.scheduler().Lookup(keys, kTimeoutUs);
    REQUIRE(hit.chunks == 2);
    kvist_load_args args{};
    args.struct_size = sizeof args;
    args.lease = hit.lease.id();
    args.chunk_count = 2;
    args.pages = pages.data();
    args.page_count = pages.size();
    args.deadline_us = deadline_us;
    args.after = KVIST_AFTER_STREAM;
    args.stream = never.get();
    kvist_op op = 0;
    REQUIRE(kvist_load(engine.worker(0).get(), &args, &op) == KVIST_OK);
    REQUIRE(engine.worker(0).WaitOnStream(op, waits).ok());
    return op;
  };
  SECTION("its deadline, though nobody asks for it") {
    const auto asked = std::chrono::steady_clock::now();
    const kvist_op op = load(1'000'000);
    Sleep(30'000);
    const bool idle = engine.gpu().Idle(waits);
    if (std::chrono::steady_clock::now() - asked < std::chrono::seconds(1)) CHECK_FALSE(idle);
    CHECK(engine.gpu().IdleSoon(waits, kTimeoutUs));
    CHECK(engine.worker(0).Poll(op).status == KVIST_DEADLINE_EXCEEDED);
    CHECK(engine.worker(0).Wait(op, kTimeoutUs).pages_released == 1);
  }
  SECTION("cancelled") {
    const kvist_op op = load(kTimeoutUs);
    CHECK_FALSE(engine.gpu().IdleSoon(waits, 20'000));
    REQUIRE(engine.worker(0).Cancel(op).ok());
    CHECK(engine.gpu().IdleSoon(waits, kTimeoutUs));
    CHECK(engine.worker(0).Wait(op, kTimeoutUs).status == KVIST_CANCELLED);
  }
  SECTION("kvistd dies") {
    const kvist_op op = load(kTimeoutUs);
    CHECK_FALSE(engine.gpu().IdleSoon(waits, 20'000));
    daemon.Kill();
    CHECK(engine.gpu().IdleSoon(waits, kTimeoutUs));
    const kvist_result result = engine.worker(0).Wait(op, kTimeoutUs);
    CHECK(result.status == KVIST_UNAVAILABLE);
    CHECK(result.pages_released == 1);
    // It registers again by itself, and streams wait for the next one's loads.
    daemon.Start();
    REQUIRE(engine.worker(0).WaitConnected(kTimeoutUs).ok());
    REQUIRE(engine.scheduler().WaitConnected(kTimeoutUs).ok());
    std::string wrong;
    REQUIRE(engine.StoreAll(keys).status == KVIST_OK);
    CHECK(engine.LoadAll(keys, &wrong) == 2);
    CHECK(wrong == "");
  }
  SECTION("the client goes") {
    load(kTimeoutUs);
    engine.worker(0) = {};
    CHECK(engine.gpu().IdleSoon(waits, kTimeoutUs));
  }
  engine.gpu().End(waits);
}

TEST_CASE("What a stream says late of an operation that is over is not taken for another one's") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), kSmall);
  FakeEngine engine(OnGpu(daemon));
  REQUIRE(engine.status.message == "");
  std::string wrong;
  for (uint32_t round = 0; round < 20; ++round) {
    const auto keys = engine.Keys(round * 1000, 2);
    HeldStream slow(engine.gpu());
    const kvist_op given_up = engine.worker(0).Store(keys, 0, engine.Pages(0, 2), 0, After::Stream(slow.get()));
    REQUIRE(given_up != 0);
    REQUIRE(engine.worker(0).Cancel(given_up).ok());
    CHECK(engine.worker(0).Wait(given_up, kTimeoutUs).pages_released == 1);
    // Where that was, others begin; some of them wait for streams of their own.
    for (uint32_t op = 0; op < 4; ++op) {
      const auto own = engine.gpu().MakeStream();
      const auto mine = engine.Keys(round * 1000 + 100'000 * (op + 1), 1);
      const auto pages = engine.Pages(4 + op, 1);
      Forward forward(engine, mine[0], pages);
      forward.Write(own);
      const kvist_op stored = engine.worker(0).Store(mine, 0, pages, 0, After::Stream(own));
      REQUIRE(stored != 0);
      if (op == 1) slow.LetGo();
      CHECK(engine.worker(0).Wait(stored, kTimeoutUs).status == KVIST_OK);
      CHECK(engine.LoadAll(mine, &wrong, kTimeoutUs, 12) == 1);
      CHECK(wrong == "");
      engine.gpu().End(own);
    }
  }
}

TEST_CASE("Row 4: of an engine that dies in the middle of copies no GPU memory is held two seconds later") {
  TempDir dir;
  const Metered metered;
  std::vector<std::string> settings = metered.Settings();
  settings.push_back("pool.bytes=1GiB");  // room for all that they store
  DaemonProcess daemon(dir.path(), settings, "", "export KVIST_FAKE_CUDA=seed=9,delay_us=200");
  const Bystander bystander(daemon);
  const int rounds = kvist::test::Campaign("KVIST_GPU_DEATHS", 12, 1000);
  std::mt19937_64 random(std::random_device{}());
  std::chrono::duration<double> longest{};
  for (int round = 0; round < rounds; ++round) {
    const uint64_t lives_us = random() % 30'000;
    CAPTURE(round, lives_us);
    int ready[2];
    REQUIRE(::pipe2(ready, O_CLOEXEC) == 0);
    ChildProcess child([&] {
      FakeEngine engine(OnGpu(daemon, "dies"));
      if (!engine.status.ok()) return 1;
      (void)!::write(ready[1], "r", 1);
      HeldStream never(engine.gpu());
      for (uint32_t i = 0;; ++i) {
        const auto keys = engine.Keys(i * 1000, 4);
        const auto pages = engine.Pages(0, 4);
        // Some of it waits for a stream that will never come to it.
        engine.worker(0).Store(keys, 0, pages, 0, i % 3 == 0 ? After::Stream(never.get()) : After{});
        std::string wrong;
        engine.LoadAll(keys, &wrong, 1'000'000, 8);
      }
    });
    ::close(ready[1]);
    char byte = 0;
    REQUIRE(::read(ready[0], &byte, 1) == 1);
    ::close(ready[0]);
    REQUIRE(metered.ImportedBytes() > 0);
    Sleep(static_cast<int64_t>(lives_us));
    child.Kill();
    const auto killed = std::chrono::steady_clock::now();
    while (metered.ImportedBytes() > 0) {
      REQUIRE(std::chrono::steady_clock::now() - killed < std::chrono::seconds(10));
      Sleep(1'000);
    }
    longest = std::max<std::chrono::duration<double>>(longest, std::chrono::steady_clock::now() - killed);
  }
  std::printf("row 4: %d engines killed, their GPU memory held for %.3f s at most (2)\n", rounds, longest.count());
  CHECK(Eventually([&] { return AtRest(StatusOf(daemon)); }));
}

TEST_CASE("A GPU that is lost ends its copies with a typed error; other engines and kvistd go on", "[fake]") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), kSmall, "", "export KVIST_FAKE_CUDA=lose_after=100");
  const Bystander bystander(daemon);
  FakeEngine engine(OnGpu(daemon));
  REQUIRE(engine.status.message == "");
  kvist_result last{};
  for (uint32_t round = 0; round < 50 && (round == 0 || last.status == KVIST_OK); ++round)
    last = engine.StoreAll(engine.Keys(round * 1000, 4), 0, kTimeoutUs);
  CHECK(last.status == KVIST_UNAVAILABLE);
  CHECK(last.pages_released == 1);
  // An engine that comes now goes on without, until kvistd was started again.
  FakeEngine::Options options = OnGpu(daemon, "late");
  options.connect_timeout_us = 100'000;
  FakeEngine late(options);
  CHECK(late.status.ok());
  CHECK(late.worker(0).connection() == KVIST_RECONNECTING);
  CHECK_FALSE(daemon.Ended().has_value());
  CHECK(StatusOf(daemon)["gpus"][0]["lost"] != "");
}

TEST_CASE("Copies that the driver refuses fail by themselves, and what they would have stored is no hit", "[fake]") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), kSmall, "", "export KVIST_FAKE_CUDA=refuse_every=3");
  FakeEngine engine(OnGpu(daemon));
  REQUIRE(engine.status.message == "");
  uint32_t failed = 0;
  std::string wrong;
  for (uint32_t prompt = 0; prompt < 12; ++prompt) {
    const auto keys = engine.Keys(prompt * 1000, 2);
    const kvist_result stored = engine.StoreAll(keys, 0, kTimeoutUs);
    const bool ok = stored.status == KVIST_OK;
    failed += !ok;
    if (!ok) CHECK(engine.scheduler().Lookup(keys, 0).chunks == 0);
  }
  CHECK(failed > 0);
  CHECK(failed < 12);
  CHECK(Eventually([&] { return AtRest(StatusOf(daemon)); }));
}

TEST_CASE("GPU memory that can't be served is refused with the reason and what to do", "[fake]") {
  TempDir dir;
  SECTION("no driver where kvistd runs") {
    DaemonProcess daemon(dir.path(), kSmall, "", "unset LD_LIBRARY_PATH");
    FakeEngine engine(OnGpu(daemon));
    CHECK(engine.status.code == KVIST_FAILED_PRECONDITION);
    CHECK_THAT(std::string(engine.status.message), Catch::Contains("libcuda.so.1") && Catch::Contains("kvistd-gpu.service"));
  }
  SECTION("a GPU that kvistd doesn't see") {
    DaemonProcess daemon(dir.path(), kSmall, "", "export KVIST_FAKE_CUDA=devices=0");
    FakeEngine engine(OnGpu(daemon));
    CHECK(engine.status.code == KVIST_FAILED_PRECONDITION);
  }
  SECTION("a description that doesn't match the pages") {
    const Metered metered;
    DaemonProcess daemon(dir.path(), metered.Settings());
    FakeEngine::Options options = OnGpu(daemon);
    options.wrong_stride = true;
    FakeEngine engine(options);
    CHECK(engine.status.code == KVIST_FAILED_PRECONDITION);
    CHECK_THAT(std::string(engine.status.message), Catch::Contains("isn't where it was described"));
    CHECK(Eventually([&] { return metered.ImportedBytes() == 0; }));
  }
  SECTION("memory that has no IPC handle") {
    DaemonProcess daemon(dir.path(), kSmall);
    FakeEngine engine(OnGpu(daemon));
    REQUIRE(engine.status.ok());
    const auto forbid =
        reinterpret_cast<void (*)(uint64_t)>(::dlsym(::dlopen("libcuda.so.1", RTLD_NOW), "fakecuda_forbid_ipc"));
    REQUIRE(forbid != nullptr);
    forbid(reinterpret_cast<uint64_t>(engine.memory(0).data()));
    const kvist_options again = engine.WorkerOptions(0);
    kvist_client* client = nullptr;
    CHECK(kvist_connect(&again, &client) == KVIST_FAILED_PRECONDITION);
    CHECK_THAT(std::string(kvist_error()), Catch::Contains("expandable"));
  }
  SECTION("memory that is no GPU's, past the allocation's end, or of two kinds") {
    DaemonProcess daemon(dir.path(), kSmall);
    FakeEngine engine(OnGpu(daemon));
    REQUIRE(engine.status.ok());
    kvist_options options = engine.WorkerOptions(0);
    kvist_memory memory = *options.memory;
    options.memory = &memory;
    kvist_client* client = nullptr;
    char host[64];
    kvist_cuda_region region{host, sizeof host};
    memory.cuda_regions = &region;
    CHECK(kvist_connect(&options, &client) == KVIST_INVALID_ARGUMENT);
    CHECK_THAT(std::string(kvist_error()), Catch::Contains("no GPU memory"));
    region = {engine.memory(0).data() + 4096, engine.memory(0).size()};
    CHECK(kvist_connect(&options, &client) == KVIST_INVALID_ARGUMENT);
    CHECK_THAT(std::string(kvist_error()), Catch::Contains("within one allocation"));
    region = {engine.memory(0).data(), engine.memory(0).size()};
    const kvist_process_region process{host, sizeof host};
    memory.process_regions = &process;
    memory.process_region_count = 1;
    CHECK(kvist_connect(&options, &client) == KVIST_INVALID_ARGUMENT);
    CHECK_THAT(std::string(kvist_error()), Catch::Contains("a GPU's or the host's"));
  }
  SECTION("streams of an engine whose memory is the host's") {
    DaemonProcess daemon(dir.path(), kSmall);
    FakeEngine engine(FakeEngine::On(daemon.socket()));
    REQUIRE(engine.status.ok());
    CHECK(engine.worker(0).Store(engine.Keys(1, 1), 0, engine.Pages(0, 1), 0, After::Stream(nullptr)) == 0);
    CHECK_THAT(std::string(kvist_error()), Catch::Contains("no GPU's"));
  }
}

TEST_CASE("Another user's engine on a GPU is served again by the next kvistd, for it has proven its memory; nobody else is",
          "[fake]") {
  TempDir dir;
  std::vector<std::string> settings = kSmall;
  settings.push_back("session.socket_mode=0666");
  DaemonProcess daemon(dir.path(), settings);
  int go[2], ready[2];
  REQUIRE(::pipe2(go, O_CLOEXEC) == 0);
  REQUIRE(::pipe2(ready, O_CLOEXEC) == 0);
  ChildProcess child([&] {
    const TestGpu finds_the_driver;  // while it may
    kvist::test::BecomeUser(dir.path(), 54402, 54402);
    FakeEngine::Options options = FakeEngine::On("engine.sock", "other");
    options.on_gpu = true;
    options.deadline_us = kTimeoutUs;
    FakeEngine engine(options);
    if (!engine.status.ok()) return 11;
    const auto keys = engine.Keys(1, 4);
    if (engine.StoreAll(keys).status != KVIST_OK) return 12;
    char byte = 'r';
    if (::write(ready[1], &byte, 1) != 1 || ::read(go[0], &byte, 1) != 1) return 13;
    if (!engine.worker(0).WaitConnected(kTimeoutUs).ok() || !engine.scheduler().WaitConnected(kTimeoutUs).ok()) return 14;
    std::string wrong;
    if (engine.StoreAll(keys, 0, kTimeoutUs).status != KVIST_OK) return 15;
    return engine.LoadAll(keys, &wrong) == 4 && wrong.empty() ? 0 : 16;
  });
  ::close(ready[1]);
  char byte = 0;
  REQUIRE(::read(ready[0], &byte, 1) == 1);
  daemon.Kill();
  daemon.Start();
  REQUIRE(::write(go[1], "g", 1) == 1);
  CHECK(child.Wait() == 0);
}

// What no connector sends: the daemon's own checks.
TEST_CASE("Hostile descriptions of GPU memory are refused by name, and leave nothing mapped") {
  using kvist::test::RawClient;
  using Region = kvist::session::v1::KvMemory::DeviceRegion;
  TempDir dir;
  const Metered metered;
  DaemonProcess daemon(dir.path(), metered.Settings());
  const Bystander bystander(daemon);
  TestGpu gpu;
  constexpr uint64_t kBytes = RawClient::kPages * RawClient::kLayers * RawClient::kSegmentBytes;
  std::byte* memory = gpu.Allocate(kBytes);
  const TestGpu::Name name = gpu.NameOf(memory);
  struct {
    const char* what;
    std::function<void(Region*)> change;
    absl::StatusCode code;
    const char* says;
  } const cases[] = {
      {"a UUID of 15 bytes", [](Region* r) { r->mutable_device()->resize(15); }, absl::StatusCode::kInvalidArgument,
       "device_regions[0].device has 15 bytes"},
      {"a handle of 4096 bytes", [](Region* r) { r->mutable_handle()->resize(4096); }, absl::StatusCode::kInvalidArgument,
       "device_regions[0].handle has 4096 bytes"},
      {"a handle of nothing", [](Region* r) { r->mutable_handle()->assign(64, '\0'); },
       absl::StatusCode::kFailedPrecondition, "can't be opened"},
      {"a GPU that isn't there", [](Region* r) { r->mutable_device()->assign(16, 'x'); }, absl::StatusCode::kNotFound,
       "no GPU"},
      {"no length", [](Region* r) { r->set_length(0); }, absl::StatusCode::kInvalidArgument,
       "device_regions[0].length is 0"},
      {"past the end", [](Region* r) { r->set_offset(uint64_t{1} << 40); }, absl::StatusCode::kInvalidArgument,
       "of an allocation of"},
      {"around the end", [](Region* r) { r->set_length(UINT64_MAX - 8); }, absl::StatusCode::kInvalidArgument,
       "of an allocation of"},
      {"less than its pages", [](Region* r) { r->set_length(512); }, absl::StatusCode::kInvalidArgument, "region"},
  };
  const auto hello = [&](const std::function<void(Region*)>& change) {
    kvist::session::v1::ClientFrame frame = RawClient::GoodHello();
    frame.mutable_hello()->set_probed(false);
    Region* region = frame.mutable_hello()->mutable_memory()->add_device_regions();
    region->set_device(name.gpu.bytes.data(), name.gpu.bytes.size());
    region->set_handle(name.allocation.bytes.data(), name.allocation.bytes.size());
    region->set_length(kBytes);
    region->set_pid(::getpid());
    change(region);
    std::unique_ptr<kvist::session::v1::DaemonFrame> answer;
    // While the last one's mapping is being closed it is to try again.
    const bool told = Eventually([&] {
      RawClient client(daemon);
      client.SendBytes(frame.SerializeAsString(), {});
      answer = client.Receive();
      return answer == nullptr || answer->refused().code() != static_cast<int>(absl::StatusCode::kUnavailable);
    });
    CHECK(told);
    return answer;
  };
  for (const auto& [what, change, code, says] : cases) {
    INFO(what);
    const auto answer = hello(change);
    REQUIRE(answer != nullptr);
    REQUIRE(answer->has_refused());
    CHECK(answer->refused().code() == static_cast<int>(code));
    CHECK_THAT(answer->refused().message(), Catch::Contains(says));
  }
  INFO("good, but for the pattern that nobody writes");
  const auto answer = hello([](Region*) {});
  REQUIRE(answer != nullptr);
  CHECK(answer->has_probe());
  CHECK(Eventually([&] { return metered.ImportedBytes() == 0; }));
  gpu.Free(memory);
}

// KV memory that is in no memfd: kvistd copies it with process_vm_readv and process_vm_writev. Engines are processes of their own here,
// so that their memory is another process's.
#include <catch2/catch.hpp>

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "tests/support/bystander.h"
#include "tests/support/child_process.h"
#include "tests/support/ctl.h"
#include "tests/support/daemon_process.h"
#include "tests/support/fake_engine.h"
#include "tests/support/temp_dir.h"

using kvist::test::AtRest;
using kvist::test::BecomeUser;
using kvist::test::Bystander;
using kvist::test::DaemonProcess;
using kvist::test::Eventually;
using kvist::test::FakeEngine;
using kvist::test::FdsFallTo;
using kvist::test::InChild;
using kvist::test::StatusOf;
using kvist::test::TempDir;

namespace {

constexpr uid_t kOtherUser = 54402;
constexpr int64_t kTimeoutUs = 20'000'000;

FakeEngine::Options InProcess(const std::string& socket) {
  FakeEngine::Options options = FakeEngine::On(socket, "in-process");
  options.in_process = true;
  options.deadline_us = kTimeoutUs;
  return options;
}

// Large enough that a copy of all of it is under way for some time: 64 MiB in 16 layers.
FakeEngine::Options Large(const std::string& socket) {
  FakeEngine::Options options = InProcess(socket);
  options.model = "large";
  options.layers = 16;
  options.pages = 2048;
  options.scheduler = false;
  return options;
}
constexpr uint32_t kLargeChunks = 2048 / FakeEngine::kPagesPerChunk;

// In a child: waits until the daemon has copied the first layer of a copy. Whether all of it was through by then: its result is given out.
bool AwaitFirstLayer(FakeEngine& engine, kvist_op op) {
  return engine.worker(0).Wait(op, kTimeoutUs, 1).pages_released != 0;
}

void AwaitQuiet(const DaemonProcess& daemon, uint64_t sessions) {
  REQUIRE(Eventually([&] {
    const auto now = StatusOf(daemon);
    return now["sessions"] == sessions && AtRest(now);
  }));
}

}  // namespace

TEST_CASE("Memory of a process is stored and loaded bit for bit, also by a daemon that comes later") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), {"pool.bytes=64MiB"});
  for (const uint32_t segment_bytes : {8u, 1024u, 65536u}) {  // more pieces than one system call takes; large ones
    INFO(segment_bytes);
    CHECK(InChild([&] {
            FakeEngine::Options options = InProcess(daemon.socket());
            options.ranks = 2;
            options.segment_bytes = segment_bytes;
            options.model = "m" + std::to_string(segment_bytes);
            FakeEngine engine(options);
            if (!engine.status.ok()) return 1;
            const auto keys = engine.Keys(1, 8);
            if (engine.StoreAll(keys).chunks_copied != 8) return 2;
            std::string wrong;
            if (engine.LoadAll(keys, &wrong) != 8) return 3;
            return wrong.empty() ? 0 : 4;
          }) == 0);
  }
  // One that reads through its memfd gets what one without has stored.
  FakeEngine::Options mapped = InProcess(daemon.socket());
  mapped.in_process = false;
  mapped.ranks = 2;
  mapped.model = "m1024";
  FakeEngine other(mapped);
  REQUIRE(other.status.message == "");
  std::string wrong;
  CHECK(other.LoadAll(other.Keys(1, 8), &wrong) == 8);
  CHECK(wrong == "");

  // It registers again by itself with the next daemon, which asks for no probe page.
  FakeEngine engine([&] {
    FakeEngine::Options options = InProcess(daemon.socket());
    options.instance = "stays";
    return options;
  }());
  REQUIRE(engine.status.message == "");
  daemon.Kill();
  daemon.Start();
  REQUIRE(engine.scheduler().WaitConnected(kTimeoutUs).ok());
  REQUIRE(engine.worker(0).WaitConnected(kTimeoutUs).ok());
  const auto keys = engine.Keys(2, 8);
  CHECK(engine.StoreAll(keys).chunks_copied == 8);
  CHECK(engine.LoadAll(keys, &wrong) == 8);
  CHECK(wrong == "");
}

TEST_CASE("Memory of a process of another user is refused, with what to do") {
  if (::getuid() != 0) {
    WARN("skipped: only root can start processes of other users");
    return;
  }
  TempDir dir;
  DaemonProcess daemon(dir.path(), {"pool.bytes=64MiB", "session.socket_mode=0666"});
  Bystander bystander(daemon);
  const auto as_other_user = [&](bool in_process) {
    return InChild([&] {
      BecomeUser(dir.path(), kOtherUser, kOtherUser);
      FakeEngine::Options options = InProcess("engine.sock");
      options.in_process = in_process;
      options.scheduler = false;
      FakeEngine engine(options);
      if (engine.status.ok()) return 0;
      const bool says_why = engine.status.message.find("54402") != std::string::npos &&
                            engine.status.message.find("memfd") != std::string::npos;
      return engine.status.code == KVIST_PERMISSION_DENIED && says_why ? 1 : 2;
    });
  };
  CHECK(as_other_user(true) == 1);
  CHECK(as_other_user(false) == 0);
}

TEST_CASE("Memory that isn't where the engine says is refused at the handshake") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), {"pool.bytes=64MiB"});
  Bystander bystander(daemon);
  CHECK(InChild([&] {
          FakeEngine::Options options = InProcess(daemon.socket());
          options.wrong_stride = true;
          options.scheduler = false;
          FakeEngine engine(options);
          return static_cast<int>(engine.status.code);
        }) == KVIST_FAILED_PRECONDITION);
  // What isn't mapped, with a daemon that is there and, on the client's own judgement, with none.
  for (const std::string& socket : {daemon.socket(), dir.path() + "/nobody.sock"}) {
    CHECK(InChild([&] {
            FakeEngine::Options options = InProcess(daemon.socket());
            FakeEngine engine(options);
            kvist_options worker = engine.WorkerOptions(0);
            kvist_process_region region = *worker.memory->process_regions;
            region.length = uint64_t{1} << 40;
            kvist_memory memory = *worker.memory;
            memory.process_regions = &region;
            memory.page_stride = uint64_t{1} << 30;  // its last page lies past what there is
            worker.memory = &memory;
            worker.instance = "beyond";
            worker.socket = socket.c_str();
            worker.connect_timeout_us = 100'000;
            kvist::Client client;
            return static_cast<int>(kvist::Client::Connect(worker, &client).code);
          }) == KVIST_INVALID_ARGUMENT);
  }
}

TEST_CASE("Row 34: a process that unmaps its memory in the middle of a store fails that store alone") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), {"pool.bytes=256MiB"});
  Bystander bystander(daemon);
  constexpr int kRounds = 20;
  int cut = 0, visible = 0;
  for (int round = 0; round < kRounds && cut < 3; ++round) {
    const int child = InChild([&] {
      FakeEngine engine(Large(daemon.socket()));
      if (!engine.status.ok()) return 10;
      const auto keys = engine.Keys(1000 * (round + 1), kLargeChunks);
      const kvist_op op = engine.worker(0).Store(keys, 0, engine.Pages(0, kLargeChunks));
      if (op == 0) return 11;
      if (AwaitFirstLayer(engine, op)) return 0;
      ::munmap(engine.memory(0).data(), engine.memory(0).size());
      const kvist_result result = engine.worker(0).Wait(op, kTimeoutUs);
      const bool typed = result.status == KVIST_INVALID_ARGUMENT && std::strstr(kvist_error(), "isn't mapped") != nullptr &&
                         result.chunks_copied == 0;
      if (!typed && result.status != KVIST_OK)
        std::fprintf(stderr, "a store cut off by munmap: status %d (%s), %u copied\n", result.status, kvist_error(),
                     result.chunks_copied);
      // Without destructors: they would unmap what may be another's by now.
      ::_exit(typed ? 1 : result.status == KVIST_OK ? 0 : 12);
      return 13;
    });
    INFO("the engine's exit status is " << child);
    CHECK((child == 0 || child == 1));  // the copy may have been through already
    if (child == 1) {
      ++cut;
      FakeEngine::Options scheduler = Large(daemon.socket());
      scheduler.scheduler = true;
      FakeEngine engine(scheduler);
      const uint32_t chunks = engine.scheduler().Lookup(engine.Keys(1000 * (round + 1), kLargeChunks), 0).chunks;
      CHECK(chunks == 0);
      visible += chunks > 0;
    }
  }
  std::printf("row 34: %d stores cut off by munmap, %d of them visible\n", cut, visible);
  CHECK(cut > 0);
  AwaitQuiet(daemon, 2);
}

TEST_CASE("A process that dies in the middle of a store or a load leaves nothing, and nothing of it is seen") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), {"pool.bytes=256MiB"});
  Bystander bystander(daemon);
  AwaitQuiet(daemon, 2);
  const size_t fds = daemon.OpenFds();
  for (uint32_t round = 0; round < 6; ++round) {
    const uint32_t prompt = 1000 * (round / 2 + 1);
    CHECK(InChild([&] {
            FakeEngine::Options options = Large(daemon.socket());
            options.scheduler = true;
            FakeEngine engine(options);
            if (!engine.status.ok()) return 10;
            const auto keys = engine.Keys(prompt, kLargeChunks);
            kvist_op op = 0;
            if (round % 2 == 0) {
              // With what the keys stand for: all of it may be stored before the end comes.
              const std::vector<uint32_t> pages = engine.Pages(0, kLargeChunks);
              for (uint32_t c = 0; c < kLargeChunks; ++c)
                engine.Fill(0, keys[c],
                            std::span(pages).subspan(size_t{c} * FakeEngine::kPagesPerChunk, FakeEngine::kPagesPerChunk));
              op = engine.worker(0).Store(keys, 0, pages);
            } else {
              if (engine.StoreAll(keys).status != KVIST_OK) return 11;
              const kvist::Hit hit = engine.scheduler().Lookup(keys, kTimeoutUs);
              op = engine.worker(0).Load(hit.lease, 0, hit.chunks, engine.Pages(0, hit.chunks));
            }
            if (op == 0) return 12;
            (void)AwaitFirstLayer(engine, op);
            return ::raise(SIGKILL);
          }) == -SIGKILL);
    AwaitQuiet(daemon, 2);
    if (round % 2 == 0) continue;
    // What the store and the load of the dead have left is whole.
    FakeEngine::Options options = Large(daemon.socket());
    options.scheduler = true;
    FakeEngine reader(options);
    std::string wrong;
    const uint32_t chunks = reader.LoadAll(reader.Keys(prompt, kLargeChunks), &wrong);
    CHECK(wrong == "");
    CHECK(chunks == kLargeChunks);
  }
  CHECK(FdsFallTo(daemon, fds));
}

#include "cuda/gpu.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cuda/engine_region.h"
#include "cuda/gpus.h"
#include "storage/base/unique_fd.h"
#include "tests/support/child_process.h"
#include "tests/unit/cuda/gpu_under_test.h"

namespace kvist::cuda {
namespace {

constexpr size_t kBytes = 1 << 20;

// An engine: a process with memory on a GPU, filled with one byte.
class Exporter {
 public:
  explicit Exporter(std::byte fill, int ordinal = 0) {
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    const UniqueFd from(ends[0]), to(ends[1]);
    process_.emplace([fill, ordinal, &to] {
      const driver::Driver& driver = *FakeDriver::Get().driver();
      driver::Context context = nullptr;
      driver::Address address = 0;
      driver::IpcMemHandle handle;
      const std::vector<std::byte> bytes(kBytes, fill);
      const auto ok = [](driver::Result result) { return result == driver::Result::kSuccess; };
      if (!ok(driver->DevicePrimaryCtxRetain(&context, ordinal)) || !ok(driver->CtxPushCurrent(context)) ||
          !ok(driver->MemAlloc(&address, kBytes)) || !ok(driver->MemcpyHtoD(address, bytes.data(), kBytes)) ||
          !ok(driver->StreamSynchronize(nullptr)) || !ok(driver->IpcGetMemHandle(&handle, address)) ||
          ::write(to.get(), &handle, sizeof handle) != sizeof handle) {
        return 1;
      }
      ::pause();
      return 0;
    });
    REQUIRE(::read(from.get(), &allocation.handle, sizeof allocation.handle) == sizeof allocation.handle);
    allocation.pid_there = process_->pid();
    pidfd = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, process_->pid(), 0)));
    REQUIRE(pidfd);
  }
  void Kill() { process_->Kill(); }

  DeviceAllocation allocation;
  UniqueFd pidfd;

 private:
  std::optional<test::ChildProcess> process_;
};

bool Soon(const std::function<bool()>& condition) {
  for (int i = 0; i < 2000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

std::byte ByteAt(const Gpu& gpu, driver::Address address) {
  std::byte byte{};
  REQUIRE(gpu.Read(address, &byte, Bytes{1}).ok());
  return byte;
}

TEST_CASE("A GPU is near a NUMA node, and so is all its memory") {
  for (const int ordinal : {0, 1}) {
    Exporter engine(std::byte{7}, ordinal);
    const std::unique_ptr<Gpu> gpu = FakeDriver::Get().OpenGpu(ordinal);
    CHECK(gpu->numa_node() == ordinal);
    const auto memory = gpu->Import(engine.allocation, engine.pidfd.get()).value();
    const EngineRegion region = EngineRegion::OfDevice({gpu.get(), memory->address, memory}, memory->length);
    CHECK(region.NumaNode({}) == ordinal);
  }
}

TEST_CASE("An engine's allocation is mapped once for all who import it, and closed when the last has let go") {
  Exporter engine(std::byte{7});
  const std::unique_ptr<Gpu> gpu = FakeDriver::Get().OpenGpu();
  auto first = gpu->Import(engine.allocation, engine.pidfd.get()).value();
  auto second = gpu->Import(engine.allocation, engine.pidfd.get()).value();
  CHECK(first->address == second->address);
  CHECK(first->length == Bytes{kBytes});
  CHECK(gpu->imported() == Bytes{kBytes});
  CHECK(ByteAt(*gpu, first->address + kBytes - 1) == std::byte{7});
  first.reset();
  CHECK(ByteAt(*gpu, second->address) == std::byte{7});
  second.reset();
  CHECK(Soon([&] { return FakeDriver::Get().figures().imported_bytes == 0; }));
  CHECK(Soon([&] { return gpu->imported() == Bytes{}; }));
  std::shared_ptr<const ImportedMemory> third;
  REQUIRE(Soon([&] {
    auto again = gpu->Import(engine.allocation, engine.pidfd.get());
    if (again.ok()) third = *again;
    return again.ok();
  }));
  CHECK(ByteAt(*gpu, third->address) == std::byte{7});
}

TEST_CASE("Allocations come and go from several threads at once") {
  Exporter a(std::byte{1}), b(std::byte{2});
  const std::unique_ptr<Gpu> gpu = FakeDriver::Get().OpenGpu();
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 200; ++round) {
        const Exporter& engine = (round + t) % 2 == 0 ? a : b;
        auto memory = gpu->Import(engine.allocation, engine.pidfd.get());
        // While the last one's mapping is being closed: a while later.
        for (int i = 0; i < 2000 && absl::IsUnavailable(memory.status()); ++i) {
          std::this_thread::sleep_for(std::chrono::microseconds(100));
          memory = gpu->Import(engine.allocation, engine.pidfd.get());
        }
        std::byte byte{};
        if (!memory.ok() || !gpu->Read((*memory)->address, &byte, Bytes{1}).ok()) ++wrong;
        if (byte != std::byte{static_cast<unsigned char>((round + t) % 2 == 0 ? 1 : 2)}) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(Soon([&] { return gpu->imported() == Bytes{}; }));
}

TEST_CASE("A mapping outlives its engine while it is held, and its handle opens nothing afterwards") {
  Exporter engine(std::byte{9});
  const std::unique_ptr<Gpu> gpu = FakeDriver::Get().OpenGpu();
  auto memory = gpu->Import(engine.allocation, engine.pidfd.get()).value();
  engine.Kill();
  CHECK(ByteAt(*gpu, memory->address) == std::byte{9});
  // The name may be another process's by now: the old mapping isn't given out for it.
  CHECK(absl::IsUnavailable(gpu->Import(engine.allocation, engine.pidfd.get()).status()));
  memory.reset();
  absl::Status status;
  REQUIRE(Soon([&] {
    status = gpu->Import(engine.allocation, engine.pidfd.get()).status();
    return !absl::IsUnavailable(status);
  }));
  CHECK(absl::IsFailedPrecondition(status));
  CHECK_THAT(std::string(status.message()), Catch::Contains("cuIpcOpenMemHandle"));
  CHECK(Soon([&] { return FakeDriver::Get().figures().imported_bytes == 0; }));
}

TEST_CASE("Two processes of the same number in their containers are recognised, and it is said what to do") {
  Exporter engine(std::byte{1});
  FakeDriver::Get().Plan({.no_open = 1});
  const std::unique_ptr<Gpu> gpu = FakeDriver::Get().OpenGpu();
  CHECK_THAT(std::string(gpu->Import(engine.allocation, engine.pidfd.get()).status().message()),
             !Catch::Contains("PID namespace"));
  engine.allocation.pid_there = ::getpid();
  CHECK_THAT(std::string(gpu->Import(engine.allocation, engine.pidfd.get()).status().message()),
             Catch::Contains("PID namespace"));
  FakeDriver::Get().Plan({});
}

TEST_CASE("A region of a GPU reads through its driver") {
  Exporter engine(std::byte{5});
  const std::unique_ptr<Gpu> gpu = FakeDriver::Get().OpenGpu();
  {
    auto memory = gpu->Import(engine.allocation, engine.pidfd.get()).value();
    const EngineRegion region = EngineRegion::OfDevice({gpu.get(), memory->address + 100, memory}, Bytes{1000});
    memory.reset();
    CHECK(region.gpu() == gpu.get());
    CHECK_FALSE(region.mapped());
    std::vector<std::byte> read(10);
    CHECK(region.Read(ByteOffset{990}, read.data(), Bytes{10}) == absl::OkStatus());
    CHECK(read == std::vector<std::byte>(10, std::byte{5}));
  }
  CHECK(Soon([&] { return gpu->imported() == Bytes{}; }));
}

struct Said {
  std::vector<std::string> warnings, notes;
  Gpus::Log Log() {
    return [this](bool warning, const std::string& text) {
      const std::lock_guard lock(mutex);
      (warning ? warnings : notes).push_back(text);
    };
  }
  bool Contains(bool warning, const std::string& part) {
    const std::lock_guard lock(mutex);
    for (const std::string& text : warning ? warnings : notes) {
      if (text.find(part) != std::string::npos) return true;
    }
    return false;
  }
  std::mutex mutex;
};

TEST_CASE("Gpus opens a context on the GPUs that are used, once, and on no other") {
  Said said;
  Gpus gpus(std::string(KVIST_FAKE_CUDA_DIR) + "/libcuda.so.1", said.Log());
  CHECK(FakeDriver::Get().figures().contexts == 0);
  Gpu* gpu = gpus.Use(FakeDriver::Get().uuid(1)).value();
  CHECK(gpus.Use(FakeDriver::Get().uuid(1)).value() == gpu);
  CHECK(FakeDriver::Get().figures().contexts == 1);
  CHECK(gpus.figures().gpus.size() == 1);
  CHECK(gpus.figures().gpus[0].lost.ok());
  CHECK(absl::IsNotFound(gpus.Use(driver::Uuid{}).status()));
}

TEST_CASE("Gpus without a driver says so to who wants one") {
  Said said;
  Gpus gpus("libcuda-that-nobody-has.so.1", said.Log());
  const absl::Status status = gpus.Use(driver::Uuid{}).status();
  CHECK(absl::IsFailedPrecondition(status));
  CHECK_THAT(std::string(status.message()), Catch::Contains("libcuda-that-nobody-has.so.1"));
}

TEST_CASE("The pool is pinned piece by piece once there is a GPU, and unpinned at the end") {
  std::vector<std::byte> pool(10'000);
  Said said;
  {
    Gpus gpus(std::string(KVIST_FAKE_CUDA_DIR) + "/libcuda.so.1", said.Log());
    gpus.AddHostMemory(std::span(pool).first(5000), Bytes{2000});
    CHECK(gpus.figures().pinned == Bytes{});
    REQUIRE(gpus.Use(FakeDriver::Get().uuid(0)).ok());
    CHECK(Soon([&] { return gpus.figures().pinned == Bytes{5000}; }));
    gpus.AddHostMemory(std::span(pool).subspan(5000), Bytes{8000});
    CHECK(Soon([&] { return gpus.figures().pinned == Bytes{10'000}; }));
    CHECK(FakeDriver::Get().figures().registered_bytes == 10'000);
  }
  CHECK(FakeDriver::Get().figures().registered_bytes == 0);
}

TEST_CASE("A pool that can't be pinned is said, with what to do") {
  std::vector<std::byte> pool(10'000);
  FakeDriver::Get().Plan({.no_register = 1});
  Said said;
  {
    Gpus gpus(std::string(KVIST_FAKE_CUDA_DIR) + "/libcuda.so.1", said.Log());
    gpus.AddHostMemory(pool, Bytes{2000});
    REQUIRE(gpus.Use(FakeDriver::Get().uuid(0)).ok());
    CHECK(Soon([&] { return said.Contains(true, "LimitMEMLOCK"); }));
  }
  FakeDriver::Get().Plan({});
}

}  // namespace
}  // namespace kvist::cuda

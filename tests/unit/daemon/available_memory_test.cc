#include "daemon/available_memory.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/temp_dir.h"

namespace kvist::daemon {
namespace {

// A machine made of files.
class FakeMachine {
 public:
  FakeMachine() {
    Write("proc/meminfo", "MemTotal:       16777216 kB\nMemFree:         1048576 kB\nMemAvailable:    8388608 kB\n");
  }
  void Write(const std::string& name, const std::string& text) {
    const std::filesystem::path path = dir_ / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  Bytes Available() const { return AvailableMemory(dir_.path()); }

 private:
  test::TempDir dir_;
};

TEST_CASE("AvailableMemory is the kernel's MemAvailable without cgroups") {
  FakeMachine machine;
  CHECK(machine.Available() == GiB(8));
  machine.Write("proc/self/cgroup", "0::/\n");
  CHECK(machine.Available() == GiB(8));
}

TEST_CASE("AvailableMemory is what a cgroup v2 leaves, with its file cache") {
  FakeMachine machine;
  machine.Write("proc/self/cgroup", "0::/system.slice/kvistd.service\n");
  machine.Write("sys/fs/cgroup/system.slice/kvistd.service/memory.max", "max\n");
  CHECK(machine.Available() == GiB(8));
  machine.Write("sys/fs/cgroup/system.slice/kvistd.service/memory.max", "4294967296\n");
  CHECK(machine.Available() == GiB(4));
  machine.Write("sys/fs/cgroup/system.slice/kvistd.service/memory.current", "2147483648\n");
  CHECK(machine.Available() == GiB(2));
  machine.Write("sys/fs/cgroup/system.slice/kvistd.service/memory.stat", "anon 1073741824\ninactive_file 1073741824\n");
  CHECK(machine.Available() == GiB(3));
  machine.Write("sys/fs/cgroup/system.slice/memory.max", "1073741824\n");  // a limit above it counts as well
  CHECK(machine.Available() == GiB(1));
  machine.Write("sys/fs/cgroup/system.slice/memory.current", "9999999999\n");
  CHECK(machine.Available() == Bytes{});
}

TEST_CASE("AvailableMemory is what a cgroup v1 leaves, in a container, too") {
  FakeMachine machine;
  machine.Write("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:hugetlb,memory:/docker/abc\n0::/\n");
  machine.Write("sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "9223372036854771712\n");
  CHECK(machine.Available() == GiB(8));
  machine.Write("sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "3221225472\n");
  machine.Write("sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes", "1073741824\n");
  CHECK(machine.Available() == GiB(2));
  machine.Write("sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824\n");  // the container's own, mounted as the root
  CHECK(machine.Available() == GiB(1));
}

TEST_CASE("AvailableMemory copes with odd cgroup files") {
  FakeMachine machine;
  for (const char* text : {"", "0", "0:", "0::", "::", "4:memory:/../..\n", "0::/../../..\n", "4:memory:relative\n"}) {
    machine.Write("proc/self/cgroup", text);
    CHECK(machine.Available() == GiB(8));
  }
}

TEST_CASE("AvailableMemory of this machine is something") { CHECK(AvailableMemory() > MiB(1)); }

}  // namespace
}  // namespace kvist::daemon

#include "storage/pool/memory_limit.h"

#include <sys/sysinfo.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/temp_dir.h"

namespace kvist::pool {
namespace {

TEST_CASE("FindMemoryLimit is positive, at most the machine's memory, and says where it comes from") {
  struct sysinfo info {};
  REQUIRE(sysinfo(&info) == 0);
  const MemoryLimit limit = FindMemoryLimit();
  CHECK(limit.bytes > Bytes{});
  CHECK(limit.bytes <= Bytes{info.totalram} * info.mem_unit);
  CHECK_FALSE(limit.source.empty());
}

TEST_CASE("FindMemoryLimit names the file of the smallest cgroup limit, of either version") {
  test::TempDir dir;
  const auto write = [&](const std::string& name, const std::string& text) {
    const std::filesystem::path path = dir / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
    return path.string();
  };
  const auto found = [&] { return FindMemoryLimit(dir.path() + "/"); };
  write("proc/self/cgroup", "4:memory:/batch/job\n1:cpu:/\n0::/user.slice/a\n");
  CHECK(found().source == "this machine's memory");
  write("sys/fs/cgroup/memory/batch/job/memory.limit_in_bytes", "9223372036854771712\n");  // v1's way to say "none"
  write("sys/fs/cgroup/user.slice/a/memory.max", "max\n");
  CHECK(found().source == "this machine's memory");
  const std::string above = write("sys/fs/cgroup/memory/batch/memory.limit_in_bytes", "268435456\n");
  CHECK(found().bytes == MiB(256));
  CHECK(found().source == above);
  const std::string own = write("sys/fs/cgroup/user.slice/a/memory.max", "134217728\n");
  CHECK(found().bytes == MiB(128));
  CHECK(found().source == own);
}

TEST_CASE("CheckMemoryLimit names pool.bytes, the limit and where it comes from") {
  const MemoryLimit limit{.bytes = GiB(1), .source = "a cgroup"};
  CHECK(CheckMemoryLimit(GiB(1), limit).ok());
  CHECK(
      CheckMemoryLimit(GiB(1) + KiB(4), limit) ==
      absl::ResourceExhaustedError("the pool needs 1073745920 bytes, which a cgroup (1073741824 bytes) doesn't allow: lower "
                                   "pool.bytes or raise that limit"));
}

}  // namespace
}  // namespace kvist::pool

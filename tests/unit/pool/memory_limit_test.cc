#include "storage/pool/memory_limit.h"

#include <sys/sysinfo.h>

#include <catch2/catch.hpp>

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

}  // namespace
}  // namespace kvist::pool

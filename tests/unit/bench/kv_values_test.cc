#include "tests/bench/kv_values.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <fstream>
#include <string>

namespace kvist::bench {
namespace {

TEST_CASE("ReadKvValues refuses heads and channels whose product 32 bits don't count") {
  const std::string path = "kv_values_test." + std::to_string(::getpid());
  std::ofstream(path, std::ios::binary) << std::string(2 * 2 * 8, 'k');  // K and V, one token of eight channels
  const auto code = [&](uint32_t heads, uint32_t head_dim) {
    return ReadKvValues(path, {1, 1, heads, head_dim}).status().code();
  };
  CHECK(code(2, 4) == absl::StatusCode::kOk);
  CHECK(code(2, 5) == absl::StatusCode::kInvalidArgument);
  CHECK(code((uint32_t{1} << 31) + 4, 2) == absl::StatusCode::kInvalidArgument);  // 8 in 32 bits
  std::remove(path.c_str());
}

}  // namespace
}  // namespace kvist::bench

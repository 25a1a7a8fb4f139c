#include "storage/base/xxh3.h"

#include <catch2/catch.hpp>
#include <cstddef>
#include <random>
#include <span>
#include <vector>

namespace kvist {
namespace {

TEST_CASE("Xxh3OfFar is XXH3 of any length and seed, wherever it begins") {
  std::mt19937_64 random(7);
  std::vector<std::byte> bytes(300'000);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  for (const size_t length :
       {0, 1, 240, 241, 2047, 8191, 8192, 8193, 10'239, 10'240, 10'241, 32'768, 36'864, 100'000, 262'144}) {
    for (const size_t from : {0, 1, 63, 64, 4096}) {
      for (const uint64_t seed : {0ULL, 1ULL, ~0ULL}) {
        const std::span<const std::byte> of = std::span(bytes).subspan(from, length);
        CHECK(Xxh3OfFar(of, seed) == XXH3_64bits_withSeed(of.data(), of.size(), seed));
      }
    }
  }
}

}  // namespace
}  // namespace kvist

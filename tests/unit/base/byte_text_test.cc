#include "storage/base/byte_text.h"

#include <catch2/catch.hpp>
#include <limits>

namespace kvist {
namespace {

TEST_CASE("ParseBytes reads a count and its unit, and nothing else") {
  CHECK(ParseBytes("0B") == Bytes{0});
  CHECK(ParseBytes("4GiB") == GiB(4));
  CHECK(ParseBytes("4 MiB") == MiB(4));
  CHECK(ParseBytes("16777215TiB") == Bytes{16777215ull << 40});
  for (const char* wrong :
       {"", "4", "GiB", "-4GiB", "4gib", "4GB", "4.5GiB", "4GiB ", " 4GiB", "16777216TiB", "99999999999999999999B"}) {
    INFO(wrong);
    CHECK(ParseBytes(wrong) == std::nullopt);
  }
}

TEST_CASE("PrintBytes is exact, and ParseBytes reads it back") {
  CHECK(PrintBytes(GiB(4)) == "4GiB");
  CHECK(PrintBytes(Bytes{4097}) == "4097B");
  CHECK(PrintBytes(Bytes{0}) == "0B");
  for (const uint64_t bytes :
       {uint64_t{0}, uint64_t{1}, uint64_t{1536}, uint64_t{1} << 40, std::numeric_limits<uint64_t>::max()})
    CHECK(ParseBytes(PrintBytes(Bytes{bytes})) == Bytes{bytes});
}

}  // namespace
}  // namespace kvist

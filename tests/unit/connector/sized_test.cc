#include "connector/src/sized.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <vector>

namespace {

// A struct that had one field first, and has two now.
struct Grown {
  size_t struct_size = sizeof(Grown);
  uint64_t first = 0;
  uint64_t later = 0;
};

}  // namespace

template <>
struct kvist::connector::Grows<Grown> : GrowsFrom<16> {
  static constexpr const char* kName = "grown";
};

namespace kvist::connector {
namespace {

using Catch::Contains;

// What a caller passes whose header gives the struct so many bytes.
std::vector<uint64_t> Passed(size_t size, std::vector<uint64_t> fields) {
  fields.insert(fields.begin(), size);
  return fields;
}
const Grown* As(const std::vector<uint64_t>& passed) { return reinterpret_cast<const Grown*>(passed.data()); }

TEST_CASE("A struct of the ABI is read as an earlier, this, or a later version of the header has it") {
  const auto earlier = Passed(16, {7, 0xdead});  // what lies behind it is something else
  CHECK(Sized(As(earlier))->first == 7);
  CHECK(Sized(As(earlier))->later == 0);
  const auto same = Passed(24, {7, 8});
  CHECK(Sized(As(same))->later == 8);
  const auto later = Passed(40, {7, 8, 0, 0});
  CHECK(Sized(As(later))->later == 8);
  CHECK(Sized(As(later))->struct_size == sizeof(Grown));
  const auto unknown = Passed(40, {7, 8, 0, 9});
  CHECK_THAT(std::string(Sized(As(unknown)).status().message()),
             Contains("grown has a field at byte 32") && Contains("later libkvist"));
  const auto half = Passed(12, {7});
  CHECK_THAT(std::string(Sized(As(half)).status().message()), Contains("grown.struct_size is 12"));
  for (const size_t no_size : {size_t{0}, size_t{20}, size_t{4104}, SIZE_MAX, SIZE_MAX - 7}) {
    const auto passed = Passed(no_size, {7, 8});
    CHECK_THAT(std::string(Sized(As(passed)).status().message()), Contains("grown.struct_size is"));
  }
  CHECK_THAT(std::string(Sized<Grown>(nullptr).status().message()), Contains("grown is missing"));
}

TEST_CASE("A result of the ABI is given as far as the caller's version of the header has it") {
  const Grown whole{sizeof(Grown), 7, 8};
  for (const size_t size : {16, 24, 40}) {
    std::vector<uint64_t> to(6, 0xdead);
    to[0] = size;
    GiveSized(whole, reinterpret_cast<Grown*>(to.data()));
    CHECK(to[0] == size);
    CHECK(to[1] == 7);
    CHECK(to[2] == (size > 16 ? 8 : 0xdead));
    CHECK(to[3] == (size > 24 ? 0 : 0xdead));
    CHECK(to[5] == 0xdead);
  }
}

}  // namespace
}  // namespace kvist::connector

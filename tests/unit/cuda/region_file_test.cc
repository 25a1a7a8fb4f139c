#include "cuda/region_file.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <array>
#include <catch2/catch.hpp>
#include <numeric>
#include <vector>

#include "storage/base/unique_fd.h"

namespace kvist::cuda {
namespace {

TEST_CASE("AfterTransfer goes on in the middle of a piece") {
  std::array<std::byte, 60> buffer;
  for (size_t count = 0; count <= buffer.size(); ++count) {
    std::array<iovec, 3> pieces{{{buffer.data(), 10}, {buffer.data() + 10, 20}, {buffer.data() + 30, 30}}};
    const std::span<iovec> left = AfterTransfer(pieces, count);
    size_t length = 0;
    for (const iovec& piece : left) length += piece.iov_len;
    CHECK(length == buffer.size() - count);
    CHECK(left.size() == (count < 10 ? 3 : count < 30 ? 2 : count < 60 ? 1 : 0));
    if (!left.empty()) CHECK(left.front().iov_base == buffer.data() + count);
  }
}

TEST_CASE("ReadRegion brings back what WriteRegion wrote, and says where the file ends") {
  const UniqueFd file(::memfd_create("region", MFD_CLOEXEC));
  std::vector<unsigned char> out(5000), in(5000);
  std::iota(out.begin(), out.end(), 0);
  std::array<iovec, 2> from{{{out.data(), 1}, {out.data() + 1, 4999}}};
  REQUIRE(WriteRegion(file.get(), {123}, from) == absl::OkStatus());
  std::array<iovec, 2> to{{{in.data(), 4000}, {in.data() + 4000, 1000}}};
  REQUIRE(ReadRegion(file.get(), {123}, to) == absl::OkStatus());
  CHECK(in == out);

  CHECK(RequireWritable(file.get(), {5123}) == absl::OkStatus());
  CHECK(RequireWritable(file.get(), {5124}).code() == absl::StatusCode::kOutOfRange);
  std::array<iovec, 1> beyond{{{in.data(), 5000}}};
  CHECK(ReadRegion(file.get(), {124}, beyond).code() == absl::StatusCode::kOutOfRange);
  CHECK(!ReadRegion(-1, {0}, beyond).ok());
  // What its owner may do at any time: nothing would get to its place any more.
  REQUIRE(::fcntl(file.get(), F_SETFL, O_APPEND) == 0);
  CHECK(RequireWritable(file.get(), {5123}).code() == absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace kvist::cuda

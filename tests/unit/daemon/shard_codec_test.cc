// What of a remote store's objects is damage, and what another version of kvist reads: that stays where it lies.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <optional>
#include <vector>

#include "daemon/shard_codec.h"
#include "storage/codec/format.h"

namespace kvist::daemon {
namespace {

codec::Shape Zeros() {
  codec::Shape shape;
  shape.channels = 4096;
  return shape;
}

struct Encoded {
  Encoded() : payload(4096) {
    codec::Method used{};
    const auto encoded = EncodeShard(codec::Method::kLossless, Zeros(), payload, &used);
    REQUIRE(encoded.ok());
    REQUIRE(encoded->has_value());
    std::copy((*encoded)->begin(), (*encoded)->end(), payload.begin());
    bytes = Bytes{(*encoded)->size()};
  }

  std::vector<std::byte> payload;
  Bytes bytes{};
  remote::Label label = LabelOf(codec::Method::kLossless);
};

}  // namespace

TEST_CASE("DecodeInPlace tells what is damaged from what a later version has encoded") {
  Encoded shard;
  SECTION("as it was written") { CHECK(DecodeInPlace(shard.label, Zeros(), shard.bytes, shard.payload).ok()); }
  SECTION("damaged") {
    shard.payload[shard.bytes.value - 1] ^= std::byte{1};
    CHECK(absl::IsDataLoss(DecodeInPlace(shard.label, Zeros(), shard.bytes, shard.payload)));
  }
  SECTION("by a later method") {
    shard.label[1] = std::byte{200};
    CHECK(absl::IsFailedPrecondition(DecodeInPlace(shard.label, Zeros(), shard.bytes, shard.payload)));
  }
  SECTION("labelled in a later way") {
    shard.label[2] = std::byte{1};
    CHECK(absl::IsFailedPrecondition(DecodeInPlace(shard.label, Zeros(), shard.bytes, shard.payload)));
  }
  SECTION("in a later format") {
    const uint16_t version = codec::kFormatVersion + 1;
    std::memcpy(shard.payload.data() + offsetof(codec::Header, version), &version, sizeof version);
    CHECK(absl::IsFailedPrecondition(DecodeInPlace(shard.label, Zeros(), shard.bytes, shard.payload)));
  }
}

}  // namespace kvist::daemon

#include "storage/ssd/catalog_rows.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "absl/strings/escaping.h"

namespace kvist::ssd {
namespace {

template <class D>
D Bytes32(uint8_t first) {
  D digest;
  for (size_t i = 0; i < digest.bytes.size(); ++i) digest.bytes[i] = static_cast<uint8_t>(first + i);
  return digest;
}

const MetaRow kMeta{.rebuild_pending = true,
                    .format = 1,
                    .store = Bytes32<StoreId>(0x10),
                    .incarnation = 0x1122334455667788,
                    .generation = 3,
                    .commits = 0x0102,
                    .settled = 0x0405};
const SpaceRow kSpace{.number = 0x01020304, .digest = Bytes32<SpaceDigest>(0x20), .description = "words"};
const SegmentRow kSegment{
    .number = 7, .state = SegmentState::kFull, .epoch = 0x0a0b0c, .secret = Bytes32<StoreId>(0x30).bytes};
const ClearRow kClear{.space = Bytes32<SpaceDigest>(0x40), .sequence = 0x99, .place = {.segment = 9, .unit = 0x0203}};
const PinRow kPin{.space = 2, .name = "mine", .description = std::string("a\0b", 3)};
const ChunkRow kChunk{.id = {.position = 5, .space = 2, .group = 0x0103, .key = Bytes32<ChunkKey>(0x50)},
                      .parent = Bytes32<ChunkKey>(0x70),
                      .hints = 0x0a0b,
                      .sequence = 0x0807060504030201,
                      .units = 0x0605,
                      .places = {{.segment = 7, .unit = 513}, {.segment = 8, .unit = 1}}};

const UseRow kUse{.period = 0x01020304,
                  .part = 5,
                  .written = 0x090a0b,
                  .chunks = {{.space = 2, .group = 0x0103, .key = Bytes32<ChunkKey>(0x50)},
                             {.space = 0x01020304, .group = 0, .key = Bytes32<ChunkKey>(0x70)}}};

std::string Hex(std::string_view bytes) { return absl::BytesToHexString({bytes.data(), bytes.size()}); }

// Layouts never change: a new one is a new version. Written out from the drawing in catalog_rows.h; only the checks (the last 8 digits of
// values) were taken from the program.
TEST_CASE("catalog rows have the bytes that catalog_rows.h draws") {
  const std::string b10 = "101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f";
  const std::string b20 = "202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f";
  const std::string b30 = "303132333435363738393a3b3c3d3e3f404142434445464748494a4b4c4d4e4f";
  const std::string b40 = "404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f";
  const std::string b50 = "505152535455565758595a5b5c5d5e5f606162636465666768696a6b6c6d6e6f";
  const std::string b70 = "707172737475767778797a7b7c7d7e7f808182838485868788898a8b8c8d8e8f";
  CHECK(Hex(Encode(kMeta).key()) == "00");
  CHECK(Hex(Encode(kMeta).value()) ==
        "0201"
        "01000000" +
            b10 +
            "8877665544332211"
            "0300000000000000"
            "0201000000000000"
            "0504000000000000"
            "19284b85");
  // As it was before it said what is settled: version, what is behind it, check.
  const std::string older = absl::HexStringToBytes(
      "0201"
      "01000000" +
      b10 +
      "8877665544332211"
      "0300000000000000"
      "0201000000000000"
      "15d857a4");
  MetaRow unsettled = kMeta;
  unsettled.settled = 0;
  CHECK(ParseMeta(MetaKey(), older) == unsettled);
  CHECK(Hex(Encode(kSpace).key()) == "0101020304");
  CHECK(Hex(Encode(kSpace).value()) == "02" + b20 +
                                           "776f726473"
                                           "7b6957e3");
  CHECK(Hex(Encode(kSegment).key()) == "0200000007");
  CHECK(Hex(Encode(kSegment).value()) ==
        "02"
        "02"
        "0c0b0a0000000000" +
            b30 + "ba56f61a");
  CHECK(Hex(Encode(kClear).key()) == "03" + b40);
  CHECK(Hex(Encode(kClear).value()) ==
        "02"
        "9900000000000000"
        "09000000"
        "03020000"
        "02658398");
  CHECK(Hex(Encode(kPin).key()) ==
        "0400000002"
        "6d696e65");
  CHECK(Hex(Encode(kPin).value()) ==
        "02"
        "610062"
        "8b599e82");
  CHECK(Hex(Encode(kChunk).key()) ==
        "05"
        "00000005"
        "00000002"
        "0103" +
            b50);
  CHECK(Hex(Encode(kChunk).value()) ==
        "02"
        "01"
        "0b0a"
        "00000000"
        "0102030405060708"
        "05060000" +
            b70 +
            "07000000"
            "01020000"
            "08000000"
            "01000000"
            "5d684fe7");
  CHECK(Hex(Encode(kUse).key()) ==
        "06"
        "01020304"
        "00000005");
  CHECK(Hex(Encode(kUse).value()) ==
        "02"
        "0b0a090000000000"
        "02000000"
        "0301" +
            b50 +
            "04030201"
            "0000" +
            b70 + "f65650f2");
  ChunkRow small = kChunk;
  small.places.resize(1);
  CHECK(Encode(small).key().size() == 43);
  CHECK(Encode(small).value().size() == 64);
  small.codec = Codec{4};
  CHECK(Hex(Encode(small).value()).substr(0, 42) ==
        "02"
        "03"
        "0b0a"
        "00000000"
        "0102030405060708"
        "05060000"
        "04");
  CHECK(Encode(small).value().size() == 65);
}

TEST_CASE("catalog rows come back as they were") {
  const auto same = [](const auto& row, auto parse) {
    const EncodedRow bytes = Encode(row);
    const auto back = parse(bytes.key(), bytes.value());
    REQUIRE(back.has_value());
    CHECK(*back == row);
  };
  same(kMeta, ParseMeta);
  same(kSpace, ParseSpace);
  same(SpaceRow{}, ParseSpace);
  same(kSegment, ParseSegment);
  same(kClear, ParseClear);
  same(kPin, ParsePin);
  same(PinRow{}, ParsePin);
  same(kChunk, ParseChunk);
  ChunkRow chunk = kChunk;
  chunk.parent.reset();
  same(chunk, ParseChunk);
  chunk.codec = Codec{5};
  same(chunk, ParseChunk);
  chunk.parent = kChunk.parent;
  same(chunk, ParseChunk);
  chunk.places.assign(kShardsMax, Place{1, 2});
  same(chunk, ParseChunk);
  same(kUse, ParseUse);
  same(UseRow{}, ParseUse);
  same(UseRow{.period = 1, .part = kUsePartsMax - 1, .written = 2, .chunks = std::vector<ChunkUse>(kUsesPerRow)}, ParseUse);
}

TEST_CASE("catalog rows that were changed anywhere are none") {
  const auto damaged = [](const auto& row, auto parse) {
    const EncodedRow bytes = Encode(row);
    const std::string all = bytes.bytes;
    for (size_t bit = 0; bit < 8 * all.size(); ++bit) {
      std::string flipped = all;
      flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ 1 << bit % 8);
      const std::string_view view = flipped;
      CHECK_FALSE(parse(view.substr(0, bytes.key_bytes), view.substr(bytes.key_bytes)).has_value());
    }
    for (size_t length = 0; length < bytes.value().size(); ++length)
      CHECK_FALSE(parse(bytes.key(), bytes.value().substr(0, length)).has_value());
    for (size_t length = 0; length < bytes.key_bytes; ++length)
      CHECK_FALSE(parse(bytes.key().substr(0, length), bytes.value()).has_value());
    CHECK_FALSE(parse(bytes.key(), std::string(bytes.value()) + '\0').has_value());
    CHECK_FALSE(parse(std::string(bytes.key()) + '\0', bytes.value()).has_value());
  };
  damaged(kMeta, ParseMeta);
  damaged(kSpace, ParseSpace);
  damaged(kSegment, ParseSegment);
  damaged(kClear, ParseClear);
  damaged(kPin, ParsePin);
  damaged(kChunk, ParseChunk);
  damaged(kUse, ParseUse);
}

TEST_CASE("a row's kind is told by its key") {
  CHECK(KindOf(MetaKey()) == RowKind::kMeta);
  CHECK(KindOf(ChunkRowKey(kChunk.id)) == RowKind::kChunk);
  CHECK_FALSE(KindOf("").has_value());
  CHECK(KindOf(UseKey(1, 2)) == RowKind::kUse);
  CHECK_FALSE(KindOf("\x07").has_value());
  CHECK_FALSE(KindOf("\xff").has_value());
}

TEST_CASE("row keys sort by kind, and chunks by their positions first") {
  std::mt19937_64 random(1);
  std::vector<ChunkId> ids;
  for (int i = 0; i < 500; ++i) {
    ChunkId id;
    id.position = static_cast<uint32_t>(random() % 3 << random() % 32);
    id.space = static_cast<uint32_t>(random() % 300);
    id.group = static_cast<uint16_t>(random() % 600);
    id.key.bytes[random() % 32] = static_cast<uint8_t>(random());
    ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end(), [](const ChunkId& a, const ChunkId& b) { return ChunkRowKey(a) < ChunkRowKey(b); });
  for (size_t i = 1; i < ids.size(); ++i) {
    const auto rank = [](const ChunkId& id) { return std::tuple(id.position, id.space, id.group, id.key); };
    CHECK(rank(ids[i - 1]) <= rank(ids[i]));
  }
  CHECK(MetaKey() < Encode(kSpace).bytes);
  CHECK(Encode(kSpace).bytes < SegmentKey(0));
  CHECK(SegmentKey(UINT32_MAX) < ClearKey({}));
  CHECK(ClearKey(Bytes32<SpaceDigest>(0xe0)) < PinKey(0, ""));
  CHECK(PinKey(UINT32_MAX, "~") < ChunkRowKey({}));
  CHECK(ChunkRowKey({UINT32_MAX, UINT32_MAX, UINT16_MAX, Bytes32<ChunkKey>(0xff)}) < UseKey(0, 0));
  CHECK(UseKey(255, 256) < UseKey(256, 0));
  CHECK(UseKey(7, 255) < UseKey(7, 256));
}

}  // namespace
}  // namespace kvist::ssd

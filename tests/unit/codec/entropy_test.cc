#include "storage/codec/entropy.h"

#include <catch2/catch.hpp>
#include <random>
#include <vector>

namespace kvist::codec {
namespace {

std::vector<uint8_t> Bytes(size_t count, uint32_t kinds, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<uint8_t> bytes(count);
  for (uint8_t& b : bytes) b = static_cast<uint8_t>(random() % kinds);
  return bytes;
}

TEST_CASE("Compressor gives bytes that Decompressor fills its room with, and nothing when they wouldn't be fewer") {
  Decompressor decompressor;
  for (const auto how : {Compressor::How::kHuffman, Compressor::How::kRepeats}) {
    Compressor compressor(how);
    for (const size_t count : {1U, 2U, 100U, 5000U, 400'000U}) {
      const std::vector<uint8_t> few = Bytes(count, 7, count), any = Bytes(count, 256, count);
      std::vector<uint8_t> packed(count), back(count);
      if (const auto length = compressor.Compress(few, packed)) {
        CHECK(*length < count);
        CHECK(decompressor.Decompress(std::span(packed).first(*length), back));
        CHECK(back == few);
      } else {
        CHECK(count < 1000);
      }
      CHECK(!compressor.Compress(any, packed).has_value());
      CHECK(!compressor.Compress(few, std::span(packed).first(count / 8)).has_value());
    }
    CHECK(!compressor.Compress({}, {}).has_value());
  }
}

TEST_CASE("Compressor comes near the entropy when no byte follows from another") {
  Compressor compressor(Compressor::How::kHuffman);
  const std::vector<uint8_t> bytes = Bytes(200'000, 8, 3);  // 3 bits each
  std::vector<uint8_t> packed(bytes.size());
  const auto length = compressor.Compress(bytes, packed);
  REQUIRE(length.has_value());
  CHECK(*length < 1.02 * 3 / 8 * static_cast<double>(bytes.size()));
}

TEST_CASE("Decompressor refuses what fills less or more than its room") {
  Compressor compressor(Compressor::How::kHuffman);
  Decompressor decompressor;
  const std::vector<uint8_t> bytes = Bytes(5000, 7, 1);
  std::vector<uint8_t> packed(bytes.size());
  packed.resize(*compressor.Compress(bytes, packed));
  for (const size_t room : {0U, 1U, 4999U, 5001U, 100'000U}) {
    std::vector<uint8_t> back(room);
    CHECK(!decompressor.Decompress(packed, back));
  }
  std::vector<uint8_t> back(bytes.size());
  for (size_t length = 0; length < packed.size(); length += 7)
    CHECK(!decompressor.Decompress(std::span(packed).first(length), back));
  CHECK(decompressor.Decompress(packed, back));  // and is none the worse for it
}

TEST_CASE("Decompressor refuses what zstd would take but no Compressor gives") {
  const std::vector<uint8_t> text = {'k', 'v', 'i', 's', 't'};
  // One block of bytes as they are, and a last one of none, in the forms that zstd had before its first version.
  const std::vector<std::vector<uint8_t>> old = {
      {0x25, 0xb5, 0x2f, 0xfd, 0x00, 0x40, 0, 5, 'k', 'v', 'i', 's', 't', 0xc0, 0, 0},
      {0x26, 0xb5, 0x2f, 0xfd, 0x00, 0x40, 0, 5, 'k', 'v', 'i', 's', 't', 0xc0, 0, 0},
      {0x27, 0xb5, 0x2f, 0xfd, 0x00, 0x00, 0x40, 0, 5, 'k', 'v', 'i', 's', 't', 0xc0, 0, 0}};
  const std::vector<uint8_t> now = {0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x00, (5 << 3) | 1, 0, 0, 'k', 'v', 'i', 's', 't'};
  const std::vector<uint8_t> skipped = {0x50, 0x2a, 0x4d, 0x18, 2, 0, 0, 0, 'n', 'o'};
  const auto both = [](std::vector<uint8_t> first, const std::vector<uint8_t>& second) {
    first.insert(first.end(), second.begin(), second.end());
    return first;
  };

  Decompressor decompressor;
  std::vector<uint8_t> back(text.size()), twice(2 * text.size());
  REQUIRE(decompressor.Decompress(now, back));
  CHECK(back == text);
  for (const auto& frame : old) CHECK(!decompressor.Decompress(frame, back));
  CHECK(!decompressor.Decompress(both(skipped, now), back));
  CHECK(!decompressor.Decompress(both(now, skipped), back));
  CHECK(!decompressor.Decompress(skipped, {}));
  CHECK(!decompressor.Decompress(both(now, now), twice));
  CHECK(!decompressor.Decompress(both(now, {0}), back));
}

TEST_CASE("SeemsCompressible tells even bytes from others by a sample") {
  CHECK(!SeemsCompressible({}));
  CHECK(!SeemsCompressible(Bytes(300'000, 256, 1)));
  CHECK(!SeemsCompressible(Bytes(5000, 256, 2)));
  CHECK(SeemsCompressible(Bytes(300'000, 128, 3)));
  CHECK(SeemsCompressible(std::vector<uint8_t>(5000, 9)));
}

TEST_CASE("SeemsCompressible looks at all channels when rows are as long as what it goes by") {
  constexpr size_t kRows = 4096;
  for (const size_t channels : {64U, 129U, 131U, 257U}) {
    const std::vector<uint8_t> random = Bytes(kRows * channels, 256, channels);
    std::vector<uint8_t> one_even = random, one_random(random.size());
    for (size_t at = 0; at < random.size(); at += channels) {
      one_even[at] = 0;
      one_random[at] = random[at];
    }
    INFO("channels " << channels);
    CHECK(!SeemsCompressible(one_even));
    CHECK(SeemsCompressible(one_random));
  }
}

}  // namespace
}  // namespace kvist::codec

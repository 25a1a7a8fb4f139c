#include "storage/codec/floats.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <random>
#include <vector>

namespace kvist::codec {
namespace {

// sign, exponent, mantissa as the formats define them, in double.
double Defined(uint32_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const uint32_t mantissa = bits & ((1U << mantissa_bits) - 1);
  const int exponent = static_cast<int>(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                                         : std::ldexp(mantissa + (1U << mantissa_bits), exponent - bias - mantissa_bits);
  return (bits >> (exponent_bits + mantissa_bits)) != 0 ? -magnitude : magnitude;
}

// Whether FromFloat gives the nearest of all finite values, for values between and beyond them; of a tie, either.
template <class Float>
bool RoundsToNearest(const std::vector<double>& ascending, uint64_t seed) {
  std::mt19937_64 random(seed);
  for (int i = 0; i < 200000; ++i) {
    const size_t at = random() % (ascending.size() - 1);
    const double share = static_cast<double>(random() % 9) / 8;
    const auto value = static_cast<float>(ascending[at] + share * (ascending[at + 1] - ascending[at]));
    const double found = Float::ToFloat(Float::FromFloat(value));
    const double nearest = std::min(std::abs(value - ascending[at]), std::abs(value - ascending[at + 1]));
    if (std::abs(found - static_cast<double>(value)) > nearest) return false;
  }
  return true;
}

template <class Float>
std::vector<double> Ascending(uint32_t count) {
  std::vector<double> values;
  for (uint32_t bits = 0; bits < count; ++bits) {
    values.push_back(Float::ToFloat(static_cast<decltype(Float::FromFloat(0))>(bits)));
    values.push_back(-values.back());
  }
  std::sort(values.begin(), values.end());
  return values;
}

TEST_CASE("Floats are what their formats define") {
  bool same = true, back = true;
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto value = static_cast<uint16_t>(bits);
    if ((bits & 0x7fff) < Bf16::kInfinity) {
      same = same && Bf16::ToFloat(value) == Defined(bits, 8, 7);
      back = back && Bf16::FromFloat(Bf16::ToFloat(value)) == value && Bf16::FromBounded(Bf16::ToFloat(value)) == value;
    }
    if ((bits & 0x7fff) < Fp16::kInfinity) {
      same = same && Fp16::ToFloat(value) == Defined(bits, 5, 10);
      back = back && Fp16::FromFloat(Fp16::ToFloat(value)) == value;
    }
  }
  for (uint32_t bits = 0; bits < 256; ++bits) {
    if ((bits & 0x7f) == 0x7f) continue;
    same = same && E4m3::ToFloat(static_cast<uint8_t>(bits)) == Defined(bits, 4, 3);
    back = back && E4m3::FromFloat(E4m3::ToFloat(static_cast<uint8_t>(bits))) == bits;
  }
  CHECK(same);
  CHECK(back);
}

TEST_CASE("Floats round to the nearest value when they lie between two") {
  CHECK(RoundsToNearest<Bf16>(Ascending<Bf16>(Bf16::kInfinity), 1));
  CHECK(RoundsToNearest<Fp16>(Ascending<Fp16>(Fp16::kInfinity), 2));
  CHECK(RoundsToNearest<E4m3>(Ascending<E4m3>(0x7f), 3));
}

TEST_CASE("Floats become the largest finite value when they are too large") {
  for (const float large : {1e30F, 3.4e38F, HUGE_VALF}) {
    CHECK(Fp16::FromFloat(large) == Fp16::kInfinity - 1);
    CHECK(Fp16::FromFloat(-large) == (0x8000 | (Fp16::kInfinity - 1)));
    CHECK(E4m3::FromFloat(large) == 0x7e);
    CHECK(E4m3::FromFloat(-large) == 0xfe);
  }
  CHECK(Bf16::FromFloat(HUGE_VALF) == Bf16::kInfinity - 1);
  CHECK(Bf16::FromFloat(-3.4028e38F) == (0x8000 | (Bf16::kInfinity - 1)));
}

TEST_CASE("Split and Join give each of all values back from any base") {
  bool same = true;
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    for (const uint32_t base : {0U, 1U, 31U, 127U, 255U, bits % 256}) {
      uint8_t coded = 0, kept = 0;
      const auto value = static_cast<uint16_t>(bits);
      Bf16::Split(value, static_cast<uint8_t>(base), &coded, &kept);
      same = same && Bf16::Join(coded, kept, static_cast<uint8_t>(base)) == value;
      Fp16::Split(value, static_cast<uint8_t>(base), &coded, &kept);
      same = same && Fp16::Join(coded, kept, static_cast<uint8_t>(base)) == value;
    }
  }
  CHECK(same);
}

}  // namespace
}  // namespace kvist::codec

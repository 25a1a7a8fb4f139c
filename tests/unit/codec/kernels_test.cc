#include "storage/codec/kernels.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <random>
#include <string_view>
#include <vector>

namespace kvist::codec {
namespace {

// All that a set of kernels makes of a row, one byte after the other.
class Outcome {
 public:
  template <class T>
  void Add(const std::vector<T>& values) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(values.data());
    bytes_.insert(bytes_.end(), bytes, bytes + values.size() * sizeof(T));
  }
  bool operator==(const Outcome&) const = default;

 private:
  std::vector<uint8_t> bytes_;
};

Outcome Run(const Kernels& kernels, const std::vector<uint16_t>& values, uint64_t seed) {
  const size_t n = values.size();
  std::mt19937_64 random(seed);
  Outcome outcome;
  // Areas are just as long as they must be, and begin at odd addresses where they hold values.
  std::vector<uint8_t> raw(2 * n + 1);
  std::memcpy(raw.data() + 1, values.data(), 2 * n);
  const auto* row = reinterpret_cast<const RawValue*>(raw.data() + 1);
  const auto values_of = [&](auto&& fill) {
    std::vector<uint8_t> out(2 * n + 1);
    fill(reinterpret_cast<RawValue*>(out.data() + 1));
    outcome.Add(out);
  };

  outcome.Add(std::vector<uint16_t>{kernels.max_magnitude(row, n)});
  std::vector<uint16_t> magnitudes(n);
  for (auto& m : magnitudes) m = random() % 0x7f80;
  kernels.max_magnitudes(row, n, magnitudes.data());
  outcome.Add(magnitudes);
  std::vector<uint8_t> bases(n);
  for (auto& b : bases) b = static_cast<uint8_t>(random());
  kernels.max_exponents(row, n, bases.data());
  outcome.Add(bases);

  std::vector<uint8_t> coded(n), kept(n);
  kernels.split(row, bases.data(), n, coded.data(), kept.data());
  outcome.Add(coded), outcome.Add(kept);
  values_of([&](RawValue* to) {
    kernels.join(coded.data(), kept.data(), bases.data(), n, to);
    CHECK(std::memcmp(to, row, 2 * n) == 0);
  });

  // Finite values and steps for all that calculates.
  std::vector<uint8_t> finite(2 * n + 1);
  for (size_t i = 0; i < n; ++i) {
    uint16_t bits = values[i] & 0xbbff;  // below 2 in bf16 and fp16
    std::memcpy(finite.data() + 1 + 2 * i, &bits, sizeof bits);
  }
  const auto* finite_row = reinterpret_cast<const RawValue*>(finite.data() + 1);
  std::vector<float> sums(n), steps(n), inverses(n);
  std::vector<int8_t> zeros(n);
  for (size_t i = 0; i < n; ++i) {
    sums[i] = static_cast<float>(random() % 1000);
    steps[i] = std::ldexp(1.0F + static_cast<float>(random() % 256) / 256, -6 + static_cast<int>(random() % 4));
    inverses[i] = 1 / steps[i];
    zeros[i] = static_cast<int8_t>(random());
  }
  kernels.add_squares(finite_row, n, sums.data());
  outcome.Add(sums);
  std::vector<uint8_t> codes(n), packed((n + 1) / 2);
  kernels.to_int8(finite_row, inverses.data(), n, codes.data());
  outcome.Add(codes);
  values_of([&](RawValue* to) { kernels.from_int8(codes.data(), steps.data(), n, to); });
  values_of([&](RawValue* to) { kernels.from_even_int8(codes.data(), steps[0], n, to); });
  values_of([&](RawValue* to) { kernels.from_any_int8(codes.data(), steps.data(), n, to); });
  kernels.to_fp8(finite_row, inverses.data(), n, codes.data());
  outcome.Add(codes);
  values_of([&](RawValue* to) { kernels.from_fp8(codes.data(), steps.data(), n, to); });
  values_of([&](RawValue* to) { kernels.from_even_fp8(codes.data(), steps[0], n, to); });
  kernels.to_int4(finite_row, inverses.data(), zeros.data(), n, packed.data());
  outcome.Add(packed);
  values_of([&](RawValue* to) { kernels.from_int4(packed.data(), steps.data(), zeros.data(), n, to); });
  // Values of any size and inverses up to the largest that there are: products that no code says, infinite ones among them.
  std::vector<uint8_t> large(2 * n + 1);
  for (size_t i = 0; i < n; ++i) {
    uint16_t bits = values[i] & 0xfbff;  // finite in bf16 and fp16
    std::memcpy(large.data() + 1 + 2 * i, &bits, sizeof bits);
    inverses[i] = std::ldexp(1.0F + static_cast<float>(random() % 256) / 256, static_cast<int>(random() % 127));
  }
  const auto* large_row = reinterpret_cast<const RawValue*>(large.data() + 1);
  kernels.to_int4(large_row, inverses.data(), zeros.data(), n, packed.data());
  outcome.Add(packed);
  kernels.to_fp8(large_row, inverses.data(), n, codes.data());
  outcome.Add(codes);
  // Any bytes decode to the same, too, and to finite values.
  for (auto& code : codes) code = static_cast<uint8_t>(random());
  for (float& step : steps) step = random() % 3 == 0 ? 3e37F : step;
  values_of([&](RawValue* to) { kernels.from_any_int8(codes.data(), steps.data(), n, to); });
  return outcome;
}

TEST_CASE("Kernels give the same bits by every instruction set") {
  const auto seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (const Element element : {Element::kBf16, Element::kFp16}) {
    const std::vector<Kernels> variants = SupportedKernels(element);
    REQUIRE(variants.back().name == "baseline");
    for (const std::string_view name : {"avx512", "avx2"}) {
      const auto of_name = [&](const Kernels& variant) { return variant.name == name; };
      if (std::none_of(variants.begin(), variants.end(), of_name)) WARN("not run, this CPU hasn't got it: " << name);
    }
    for (size_t length = 1; length < 200; ++length) {
      std::vector<uint16_t> values(length);
      for (auto& value : values) value = static_cast<uint16_t>(random());
      const uint64_t steps = random();
      const Outcome expected = Run(variants.back(), values, steps);
      for (const Kernels& variant : variants) {
        INFO("variant " << variant.name << " length " << length);
        CHECK(Run(variant, values, steps) == expected);
      }
    }
  }
}

// A group's outlier is kept exact beside its codes, but has one: of the value that is nearest.
TEST_CASE("Kernels to_int4 gives the nearest code when a value is far outside of the group's range") {
  for (const Element element : {Element::kBf16, Element::kFp16}) {
    for (const Kernels& variant : SupportedKernels(element)) {
      for (const float inverse : {0x1p10F, 0x1p13F, 0x1p14F, 0x1p15F, 0x1p20F, 0x1p126F}) {
        INFO("variant " << variant.name << " inverse " << inverse);
        constexpr size_t kChannels = 40;
        std::vector<uint16_t> values(kChannels);
        for (size_t i = 0; i < kChannels; ++i) {
          const float value = i % 2 == 0 ? -1200.0F : 1200.0F;
          values[i] = element == Element::kBf16 ? Bf16::FromFloat(value) : Fp16::FromFloat(value);
        }
        const std::vector<float> inverses(kChannels, inverse);
        std::vector<int8_t> zeros(kChannels);
        for (size_t i = 0; i < kChannels; ++i) zeros[i] = static_cast<int8_t>(i % 4 < 2 ? -126 : 126);
        std::vector<uint8_t> packed(kChannels / 2), expected(kChannels / 2);
        for (size_t i = 0; i < expected.size(); ++i) expected[i] = i % 2 == 0 ? 0 : 0xff;
        variant.to_int4(reinterpret_cast<const RawValue*>(values.data()), inverses.data(), zeros.data(), kChannels,
                        packed.data());
        CHECK(packed == expected);
      }
    }
  }
}

TEST_CASE("KernelsFor takes the widest variant") {
  for (const Element element : {Element::kBf16, Element::kFp16})
    CHECK(KernelsFor(element).name == SupportedKernels(element).front().name);
}

}  // namespace
}  // namespace kvist::codec

#include "cuda/nontemporal_copy.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <random>
#include <vector>

namespace kvist::cuda {
namespace {

using CopyFunction = void (*)(std::byte*, const std::byte*, size_t, const std::byte*);

// Whether `copy` of `length` bytes between these misalignments does what memcpy does, and nothing around it.
bool CopiesExactly(CopyFunction copy, const std::vector<std::byte>& source, size_t from, size_t to, size_t length,
                   const std::byte* next) {
  constexpr size_t kAround = 192;
  std::vector<std::byte> expected(to + length + 2 * kAround, std::byte{0xa5});
  std::vector<std::byte> found = expected;
  std::memcpy(expected.data() + kAround + to, source.data() + from, length);
  copy(found.data() + kAround + to, source.data() + from, length, next);
  FenceNontemporal();
  return found == expected;
}

TEST_CASE("CopyNontemporal copies any length between any alignments and writes nothing else") {
  std::mt19937_64 rng(7);
  std::vector<std::byte> source(80000);
  for (std::byte& b : source) b = static_cast<std::byte>(rng());
  for (const NontemporalVariant& variant : SupportedNontemporalVariants()) {
    INFO("variant " << variant.name);
    bool exact = true;
    for (size_t length = 0; length <= 700; ++length) {
      for (const size_t to : {size_t{0}, size_t{1}, size_t{31}, size_t{63}}) {
        exact = exact && CopiesExactly(variant.copy, source, rng() % 64, to, length, nullptr);
      }
    }
    for (const size_t length : {4095, 4096, 4097, 4099, 4160, 4400, 8192, 16384, 65535, 65536}) {
      for (size_t to = 0; to < 64; ++to) {
        const size_t from = rng() % 64;
        // One that runs on and one that jumps take different ways.
        exact = exact && CopiesExactly(variant.copy, source, from, to, length, source.data() + from + length);
        exact = exact && CopiesExactly(variant.copy, source, from, to, length, source.data());
      }
    }
    CHECK(exact);
  }
}

TEST_CASE("CopyNontemporal takes the widest variant, fetching ahead to where it is fastest, and only prefetches next") {
  REQUIRE(!SupportedNontemporalVariants().empty());
  const std::string_view chosen = SupportedNontemporalVariants().front().name;
  CHECK(chosen.starts_with(__builtin_cpu_supports("avx512f") ? "avx512" : __builtin_cpu_supports("avx2") ? "avx2" : "sse2"));
  // The other takes twice the time on a Xeon, and a tenth more on an EPYC.
  CHECK(chosen.ends_with(__builtin_cpu_is("amd") ? "near" : "L2"));
  CHECK(SupportedNontemporalVariants().back().name.starts_with("sse2"));  // every x86-64 has it
  std::vector<std::byte> source(8192, std::byte{3}), to(8192);
  CopyNontemporal(to.data(), source.data(), source.size(), reinterpret_cast<const std::byte*>(uintptr_t{0x10}));
  FenceNontemporal();
  CHECK(to == source);
}

}  // namespace
}  // namespace kvist::cuda

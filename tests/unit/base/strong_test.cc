#include "storage/base/strong.h"

#include <catch2/catch.hpp>
#include <cstdint>
#include <type_traits>

#include "storage/base/ids.h"
#include "storage/base/units.h"

namespace kvist {
namespace {

template <class A, class B>
concept Adds = requires(A a, B b) {
  a + b;
};
template <class A, class B>
concept Subtracts = requires(A a, B b) {
  a - b;
};
template <class A, class B>
concept Accumulates = requires(A a, B b) {
  a += b;
};
template <class A, class B>
concept Compares = requires(A a, B b) {
  a < b;
};
template <class A, class B>
concept Equates = requires(A a, B b) {
  a == b;
};
template <class A, class B>
concept Multiplies = requires(A a, B b) {
  a* b;
};
template <class A, class B>
concept Divides = requires(A a, B b) {
  a / b;
};

// What a size can do with its own kind.
static_assert(Adds<Bytes, Bytes> && Subtracts<Bytes, Bytes> && Accumulates<Bytes, Bytes> && Compares<Bytes, Bytes>);
static_assert(Multiplies<Bytes, uint64_t> && Multiplies<uint64_t, Bytes> && Divides<Bytes, uint64_t>);
static_assert(std::is_same_v<decltype(Bytes{} / Bytes{}), uint64_t>,
              "how many times one fits in the other is a plain count");

// A count, a size and a position don't mix.
static_assert(!Adds<Bytes, uint64_t> && !Adds<uint64_t, Bytes> && !Subtracts<Bytes, uint64_t> &&
              !Accumulates<Bytes, uint64_t>);
static_assert(!Adds<Bytes, Tokens> && !Subtracts<Bytes, Tokens> && !Accumulates<Bytes, Tokens>);
static_assert(!Compares<Bytes, Tokens> && !Equates<Bytes, Tokens> && !Compares<Bytes, uint64_t> &&
              !Equates<Bytes, uint64_t>);
static_assert(!Multiplies<Bytes, Bytes> && !Multiplies<Bytes, Tokens> && !Divides<Bytes, Tokens>);
static_assert(Adds<ByteOffset, Bytes> && std::is_same_v<decltype(ByteOffset{} + Bytes{}), ByteOffset>);
static_assert(!Adds<Bytes, ByteOffset> && !Adds<ByteOffset, ByteOffset> && !Equates<ByteOffset, Bytes>);

// Nothing turns into another kind, or into or out of a number, unless it is written out.
static_assert(!std::is_convertible_v<uint64_t, Bytes> && !std::is_convertible_v<Bytes, uint64_t>);
static_assert(!std::is_convertible_v<Bytes, Tokens> && !std::is_convertible_v<Bytes, ByteOffset>);
static_assert(!std::is_constructible_v<Bytes, Tokens> && !std::is_constructible_v<ByteOffset, Bytes>);

// Identifiers have no arithmetic and are of one kind each.
static_assert(!Adds<SessionId, SessionId> && !Adds<Rank, int> && !Multiplies<PageId, uint64_t>);
static_assert(Equates<SessionId, SessionId> && !Equates<SessionId, InstanceId> && !Equates<Rank, GroupId>);
static_assert(!Equates<Rank, int> && !std::is_convertible_v<Rank, GroupId> && !std::is_convertible_v<uint16_t, Rank>);
static_assert(!Equates<SlotRef, LeaseId> && !std::is_convertible_v<SlotRef, OpId>);
static_assert(!Equates<ChunkKey, SpaceDigest> && !std::is_convertible_v<ChunkKey, SpaceDigest>);

// They cost what the number costs.
static_assert(sizeof(Bytes) == 8 && sizeof(Tokens) == 4 && sizeof(Rank) == 2 && sizeof(SlotRef) == 8 &&
              sizeof(ChunkKey) == 32);
static_assert(std::is_trivially_copyable_v<Bytes> && std::is_trivially_copyable_v<SlotRef>);

TEST_CASE("Quantities compute in their unit") {
  CHECK(KiB(1) + KiB(3) == KiB(4));
  CHECK(MiB(1) - KiB(1) == KiB(1023));
  CHECK(GiB(1) / MiB(3) == 341);
  CHECK(GiB(1) / 4 == MiB(256));
  CHECK(3 * KiB(2) == KiB(2) * 3);
  CHECK(ByteOffset{100} + KiB(1) == ByteOffset{1124});
  CHECK(KiB(1) < MiB(1));
}

TEST_CASE("AlignUp goes to the next multiple and stays on one") {
  CHECK(AlignUp(Bytes{0}, KiB(4)) == Bytes{0});
  CHECK(AlignUp(Bytes{1}, KiB(4)) == KiB(4));
  CHECK(AlignUp(KiB(4), KiB(4)) == KiB(4));
  CHECK(AlignUp(Bytes{4097}, KiB(4)) == KiB(8));
}

TEST_CASE("Handle packs into 64 bits and back, and only generation 0 is no handle") {
  const SlotRef slot{.index = 0xdeadbeef, .generation = 0x80000001};
  CHECK(SlotRef::Unpack(slot.Pack()) == slot);
  CHECK(slot.Pack() == 0x80000001'deadbeefull);
  CHECK(slot);
  CHECK_FALSE(SlotRef{});
  CHECK_FALSE(SlotRef{.index = 5, .generation = 0});
}

}  // namespace
}  // namespace kvist

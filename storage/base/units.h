#ifndef KVIST_STORAGE_BASE_UNITS_H_
#define KVIST_STORAGE_BASE_UNITS_H_

#include <cstdint>

#include "storage/base/strong.h"

namespace kvist {

// Sizes and positions. A byte size, a byte position and a count of anything else never convert into each other.
using Bytes = Quantity<struct BytesTag>;  // a length in bytes
using Tokens = Quantity<struct TokensTag, uint32_t>;
using ByteOffset = Id<struct ByteOffsetTag, uint64_t>;  // a position in a file, region or mapping

constexpr Bytes KiB(uint64_t n) { return {n << 10}; }
constexpr Bytes MiB(uint64_t n) { return {n << 20}; }
constexpr Bytes GiB(uint64_t n) { return {n << 30}; }

constexpr ByteOffset operator+(ByteOffset at, Bytes length) { return {at.value + length.value}; }

// Rounds up to a multiple of `unit`, which is a power of two.
constexpr Bytes AlignUp(Bytes n, Bytes unit) { return {(n.value + unit.value - 1) & ~(unit.value - 1)}; }

// The unit of direct I/O and of memory protection; slots, headers and mappings are multiples of it.
inline constexpr Bytes kPageOfMemory = KiB(4);

}  // namespace kvist

#endif  // KVIST_STORAGE_BASE_UNITS_H_

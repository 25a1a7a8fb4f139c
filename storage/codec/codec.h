#ifndef KVIST_STORAGE_CODEC_CODEC_H_
#define KVIST_STORAGE_CODEC_CODEC_H_

#include <cstddef>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/base/units.h"
#include "storage/codec/method.h"
#include "storage/codec/shape.h"

// A shard's payload into fewer bytes that say of themselves how to get it back (format.h).
//
// Threads: any; nothing is kept from one call to the next. They have the floating-point state that threads begin with (MXCSR: rounding to the
//   nearest, neither DAZ nor FTZ): by another one lossy methods may give other bits, and values beyond their bounds. Scratch memory is some
//   times a matrix's; it follows from the shape, never from bytes that are decoded.
namespace kvist::codec {

// The most bytes that a shard of this shape can take. Whatever the method, it covers kLossless, too.
// Errors: InvalidArgument  the shape or the parameters; a lossy method for opaque bytes.
absl::StatusOr<Bytes> EncodedBound(Method method, const Parameters& parameters, const Shape& shape);

struct Encoded {
  Method method{};  // kLossless, whatever was asked, when a value is infinite or not a number
  Bytes bytes{};    // from the beginning of `out`
};

// Encodes a shard.
//
// Shape:   payload as `shape` says. Alignment: any.
// Values:  a lossy method takes finite values only. A shard with an infinity or a NaN is encoded lossless, and the result and the header say
//   so: one such shard doesn't end the job of compressing a million. Groups with steps below 2^-126 become 0, and those that are
//   32 octaves below their matrix's largest are coarser than others (scaled.h, int4.h).
// Owns:    both areas are the caller's; they don't overlap.
// Errors:  InvalidArgument  the shape or the parameters; a payload of another size; an `out` of less than EncodedBound; a lossy method for
//   opaque bytes.
absl::StatusOr<Encoded> Encode(Method method, const Parameters& parameters, const Shape& shape,
                               std::span<const std::byte> payload, std::span<std::byte> out);

// What encoded bytes say of themselves.
struct Description {
  Method method{};
  Parameters parameters;
  Shape shape;
  Bytes encoded{};  // all of it, header and directory too; at most EncodedBound
};
// `encoded`: its first kDescribed bytes at least.
// Errors: DataLoss  it is no header, or a damaged one.  FailedPrecondition  of a format version or a method that this version doesn't know.
inline constexpr Bytes kDescribed{96};
absl::StatusOr<Description> Describe(std::span<const std::byte> encoded);

// Gives the shard back: bit for bit what it was when the method is lossless, else within the error that the method's header names (scaled.h,
// int4.h; anchored.h aims at one and promises none).
//
// Shape:   `encoded` is all of it and nothing more; `shape` is what the caller knows the shard to be; out.size() == shape.bytes().
// Errors:  InvalidArgument  the shape, or `out` isn't of its size.
//   DataLoss  the bytes are damaged, or of a shard of another shape; `out` holds anything.
//   FailedPrecondition  as Describe: another version of kvist reads it.
absl::Status Decode(std::span<const std::byte> encoded, const Shape& shape, std::span<std::byte> out);

}  // namespace kvist::codec

#endif  // KVIST_STORAGE_CODEC_CODEC_H_

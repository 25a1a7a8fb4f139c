#ifndef KVIST_STORAGE_CODEC_DISTORTION_H_
#define KVIST_STORAGE_CODEC_DISTORTION_H_

#include <cstddef>
#include <span>

#include "storage/codec/shape.h"

namespace kvist::codec {

// How far values are from what they were: the norm of the difference over the norm of the values.
struct Distortion {
  double relative = 0;     // of all values
  double worst_layer = 0;  // the largest of a layer's
};

// `shape`: valid, of bf16 or fp16. Both have shape.bytes(). A value whose bits are the same is no difference, whatever it is; else one
// that isn't finite makes the distortion infinite. Where all values were 0 and aren't any more it is infinite, too.
// Threads: any.
Distortion Measure(const Shape& shape, std::span<const std::byte> original, std::span<const std::byte> decoded);

}  // namespace kvist::codec

#endif  // KVIST_STORAGE_CODEC_DISTORTION_H_

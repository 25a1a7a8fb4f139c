#ifndef KVIST_STORAGE_CODEC_ATTENTION_H_
#define KVIST_STORAGE_CODEC_ATTENTION_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "storage/codec/shape.h"

namespace kvist::codec {

// What is asked of each layer: so many of its heads, evenly spread, by so many queries each.
struct AttentionProbe {
  uint32_t head_channels = 0;  // divides the shape's channels; 0: LikelyHeadChannels
  uint32_t heads = 0;          // at most; 0: all
  uint32_t queries = 4;
};

// How far softmax(q K^T / sqrt(head_channels)) V is from what it was, as the norm of the difference over the norm: what an engine that reads the
// decoded values computes. Queries are random, N(0, 1), the same each time. Infinite where it isn't a number any more. Nothing: there are
// no keys and values of 16-bit floats side by side (MLA, states, opaque).
// `shape`: valid. Both have shape.bytes(). Threads: any. Takes some 4 * queries of multiplications for each value of the heads that are asked.
std::optional<double> AttentionError(const Shape& shape, std::span<const std::byte> original,
                                     std::span<const std::byte> decoded, const AttentionProbe& probe);

// A shape doesn't say how its channels are split into heads: 128 of them where that divides them, else the largest power of two below that does,
// unless that is less than 16; then all are one head.
uint32_t LikelyHeadChannels(const Shape& shape);

}  // namespace kvist::codec

#endif  // KVIST_STORAGE_CODEC_ATTENTION_H_

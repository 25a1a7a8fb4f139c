#ifndef KVIST_STORAGE_CODEC_TWINS_H_
#define KVIST_STORAGE_CODEC_TWINS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "storage/codec/shape.h"

// Which rows of a matrix are of the same token, without anybody telling the tokens.
//
// In a model's first layer what isn't a key is a function of the token alone: where a prompt says a token again, its row is there again, bit for
// bit. In the layers behind, rows of one token are no longer equal but alike, and the one before is a better guess than any mean.
// (Keys are turned by their position from the first layer on.) Shards of later layers alone have no equal rows: then nobody is a twin.
namespace kvist::codec {

// What kind of row each token has: a number, by the order in which kinds come first, so that 0 1 0 2 1 is one and 0 2 is none.
using Kind = uint16_t;
inline constexpr uint32_t kNoTwin = UINT32_MAX;

// The matrix that tells of `matrix`: of the same page and tile, in the first layer, the first segment that isn't of keys; itself when there is none.
uint64_t TellerOf(const Shape& shape, uint64_t matrix);

// [token] The kinds of a matrix's rows. Empty when fewer than an eighth of the tokens come again: it wouldn't pay.
std::vector<Kind> KindsOfRows(const Shape& shape, std::span<const std::byte> payload, uint64_t matrix);

// [token] The last token before it of the same kind, or kNoTwin. False: `kinds` aren't numbered in their order, and `twins` holds anything.
bool FindTwins(std::span<const Kind> kinds, std::vector<uint32_t>* twins);

}  // namespace kvist::codec

#endif  // KVIST_STORAGE_CODEC_TWINS_H_

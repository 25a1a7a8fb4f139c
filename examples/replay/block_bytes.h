#ifndef KVIST_EXAMPLES_REPLAY_BLOCK_BYTES_H_
#define KVIST_EXAMPLES_REPLAY_BLOCK_BYTES_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace kvist::replay {

// What a piece of the KV cache holds: the bytes of one segment (K or V) of one page of one layer of a block.
//
// Every piece says whose it is and can be checked without keeping a copy. It begins with this name; the rest is a stream that the name
// seeds. The key word makes it the content of that prefix alone, as real KV would be.
//
//   | 0 magic | 8 hash_id | 16 key_word | 24 block | 28 page | 30 layer, segment | 32 stream ...
struct PieceName {
  uint64_t magic = kMagic;
  uint64_t hash_id = 0;   // of the block in the trace
  uint64_t key_word = 0;  // the first 8 bytes of its chunk key
  uint32_t block = 0;     // its place in its request, from 0
  uint16_t page = 0;      // of the block
  uint8_t layer = 0;
  uint8_t segment = 0;

  static constexpr uint64_t kMagic = 0x3130'7961'6c70'6572;  // "replay01"
  bool operator==(const PieceName&) const = default;
};
static_assert(sizeof(PieceName) == 32, "the name is written as it lies in memory: no padding");

// The tokens of a block: the id decides them all, and equal ids get equal ones.
void MakeTokens(uint64_t hash_id, std::span<uint32_t> tokens);

// Writes the piece of that name. `piece` is a multiple of 8 bytes long, and longer than its name.
void FillPiece(const PieceName& name, std::span<std::byte> piece);

// Overwrites bytes with what no piece holds, so that those which are never written are seen.
void Poison(std::span<std::byte> bytes);

// How many bytes of `piece` aren't what FillPiece would have written.
uint64_t WrongBytes(const PieceName& name, std::span<const std::byte> piece);

// "block 7 (hash id 4711), page 2, layer 0, segment 1"
std::string DescribeName(const PieceName& name);

// Whose bytes these are, as far as they tell: the name of their owner, and how much of them is damaged, or "never written", ...
std::string DescribeOwner(std::span<const std::byte> piece);

}  // namespace kvist::replay

#endif  // KVIST_EXAMPLES_REPLAY_BLOCK_BYTES_H_

#include "examples/replay/block_bytes.h"

#include <array>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace kvist::replay {
namespace {

constexpr size_t kWord = sizeof(uint64_t);
constexpr uint64_t kPoison = 0xdbdb'dbdb'dbdb'dbdb;

// The mixing step of wyrand (public domain, Wang Yi): one 64 x 64 multiplication for 8 bytes, and each word needs only its own
// position, so that a processor computes several at once.
constexpr uint64_t kStep = 0xa076'1d64'78bd'642f;
constexpr uint64_t kFold = 0xe703'7ed1'a0b4'28db;

uint64_t Mix(uint64_t state) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(state) * (state ^ kFold);
  return static_cast<uint64_t>(product >> 64) ^ static_cast<uint64_t>(product);
}

using NameWords = std::array<uint64_t, sizeof(PieceName) / kWord>;

NameWords WordsOf(const PieceName& name) {
  NameWords words;
  std::memcpy(words.data(), &name, sizeof name);
  return words;
}

uint64_t SeedOf(const NameWords& words) {
  uint64_t seed = kStep;
  for (const uint64_t word : words) seed = Mix((seed ^ word) + kStep);
  return seed;
}

uint64_t Load(const std::byte* at) {
  uint64_t word;
  std::memcpy(&word, at, kWord);
  return word;
}

void Store(std::byte* at, uint64_t word) { std::memcpy(at, &word, kWord); }

uint64_t DifferentBytes(uint64_t difference) {
  uint64_t count = 0;
  for (; difference != 0; difference >>= 8) count += (difference & 0xff) != 0;
  return count;
}

}  // namespace

void MakeTokens(uint64_t hash_id, std::span<uint32_t> tokens) {
  uint64_t state = Mix(hash_id + kFold);
  for (uint32_t& token : tokens) token = static_cast<uint32_t>(Mix(state += kStep));
}

void FillPiece(const PieceName& name, std::span<std::byte> piece) {
  const NameWords words = WordsOf(name);
  std::memcpy(piece.data(), words.data(), sizeof words);
  uint64_t state = SeedOf(words);
  for (size_t at = sizeof words; at < piece.size(); at += kWord) Store(piece.data() + at, Mix(state += kStep));
}

void Poison(std::span<std::byte> bytes) { std::memset(bytes.data(), static_cast<int>(kPoison & 0xff), bytes.size()); }

uint64_t WrongBytes(const PieceName& name, std::span<const std::byte> piece) {
  const NameWords words = WordsOf(name);
  uint64_t difference = 0;
  for (size_t i = 0; i < words.size(); ++i) difference |= Load(piece.data() + i * kWord) ^ words[i];
  const uint64_t seed = SeedOf(words);
  uint64_t state = seed;
  for (size_t at = sizeof words; at < piece.size(); at += kWord) difference |= Load(piece.data() + at) ^ Mix(state += kStep);
  if (difference == 0) return 0;
  // Rare: count them.
  uint64_t wrong = 0;
  for (size_t i = 0; i < words.size(); ++i) wrong += DifferentBytes(Load(piece.data() + i * kWord) ^ words[i]);
  state = seed;
  for (size_t at = sizeof words; at < piece.size(); at += kWord) {
    wrong += DifferentBytes(Load(piece.data() + at) ^ Mix(state += kStep));
  }
  return wrong;
}

std::string DescribeName(const PieceName& name) {
  return absl::StrCat("block ", name.block, " (hash id ", name.hash_id, "), page ", name.page, ", layer ", name.layer,
                      ", segment ", name.segment);
}

std::string DescribeOwner(std::span<const std::byte> piece) {
  PieceName name;
  std::memcpy(&name, piece.data(), sizeof name);
  if (name.magic == kPoison) return "never written";
  if (name.magic != PieceName::kMagic) return "no page of a replay, or its name is damaged";
  const uint64_t wrong = WrongBytes(name, piece);
  return absl::StrCat(DescribeName(name), wrong == 0 ? "" : absl::StrCat(", with ", wrong, " damaged bytes"));
}

}  // namespace kvist::replay

// Row 33 of the fault matrix: tokens and keys that were chosen so that somebody hits what isn't theirs. Keys are SHA-256 over whole
// prefixes, compared in full; so there are no equal keys and no cross hits over a corpus made against weaker schemes.
#include <catch2/catch.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/campaign.h"
#include "tests/support/daemon_process.h"
#include "tests/support/fake_engine.h"
#include "tests/support/temp_dir.h"

using kvist::test::DaemonProcess;
using kvist::test::FakeEngine;
using kvist::test::FullCampaign;
using kvist::test::TempDir;

namespace {

using Tokens = std::vector<uint32_t>;
using Key = std::array<uint8_t, sizeof(kvist_key)>;

std::vector<kvist_key> KeysOf(const Tokens& tokens, uint32_t chunk_tokens) {
  kvist::Chain chain(chunk_tokens);
  chain.Append(tokens);
  return {chain.keys().begin(), chain.keys().end()};
}

Key AsKey(const kvist_key& key) {
  Key bytes;
  std::memcpy(bytes.data(), &key, bytes.size());
  return bytes;
}

// XXH3's 64-bit hash of 32 bytes without a seed (the specification's "17 to 128 bytes"), which others name chunks by.
constexpr std::array<uint64_t, 4> kXxh3Secret = {0xbe4ba423396cfeb8, 0x1cad21f72c81017c, 0xdb979083e96dd4de,
                                                 0x1f67b3b7a4a44072};
uint64_t MulFold(uint64_t a, uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = Wide{a} * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}
uint64_t Xxh3(const Tokens& eight) {
  REQUIRE(eight.size() == 8);
  std::array<uint64_t, 4> words{};
  std::memcpy(words.data(), eight.data(), sizeof words);
  uint64_t hash = 32 * 0x9e3779b185ebca87;
  hash += MulFold(words[0] ^ kXxh3Secret[0], words[1] ^ kXxh3Secret[1]);
  hash += MulFold(words[2] ^ kXxh3Secret[2], words[3] ^ kXxh3Secret[3]);
  hash ^= hash >> 37;
  hash *= 0x165667919e3779f9;
  return hash ^ (hash >> 32);
}

// Blocks of eight tokens that XXH3 can't tell apart: the first two are its public secret, so their half of the product is zero
// whatever the next two are.
std::pair<Tokens, Tokens> Xxh3Pair(std::mt19937* random) {
  Tokens one(8);
  for (uint32_t& token : one) token = static_cast<uint32_t>((*random)());
  one[0] = static_cast<uint32_t>(kXxh3Secret[0]);
  one[1] = static_cast<uint32_t>(kXxh3Secret[0] >> 32);
  Tokens other = one;
  other[2] ^= 1 + static_cast<uint32_t>((*random)() % 0xffff);
  other[3] = static_cast<uint32_t>((*random)());
  return {one, other};
}

// Calls f with every sequence of `length` tokens below `alphabet`.
template <class F>
void ForEachSequence(uint32_t alphabet, size_t length, F f) {
  Tokens tokens(length);
  while (true) {
    f(tokens);
    size_t at = 0;
    while (at < length && ++tokens[at] == alphabet) tokens[at++] = 0;
    if (at == length) return;
  }
}

}  // namespace

TEST_CASE("Row 33: no two token sequences or boundaries have equal keys") {
  const size_t longest = FullCampaign() ? 11 : 7;
  std::map<Key, std::pair<uint32_t, Tokens>> owners;  // key -> tokens of a chunk, and all tokens up to its end
  uint32_t equal = 0;
  const auto add = [&](const Tokens& tokens, uint32_t chunk_tokens) {
    const auto keys = KeysOf(tokens, chunk_tokens);
    for (size_t i = 0; i < keys.size(); ++i) {
      Tokens prefix(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>((i + 1) * chunk_tokens));
      const std::pair owner(chunk_tokens, std::move(prefix));
      const auto [found, is_new] = owners.emplace(AsKey(keys[i]), owner);
      equal += !is_new && found->second != owner;
    }
  };
  for (const uint32_t chunk_tokens : {1u, 2u, 3u, 4u}) {
    ForEachSequence(3, longest, [&](const Tokens& tokens) { add(tokens, chunk_tokens); });
  }
  // One multiset of tokens in every order: for sums and exclusive-ors they are all the same.
  Tokens order{1, 2, 3, 4, 5, 6, 7, 8};
  do { add(order, 8); } while (std::next_permutation(order.begin(), order.begin() + (FullCampaign() ? 8 : 6)));
  // Tokens whose bytes run into each other.
  for (const uint32_t token : {0u, 1u, 0x100u, 0x10000u, 0x1000000u, 0x80000000u, UINT32_MAX}) {
    for (size_t at = 0; at < 8; ++at) {
      Tokens tokens(8);
      tokens[at] = token;
      add(tokens, 8);
    }
  }
  std::printf("row 33: %zu chunks of chosen tokens and boundaries, equal keys %u\n", owners.size(), equal);
  CHECK(equal == 0);
  CHECK(owners.size() > 3000);
}

TEST_CASE("Row 33: chunks that a weaker hash can't tell apart don't hit each other") {
  CHECK(Xxh3({0x396cfeb8, 0xbe4ba423, 0x41414141, 0x41414141, 0x43434343, 0x43434343, 0x43434343, 0x43434343}) ==
        0x3a863f058db813c2);  // what xxhash's own library says
  const uint32_t pairs = FullCampaign() ? 4096 : 64;
  std::mt19937 random(33);
  TempDir dir;
  DaemonProcess daemon(dir.path(), {"pool.bytes=256MiB", "pool.touch_threads=0"});
  FakeEngine engine(FakeEngine::On(daemon.socket()));
  REQUIRE(engine.status.message == "");
  uint32_t own_hits = 0, cross_hits = 0, equal_hashes = 0;
  for (uint32_t i = 0; i < pairs; ++i) {
    const auto [one, other] = Xxh3Pair(&random);
    equal_hashes += one != other && Xxh3(one) == Xxh3(other);
    const auto stored = KeysOf(one, 8);
    const auto asked = KeysOf(other, 8);
    REQUIRE(engine.StoreAll(stored).status == KVIST_OK);
    own_hits += engine.scheduler().Lookup(stored, 0, 10'000'000).chunks;
    cross_hits += engine.scheduler().Lookup(asked, 0, 10'000'000).chunks;
  }
  CHECK(equal_hashes == pairs);
  // A client may ask for any key, not only such as have tokens: each bit counts.
  const auto stored = engine.Keys(1, 1);
  REQUIRE(engine.StoreAll(stored).status == KVIST_OK);
  for (size_t bit = 0; bit < 8 * sizeof(kvist_key); ++bit) {
    kvist_key near = stored[0];
    near.bytes[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    cross_hits += engine.scheduler().Lookup(std::span(&near, 1), 0, 10'000'000).chunks;
  }
  std::printf("row 33: %u pairs with equal XXH3, %zu keys one bit away: own hits %u, cross hits %u\n", pairs,
              8 * sizeof(kvist_key), own_hits, cross_hits);
  CHECK(own_hits == pairs);
  CHECK(cross_hits == 0);
}

#include "storage/base/chunk_key.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <random>
#include <string>
#include <vector>

namespace kvist {
namespace {

std::string Hex(const ChunkKey& key) {
  std::string hex;
  char digits[3];
  for (uint8_t byte : key.bytes) {
    std::snprintf(digits, sizeof digits, "%02x", byte);
    hex += digits;
  }
  return hex;
}

std::vector<uint32_t> Tokens1To(uint32_t n) {
  std::vector<uint32_t> tokens(n);
  for (uint32_t i = 0; i < n; ++i) tokens[i] = i + 1;
  return tokens;
}

std::vector<ChunkKey> KeysOf(const std::vector<uint32_t>& tokens, uint32_t chunk_tokens = 4, KeyChain::Root root = {}) {
  KeyChain chain(Tokens{chunk_tokens}, root);
  chain.Append(tokens);
  return {chain.keys().begin(), chain.keys().end()};
}

// Computed from the definition in chunk_key.h with another implementation: Python's hashlib and struct.
TEST_CASE("KeyChain gives the keys that its definition says") {
  SECTION("plain") {
    const auto keys = KeysOf(Tokens1To(9));
    REQUIRE(keys.size() == 2);
    CHECK(Hex(keys[0]) == "fc122bd608a749999f615d1fd27fc13a0f736013b81c89a4fdee238c0c997d6d");
    CHECK(Hex(keys[1]) == "44fec46e54464708df870022e0a33722b374715fa0be30bd459013f57b7d1795");
  }
  SECTION("the default chunk, all bits of a token") {
    std::vector<uint32_t> tokens(600);
    for (uint32_t i = 0; i < 600; ++i) tokens[i] = i * 2654435761u;
    const auto keys = KeysOf(tokens, 256);
    REQUIRE(keys.size() == 2);
    CHECK(Hex(keys[0]) == "399e300d568e33ca465bea84aa00af43c68ea9d00c0c2a46d37dc967a891942d");
    CHECK(Hex(keys[1]) == "e84366a0feaa5c3a6bb71d85bebe7dc8e590029ff1c7cd0fbdfb4f5f12cb799d");
  }
  SECTION(
      "chunks whose message takes its memory as it comes, with a token's and the padding's last byte before, at and behind "
      "64 KiB") {
    const std::pair<uint32_t, const char*> second_keys[] = {
        {16372, "6ef72b25342f561d57f51f42737b3bff976c5297fd5f8e246763951300c17c9b"},
        {16373, "440dd520797ba3ba15a0f66f006442c472261f09468c0b38f5de3a2c16345529"},
        {16374, "770d11a1bae9ed080d633fc95ae0d9f0c00507a24846b5019d7b43b4b736a6ef"},
        {100000, "43ca5bb4b085d6e7ed1bcc7236fb31dbcdd9ed38072f8fd26baa1f7a2801f3fe"},
    };
    for (const auto& [chunk_tokens, second] : second_keys) {
      KeyChain chain(Tokens{chunk_tokens}, {});
      for (uint32_t i = 0; i < 2 * chunk_tokens; i += 1000) {
        std::vector<uint32_t> tokens(std::min(1000u, 2 * chunk_tokens - i));
        for (uint32_t t = 0; t < tokens.size(); ++t) tokens[t] = (i + t) * 2654435761u;
        chain.Append(tokens);
      }
      REQUIRE(chain.keys().size() == 2);
      CHECK(Hex(chain.keys()[1]) == second);
    }
  }
  SECTION("LoRA and salt") {
    const auto keys = KeysOf(Tokens1To(4), 4, {.lora = "adapter@7", .salt = "tenant-salt"});
    CHECK(Hex(keys.at(0)) == "f219eed920fe272bc0c73dc874a24924cfba69fc4e811da3913ab2179aabf8fb");
  }
  SECTION("extra keys of the first chunk") {
    KeyChain chain(Tokens{4}, {});
    chain.Append(Tokens1To(2));
    chain.Bind("cat");
    chain.Bind(std::string_view("\0dog", 4));
    chain.Append(std::vector<uint32_t>{3, 4, 5, 6, 7, 8});
    REQUIRE(chain.keys().size() == 2);
    CHECK(Hex(chain.keys()[0]) == "20269cc4d7c324c8af2403da1af54c39881f79d97fce3dcc97c8711521329937");
    CHECK(Hex(chain.keys()[1]) == "9d9faea972ced4a3d622af6d3bd17799cb1715a41d2a03cef77699fe26f6ca3a");
  }
  SECTION("an empty extra key of the second chunk, bound before its first token") {
    KeyChain chain(Tokens{4}, {});
    chain.Append(Tokens1To(4));
    chain.Bind("");
    chain.Append(std::vector<uint32_t>{5, 6, 7, 8});
    REQUIRE(chain.keys().size() == 2);
    CHECK(Hex(chain.keys()[0]) == "fc122bd608a749999f615d1fd27fc13a0f736013b81c89a4fdee238c0c997d6d");
    CHECK(Hex(chain.keys()[1]) == "acdcac0786bb781e14a96be749dde4b39c21aef8f9dd2faa76a7b59544b2caa0");
  }
}

TEST_CASE("KeyChain gives the same keys however the tokens are split") {
  const uint64_t seed = std::random_device{}();
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  for (uint32_t chunk_tokens : {1u, 3u, 16u, 256u}) {
    std::vector<uint32_t> tokens(1000);
    for (uint32_t& token : tokens) token = static_cast<uint32_t>(random());
    const auto whole = KeysOf(tokens, chunk_tokens);
    REQUIRE(whole.size() == tokens.size() / chunk_tokens);
    for (int round = 0; round < 50; ++round) {
      KeyChain chain(Tokens{chunk_tokens}, {});
      const size_t step = 1 + random() % 400;
      for (size_t at = 0; at < tokens.size();) {
        const size_t n = std::min(tokens.size() - at, random() % (step + 1));  // also 0
        chain.Append(std::span(tokens).subspan(at, n));
        at += n;
        REQUIRE(chain.token_count() == at);
        REQUIRE(chain.keys().size() == at / chunk_tokens);
      }
      REQUIRE(std::equal(whole.begin(), whole.end(), chain.keys().begin(), chain.keys().end()));
    }
  }
}

TEST_CASE("KeyChain of chunks that never fill costs what its tokens do") {
  const auto resident_pages = [] {
    std::ifstream statm("/proc/self/statm");
    int64_t size = 0, resident = 0;
    statm >> size >> resident;
    return resident;
  };
  const int64_t before = resident_pages();
  KeyChain chain(Tokens{1 << 26}, {});  // 256 MiB, if it held room for a chunk
  chain.Append(Tokens1To(5));
  CHECK(chain.keys().empty());
  CHECK(resident_pages() - before < (16 << 20) / 4096);
}

TEST_CASE("KeyChain names a chunk by its whole prefix") {
  auto tokens = Tokens1To(12);
  const auto keys = KeysOf(tokens);
  tokens[5] ^= 0x80000000;
  const auto changed = KeysOf(tokens);
  CHECK(changed[0] == keys[0]);
  CHECK(changed[1] != keys[1]);
  CHECK(changed[2] != keys[2]);
}

TEST_CASE("KeyChain separates salts, adapters and extra keys, and no two inputs run into each other") {
  std::vector<ChunkKey> keys;
  const auto add = [&](KeyChain::Root root, std::vector<std::string_view> extra, std::vector<uint32_t> tokens) {
    KeyChain chain(Tokens{4}, root);
    for (std::string_view e : extra) chain.Bind(e);
    chain.Append(tokens);
    REQUIRE(chain.keys().size() == 1);
    keys.push_back(chain.keys()[0]);
  };
  const std::vector<uint32_t> tokens{1, 2, 3, 4};
  add({}, {}, tokens);
  // Moving bytes between fields is another input.
  add({.lora = "ab", .salt = ""}, {}, tokens);
  add({.lora = "", .salt = "ab"}, {}, tokens);
  add({.lora = "a", .salt = "b"}, {}, tokens);
  add({.lora = "b", .salt = "a"}, {}, tokens);
  add({.lora = std::string_view("a\0", 2), .salt = "b"}, {}, tokens);
  add({}, {""}, tokens);
  add({}, {"", ""}, tokens);
  add({}, {"ab"}, tokens);
  add({}, {"a", "b"}, tokens);
  add({}, {"b", "a"}, tokens);
  add({}, {"ab", ""}, tokens);
  add({}, {"", "ab"}, tokens);
  add({}, {std::string_view("a\0\0\0b", 5)}, tokens);
  add({}, {std::string_view("\1\0\0\0a\1\0\0\0b", 10)}, tokens);  // looks like the encoding of {"a", "b"}
  add({}, {}, {4, 3, 2, 1});
  add({}, {}, {0, 0, 0, 0});
  std::sort(keys.begin(), keys.end());
  CHECK(std::adjacent_find(keys.begin(), keys.end()) == keys.end());
}

TEST_CASE("KeyChain binds an extra key to the chunk that is filling and to no earlier one") {
  KeyChain chain(Tokens{4}, {});
  chain.Append(Tokens1To(6));
  chain.Bind("image");
  chain.Append(std::vector<uint32_t>{7, 8, 9, 10, 11, 12});
  const auto plain = KeysOf(Tokens1To(12));
  REQUIRE(chain.keys().size() == 3);
  CHECK(chain.keys()[0] == plain[0]);
  CHECK(chain.keys()[1] != plain[1]);
  CHECK(chain.keys()[2] != plain[2]);  // through its parent

  // Where in the chunk it is bound makes no difference.
  KeyChain earlier(Tokens{4}, {});
  earlier.Append(Tokens1To(4));
  earlier.Bind("image");
  earlier.Append(std::vector<uint32_t>{5, 6, 7, 8, 9, 10, 11, 12});
  CHECK(std::equal(chain.keys().begin(), chain.keys().end(), earlier.keys().begin(), earlier.keys().end()));
}

TEST_CASE("KeyChain goes on after it was moved") {
  KeyChain first(Tokens{4}, {});
  first.Append(Tokens1To(5));
  KeyChain second(std::move(first));
  second.Append(std::vector<uint32_t>{6, 7, 8});
  const auto plain = KeysOf(Tokens1To(8));
  CHECK(std::equal(plain.begin(), plain.end(), second.keys().begin(), second.keys().end()));
  CHECK(second.chunk_tokens() == Tokens{4});
}

}  // namespace
}  // namespace kvist

#include "storage/remote/sealed_object.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "storage/remote/body_cipher.h"
#include "tests/unit/remote/asked.h"

namespace kvist::remote {
namespace {

std::string Hex(std::span<const std::byte> bytes) {
  return absl::BytesToHexString({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

// An object as a store has it, head and body one behind the other.
std::vector<std::byte> Sealed(const ObjectSealer& sealer, const Identity& identity, const ObjectSealer::Said& said,
                              std::span<const std::byte> body) {
  std::vector<std::byte> sealed(sealer.encrypts() ? body.size() : 0);
  const ObjectHeader header = sealer.Seal(identity, said, body, sealed);
  const auto stored = sealer.encrypts() ? std::span<const std::byte>(sealed) : body;
  std::vector<std::byte> object(sizeof header + stored.size());
  std::memcpy(object.data(), &header, sizeof header);
  std::copy(stored.begin(), stored.end(), std::span(object).subspan(sizeof header).begin());
  return object;
}

struct WhatCame {
  Verdict verdict;
  ObjectHeader header;
  std::vector<std::byte> body;
};
WhatCame Open(const ObjectSealer& sealer, const Identity& identity, std::vector<std::byte> object, uint64_t epoch_min = 0) {
  const size_t head = std::min(object.size(), sizeof(ObjectHeader));
  WhatCame opened{};
  opened.verdict =
      sealer.Open(identity, epoch_min, std::span(object).first(head), std::span(object).subspan(head), &opened.header);
  opened.body.assign(object.begin() + static_cast<ptrdiff_t>(head), object.end());
  return opened;
}

TEST_CASE("The format of objects is what it was") {
  const ObjectSealer sealer({SecretOf(0x5a), false});
  ObjectSealer::Said said{7, {}};
  for (size_t i = 0; i < said.label.size(); ++i) said.label[i] = static_cast<std::byte>(i);
  const auto body = Pattern(40, 1);
  const auto object = Sealed(sealer, IdentityOf(9), said, body);
  std::string text = absl::StrCat("name ", sealer.NameOf(IdentityOf(9)), "\n");
  for (size_t at = 0; at < object.size(); at += 8) absl::StrAppend(&text, Hex(std::span(object).subspan(at, 8)), "\n");
  std::ifstream golden(KVIST_GOLDEN_DIR "/object.txt");
  std::stringstream expected;
  expected << golden.rdbuf();
  CHECK(text == expected.str());
}

TEST_CASE("Hmac is HMAC-SHA256, and the cipher AES-256-GCM") {
  // RFC 4231, test case 2: a key that is padded with zeros anyway.
  Secret secret{};
  std::memcpy(secret.data(), "Jefe", 4);
  const std::string text = "what do ya want for nothing?";
  const auto bytes = std::as_bytes(std::span(text));
  const auto digest = Hmac(secret, bytes.first(10), bytes.subspan(10));
  CHECK(Hex(std::as_bytes(std::span(digest))) == "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  // The GCM specification's test case 14.
  std::vector<std::byte> body(16);
  const Tag tag = Encrypt(Secret{}, Nonce{}, {}, body, body);
  CHECK(Hex(body) == "cea7403d4d606b6e074ec5d3baf39d18");
  CHECK(Hex(std::as_bytes(std::span(tag))) == "d0d1c8a799996bf0265b98b5d48ab919");
  CHECK(Decrypt(Secret{}, Nonce{}, tag, {}, body));
  CHECK(body == std::vector<std::byte>(16));
}

TEST_CASE("ObjectSealer opens what it has sealed, and says what was said") {
  const bool encrypt = GENERATE(false, true);
  const size_t size = GENERATE(size_t{0}, size_t{1}, size_t{4096}, size_t{100'001});
  const ObjectSealer sealer({SecretOf(1), encrypt});
  const auto body = Pattern(size, 3);
  ObjectSealer::Said said{12, {}};
  said.label[47] = std::byte{5};
  const auto object = Sealed(sealer, IdentityOf(1), said, body);
  const WhatCame opened = Open(sealer, IdentityOf(1), object, 12);
  CHECK(opened.verdict == Verdict::kGood);
  CHECK(opened.body == body);
  CHECK(opened.header.label == said.label);
  CHECK(opened.header.epoch == 12);
  if (encrypt && size > 100) {
    CHECK(std::vector(object.begin() + sizeof(ObjectHeader), object.end()) != body);
    CHECK(Sealed(sealer, IdentityOf(1), said, body) != object);  // another nonce
  }
}

TEST_CASE("ObjectSealer's names tell nothing and everything apart") {
  const ObjectSealer sealer({SecretOf(1), false});
  const Identity identity = IdentityOf(1);
  std::map<std::string, int> names;
  ++names[sealer.NameOf(identity)];
  ++names[sealer.NameOf(IdentityOf(2))];
  Identity other = identity;
  other.group = {3};
  ++names[sealer.NameOf(other)];
  other = identity;
  other.shard = {4};
  ++names[sealer.NameOf(other)];
  other = identity;
  other.space.bytes[31] ^= 1;
  ++names[sealer.NameOf(other)];
  ++names[ObjectSealer({SecretOf(2), false}).NameOf(identity)];
  CHECK(names.size() == 6);
  CHECK(sealer.NameOf(identity) == ObjectSealer({SecretOf(1), true}).NameOf(identity));
  CHECK(sealer.NameOf(identity).size() == 64);
}

TEST_CASE("ObjectSealer takes nothing for what it isn't") {
  const bool encrypt = GENERATE(false, true);
  const ObjectSealer sealer({SecretOf(1), encrypt});
  const auto body = Pattern(64, 3);
  const auto object = Sealed(sealer, IdentityOf(1), {5, {}}, body);
  const auto verdict = [&](std::vector<std::byte> bytes) { return Open(sealer, IdentityOf(1), std::move(bytes)).verdict; };
  REQUIRE(verdict(object) == Verdict::kGood);
  SECTION("of another identity, secret, epoch or cipher") {
    CHECK(Open(sealer, IdentityOf(2), object).verdict == Verdict::kOther);
    CHECK(Open(ObjectSealer({SecretOf(2), encrypt}), IdentityOf(1), object).verdict == Verdict::kForeign);
    CHECK(Open(sealer, IdentityOf(1), object, 6).verdict == Verdict::kStale);
    CHECK(Open(ObjectSealer({SecretOf(1), !encrypt}), IdentityOf(1), object).verdict == Verdict::kCipher);
  }
  SECTION("cut off anywhere, or longer") {
    for (size_t size = 0; size < object.size(); ++size)
      CHECK(verdict(std::vector(object.begin(), object.begin() + static_cast<ptrdiff_t>(size))) == Verdict::kTruncated);
    auto longer = object;
    longer.push_back(std::byte{0});
    CHECK(verdict(longer) == Verdict::kTooLong);
  }
  SECTION("any byte changed") {
    for (size_t at = 0; at < object.size(); ++at) {
      for (const int flip : {1, 128, 255}) {
        auto changed = object;
        changed[at] ^= static_cast<std::byte>(flip);
        const Verdict found = verdict(changed);
        INFO("byte " << at);
        if (at < 8)
          CHECK(found == Verdict::kNoObject);
        else if (at < 12)
          CHECK(found == Verdict::kVersion);
        else if (at < offsetof(ObjectHeader, seal))
          CHECK(found == Verdict::kDamagedHeader);
        else if (at < sizeof(ObjectHeader))
          CHECK(found == Verdict::kForeign);
        else
          CHECK(found == Verdict::kCorrupt);
      }
    }
  }
  SECTION("zeros and noise") {
    CHECK(verdict(std::vector<std::byte>(object.size())) == Verdict::kNoObject);
    CHECK(verdict(Pattern(object.size(), 9)) == Verdict::kNoObject);
  }
}

TEST_CASE("ObjectSealer calls forged what passes for its checksum but not for its tag") {
  const ObjectSealer sealer({SecretOf(1), true});
  const auto body = Pattern(64, 3);
  std::vector<std::byte> sealed(body.size());
  ObjectHeader header = sealer.Seal(IdentityOf(1), {}, body, sealed);
  // A header that is sealed over a body encrypted for another identity: what a holder of the sealing secret alone could make.
  std::vector<std::byte> moved(body.size());
  const ObjectHeader other = sealer.Seal(IdentityOf(2), {}, body, moved);
  ObjectHeader opened;
  std::vector<std::byte> object = moved;
  CHECK(sealer.Open(IdentityOf(1), 0, std::as_bytes(std::span(&header, 1)), object, &opened) == Verdict::kCorrupt);
  CHECK(sealer.Open(IdentityOf(1), 0, std::as_bytes(std::span(&other, 1)), object, &opened) == Verdict::kOther);
  // The cipher itself binds the associated data and the tag.
  std::vector<std::byte> text = body;
  const Nonce nonce{1, 2, 3};
  const auto first = std::as_bytes(std::span("one", 3));
  const auto second = std::as_bytes(std::span("two", 3));
  Tag tag = Encrypt(SecretOf(1), nonce, first, text, text);
  auto copy = text;
  CHECK(!Decrypt(SecretOf(1), nonce, tag, second, copy));
  copy = text;
  CHECK(!Decrypt(SecretOf(2), nonce, tag, first, copy));
  copy = text;
  tag[15] ^= 1;
  CHECK(!Decrypt(SecretOf(1), nonce, tag, first, copy));
}

}  // namespace
}  // namespace kvist::remote

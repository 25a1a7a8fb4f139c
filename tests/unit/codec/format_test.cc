// The format as it was when it was drawn: golden/encoded.txt has small shards encoded by each method, and what each decodes to. A change that
// this test sees makes every encoded shard that exists unreadable, or gives it other values: it needs a new kFormatVersion.
// int8, int4 and fp8 were decoded with a second program, in Python; of bf16 all checksums, too, with the xxhash package of PyPI.
#include "storage/codec/format.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <map>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "tests/unit/codec/values.h"

namespace kvist::codec {
namespace {

// A shard by its name's beginning, and the methods that it is encoded by there.
struct GoldenShard {
  std::string name;
  Shape shape;
  std::vector<Method> methods;
  uint32_t outliers = Parameters::Of(Method::kInt4).outliers;  // int4
  uint32_t said = 0;                                           // so many tokens are said in turn; 0: each once

  Parameters ParametersOf(Method method) const {
    Parameters parameters = Parameters::Of(method);
    if (method == Method::kInt4) parameters.outliers = outliers;
    return parameters;
  }
};

std::vector<GoldenShard> GoldenShards() {
  const Shape bf16{.element = Element::kBf16, .layers = 1, .segments = 2, .keys = 1, .tokens = 65, .channels = 5};
  Shape fp16 = bf16, wide = bf16;
  fp16.element = Element::kFp16;
  wide.tokens = 20;  // too few for bases; groups that end before they are full
  wide.channels = 140;
  Shape two_layers = bf16;
  two_layers.layers = 2;
  const std::vector<Method> all(std::begin(kMethods), std::end(kMethods));
  return {{"", bf16, all},
          {"fp16-", fp16, all},
          {"wide-", wide, {Method::kInt4}, 4096},
          {.name = "twins-", .shape = two_layers, .methods = {Method::kLossless, Method::kStrongest}, .said = 9},
          {"opaque-", {.layers = 2, .channels = 200}, {Method::kLossless}}};
}

// No generator of the library's: others may draw other numbers.
Payload GoldenPayload(const Shape& shape, uint32_t said) {
  Payload payload(shape.bytes().value);
  uint64_t state = 1;
  for (uint64_t i = 0; i < payload.size() / BytesOf(shape.element); ++i) {
    state = state * 6364136223846793005 + 1442695040888963407;
    if (shape.element == Element::kOpaque) {  // a matrix that zstd makes shorter, and one that it doesn't
      payload[i] = static_cast<std::byte>(i < shape.matrix_values() ? i % 7 : state >> 56);
      continue;
    }
    if (const uint64_t token = i / shape.channels % shape.tokens; said != 0 && i % shape.channels == 0) {
      // Where a token begins: values as it had them, keys as nobody has.
      const bool key = shape.IsKey(i / shape.matrix_values());
      state = key ? i : token % said * 1'000'003 + (i / shape.matrix_values()) + 1;
    }
    const auto spread = static_cast<int32_t>(state >> 40) - (1 << 23);  // +-2^23
    const auto size = static_cast<float>(1 + i % shape.channels % 8);
    PutValue(shape.element, &payload, i, static_cast<float>(spread) * 0x1p-23F * size);
  }
  return payload;
}

std::map<std::string, std::string> Lines(const std::string& path) {
  std::map<std::string, std::string> lines;
  std::ifstream file(path);
  for (std::string name, text; file >> name >> text;) lines[name] = absl::HexStringToBytes(text);
  return lines;
}

std::string Text(const Payload& bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }
Payload BytesOfText(const std::string& text) {
  const auto* begin = reinterpret_cast<const std::byte*>(text.data());
  return {begin, begin + text.size()};
}

TEST_CASE("The format is what it was") {
  const std::map<std::string, std::string> golden = Lines(KVIST_GOLDEN_DIR "/encoded.txt");
  size_t lines = 0;
  for (const GoldenShard& shard : GoldenShards()) {
    const Payload payload = GoldenPayload(shard.shape, shard.said);
    for (const Method method : shard.methods) {
      const std::string name = absl::StrCat(shard.name, NameOf(method));
      INFO(name);
      REQUIRE(golden.count(name) == 1);
      const std::string decoded = Text(DecodeAll(shard.shape, BytesOfText(golden.at(name))));
      CHECK(decoded == golden.at(absl::StrCat(name, "-decoded")));
      if (method == Method::kLossless) CHECK(decoded == Text(payload));
      // Another zstd may find fewer bytes for the same.
      if (method != Method::kLossless && method != Method::kStrongest)
        CHECK(Text(EncodeAll(method, shard.ParametersOf(method), shard.shape, payload)) == golden.at(name));
      lines += 2;
    }
  }
  CHECK(lines == golden.size());
}

}  // namespace
}  // namespace kvist::codec

#include "storage/codec/codec.h"

#include <catch2/catch.hpp>
#include <limits>
#include <thread>

#include "storage/codec/distortion.h"
#include "storage/codec/format.h"
#include "storage/codec/twins.h"
#include "tests/unit/codec/values.h"

namespace kvist::codec {
namespace {

// Half of the last bit of a value of this size.
double HalfUlp(Element element, double value) {
  return element == Element::kBf16 ? std::abs(value) / 256 + 1e-40 : std::abs(value) / 2048 + std::ldexp(1.0, -25);
}
const double kCoarser = std::pow(2.0, 0.125) * 1.00001;  // a step of the table beside the one that would do

struct Ends {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  double largest() const { return std::max(std::abs(low), std::abs(high)); }
};

double RangeOf(Method method) { return method == Method::kInt8 ? 127 : method == Method::kInt4 ? 126 : 448; }

// The step that would do for a group.
double WantedStep(Method method, const Ends& ends) {
  const double of_largest = ends.largest() / RangeOf(method);
  return method == Method::kInt4 ? std::max((ends.high - ends.low) / 15, of_largest) : of_largest;
}

// For each value the largest error that its method's header names, given its group's ends and the largest step of the matrix.
double ErrorBound(Method method, double value, const Ends& ends, double top) {
  const double step = std::max(kCoarser * WantedStep(method, ends), top * std::pow(2.0, -255 / 8.0) * 1.00001);
  const double becomes_zero = step < 0x1p-126 * kCoarser ? RangeOf(method) * 0x1p-126 : 0;
  return std::max(method == Method::kFp8 ? std::abs(value) / 16 + step / 1024 : step / 2, becomes_zero);
}

// The largest error over what is allowed.
double WorstOfAllowed(Method method, uint32_t group, const Shape& shape, const Payload& was, const Payload& is) {
  double worst = 0;
  const uint64_t count = shape.matrix_values();
  std::vector<Ends> ends(count);  // of each value's group
  for (uint64_t matrix = 0; matrix < shape.matrices(); ++matrix) {
    const bool key = shape.IsKey(matrix);
    double top = 0;
    for (uint32_t t = 0; t < shape.tokens; ++t) {
      for (uint32_t c = 0; c < shape.channels; ++c) {
        Ends found;
        const uint32_t first = (key ? t : c) / group * group;
        const uint32_t end = std::min(first + group, key ? shape.tokens : shape.channels);
        for (uint32_t i = first; i < end; ++i) {
          const uint64_t at = matrix * count + (key ? uint64_t{i} * shape.channels + c : uint64_t{t} * shape.channels + i);
          found.low = std::min(found.low, ValueAt(shape.element, was, at));
          found.high = std::max(found.high, ValueAt(shape.element, was, at));
        }
        ends[uint64_t{t} * shape.channels + c] = found;
        top = std::max(top, WantedStep(method, found));
      }
    }
    for (uint64_t i = 0; i < count; ++i) {
      const double before = ValueAt(shape.element, was, matrix * count + i);
      const double after = ValueAt(shape.element, is, matrix * count + i);
      const double allowed = ErrorBound(method, before, ends[i], top) + HalfUlp(shape.element, after);
      worst = std::max(worst, std::abs(after - before) / allowed);
    }
  }
  return worst;
}

TEST_CASE("Decode gives lossless shards back bit for bit when they hold any bits at all") {
  const auto seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 150; ++round) {
    const auto element = static_cast<Element>(round % 3);
    const Shape shape = RandomShape(element, &random);
    const bool any = element == Element::kOpaque || round % 2 == 0;
    const Payload payload = any ? AnyBytes(shape, &random) : Gaussian(shape, &random);
    const Payload encoded = EncodeAll(Method::kLossless, shape, payload);
    CHECK(DecodeAll(shape, encoded) == payload);
  }
}

TEST_CASE("Decode gives lossless shards back bit for bit when they are all alike") {
  for (const Element element : {Element::kOpaque, Element::kBf16, Element::kFp16}) {
    const Shape shape{.element = element, .layers = 2, .tokens = 128, .channels = 64};
    for (const auto byte : {std::byte{0}, std::byte{0x7f}, std::byte{0xff}}) {
      const Payload payload(shape.bytes().value, byte);
      const Payload encoded = EncodeAll(Method::kLossless, shape, payload);
      CHECK(encoded.size() < payload.size() / 20);
      CHECK(DecodeAll(shape, encoded) == payload);
    }
  }
}

TEST_CASE("Encode takes a third off bf16 values without loss when channels differ in size") {
  std::mt19937_64 random(3);
  const Shape shape{.element = Element::kBf16, .layers = 2, .segments = 2, .keys = 1, .tokens = 256, .channels = 256};
  const Payload payload = Gaussian(shape, &random);
  const Payload encoded = EncodeAll(Method::kLossless, shape, payload);
  CHECK(static_cast<double>(payload.size()) / static_cast<double>(encoded.size()) > 1.45);
  CHECK(DecodeAll(shape, encoded) == payload);
}

TEST_CASE("Encode keeps each value within its method's bound when shapes and groups are any") {
  const auto seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 60; ++round) {
    const Shape shape = RandomShape(round % 2 == 0 ? Element::kBf16 : Element::kFp16, &random);
    const Payload payload = Gaussian(shape, &random, round % 5 == 0 ? 1000 : 1);
    for (const Method method : {Method::kInt8, Method::kInt4, Method::kFp8}) {
      Parameters parameters = Parameters::Of(method);
      parameters.group = 8 + static_cast<uint32_t>(random() % 60);
      if (method == Method::kInt4) parameters.outliers = static_cast<uint32_t>(random() % 4096);
      INFO("method " << NameOf(method) << " group " << parameters.group);
      const Payload decoded = DecodeAll(shape, EncodeAll(method, parameters, shape, payload));
      CHECK(WorstOfAllowed(method, parameters.group, shape, payload, decoded) <= 1);
    }
  }
}

// A step's byte reaches 255 eighths of an octave down from the matrix's largest, and a step's inverse to 2^-126.
TEST_CASE(
    "Encode keeps each value within its method's bound when groups are 40 octaves apart or smaller than steps can be") {
  constexpr uint32_t kGroup = 8;
  const Shape shape{.element = Element::kBf16, .segments = 2, .keys = 1, .tokens = 2 * kGroup, .channels = 2 * kGroup};
  std::mt19937_64 random(14);
  const Payload even = Gaussian(shape, &random);
  const std::pair<int, int> cases[] = {{0, 20}, {0, 31}, {0, 33}, {0, 40}, {-80, 40}, {-110, 15}, {-120, 0}};
  for (const auto& [first, apart] : cases) {
    // In keys the later tokens' groups are smaller, in the others the later channels'.
    Payload payload = even;
    for (uint64_t i = 0; i < payload.size() / 2; ++i) {
      const uint64_t within = i % shape.matrix_values();
      const uint64_t line = shape.IsKey(i / shape.matrix_values()) ? within / shape.channels : within % shape.channels;
      const int octaves = first - (line < kGroup ? 0 : apart);
      PutValue(shape.element, &payload, i, static_cast<float>(std::ldexp(ValueAt(shape.element, even, i), octaves)));
    }
    for (const Method method : {Method::kInt8, Method::kInt4, Method::kFp8}) {
      INFO("method " << NameOf(method) << " first group 2^" << first << " the others " << apart << " octaves below");
      Parameters parameters = Parameters::Of(method);
      parameters.group = kGroup;
      const Payload decoded = DecodeAll(shape, EncodeAll(method, parameters, shape, payload));
      CHECK(WorstOfAllowed(method, kGroup, shape, payload, decoded) <= 1);
    }
  }
}

TEST_CASE("Encode keeps the largest and the smallest values finite when a method rounds them") {
  for (const Element element : {Element::kBf16, Element::kFp16}) {
    const Shape shape{.element = element, .layers = 3, .segments = 2, .keys = 1, .tokens = 16, .channels = 16};
    const uint16_t infinity = element == Element::kBf16 ? Bf16::kInfinity : Fp16::kInfinity;
    const std::vector<uint16_t> kinds[] = {
        {static_cast<uint16_t>(infinity - 1), static_cast<uint16_t>(0x8000 | (infinity - 1)), 0},
        {1, 0x8001, 0, 0x8000, 7},
        {static_cast<uint16_t>(infinity - 1), 1, 0x8000, 0x0100}};
    for (const auto& bits : kinds) {
      Payload payload(shape.bytes().value);
      std::mt19937_64 random(5);
      for (uint64_t i = 0; i < payload.size() / 2; ++i) PutBits(&payload, i, bits[random() % bits.size()]);
      for (const Method method : LossyMethods()) {
        INFO("method " << NameOf(method));
        const Payload encoded = EncodeAll(method, shape, payload);
        CHECK(Describe(encoded)->method == method);
        const Payload decoded = DecodeAll(shape, encoded);
        bool finite = true;
        for (uint64_t i = 0; i < payload.size() / 2; ++i) finite = finite && std::isfinite(ValueAt(element, decoded, i));
        CHECK(finite);
        if (bits[0] > 1) CHECK(Measure(shape, payload, decoded).relative < 0.2);
      }
    }
  }
}

TEST_CASE("Encode gives back zeros when there is nothing else") {
  const Shape shape{.element = Element::kBf16, .layers = 2, .segments = 2, .keys = 1, .tokens = 20, .channels = 24};
  const Payload payload(shape.bytes().value);
  for (const Method method : LossyMethods()) CHECK(DecodeAll(shape, EncodeAll(method, shape, payload)) == payload);
}

TEST_CASE("Encode falls back to lossless and says so when a value isn't finite") {
  std::mt19937_64 random(9);
  for (const Element element : {Element::kBf16, Element::kFp16}) {
    const Shape shape{.element = element, .layers = 2, .segments = 2, .keys = 1, .tokens = 20, .channels = 24};
    const uint16_t infinity = element == Element::kBf16 ? Bf16::kInfinity : Fp16::kInfinity;
    for (const uint16_t bits :
         {infinity, static_cast<uint16_t>(infinity | 0x8000), static_cast<uint16_t>(infinity + 1), uint16_t{0xffff}}) {
      Payload payload = Gaussian(shape, &random);
      PutBits(&payload, random() % (payload.size() / 2), bits);
      for (const Method method : LossyMethods()) {
        const Parameters parameters = Parameters::Of(method);
        Payload out(EncodedBound(method, parameters, shape)->value);
        const auto encoded = Encode(method, parameters, shape, payload, out);
        REQUIRE(encoded.ok());
        CHECK(encoded->method == Method::kLossless);
        out.resize(encoded->bytes.value);
        CHECK(Describe(out)->method == Method::kLossless);
        CHECK(DecodeAll(shape, out) == payload);
      }
    }
  }
}

TEST_CASE("Encode keeps outliers exact when a group's range shrinks most without them") {
  const Shape shape{.element = Element::kBf16, .segments = 2, .keys = 1, .tokens = 64, .channels = 64};
  std::mt19937_64 random(4);
  Payload payload = Gaussian(shape, &random);
  std::vector<uint64_t> places;  // one in a channel's group of keys, one in a token's group of the others
  for (uint64_t i = 0; i < 4; ++i) places.push_back(i * (32 * 64 + 1) % (64 * 64) + (i / 2) * 64 * 64 + 5 + i);
  for (const uint64_t at : places) PutValue(shape.element, &payload, at, at % 2 == 0 ? 5000.0F : -7000.0F);
  Parameters parameters = Parameters::Of(Method::kInt4);
  parameters.outliers = 2 * 65536 / (64 * 64);  // two a matrix
  const Payload with = DecodeAll(shape, EncodeAll(Method::kInt4, parameters, shape, payload));
  parameters.outliers = 0;
  const Payload without = DecodeAll(shape, EncodeAll(Method::kInt4, parameters, shape, payload));
  for (const uint64_t at : places) CHECK(ValueAt(shape.element, with, at) == ValueAt(shape.element, payload, at));

  // All else, beside what it is when each outlier spoils its group.
  const auto error_of_others = [&](const Payload& decoded) {
    double squares = 0;
    for (uint64_t i = 0; i < payload.size() / 2; ++i) {
      const double difference = ValueAt(shape.element, decoded, i) - ValueAt(shape.element, payload, i);
      if (std::find(places.begin(), places.end(), i) == places.end()) squares += difference * difference;
    }
    return std::sqrt(squares);
  };
  CHECK(error_of_others(with) < 0.7 * error_of_others(without));
}

TEST_CASE("Encode keeps to the error that strongest names for each third of the layers") {
  const Shape shape{.element = Element::kBf16, .layers = 6, .segments = 2, .keys = 1, .tokens = 128, .channels = 128};
  std::mt19937_64 random(6);
  const Payload payload = Gaussian(shape, &random);
  Parameters parameters = Parameters::Of(Method::kStrongest);
  parameters.key_error = {150, 500, 1200};
  parameters.other_error = {200, 600, 1500};
  const Payload decoded = DecodeAll(shape, EncodeAll(Method::kStrongest, parameters, shape, payload));
  Shape one = shape;
  one.layers = one.segments = 1;
  const size_t bytes = one.bytes().value;
  for (uint64_t matrix = 0; matrix < shape.matrices(); ++matrix) {
    const auto& errors = shape.IsKey(matrix) ? parameters.key_error : parameters.other_error;
    const double named = errors[shape.LayerOf(matrix) / 2] / 10000.0;
    const auto part = [&](const Payload& all) { return std::span(all).subspan(matrix * bytes, bytes); };
    const double found = Measure(one, part(payload), part(decoded)).relative;
    INFO("matrix " << matrix << " error " << found);
    CHECK(found < 1.05 * named);
    CHECK(found > 0.7 * named);
  }
}

TEST_CASE("Encode reaches what each method is for when keys are correlated") {
  const Shape shape{.element = Element::kBf16, .layers = 3, .segments = 2, .keys = 1, .tokens = 256, .channels = 256};
  std::mt19937_64 random(7);
  const Payload payload = Gaussian(shape, &random);
  const auto ratio = [&](const Payload& encoded) {
    return static_cast<double>(payload.size()) / static_cast<double>(encoded.size());
  };
  const Payload int8 = EncodeAll(Method::kInt8, shape, payload), int4 = EncodeAll(Method::kInt4, shape, payload);
  const Payload strongest = EncodeAll(Method::kStrongest, shape, payload);
  CHECK(ratio(int8) > 1.98);
  CHECK(ratio(EncodeAll(Method::kFp8, shape, payload)) > 1.98);
  CHECK(ratio(int4) > 3.5);
  CHECK(ratio(strongest) > 4);
  const Distortion of_int4 = Measure(shape, payload, DecodeAll(shape, int4));
  const Distortion of_strongest = Measure(shape, payload, DecodeAll(shape, strongest));
  CHECK(of_strongest.relative < of_int4.relative);
  CHECK(of_strongest.worst_layer < of_int4.worst_layer);
  CHECK(Measure(shape, payload, DecodeAll(shape, int8)).relative < of_int4.relative / 3);
}

TEST_CASE("Encode takes what a token was before for a guess when prompts say it again") {
  // Layer-major, a head's tokens together, and pages: each by itself.
  for (const Shape& shape :
       {Shape{.element = Element::kBf16, .layers = 3, .segments = 2, .keys = 1, .tokens = 256, .channels = 128},
        Shape{.element = Element::kFp16, .layers = 3, .segments = 2, .keys = 1, .tiles = 2, .tokens = 256, .channels = 64},
        Shape{
            .element = Element::kBf16, .pages = 2, .layers = 3, .segments = 2, .keys = 1, .tokens = 128, .channels = 128}}) {
    std::mt19937_64 random(8);
    std::vector<uint32_t> said(shape.tokens), unsaid(shape.tokens);
    for (uint32_t t = 0; t < shape.tokens; ++t) {
      said[t] = static_cast<uint32_t>(random() % 30);
      unsaid[t] = t;
    }
    const Payload often = OfTokens(shape, said, &random), once = OfTokens(shape, unsaid, &random);
    const Payload of_often = EncodeAll(Method::kStrongest, shape, often),
                  of_once = EncodeAll(Method::kStrongest, shape, once);
    // Of a value's 4 bits in V two or more: a fifth of the whole and more; and no more error.
    CHECK(static_cast<double>(of_often.size()) < 0.82 * static_cast<double>(of_once.size()));
    CHECK(Measure(shape, often, DecodeAll(shape, of_often)).relative <
          1.05 * Measure(shape, once, DecodeAll(shape, of_once)).relative);
    const Payload lossless = EncodeAll(Method::kLossless, shape, often);
    CHECK(DecodeAll(shape, lossless) == often);
    CHECK(lossless.size() < 0.93 * static_cast<double>(EncodeAll(Method::kLossless, shape, once).size()));
  }
}

TEST_CASE("TellerOf is the matrix of values in the first layer, of the same page and tile") {
  const Shape shape{
      .element = Element::kBf16, .pages = 2, .layers = 3, .segments = 3, .keys = 1, .tiles = 4, .tokens = 2, .channels = 2};
  for (uint64_t matrix = 0; matrix < shape.matrices(); ++matrix) {
    const uint64_t teller = TellerOf(shape, matrix);
    CHECK(shape.LayerOf(teller) == 0);
    CHECK(!shape.IsKey(teller));
    CHECK(teller / 4 % 3 == 1);
    CHECK(teller % 4 == matrix % 4);
    CHECK(teller / 36 == matrix / 36);
  }
  const Shape keys{.element = Element::kBf16, .layers = 2, .segments = 1, .keys = 1, .tokens = 2, .channels = 2};
  CHECK(TellerOf(keys, 1) == 1);
}

TEST_CASE("Encode keeps near the error that strongest names when shapes and anchors are any") {
  const auto seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 60; ++round) {
    const Shape shape = RandomShape(round % 2 == 0 ? Element::kBf16 : Element::kFp16, &random);
    const Payload payload = Gaussian(shape, &random);
    Parameters parameters = Parameters::Of(Method::kStrongest);
    parameters.anchor = 1 + static_cast<uint32_t>(random() % 40);
    const Payload decoded = DecodeAll(shape, EncodeAll(Method::kStrongest, parameters, shape, payload));
    // 0.085 is named; few values may be unlucky.
    CHECK(Measure(shape, payload, decoded).relative < 0.17);
  }
}

TEST_CASE("Describe says what was encoded") {
  const Shape shape{
      .element = Element::kFp16, .pages = 2, .layers = 3, .segments = 4, .keys = 2, .tiles = 2, .tokens = 5, .channels = 6};
  std::mt19937_64 random(1);
  const Payload payload = Gaussian(shape, &random);
  for (const Method method : kMethods) {
    Parameters parameters = Parameters::Of(method);
    if (method == Method::kInt4) parameters = {.group = 9, .outliers = 300};
    const Payload encoded = EncodeAll(method, parameters, shape, payload);
    const auto found = Describe(std::span(encoded).first(kDescribed.value));
    REQUIRE(found.ok());
    CHECK(found->method == method);
    CHECK(found->parameters == parameters);
    CHECK(found->shape == shape);
    CHECK(found->encoded.value == encoded.size());
  }
}

TEST_CASE("Encode refuses what it can't do and names it") {
  const Shape shape{.element = Element::kBf16, .tokens = 4, .channels = 8};
  const Payload payload(shape.bytes().value);
  Payload out(4096);
  const auto refused = [&](Method method, const Parameters& parameters, const Shape& asked, std::span<const std::byte> from,
                           std::span<std::byte> to) {
    const auto status = Encode(method, parameters, asked, from, to).status();
    return status.code() == absl::StatusCode::kInvalidArgument ? std::string(status.message()) : "";
  };
  const Parameters int8 = Parameters::Of(Method::kInt8);
  Shape opaque = shape, empty = shape, huge = shape, many = shape;
  opaque.element = Element::kOpaque;
  empty.tokens = 0;
  huge.tokens = huge.channels = UINT32_MAX;
  many.pages = many.layers = many.segments = many.tiles = UINT32_MAX;
  CHECK_THAT(refused(Method::kInt8, int8, opaque, std::span(payload).first(32), out), Catch::Contains("opaque"));
  CHECK_THAT(refused(Method::kInt8, int8, empty, payload, out), Catch::Contains("shape.tokens"));
  CHECK_THAT(refused(Method::kInt8, int8, huge, payload, out), Catch::Contains("shape"));
  CHECK_THAT(refused(Method::kInt8, int8, many, payload, out), Catch::Contains("shape"));
  CHECK_THAT(refused(Method::kInt8, int8, shape, std::span(payload).first(63), out), Catch::Contains("payload has 63"));
  CHECK_THAT(refused(Method::kInt8, int8, shape, payload, std::span(out).first(60)), Catch::Contains("out has 60"));
  CHECK_THAT(refused(Method::kInt8, {.group = 0}, shape, payload, out), Catch::Contains("parameters.group"));
  CHECK_THAT(refused(Method::kInt8, {.group = 64, .outliers = 1}, shape, payload, out),
             Catch::Contains("parameters.outliers"));
  CHECK_THAT(refused(Method::kLossless, int8, shape, payload, out), Catch::Contains("parameters.group"));
  CHECK_THAT(refused(static_cast<Method>(77), int8, shape, payload, out), Catch::Contains("method"));
  CHECK(Decode(EncodeAll(Method::kInt8, shape, payload), shape, std::span(out).first(10)).code() ==
        absl::StatusCode::kInvalidArgument);
}

TEST_CASE("EncodedBound refuses what Encode refuses") {
  const Shape shape{.element = Element::kBf16, .tokens = 4, .channels = 8};
  Shape opaque = shape, empty = shape, huge = shape;
  opaque.element = Element::kOpaque;
  empty.tokens = 0;
  huge.tokens = huge.channels = UINT32_MAX;
  const auto code = [](Method method, const Parameters& parameters, const Shape& asked) {
    return EncodedBound(method, parameters, asked).status().code();
  };
  CHECK(code(Method::kInt8, Parameters{}, shape) == absl::StatusCode::kInvalidArgument);
  CHECK(code(Method::kInt4, Parameters{}, shape) == absl::StatusCode::kInvalidArgument);
  CHECK(code(static_cast<Method>(77), Parameters{}, shape) == absl::StatusCode::kInvalidArgument);
  for (const Method method : kMethods) {
    const Parameters parameters = Parameters::Of(method);
    CHECK(code(method, parameters, shape) == absl::StatusCode::kOk);
    CHECK(code(method, parameters, empty) == absl::StatusCode::kInvalidArgument);
    CHECK(code(method, parameters, huge) == absl::StatusCode::kInvalidArgument);
    CHECK((code(method, parameters, opaque) == absl::StatusCode::kOk) == !IsLossy(method));
  }
}

TEST_CASE("Method has a name that leads back to it") {
  for (const Method method : kMethods) CHECK(MethodNamed(NameOf(method)) == method);
  CHECK(!MethodNamed("").has_value());
  CHECK(!MethodNamed("INT8").has_value());
  CHECK(!IsLossy(Method::kLossless));
}

TEST_CASE("Encode and Decode give the same on many threads at once") {
  const Shape shape{.element = Element::kBf16, .layers = 2, .segments = 2, .keys = 1, .tokens = 32, .channels = 64};
  std::mt19937_64 random(2);
  const Payload payload = Gaussian(shape, &random);
  for (const Method method : kMethods) {
    const Payload encoded = EncodeAll(method, shape, payload), decoded = DecodeAll(shape, encoded);
    std::vector<int> same(4);
    std::vector<std::thread> threads;
    for (int& mine : same) {
      threads.emplace_back([&, found = &mine] {
        Payload out(EncodedBound(method, Parameters::Of(method), shape)->value), back(payload.size());
        const auto made = Encode(method, Parameters::Of(method), shape, payload, out);
        out.resize(made->bytes.value);
        *found = out == encoded && Decode(out, shape, back).ok() && back == decoded ? 1 : 0;
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(same == std::vector<int>(4, 1));
  }
}

}  // namespace
}  // namespace kvist::codec

// An encoded shard -> its values. Remote stores, peers and disks hold them, and all of those may give anything.
//
// Input: the first byte says what is made of the rest.
//   bits 0 to 2  the method, by which a shard of made values is encoded; 5 and above: opaque bytes
//   bit 3        the element, fp16 or bf16
//   bit 4        the rest changes some of its bytes (offset, value); else the rest, behind four bytes of a shape, is what is decoded
//   bit 5        the checksums are put right again: as by a forger
// Holds: Decode fills what it is given or says DataLoss, and touches nothing outside of it (AddressSanitizer); what was changed and not
// forged is DataLoss; what Describe accepts is valid and at most EncodedBound.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "storage/base/check.h"
#include "storage/codec/codec.h"
#include "tests/support/codec_forgery.h"

namespace {

namespace codec = kvist::codec;

codec::Shape MadeShape(uint8_t how) {
  codec::Shape shape{.layers = 2, .segments = 2, .keys = 1, .tokens = 66, .channels = 7};
  if ((how & 7) < std::size(codec::kMethods)) shape.element = (how & 8) != 0 ? codec::Element::kFp16 : codec::Element::kBf16;
  return shape;
}

// Encoded once for each first byte.
const std::vector<std::byte>& Made(uint8_t how) {
  static std::vector<std::byte> made[16];
  std::vector<std::byte>& encoded = made[how & 15];
  if (!encoded.empty()) return encoded;
  const codec::Shape shape = MadeShape(how);
  const bool opaque = shape.element == codec::Element::kOpaque;
  const codec::Method method = opaque ? codec::Method::kLossless : codec::kMethods[how & 7];
  std::vector<std::byte> payload(shape.bytes().value);
  uint32_t state = how + 1U;
  for (size_t i = 0; i < payload.size(); ++i) {
    state = state * 1664525 + 1013904223;
    const uint32_t byte = i % 2 == 0 ? state >> 24 : 0x3c + (state >> 31 << 7) + (state >> 29 & 3);  // finite, of like size
    payload[i] = static_cast<std::byte>(byte);
  }
  codec::Parameters parameters = codec::Parameters::Of(method);
  if (method == codec::Method::kInt4)
    parameters.outliers = 4096;  // so that few values have some: positions say where decoding writes
  encoded.resize(codec::EncodedBound(method, parameters, shape)->value);
  const auto written = codec::Encode(method, parameters, shape, payload, encoded);
  KVIST_CHECK(written.ok() && written->method == method);
  if (method == codec::Method::kInt4) {
    uint32_t outliers = 0;  // of the first matrix: behind the float of its part
    std::memcpy(&outliers, encoded.data() + codec::PartsAt(shape.matrices()) + sizeof(float), sizeof outliers);
    KVIST_CHECK(outliers > 0);
  }
  encoded.resize(written->bytes.value);
  return encoded;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const uint8_t how = data[0];
  std::span<const uint8_t> input(data + 1, size - 1);
  codec::Shape shape = MadeShape(how);
  std::vector<std::byte> encoded;
  bool changed = true;
  if ((how & 16) != 0) {
    encoded = Made(how);
    for (; input.size() >= 3; input = input.subspan(3)) {
      encoded[(input[0] | size_t{input[1]} << 8) % encoded.size()] = std::byte{input[2]};
    }
    changed = encoded != Made(how);
    if (!input.empty() && input[0] != 0) encoded.resize(encoded.size() - std::min<size_t>(encoded.size(), input[0]));
    changed = changed || encoded.size() != Made(how).size();
  } else {
    if (input.size() < 4) return 0;
    shape.layers = input[0] % 4 + 1U;
    shape.tokens = input[1] + 1U;
    shape.channels = input[2] + 1U;
    shape.element = static_cast<codec::Element>(input[3] % 3);
    const auto bytes = std::as_bytes(input.subspan(4));
    encoded.assign(bytes.begin(), bytes.end());
  }
  const bool forged = (how & 32) != 0;
  if (forged) codec::ForgeChecksums(encoded);
  encoded.shrink_to_fit();

  std::vector<std::byte> out(shape.bytes().value);
  const absl::Status status = codec::Decode(encoded, shape, out);
  KVIST_CHECK(status.ok() || absl::IsDataLoss(status) || absl::IsFailedPrecondition(status));
  if ((how & 16) != 0 && !forged) KVIST_CHECK(status.ok() == !changed);
  const auto found = codec::Describe(encoded);
  if (!found.ok()) return 0;
  KVIST_CHECK(found->shape.Validate().ok() && found->parameters.Validate(found->method).ok());
  KVIST_CHECK(found->encoded <= *codec::EncodedBound(found->method, found->parameters, found->shape));
  if (status.ok()) KVIST_CHECK(found->shape == shape && found->encoded.value == encoded.size());
  return 0;
}

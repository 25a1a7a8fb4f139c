#include "daemon/shard_codec.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "storage/base/status.h"
#include "storage/codec/attention.h"
#include "storage/codec/distortion.h"

namespace kvist::daemon {
namespace {

// label[0]: this, when the body is encoded; label[1]: its method. All else is zero.
constexpr std::byte kEncoded{0x65};

}  // namespace

remote::Label LabelOf(std::optional<codec::Method> method) {
  remote::Label label{};
  if (method.has_value()) {
    label[0] = kEncoded;
    label[1] = static_cast<std::byte>(*method);
  }
  return label;
}

absl::StatusOr<std::optional<codec::Method>> MethodOf(const remote::Label& label) {
  if (label == remote::Label{}) return std::nullopt;
  for (const codec::Method method : codec::kMethods) {
    if (label == LabelOf(method)) return method;
  }
  return absl::FailedPreconditionError("an object of a later version of kvist, encoded as this one can't read it");
}

absl::StatusOr<std::optional<std::vector<std::byte>>> EncodeShard(codec::Method method, const codec::Shape& shape,
                                                                  std::span<const std::byte> payload, codec::Method* used) {
  const codec::Parameters parameters = codec::Parameters::Of(method);
  KVIST_ASSIGN_OR_RETURN(const Bytes bound, codec::EncodedBound(method, parameters, shape));
  std::vector<std::byte> out(bound.value);
  KVIST_ASSIGN_OR_RETURN(const codec::Encoded encoded, codec::Encode(method, parameters, shape, payload, out));
  *used = encoded.method;
  if (encoded.bytes.value >= payload.size()) return std::nullopt;
  out.resize(encoded.bytes.value);
  return out;
}

absl::StatusOr<core::Loss> LossOf(const codec::Shape& shape, std::span<const std::byte> payload,
                                  std::span<const std::byte> encoded) {
  constexpr codec::AttentionProbe kHeadOfEachLayer{.heads = 1, .queries = 2};
  std::vector<std::byte> decoded(payload.size());
  KVIST_RETURN_IF_ERROR(codec::Decode(encoded, shape, decoded));
  return core::Loss{.relative = codec::Measure(shape, payload, decoded).relative,
                    .attention = codec::AttentionError(shape, payload, decoded, kHeadOfEachLayer).value_or(0)};
}

absl::Status DecodeInPlace(const remote::Label& label, const codec::Shape& shape, Bytes bytes,
                           std::span<std::byte> payload) {
  KVIST_ASSIGN_OR_RETURN(const std::optional<codec::Method> method, MethodOf(label));
  if (!method.has_value()) {
    if (bytes.value == payload.size()) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat("an object of ", bytes.value, " bytes, which should have ", payload.size()));
  }
  const std::vector<std::byte> encoded(payload.begin(), payload.begin() + static_cast<std::ptrdiff_t>(bytes.value));
  return codec::Decode(encoded, shape, payload);
}

}  // namespace kvist::daemon

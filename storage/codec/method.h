#ifndef KVIST_STORAGE_CODEC_METHOD_H_
#define KVIST_STORAGE_CODEC_METHOD_H_

#include <array>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace kvist::codec {

// How a shard is encoded. Only kLossless gives back the same bytes; the others must be asked for by name, and are never a default.
enum class Method : uint8_t {
  kLossless = 1,   // exponents apart from the rest, against their channel's largest, Huffman; opaque bytes by zstd
  kInt8 = 2,       // 8 bits a value, a scale for each group
  kInt4 = 3,       // 4 bits a value, a scale and a zero point for each group, the worst outliers exact
  kFp8 = 4,        // e4m3, a scale for each group
  kStrongest = 5,  // steps by the layer's target of error and the channel's size, deltas from token to token, Huffman
};
inline constexpr Method kMethods[] = {Method::kLossless, Method::kInt8, Method::kInt4, Method::kFp8, Method::kStrongest};

constexpr bool IsLossy(Method method) { return method != Method::kLossless; }
// As the API and kvistctl have it: "lossless", "int8", "int4", "fp8", "strongest". Nothing for any other name.
absl::string_view NameOf(Method method);
std::optional<Method> MethodNamed(absl::string_view name);

// What a method may be told; each is stated in the encoded form. A field that the method doesn't have is 0.
struct Parameters {
  // Values that share a scale: so many tokens of a channel in keys, so many channels of a token in all else. Fewer: less error, more bytes.
  // int8, int4, fp8.
  uint32_t group = 0;
  // At most so many values in 65,536 are kept exact beside the scales, 6 bytes each. int4.
  uint32_t outliers = 0;
  // Tokens from one anchor, which is encoded by itself, to the next. strongest.
  uint32_t anchor = 0;
  // The relative errors that are aimed at, in 10,000ths: of the first third of the layers, of the second, of the last. Keys apart, because
  // what a key has lost is multiplied by a query, and that is an exponent. strongest.
  std::array<uint16_t, 3> key_error = {};
  std::array<uint16_t, 3> other_error = {};

  bool operator==(const Parameters&) const = default;
  // The method's own. int8 and fp8: 128 is a head's channels, and 8 bits for 128 leave a ratio of 1.98. int4: 4.5 bits a value in groups of
  // 32 and 0.02 for outliers leave 3.5. strongest: README.md, measured.
  static Parameters Of(Method method);
  // Errors: InvalidArgument  names the field that the method doesn't have, lacks or can't take.
  absl::Status Validate(Method method) const;
};

}  // namespace kvist::codec

#endif  // KVIST_STORAGE_CODEC_METHOD_H_

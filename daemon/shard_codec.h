#ifndef KVIST_DAEMON_SHARD_CODEC_H_
#define KVIST_DAEMON_SHARD_CODEC_H_

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/core/loss.h"
#include "storage/codec/codec.h"
#include "storage/remote/object_header.h"

// Shards encoded; and how they lie in a remote store: an object's label says whether its body is, and how; the body says the rest of itself.
namespace kvist::daemon {

remote::Label LabelOf(std::optional<codec::Method> method);  // nothing: the body is the payload
// Errors: FailedPrecondition  it is none that this version knows.
absl::StatusOr<std::optional<codec::Method>> MethodOf(const remote::Label& label);

// A payload encoded by `method`; nothing when that isn't smaller. `*used`: lossless where the values leave no choice (codec.h).
// Errors: codec::Encode's.
absl::StatusOr<std::optional<std::vector<std::byte>>> EncodeShard(codec::Method method, const codec::Shape& shape,
                                                                  std::span<const std::byte> payload, codec::Method* used);

// What a payload has lost in `encoded`. Attention is measured of a head in each layer.
// Errors: codec::Decode's.
absl::StatusOr<core::Loss> LossOf(const codec::Shape& shape, std::span<const std::byte> payload,
                                  std::span<const std::byte> encoded);

// What was read into the beginning of `payload`, `bytes` of it, under `label`: then `payload` is the shard's.
// Errors: DataLoss  it isn't one of this shape.  FailedPrecondition  it is encoded as this version doesn't know; a later one reads it.
absl::Status DecodeInPlace(const remote::Label& label, const codec::Shape& shape, Bytes bytes, std::span<std::byte> payload);

}  // namespace kvist::daemon

#endif  // KVIST_DAEMON_SHARD_CODEC_H_

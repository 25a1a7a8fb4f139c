#ifndef KVIST_DAEMON_DISK_CODEC_H_
#define KVIST_DAEMON_DISK_CODEC_H_

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/core/events.h"
#include "storage/codec/codec.h"
#include "storage/ssd/store.h"

// Chunks that lie on disk encoded. A record's codec is the number of the method that was asked for; the payload says the rest of itself, its
// length, too: of several shards the longest one's is that of all their records.
namespace kvist::daemon {

// A chunk's shards, encoded, each in memory of its own that a store may write from.
class EncodedChunk {
 public:
  // `slots`: [shard] as they are to be kept; nothing touches them afterwards. `raw`: how they lie there. `verify`: their layers' checksums must be
  // right, so that no bit that has flipped is encoded for good. Nothing: it would take no fewer units.
  // Errors: DataLoss  by such a checksum; else codec::Encode's.
  static absl::StatusOr<std::optional<EncodedChunk>> Of(codec::Method method, const codec::Shape& shape,
                                                        const ssd::ShardShape& raw,
                                                        std::span<const std::span<std::byte>> slots, bool verify);

  const ssd::ShardShape& shape() const { return shape_; }
  ssd::Store::Slots slots() const;
  core::DiskForm form() const { return {static_cast<uint8_t>(shape_.codec), ssd::kUnit * shape_.units()}; }
  const core::Loss& loss() const { return loss_; }

 private:
  using Slot = std::unique_ptr<std::byte, decltype(&std::free)>;
  ssd::ShardShape shape_;
  std::vector<Slot> slots_;  // [shard]
  core::Loss loss_;
};

// What a store has to be told to read a chunk of that form.
ssd::ShardShape ShapeIn(const core::DiskForm& form, ssd::ShardShape raw);

// A record that was read into the slot becomes the shard. `checksums`: its layers' are put where they belong.
// Errors: DataLoss  it isn't one of this shape. FailedPrecondition  it is encoded as this version doesn't know; a later one reads it.
absl::Status DecodeRecord(const codec::Shape& shape, const ssd::ShardShape& raw, std::span<std::byte> slot, bool checksums);

}  // namespace kvist::daemon

#endif  // KVIST_DAEMON_DISK_CODEC_H_

#include "daemon/disk_codec.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/shard_codec.h"
#include "storage/base/check.h"
#include "storage/base/status.h"
#include "storage/pool/slot_header.h"

namespace kvist::daemon {
namespace {

std::span<std::byte> LayerOf(const ssd::ShardShape& raw, std::span<std::byte> slot, uint32_t layer) {
  return slot.subspan(kSlotHeaderBytes.value + (raw.layer_bytes * layer).value, raw.layer_bytes.value);
}

absl::Status Verify(const ssd::ShardShape& raw, std::span<std::byte> slot) {
  for (uint32_t layer = 0; layer < raw.layers; ++layer) {
    if (!LayerMatches(slot.data(), layer, LayerOf(raw, slot, layer)))
      return absl::DataLossError("its slot holds other bytes than were stored");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::optional<EncodedChunk>> EncodedChunk::Of(codec::Method method, const codec::Shape& shape,
                                                             const ssd::ShardShape& raw,
                                                             std::span<const std::span<std::byte>> slots, bool verify) {
  EncodedChunk chunk;
  std::vector<std::vector<std::byte>> payloads;
  Bytes longest{};
  for (const std::span<std::byte> slot : slots) {
    if (verify) KVIST_RETURN_IF_ERROR(Verify(raw, slot));
    const std::span<std::byte> payload = slot.subspan(kSlotHeaderBytes.value, raw.decoded().value);
    codec::Method used = method;
    KVIST_ASSIGN_OR_RETURN(std::optional<std::vector<std::byte>> encoded, EncodeShard(method, shape, payload, &used));
    if (!encoded.has_value()) return std::nullopt;
    if (codec::IsLossy(used)) {
      KVIST_ASSIGN_OR_RETURN(const core::Loss loss, LossOf(shape, payload, *encoded));
      chunk.loss_.Take(loss);
    }
    longest = std::max(longest, Bytes{encoded->size()});
    payloads.push_back(*std::move(encoded));
  }
  chunk.shape_ = raw;
  chunk.shape_.codec = static_cast<ssd::Codec>(method);
  chunk.shape_.encoded = longest;
  if (chunk.shape_.units() >= raw.units()) return std::nullopt;
  const size_t size = (ssd::kUnit * chunk.shape_.units()).value;
  for (const std::vector<std::byte>& payload : payloads) {
    Slot slot(static_cast<std::byte*>(std::aligned_alloc(ssd::kUnit.value, size)), &std::free);
    KVIST_CHECK(slot != nullptr);
    std::byte* const behind = std::copy(payload.begin(), payload.end(), slot.get() + kSlotHeaderBytes.value);
    std::fill(behind, slot.get() + size, std::byte{0});
    chunk.slots_.push_back(std::move(slot));
  }
  return chunk;
}

ssd::Store::Slots EncodedChunk::slots() const {
  ssd::Store::Slots slots;
  for (const Slot& slot : slots_) slots.emplace_back(slot.get(), (ssd::kUnit * shape_.units()).value);
  return slots;
}

ssd::ShardShape ShapeIn(const core::DiskForm& form, ssd::ShardShape raw) {
  if (form.method == 0) return raw;
  raw.codec = static_cast<ssd::Codec>(form.method);
  raw.encoded = form.bytes - ssd::kHeaderBytes;
  return raw;
}

absl::Status DecodeRecord(const codec::Shape& shape, const ssd::ShardShape& raw, std::span<std::byte> slot, bool checksums) {
  ssd::RecordHeader header;
  std::memcpy(&header, slot.data(), sizeof header);  // the store has checked it
  const std::span<std::byte> payload = slot.subspan(kSlotHeaderBytes.value, raw.decoded().value);
  if (header.payload_bytes > payload.size())
    return absl::DataLossError(absl::StrCat("an encoded shard of ", header.payload_bytes, " bytes"));
  const std::span<const std::byte> read = payload.first(header.payload_bytes);
  KVIST_ASSIGN_OR_RETURN(const codec::Description says, codec::Describe(read));
  if (says.encoded.value > read.size()) return absl::DataLossError("an encoded shard without its end");
  const std::vector<std::byte> encoded(read.begin(), read.begin() + static_cast<std::ptrdiff_t>(says.encoded.value));
  KVIST_RETURN_IF_ERROR(codec::Decode(encoded, shape, payload));
  for (uint32_t layer = 0; checksums && layer < raw.layers; ++layer)
    PutLayerChecksum(slot.data(), layer, LayerOf(raw, slot, layer));
  return absl::OkStatus();
}

}  // namespace kvist::daemon

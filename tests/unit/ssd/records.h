#ifndef KVIST_TESTS_UNIT_SSD_RECORDS_H_
#define KVIST_TESTS_UNIT_SSD_RECORDS_H_

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <utility>

#include "storage/base/check.h"
#include "storage/ssd/record.h"
#include "storage/ssd/segment_header.h"

// Slots and records for tests of storage/ssd.
namespace kvist::ssd {

// Memory that may be a slot: on a 4 KiB boundary, zero.
class AlignedBytes {
 public:
  explicit AlignedBytes(Bytes size) : size_(AlignUp(size, kUnit)) {
    data_.reset(static_cast<std::byte*>(std::aligned_alloc(kUnit.value, size_.value)));
    KVIST_CHECK(data_ != nullptr);
    for (uint64_t i = 0; i < size_.value; ++i) data_.get()[i] = std::byte{0};
  }
  std::byte* data() const { return data_.get(); }
  Bytes size() const { return size_; }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::unique_ptr<std::byte, Free> data_;
  Bytes size_;
};

template <class Digest>
Digest DigestOf(uint64_t n) {
  Digest digest;
  for (size_t i = 0; i < digest.bytes.size(); ++i) digest.bytes[i] = static_cast<uint8_t>((n >> (8 * (i % 8))) + i / 8);
  return digest;
}
inline Secret SecretOf(uint8_t n) {
  Secret secret;
  secret.fill(n);
  return secret;
}

// What is to be sealed: a shard of `layers` layers of `layer_bytes`, named by `n`.
inline RecordHeader ShardHeader(uint64_t n, uint32_t layers, Bytes layer_bytes) {
  RecordHeader header{};
  header.sequence = n;
  header.kind = RecordKind::kShard;
  header.order = SlotOrder::kLayerMajor;
  header.has_parent = 1;
  header.group = 2;
  header.shard = 3;
  header.shards = 4;
  header.position = 5;
  header.space = DigestOf<SpaceDigest>(77);
  header.key = DigestOf<ChunkKey>(n);
  header.parent = DigestOf<ChunkKey>(n - 1);
  header.layers = layers;
  header.runs = layers;
  header.layer_bytes = layer_bytes.value;
  header.payload_bytes = header.raw_bytes = layer_bytes.value * layers;
  return header;
}

inline Identity IdentityOf(const RecordHeader& header) { return {header.space, header.key, {header.group}, {header.shard}}; }

// Bytes that differ from shard to shard and from layer to layer.
inline void FillPayload(std::byte* slot, uint64_t n, uint64_t bytes) {
  uint64_t state = n * 0x9e3779b97f4a7c15 + 1;
  for (uint64_t i = 0; i < bytes; ++i) {
    state = state * 6364136223846793005 + 1442695040888963407;
    slot[kHeaderBytes.value + i] = static_cast<std::byte>(state >> 56);
  }
}

}  // namespace kvist::ssd

#endif  // KVIST_TESTS_UNIT_SSD_RECORDS_H_

#ifndef KVIST_EXAMPLES_REPLAY_PAGE_MEMORY_H_
#define KVIST_EXAMPLES_REPLAY_PAGE_MEMORY_H_

#include <kvist/kvist.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/replay/trace.h"

namespace kvist::replay {

// How a block lies in pages: as in a small engine with K and V apart, so that storing gathers and loading scatters.
inline constexpr uint32_t kLayers = 2;
inline constexpr uint32_t kSegments = 2;  // K and V
inline constexpr uint32_t kPagesPerBlock = 8;
inline constexpr uint32_t kPageTokens = kBlockTokens / kPagesPerBlock;
inline constexpr uint32_t kPiecesPerBlock = kLayers * kSegments * kPagesPerBlock;

// Whether a block can be so many bytes, and which these are, for a message.
bool IsBlockBytes(uint64_t block_bytes);
inline constexpr char kBlockBytesAllowed[] = "a multiple of 4 KiB, at most 256 MiB";

// The paged KV memory of an engine, in a memfd that can't change its size:
//
//   tensor [layer][segment][page][segment_bytes]
//
// Blocks don't lie in neighbouring pages: the block tables are a fixed shuffle. The first and the last page are in no block:
// kvist_connect writes probes to them, and so does a client that connects again.
//
// Threads: one, but for the copies of the daemon and for probes.
class PageMemory {
 public:
  // Errors: those of memfd_create and mmap.
  static absl::StatusOr<std::unique_ptr<PageMemory>> Create(uint64_t block_bytes, uint32_t blocks);
  ~PageMemory();
  PageMemory(const PageMemory&) = delete;
  PageMemory& operator=(const PageMemory&) = delete;

  uint32_t blocks() const { return static_cast<uint32_t>(tables_.size() / kPagesPerBlock); }
  // The block tables of places [0, count), one after the other.
  std::span<const uint32_t> Pages(uint32_t count) const { return {tables_.data(), size_t{count} * kPagesPerBlock}; }
  std::span<std::byte> Piece(uint32_t place, uint32_t page, uint32_t layer, uint32_t segment) const {
    return At(layer, tables_[size_t{place} * kPagesPerBlock + page], segment);
  }

  // For kvist_options; valid while this lives.
  kvist_space space() const;
  kvist_memory description() const;

 private:
  PageMemory(int fd, uint64_t segment_bytes, uint32_t blocks);
  std::span<std::byte> At(uint32_t layer, uint32_t page, uint32_t segment) const;
  static int WritePage(void* self, uint32_t layer, uint32_t page, const void* bytes, size_t size);

  const int fd_;
  const uint64_t segment_bytes_;
  const uint32_t pages_;
  std::byte* data_ = nullptr;
  std::vector<uint32_t> tables_;  // [place][page]: page ids
  kvist_layer layers_[kLayers];
  kvist_dim dims_[1];
};

}  // namespace kvist::replay

#endif  // KVIST_EXAMPLES_REPLAY_PAGE_MEMORY_H_

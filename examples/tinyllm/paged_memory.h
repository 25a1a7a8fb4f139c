#ifndef KVIST_EXAMPLES_TINYLLM_PAGED_MEMORY_H_
#define KVIST_EXAMPLES_TINYLLM_PAGED_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "examples/tinyllm/bfloat16.h"
#include "examples/tinyllm/config.h"

namespace tinyllm {

using PageId = uint32_t;

// The KV memory of an engine: one memfd, so that kvistd can map it, too. Sealed against shrinking and growing, because a
// mapping of a file that shrinks is a SIGBUS waiting for its reader.
//
//   [layer][page][K, V][token of the page][kv_head][head_dim]   bf16
//
// Who may use which page is the PagePool's business.
// Threads: any; callers don't write a row that others read.
class PagedMemory {
 public:
  // Also touches all of it, so that no request pays for the first use of a page. Errors: those of memfd_create, ftruncate,
  // mmap.
  static absl::StatusOr<std::unique_ptr<PagedMemory>> Create(const ModelConfig& config, uint32_t pages);
  ~PagedMemory();
  PagedMemory(const PagedMemory&) = delete;
  PagedMemory& operator=(const PagedMemory&) = delete;

  // The kv_heads * head_dim numbers of one token.
  Bf16* Key(int layer, PageId page, int token) const { return Row(layer, page, 0, token); }
  Bf16* Value(int layer, PageId page, int token) const { return Row(layer, page, 1, token); }

  int fd() const { return fd_; }
  int layers() const { return layers_; }
  uint32_t pages() const { return pages_; }
  size_t row_bytes() const { return row_ * sizeof(Bf16); }
  size_t segment_bytes() const { return kPageTokens * row_bytes(); }  // K or V of a page in one layer
  size_t page_bytes() const { return 2 * segment_bytes(); }           // a page in one layer
  size_t layer_bytes() const { return size_t{pages_} * page_bytes(); }
  size_t bytes() const { return static_cast<size_t>(layers_) * layer_bytes(); }

 private:
  PagedMemory(int layers, uint32_t pages, size_t row) : layers_(layers), pages_(pages), row_(row) {}

  Bf16* Row(int layer, PageId page, size_t kind, int token) const {
    const size_t index = (static_cast<size_t>(layer) * pages_ + page) * 2 + kind;
    return data_ + (index * kPageTokens + static_cast<size_t>(token)) * row_;
  }

  const int layers_;
  const uint32_t pages_;
  const size_t row_;  // numbers of a row
  int fd_ = -1;
  Bf16* data_ = nullptr;
};

}  // namespace tinyllm

#endif  // KVIST_EXAMPLES_TINYLLM_PAGED_MEMORY_H_

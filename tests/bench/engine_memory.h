#ifndef KVIST_TESTS_BENCH_ENGINE_MEMORY_H_
#define KVIST_TESTS_BENCH_ENGINE_MEMORY_H_

#include <kvist/client.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/base/mapping.h"
#include "storage/base/unique_fd.h"

namespace kvist::bench {

// The paged KV memory of an engine that computes nothing, and its sessions. A page of a layer is one piece:
//
//   memfd, sealed against shrinking:  [layer][page][page_bytes]
class EngineMemory {
 public:
  struct Shape {
    uint32_t layers = 1;
    uint32_t pages = 1;
    uint32_t pages_per_chunk = 1;
    uint64_t page_bytes = 0;  // in one layer
    bool in_process = false;  // registered as memory of this process instead of as a memfd

    uint64_t chunk_bytes() const { return uint64_t{layers} * pages_per_chunk * page_bytes; }
  };
  // Also touches all of it. Errors: those of memfd_create and mmap.
  static absl::StatusOr<std::unique_ptr<EngineMemory>> Create(Shape shape);

  // A session with the daemon at `socket`, of the instance "bench". Errors: those of kvist_connect; Unavailable  no daemon there.
  enum class Waits : uint8_t { kForAll, kByLayer };  // kvist_options.by_layer
  absl::StatusOr<kvist::Client> Connect(const std::string& socket, kvist_role role, Waits waits = Waits::kForAll) const;

  std::byte* Page(uint32_t layer, uint32_t page) const {
    return mapping_.data() + (uint64_t{layer} * shape_.pages + page) * shape_.page_bytes;
  }
  const Shape& shape() const { return shape_; }

 private:
  explicit EngineMemory(Shape shape) : shape_(shape) {}

  const Shape shape_;
  UniqueFd fd_;
  Mapping mapping_;
};

}  // namespace kvist::bench

#endif  // KVIST_TESTS_BENCH_ENGINE_MEMORY_H_

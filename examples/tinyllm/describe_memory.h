#ifndef KVIST_EXAMPLES_TINYLLM_DESCRIBE_MEMORY_H_
#define KVIST_EXAMPLES_TINYLLM_DESCRIBE_MEMORY_H_

#include <kvist/kvist.h>

#include <array>
#include <string>
#include <vector>

#include "examples/tinyllm/device_pages.h"
#include "examples/tinyllm/paged_memory.h"

namespace tinyllm {

// What kvistd is told about this engine: which KV bytes it may reuse (the space), and where they lie in its pages (the
// memory). The C structs point into this object: keep it where it is until kvist_connect has returned.
class KvistDescription {
 public:
  // `device`: where the pages lie, if not in `memory` itself.
  KvistDescription(const ModelConfig& config, const PagedMemory& memory, DevicePages* device);
  KvistDescription(const KvistDescription&) = delete;
  KvistDescription& operator=(const KvistDescription&) = delete;

  const kvist_space& space() const { return space_; }
  const kvist_memory& memory() const { return memory_; }

 private:
  std::string revision_;
  int fd_;
  kvist_cuda_region cuda_region_{};
  std::vector<kvist_layer> layers_;
  std::array<kvist_dim, 1> dims_;
  kvist_space space_{};
  kvist_memory memory_{};
};

}  // namespace tinyllm

#endif  // KVIST_EXAMPLES_TINYLLM_DESCRIBE_MEMORY_H_

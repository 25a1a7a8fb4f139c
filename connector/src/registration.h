#ifndef KVIST_CONNECTOR_SRC_REGISTRATION_H_
#define KVIST_CONNECTOR_SRC_REGISTRATION_H_

#include <kvist/kvist.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "connector/src/engine_gpu.h"
#include "storage/base/reuse_rule.h"
#include "storage/base/unique_fd.h"

namespace kvist::session::v1 {
class Hello;
}

namespace kvist::connector {

// Everything the client was told at kvist_connect, copied, so that it can register again with every new daemon by itself.
class Registration {
 public:
  // Errors: InvalidArgument  names the option that is missing or impossible, or says that all together don't fit into a Hello.
  static absl::StatusOr<Registration> Create(const kvist_options& options);

  void FillHello(session::v1::Hello* hello) const;
  std::vector<int> fds() const;

  // Has the engine write the pattern of `nonce` into the first and last page of every layer of a group.
  // Errors: FailedPrecondition  the engine's callback failed.
  absl::Status WriteProbe(size_t group, uint64_t nonce) const;
  // The same, and reads it back by the description: what the daemon does, for when there is no daemon yet. Pages hold nothing
  // during kvist_connect; they will when a daemon comes.
  absl::Status ProbeLocally() const;

  // Whether kvistd has to be let into this process.
  bool has_process_regions() const { return !process_regions_.empty(); }
  // Where the KV memory is; null: the host's.
  const std::shared_ptr<EngineGpu>& gpu() const { return gpu_; }
  bool worker() const { return role_ == KVIST_WORKER; }
  const std::string& socket() const { return socket_; }

  struct Group {
    ReuseRule reuse;
    uint32_t layers = 0, first_layer = 0;  // the first one's number among all groups'
    uint32_t window_tokens = 0, page_tokens = 0, segments = 0, pages_per_chunk = 0;
    uint64_t segment_bytes = 0;
    bool replicated = false;
    // Workers.
    uint32_t pages = 0;
    uint64_t page_stride = 0;
    std::vector<kvist_dim> dims;

    uint64_t page_bytes() const { return segments * segment_bytes; }  // in one layer
    std::vector<uint64_t> SegmentOffsets() const;                     // from a page's start
  };
  const std::vector<Group>& groups() const { return groups_; }

  static constexpr size_t kProofBytesMax = 128;
  bool probed = false;       // a daemon, or this client, has seen the proof
  std::string memory_proof;  // what that daemon gave for it; at most kProofBytesMax

 private:
  Registration() = default;
  // `name` is what its fields are called in errors, e.g. "space.groups[2].".
  absl::Status TakeGroup(const std::string& name, const kvist_group& group);
  absl::Status TakeMemory(const kvist_memory& memory);
  absl::Status TakeCudaRegions(const kvist_memory& memory);
  static absl::Status TakePages(const kvist_group_pages& pages, Group* group);
  absl::Status FitsIntoHello() const;
  absl::Status ProbeLocally(size_t group) const;
  // Whether the bytes [at, at + size) of a region could be read into `out`.
  bool ReadRegion(uint32_t region, uint64_t at, std::byte* out, size_t size) const;

  std::string socket_, instance_, model_, revision_, kv_dtype_, layout_;
  kvist_role role_ = KVIST_SCHEDULER;
  bool by_layer_ = false;
  uint32_t rank_ = 0, layers_ = 0, page_tokens_ = 0, chunk_tokens_ = 0, tensor_parallel_ = 1, pipeline_parallel_ = 1;
  std::vector<Group> groups_;
  // Workers.
  std::vector<UniqueFd> memfds_;
  std::vector<kvist_process_region> process_regions_;
  std::shared_ptr<EngineGpu> gpu_;
  std::vector<kvist_cuda_region> cuda_regions_;
  std::vector<EngineGpu::Region> device_regions_;  // the same, as others name them
  std::vector<kvist_layer> layer_places_;
  kvist_write_page write_page_ = nullptr;
  void* context_ = nullptr;
};

}  // namespace kvist::connector

#endif  // KVIST_CONNECTOR_SRC_REGISTRATION_H_

#ifndef KVIST_CONNECTOR_SRC_REGISTRATION_H_
#define KVIST_CONNECTOR_SRC_REGISTRATION_H_

#include <kvist/kvist.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/base/unique_fd.h"

namespace kvist::session::v1 {
class Hello;
}

namespace kvist::connector {

// Everything the client was told at kvist_connect, copied, so that it can register again with every new daemon by itself.
class Registration {
 public:
  // Errors: InvalidArgument  names the option that is missing or impossible.
  static absl::StatusOr<Registration> Create(const kvist_options& options);

  void FillHello(session::v1::Hello* hello) const;
  std::vector<int> fds() const;

  // Has the engine write the pattern of `nonce` into the first and last page of every layer.
  // Errors: FailedPrecondition  the engine's callback failed.
  absl::Status WriteProbe(uint64_t nonce) const;
  // The same, and reads it back by the description: what the daemon does, for when there is no daemon yet. Pages hold nothing
  // during kvist_connect; they will when a daemon comes.
  absl::Status ProbeLocally() const;

  bool worker() const { return role_ == KVIST_WORKER; }
  const std::string& socket() const { return socket_; }
  uint32_t pages_per_chunk() const { return chunk_tokens_ / page_tokens_; }
  uint32_t layers() const { return layers_; }

  bool probed = false;  // a daemon, or this client, has seen the proof

 private:
  Registration() = default;
  std::vector<uint64_t> SegmentOffsets() const;
  uint64_t page_bytes() const { return segments_ * segment_bytes_; }

  std::string socket_, instance_, model_, revision_, kv_dtype_;
  kvist_role role_ = KVIST_SCHEDULER;
  uint32_t rank_ = 0, layers_ = 0, page_tokens_ = 0, chunk_tokens_ = 0, segments_ = 0, tensor_parallel_ = 1,
           pipeline_parallel_ = 1;
  uint64_t segment_bytes_ = 0;
  // Workers.
  std::vector<UniqueFd> memfds_;
  std::vector<kvist_layer> layer_places_;
  std::vector<kvist_dim> dims_;
  uint32_t pages_ = 0;
  uint64_t page_stride_ = 0;
  kvist_write_page write_page_ = nullptr;
  void* context_ = nullptr;
};

}  // namespace kvist::connector

#endif  // KVIST_CONNECTOR_SRC_REGISTRATION_H_

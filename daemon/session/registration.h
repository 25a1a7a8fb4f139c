#ifndef KVIST_DAEMON_SESSION_REGISTRATION_H_
#define KVIST_DAEMON_SESSION_REGISTRATION_H_

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cuda/gpus.h"
#include "cuda/kv_memory.h"
#include "daemon/core/events.h"
#include "daemon/core/space_spec.h"
#include "daemon/session/memory_proof.h"
#include "daemon/session/peer.h"
#include "storage/base/unique_fd.h"

namespace kvist::session::v1 {
class Hello;
}

namespace kvist::session {

// A Hello that was understood and checked: who wants to be served, and where a worker's pages lie.
struct Registration {
  std::string instance;
  core::Role role = core::Role::kScheduler;
  Rank rank;
  core::SpaceSpec space;
  std::shared_ptr<const cuda::KvMemory> memory;  // of a worker
  int numa_node = -1;                            // on which it lies, once it is probed (KvMemory::NumaNode)
  uint32_t chunk_tokens = 1;
  bool probed = false;
  std::string memory_proof;  // for a Welcome: that this process has proven its GPU memory; empty: the memory is no GPU's
  bool by_layer = false;     // loads of what it looks up are waited for layer by layer
};

struct GpuService {
  cuda::Gpus* gpus = nullptr;            // null: none is served
  const MemoryProofs* proofs = nullptr;  // beside `gpus`
};
// What an engine's memory is kept in, made from what keeps it; for whoever wants it freed elsewhere.
using KeepMemory = std::function<std::shared_ptr<cuda::KvMemory>(std::shared_ptr<cuda::KvMemory>)>;

// Checks every field of a Hello against what this daemon serves, and maps the regions. Of `fds`, which came with it, what is no KV memory stays
// there (EngineRegion::OfFile says why).
// Errors: FailedPrecondition  version or slot order that isn't served.  InvalidArgument  names the field.  PermissionDenied  memory
//   that is in no memfd, of a `peer` with another uid than this daemon's, or which the kernel keeps to itself. Those of EngineRegion, and for
//   GPU memory those of Gpus and Gpu::Import.
absl::StatusOr<Registration> CheckHello(const v1::Hello& hello, std::span<UniqueFd> fds, const std::string& tenant,
                                        const Peer& peer, GpuService service = {}, const KeepMemory& keep = nullptr);

}  // namespace kvist::session

#endif  // KVIST_DAEMON_SESSION_REGISTRATION_H_

#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "daemon/available_memory.h"
#include "daemon/config.h"
#include "daemon/controller/node_name.h"
#include "daemon/service_notify.h"
#include "daemon/socket_dir.h"
#include "storage/base/runtime_dir.h"
#include "storage/base/state_dir.h"
#include "storage/base/status.h"
#include "storage/pool/pinned_region.h"

namespace kvist::daemon {
namespace {

constexpr Bytes kHugePage = MiB(2);
constexpr Bytes kSlabBytes = MiB(64);
constexpr uint64_t kSlabsMin = 16;    // so that several slot sizes find a slab each
constexpr uint64_t kPoolDivisor = 4;  // of the available memory: the engine and its page cache want the rest
constexpr Bytes kPoolMin = MiB(32);   // when a machine has next to nothing left; kSlabsMin of the smallest default slab
static_assert(kPoolMin == kSlabsMin * kHugePage);

Bytes DefaultPoolBytes() {
  // What was kept isn't available any more, and of use at its size only.
  if (const Bytes kept = KeptBytes("kvist-pool-"); kept > Bytes{}) return kept;
  const Bytes quarter = AvailableMemory() / kPoolDivisor;
  // Each NUMA node has a part of whole huge pages: what is kept of such a pool measures as much as the pool.
  const Bytes step = kHugePage * pool::UsableNumaNodes().size();
  return std::max(step * (quarter / step), step * ((kPoolMin + step - Bytes{1}) / step));
}

Bytes DefaultSlabBytes(Bytes pool) {
  Bytes slab = kSlabBytes;
  while (slab > kHugePage && pool / slab < kSlabsMin) slab = slab / 2;
  while (slab > pool) slab = slab / 2;  // a pool below a huge page, as tests have
  return slab;
}

std::string HostName() {
  char name[HOST_NAME_MAX + 1] = "";
  // A host can be called what no node may be.
  if (gethostname(name, sizeof name - 1) != 0 || !controller::IsNodeName(name)) return "node";
  return name;
}

}  // namespace

absl::Status FillDefaults(Options* options) {
  if (options->daemon.state_dir.empty()) options->daemon.state_dir = DefaultStateDir();
  if (options->daemon.state_dir.empty()) {
    return absl::FailedPreconditionError(
        "daemon.state_dir: has no default, because this user has no home directory; set it");
  }
  if (options->daemon.node.empty()) options->daemon.node = HostName();
  if (options->session.socket.empty() || options->admin.socket.empty()) {
    const std::string dir = DefaultRuntimeDir();
    KVIST_RETURN_IF_ERROR(CheckSocketDir(dir));
    if (options->session.socket.empty()) options->session.socket = absl::StrCat(dir, "/", kEngineSocketName);
    if (options->admin.socket.empty()) options->admin.socket = absl::StrCat(dir, "/", kAdminSocketName);
  }
  if (options->ssd.enabled && options->ssd.path.empty()) options->ssd.path = options->daemon.state_dir + "/ssd";
  if (options->pool.bytes == Bytes{}) options->pool.bytes = DefaultPoolBytes();
  if (options->pool.slab_bytes == Bytes{}) options->pool.slab_bytes = DefaultSlabBytes(options->pool.bytes);
  return absl::OkStatus();
}

}  // namespace kvist::daemon

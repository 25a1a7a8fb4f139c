#include "tests/bench/engine_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/status.h"
#include "storage/base/units.h"

namespace kvist::bench {
namespace {

constexpr uint32_t kPageTokens = 16;

int WritePage(void* context, uint32_t layer, uint32_t page, const void* bytes, size_t size) {
  std::memcpy(static_cast<const EngineMemory*>(context)->Page(layer, page), bytes, size);
  return 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<EngineMemory>> EngineMemory::Create(Shape shape) {
  auto memory = std::unique_ptr<EngineMemory>(new EngineMemory(shape));
  const Bytes length{uint64_t{shape.layers} * shape.pages * shape.page_bytes};
  memory->fd_ = UniqueFd(::memfd_create("kvist-bench", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory->fd_) return ErrnoStatus("memfd_create", errno);
  if (::ftruncate(memory->fd_.get(), static_cast<off_t>(length.value)) != 0) return ErrnoStatus("ftruncate", errno);
  if (::fcntl(memory->fd_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) return ErrnoStatus("sealing", errno);
  KVIST_ASSIGN_OR_RETURN(memory->mapping_, Mapping::Create(memory->fd_.get(), length, Mapping::Access::kReadWrite));
  std::memset(memory->mapping_.data(), 1, length.value);
  return memory;
}

absl::StatusOr<kvist::Client> EngineMemory::Connect(const std::string& socket, kvist_role role, Waits waits) const {
  kvist_options options{};
  options.struct_size = sizeof options;
  options.socket = socket.c_str();
  options.instance = "bench";
  options.role = role;
  options.by_layer = waits == Waits::kByLayer;
  options.deadline_us = 10'000'000;
  options.connect_timeout_us = 10'000'000;
  kvist_space space{};
  options.space = &space;
  space.struct_size = sizeof space;
  space.model = "bench";
  space.kv_dtype = "bf16";
  space.layers = shape_.layers;
  space.page_tokens = kPageTokens;
  space.chunk_tokens = kPageTokens * shape_.pages_per_chunk;
  space.segment_bytes = shape_.page_bytes;
  space.segments = 1;
  space.slot_order = KVIST_LAYER_MAJOR;

  const int fd = fd_.get();
  std::vector<kvist_layer> layers;
  for (uint32_t layer = 0; layer < shape_.layers; ++layer)
    layers.push_back({0, uint64_t{layer} * shape_.pages * shape_.page_bytes});
  kvist_memory memory{};
  memory.struct_size = sizeof memory;
  const kvist_process_region region{mapping_.data(), mapping_.size().value};
  if (shape_.in_process) {
    memory.process_regions = &region;
    memory.process_region_count = 1;
  } else {
    memory.memfds = &fd;
    memory.memfd_count = 1;
  }
  memory.layers = layers.data();
  memory.layer_count = layers.size();
  memory.pages = shape_.pages;
  memory.page_stride = shape_.page_bytes;
  memory.write_page = WritePage;
  memory.context = const_cast<EngineMemory*>(this);
  if (role == KVIST_WORKER) options.memory = &memory;

  kvist::Client client;
  if (const kvist::Status status = kvist::Client::Connect(options, &client); !status.ok()) {
    return absl::FailedPreconditionError(absl::StrCat("kvist_connect: ", status.message));
  }
  if (client.connection() != KVIST_CONNECTED) return absl::UnavailableError(absl::StrCat("no kvistd at ", socket));
  return client;
}

}  // namespace kvist::bench

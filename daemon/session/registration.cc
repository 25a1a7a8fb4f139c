#include "daemon/session/registration.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/session/space_description.h"
#include "proto/session.pb.h"
#include "storage/base/shm/description_limits.h"
#include "storage/base/status.h"

namespace kvist::session {
namespace {

static_assert(shm::kLayersMax == cuda::KvLayout::kLayersMax && shm::kSegmentsMax == cuda::KvLayout::kSegmentsMax);
constexpr Bytes kDeviceSegmentMin{256};
constexpr uint64_t kUuidBytes = sizeof(cuda::driver::Uuid::bytes);
constexpr uint64_t kHandleBytes = sizeof(cuda::driver::IpcMemHandle::bytes);

// The offsets of a page's segments: the walk over the described dimensions, the last one fastest.
absl::StatusOr<std::vector<Bytes>> SegmentOffsets(const v1::KvMemory::Group& memory, uint32_t segments) {
  if (memory.dims_size() > 4)
    return absl::InvalidArgumentError(absl::StrCat("a page has ", memory.dims_size(), " dimensions, allowed are 4"));
  std::vector<Bytes> offsets{Bytes{0}};
  for (const v1::KvMemory::Dim& dim : memory.dims()) {
    KVIST_RETURN_IF_ERROR(InRange("the count of a dimension", dim.count(), 1, shm::kSegmentsMax));
    KVIST_RETURN_IF_ERROR(InRange("the stride of a dimension", dim.stride(), 0, uint64_t{1} << 40));
    if (offsets.size() * dim.count() > shm::kSegmentsMax)
      return absl::InvalidArgumentError(absl::StrCat("a page has more than ", shm::kSegmentsMax, " segments"));
    std::vector<Bytes> next;
    next.reserve(offsets.size() * dim.count());
    for (const Bytes base : offsets) {
      for (uint64_t i = 0; i < dim.count(); ++i) next.push_back(base + Bytes{i * dim.stride()});
    }
    offsets = std::move(next);
  }
  if (offsets.size() != segments) {
    return absl::InvalidArgumentError(
        absl::StrCat("the dimensions of a page give ", offsets.size(), " segments, the space has ", segments));
  }
  return offsets;
}

// Which region of a description it is that was found wrong.
absl::Status Of(std::string_view field, int number, const absl::Status& status) {
  const std::string message =
      absl::StrCat(absl::string_view(field.data(), field.size()), "[", number, "]: ", absl::string_view(status.message()));
  // Where nothing is mapped: a wrong description, too.
  return absl::IsOutOfRange(status) ? absl::InvalidArgumentError(message) : absl::Status(status.code(), message);
}

// A memfd too many shifts the numbers of the regions behind it.
absl::Status AddFiles(const v1::KvMemory& described, std::span<UniqueFd> fds, std::vector<cuda::EngineRegion>* regions) {
  std::vector<bool> used(fds.size());
  for (const v1::KvMemory::Layer& layer : described.layers()) {
    if (layer.region() < used.size()) used[layer.region()] = true;
  }
  for (size_t i = 0; i < fds.size(); ++i) {
    if (!used[i]) {
      return absl::InvalidArgumentError(
          absl::StrCat("memfds[", i, "] is one too many: ", fds.size(), " came, and no layer lies in region ", i));
    }
    absl::StatusOr<cuda::EngineRegion> region = cuda::EngineRegion::OfFile(std::move(fds[i]));
    if (!region.ok()) return Of("memfds", static_cast<int>(i), region.status());
    regions->push_back(*std::move(region));
  }
  return absl::OkStatus();
}

// Memory that is in no memfd: reached through the process. A daemon with more rights than its uid would be let into other users'
// processes, too; so it asks by itself whose this one is.
absl::Status AddProcessRegions(const v1::KvMemory& described, const Peer& peer, std::vector<cuda::EngineRegion>* regions) {
  if (described.process_regions().empty()) return absl::OkStatus();
  KVIST_RETURN_IF_ERROR(InRange("the number of process_regions", static_cast<uint64_t>(described.process_regions_size()), 1,
                                shm::kOtherRegionsMax));
  if (peer.uid != ::geteuid()) {
    return absl::PermissionDeniedError(absl::StrCat(
        "KV memory that is in no memfd is copied for processes of kvistd's own uid only: kvistd has uid ", ::geteuid(),
        ", this process ", peer.uid, "; put the KV memory into a memfd (kvist_memory.memfds), or run both as one user"));
  }
  if (peer.pid == 0) {
    return absl::PermissionDeniedError(
        "KV memory that is in no memfd is reached by the process's number, and kvistd can't see this process: it is in "
        "another "
        "pid namespace (container). Put the KV memory into a memfd (kvist_memory.memfds), or let both share one");
  }
  UniqueFd pidfd(::fcntl(peer.pidfd.get(), F_DUPFD_CLOEXEC, 3));
  if (!pidfd) return ErrnoStatus("another descriptor of the engine's process", errno);
  const auto process = std::make_shared<const cuda::EngineProcess>(peer.pid, std::move(pidfd));
  for (int i = 0; i < described.process_regions_size(); ++i) {
    const v1::KvMemory::ProcessRegion& region = described.process_regions(i);
    absl::StatusOr<cuda::EngineRegion> opened =
        cuda::EngineRegion::OfProcess(process, region.address(), Bytes{region.length()});
    if (absl::IsPermissionDenied(opened.status()) || absl::IsUnimplemented(opened.status())) {
      return absl::PermissionDeniedError(absl::StrCat("the kernel doesn't let kvistd into the engine's memory (",
                                                      opened.status().message(),
                                                      "): put the KV memory into a memfd (kvist_memory.memfds); or give "
                                                      "both one uid and gid, leave the engine dumpable, and see "
                                                      "kernel.yama.ptrace_scope (at most 1) and seccomp filters"));
    }
    if (!opened.ok()) return Of("process_regions", i, opened.status());
    regions->push_back(*std::move(opened));
  }
  return absl::OkStatus();
}

// What can be told of them without a GPU.
absl::Status CheckDeviceRegions(const v1::KvMemory& described) {
  KVIST_RETURN_IF_ERROR(InRange("the number of device_regions", static_cast<uint64_t>(described.device_regions_size()), 1,
                                shm::kDeviceRegionsMax));
  for (int i = 0; i < described.device_regions_size(); ++i) {
    const v1::KvMemory::DeviceRegion& region = described.device_regions(i);
    const auto field = [&](const char* name) { return absl::StrCat("device_regions[", i, "].", name); };
    const auto size = [&](const char* name, const char* what, size_t has, size_t wanted) {
      if (has == wanted) return absl::OkStatus();
      return absl::InvalidArgumentError(absl::StrCat(field(name), " has ", has, " bytes, ", what, " has ", wanted));
    };
    KVIST_RETURN_IF_ERROR(size("device", "the UUID of a GPU", region.device().size(), kUuidBytes));
    KVIST_RETURN_IF_ERROR(size("handle", "a handle of CUDA IPC", region.handle().size(), kHandleBytes));
    KVIST_RETURN_IF_ERROR(InRange(field("length"), region.length(), 1, UINT64_MAX - region.offset()));
    if (region.device() != described.device_regions(0).device()) {
      return absl::InvalidArgumentError(
          absl::StrCat(field("device"), ": a worker's KV memory is on several GPUs: connect a client for each"));
    }
  }
  return absl::OkStatus();
}

// Memory of a GPU, opened through CUDA IPC. A handle is a few bytes that another process could have seen or guessed: that the memory is this
// one's to give is proven by the probe pages, which it writes there.
absl::Status AddDeviceRegions(const v1::KvMemory& described, const Peer& peer, cuda::Gpus* gpus, cuda::KvMemory* memory) {
  if (described.device_regions().empty()) return absl::OkStatus();
  if (!memory->regions.empty())
    return absl::InvalidArgumentError(
        "device_regions came beside memfds or process_regions: a worker's KV memory is a GPU's or the host's");
  KVIST_RETURN_IF_ERROR(CheckDeviceRegions(described));
  if (gpus == nullptr) return absl::FailedPreconditionError("this kvistd serves no GPU memory (device_regions)");
  // By handle: many regions lie in one allocation
  std::map<std::string, std::shared_ptr<const cuda::ImportedMemory>> imports;
  for (int i = 0; i < described.device_regions_size(); ++i) {
    const v1::KvMemory::DeviceRegion& region = described.device_regions(i);
    cuda::driver::Uuid uuid;
    cuda::DeviceAllocation allocation;
    std::memcpy(uuid.bytes.data(), region.device().data(), uuid.bytes.size());
    std::memcpy(allocation.handle.bytes.data(), region.handle().data(), allocation.handle.bytes.size());
    allocation.pid_there = region.pid();
    KVIST_ASSIGN_OR_RETURN(memory->gpu, gpus->Use(uuid));
    std::shared_ptr<const cuda::ImportedMemory>& known = imports[region.handle()];
    if (known == nullptr) { KVIST_ASSIGN_OR_RETURN(known, memory->gpu->Import(allocation, peer.pidfd.get())); }
    std::shared_ptr<const cuda::ImportedMemory> imported = known;
    if (region.offset() > imported->length.value || region.length() > imported->length.value - region.offset()) {
      return absl::InvalidArgumentError(absl::StrCat("device_regions[", i, "] is [", region.offset(), ", +", region.length(),
                                                     ") of an allocation of ", imported->length.value, " bytes"));
    }
    const cuda::driver::Address address = imported->address + region.offset();
    memory->regions.push_back(
        cuda::EngineRegion::OfDevice({memory->gpu, address, std::move(imported)}, Bytes{region.length()}));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const cuda::KvMemory>> OpenMemory(const v1::KvMemory& described, const v1::Space& space,
                                                                 std::span<UniqueFd> fds, const Peer& peer, cuda::Gpus* gpus,
                                                                 const KeepMemory& keep) {
  if (fds.empty() && described.process_regions().empty() && described.device_regions().empty())
    return absl::InvalidArgumentError("a worker sends the memfds of its KV memory with its Hello; none came");
  uint32_t layers = 0;
  for (const v1::Space::Group& group : space.groups()) layers += group.layers();
  if (static_cast<uint32_t>(described.layers_size()) != layers) {
    return absl::InvalidArgumentError(
        absl::StrCat("the memory has ", described.layers_size(), " layers, the space ", layers));
  }
  if (described.groups_size() != space.groups_size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the memory has ", described.groups_size(), " cache groups, the space ", space.groups_size()));
  }
  auto memory = std::make_shared<cuda::KvMemory>();
  if (keep) memory = keep(std::move(memory));
  KVIST_RETURN_IF_ERROR(AddFiles(described, fds, &memory->regions));
  KVIST_RETURN_IF_ERROR(AddProcessRegions(described, peer, &memory->regions));
  KVIST_RETURN_IF_ERROR(AddDeviceRegions(described, peer, gpus, memory.get()));
  std::vector<Bytes> lengths;
  for (const cuda::EngineRegion& region : memory->regions) lengths.push_back(region.length());
  auto layer = described.layers().begin();
  for (int g = 0; g < space.groups_size(); ++g) {
    const v1::Space::Group& group = space.groups(g);
    const v1::KvMemory::Group& pages = described.groups(g);
    cuda::KvLayout& layout = memory->layouts.emplace_back();
    for (uint32_t l = 0; l < group.layers(); ++l, ++layer)
      layout.layers.push_back({layer->region(), ByteOffset{layer->offset()}});
    layout.pages = pages.pages();
    layout.page_stride = Bytes{pages.page_stride()};
    layout.segment_bytes = Bytes{group.segment_bytes()};
    layout.pages_per_chunk = PagesPerChunk(space, group);
    KVIST_ASSIGN_OR_RETURN(layout.segment_offsets, SegmentOffsets(pages, group.segments()));
    KVIST_RETURN_IF_ERROR(layout.Validate(lengths));
    // A GPU copies each by itself, and everybody's in turn.
    if (memory->gpu != nullptr && layout.segment_bytes < kDeviceSegmentMin) {
      return absl::InvalidArgumentError(absl::StrCat("segment_bytes is ", layout.segment_bytes.value, ", on a GPU at least ",
                                                     kDeviceSegmentMin.value,
                                                     ": describe longer contiguous pieces, or another order of the pages"));
    }
  }
  return memory;
}

}  // namespace

absl::StatusOr<Registration> CheckHello(const v1::Hello& hello, std::span<UniqueFd> fds, const std::string& tenant,
                                        const Peer& peer, GpuService service, const KeepMemory& keep) {
  if (hello.protocol_version() != shm::kVersion) {
    return absl::FailedPreconditionError(absl::StrCat("the connector speaks protocol version ", hello.protocol_version(),
                                                      ", this kvistd ", shm::kVersion,
                                                      ": install the same kvist on both sides"));
  }
  KVIST_RETURN_IF_ERROR(CheckName("instance", hello.instance(), true));
  KVIST_RETURN_IF_ERROR(CheckSpace(hello.space()));
  const v1::Space& space = hello.space();
  Registration registration;
  registration.instance = hello.instance();
  registration.chunk_tokens = space.chunk_tokens();
  registration.probed = hello.probed();
  registration.by_layer = hello.by_layer();
  const uint32_t ranks = space.tensor_parallel() * space.pipeline_parallel();
  KVIST_RETURN_IF_ERROR(InRange("rank", hello.rank(), 0, ranks - 1));
  registration.rank = Rank{static_cast<uint16_t>(hello.rank())};
  switch (hello.role()) {
    case v1::Hello::ROLE_SCHEDULER:
      registration.role = core::Role::kScheduler;
      if (!fds.empty())
        return absl::InvalidArgumentError("a scheduler has no KV memory, but descriptors came with its Hello");
      break;
    case v1::Hello::ROLE_WORKER: {
      registration.role = core::Role::kWorker;
      KVIST_ASSIGN_OR_RETURN(registration.memory, OpenMemory(hello.memory(), space, fds, peer, service.gpus, keep));
      break;
    }
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("the role is ", static_cast<int>(hello.role()), ": neither scheduler nor worker"));
  }
  if (registration.memory != nullptr && registration.memory->gpu != nullptr) {
    const std::string description = hello.memory().SerializeAsString();
    registration.memory_proof = service.proofs->Of(peer.uid, peer.pid, description);
    // Who only says that it was probed before has not shown that the memory is its own; what a process of this uid has is no secret here.
    if (registration.probed && peer.uid != ::geteuid() &&
        !service.proofs->Holds(hello.memory_proof(), peer.uid, peer.pid, description)) {
      return absl::PermissionDeniedError(
          "the engine's GPU memory holds KV now, so it can't be probed, and the engine has no proof of this kvistd's making "
          "(its key is in "
          "daemon.state_dir) that it was: start the engine again, after kvistd");
    }
  }
  registration.space = SpecOf(space, tenant);
  return registration;
}

}  // namespace kvist::session

#include "connector/src/registration.h"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "connector/src/sized.h"
#include "proto/session.pb.h"
#include "storage/base/runtime_dir.h"
#include "storage/base/shm/description_limits.h"
#include "storage/base/shm/frame_socket.h"
#include "storage/base/shm/layout.h"
#include "storage/base/shm/probe_pattern.h"
#include "storage/base/status.h"

namespace kvist::connector {
namespace {

absl::Status Text(const char* field, const char* value, bool required, std::string* out) {
  if (value == nullptr || *value == '\0') {
    return required ? absl::InvalidArgumentError(absl::StrCat(field, " is missing")) : absl::OkStatus();
  }
  *out = value;
  if (out->size() > shm::kNameBytesMax)
    return absl::InvalidArgumentError(absl::StrCat(field, " has ", out->size(), " bytes, allowed are ", shm::kNameBytesMax));
  return absl::OkStatus();
}

absl::Status InRange(const std::string& field, uint64_t value, uint64_t most) {
  if (value >= 1 && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", value, ", allowed are 1 to ", most));
}

// The daemon of this user where it has one, else the system's.
std::string DefaultSocket() {
  const std::string own = DefaultRuntimeDir();
  return (IsPrivateDir(own) ? own : std::string(kSystemRuntimeDir)) + "/" + kEngineSocketName;
}

}  // namespace

absl::StatusOr<Registration> Registration::Create(const kvist_options& options) {
  KVIST_ASSIGN_OR_RETURN(const kvist_space space, Sized(options.space));
  Registration r;
  const char* socket = options.socket != nullptr ? options.socket : std::getenv("KVIST_SOCKET");
  r.socket_ = socket != nullptr ? socket : DefaultSocket();
  KVIST_RETURN_IF_ERROR(Text("instance", options.instance, true, &r.instance_));
  KVIST_RETURN_IF_ERROR(Text("space.model", space.model, true, &r.model_));
  KVIST_RETURN_IF_ERROR(Text("space.revision", space.revision, false, &r.revision_));
  KVIST_RETURN_IF_ERROR(Text("space.kv_dtype", space.kv_dtype, true, &r.kv_dtype_));
  KVIST_RETURN_IF_ERROR(Text("space.layout", space.layout, false, &r.layout_));
  KVIST_RETURN_IF_ERROR(InRange("space.page_tokens", space.page_tokens, shm::kTokensMax));
  KVIST_RETURN_IF_ERROR(InRange("space.chunk_tokens", space.chunk_tokens, shm::kTokensMax));
  if (space.slot_order != KVIST_LAYER_MAJOR) return absl::InvalidArgumentError("space.slot_order is not KVIST_LAYER_MAJOR");
  r.role_ = options.role;
  r.rank_ = options.rank;
  r.by_layer_ = options.by_layer != 0;
  r.page_tokens_ = space.page_tokens;
  r.chunk_tokens_ = space.chunk_tokens;
  if (space.tensor_parallel != 0) r.tensor_parallel_ = space.tensor_parallel;
  if (space.pipeline_parallel != 0) r.pipeline_parallel_ = space.pipeline_parallel;
  if (space.groups == nullptr) {
    kvist_group only{};
    only.struct_size = sizeof only;
    only.layers = space.layers;
    only.segments = space.segments;
    only.segment_bytes = space.segment_bytes;
    KVIST_RETURN_IF_ERROR(r.TakeGroup("space.", only));
  } else {
    if (space.group_count == 0 || space.group_count > KVIST_GROUPS_MAX) {
      return absl::InvalidArgumentError(
          absl::StrCat("space.group_count is ", space.group_count, ", allowed are 1 to ", KVIST_GROUPS_MAX));
    }
    if (space.layers != 0 || space.segments != 0 || space.segment_bytes != 0) {
      return absl::InvalidArgumentError("space.layers, segments and segment_bytes must be 0 when space.groups says them");
    }
    const size_t step = space.groups->struct_size;
    KVIST_RETURN_IF_ERROR(CheckSize<kvist_group>(step));
    for (size_t g = 0; g < space.group_count; ++g) {
      const auto* at = reinterpret_cast<const kvist_group*>(reinterpret_cast<const std::byte*>(space.groups) + g * step);
      if (at->struct_size != step) {
        return absl::InvalidArgumentError(absl::StrCat("space.groups[", g, "].struct_size is ", at->struct_size,
                                                       ", another than space.groups[0]'s, ", step));
      }
      KVIST_ASSIGN_OR_RETURN(const kvist_group group, Sized(at));
      KVIST_RETURN_IF_ERROR(r.TakeGroup(absl::StrCat("space.groups[", g, "]."), group));
    }
  }
  if (r.role_ == KVIST_SCHEDULER) return r;
  if (r.role_ != KVIST_WORKER) return absl::InvalidArgumentError("role is neither KVIST_SCHEDULER nor KVIST_WORKER");
  if (options.memory == nullptr)
    return absl::InvalidArgumentError("memory is missing: a worker describes its paged KV memory");
  KVIST_ASSIGN_OR_RETURN(const kvist_memory memory, Sized(options.memory));
  KVIST_RETURN_IF_ERROR(r.TakeMemory(memory));
  KVIST_RETURN_IF_ERROR(r.FitsIntoHello());
  return r;
}

absl::Status Registration::FitsIntoHello() const {
  constexpr size_t kLater = kProofBytesMax + 64;  // a proof, that it was probed, and the frame around it all
  session::v1::Hello hello;
  FillHello(&hello);
  const size_t bytes = hello.ByteSizeLong();
  if (bytes + kLater <= shm::kFrameBytesMax) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the description of the KV memory takes ", bytes, " bytes (", layer_places_.size(), " layers, ",
                   process_regions_.size() + cuda_regions_.size(), " regions that are no memfds), and a Hello has room for ",
                   shm::kFrameBytesMax - kLater, ": describe fewer memory.layers, or regions that hold more of them"));
}

absl::Status Registration::TakeGroup(const std::string& name, const kvist_group& from) {
  const auto field = [&](const char* f) { return name + f; };
  KVIST_RETURN_IF_ERROR(InRange(field("layers"), from.layers, shm::kLayersMax));
  KVIST_RETURN_IF_ERROR(InRange(field("segments"), from.segments, shm::kSegmentsMax));
  KVIST_RETURN_IF_ERROR(InRange(field("segment_bytes"), from.segment_bytes, shm::kSegmentBytesMax));
  Group group;
  group.layers = from.layers;
  group.first_layer = layers_;
  group.segments = from.segments;
  group.segment_bytes = from.segment_bytes;
  group.replicated = from.replicated != 0;
  group.page_tokens = from.page_tokens != 0 ? from.page_tokens : page_tokens_;
  switch (from.kind) {
    case KVIST_FULL: break;
    case KVIST_WINDOW:
      KVIST_RETURN_IF_ERROR(InRange(field("window_tokens"), from.window_tokens, shm::kWindowTokensMax));
      group.window_tokens = from.window_tokens;
      group.reuse = ReuseRule::Window(from.window_tokens, chunk_tokens_);
      break;
    case KVIST_STATE: group.reuse.kind = GroupKind::kState; break;
    default: return absl::InvalidArgumentError(field("kind") + " is neither KVIST_FULL, KVIST_WINDOW nor KVIST_STATE");
  }
  if (from.kind == KVIST_STATE) {
    group.pages_per_chunk = 1;
  } else if (chunk_tokens_ % group.page_tokens != 0) {
    return absl::InvalidArgumentError(absl::StrCat("space.chunk_tokens ", chunk_tokens_, " is not a multiple of ", name,
                                                   "page_tokens ", group.page_tokens));
  } else {
    group.pages_per_chunk = chunk_tokens_ / group.page_tokens;
  }
  KVIST_RETURN_IF_ERROR(
      InRange("the pages of a chunk, by " + name + "page_tokens,", group.pages_per_chunk, shm::kPagesPerChunkMax));
  KVIST_RETURN_IF_ERROR(InRange(field("segments * segment_bytes"), group.page_bytes(), shm::kPageBytesMax));
  KVIST_RETURN_IF_ERROR(InRange(field("layers * segments * segment_bytes, by the pages of a chunk,"),
                                group.page_bytes() * group.layers * group.pages_per_chunk, shm::kShardBytesMax));
  layers_ += group.layers;  // KVIST_GROUPS_MAX times shm::kLayersMax at most
  groups_.push_back(std::move(group));
  return absl::OkStatus();
}

absl::Status Registration::TakeMemory(const kvist_memory& memory) {
  if ((memory.memfds == nullptr) != (memory.memfd_count == 0) || memory.memfd_count > shm::kFrameFdsMax) {
    return absl::InvalidArgumentError(absl::StrCat("memory.memfd_count is ", memory.memfd_count, ", allowed are 1 to ",
                                                   shm::kFrameFdsMax, " with memfds, 0 without"));
  }
  if ((memory.process_regions == nullptr) != (memory.process_region_count == 0))
    return absl::InvalidArgumentError("memory.process_region_count says something else than process_regions");
  if (memory.process_region_count > shm::kOtherRegionsMax)
    return absl::InvalidArgumentError(absl::StrCat("memory.process_region_count is ", memory.process_region_count,
                                                   ", allowed are ", shm::kOtherRegionsMax));
  if (memory.memfd_count + memory.process_region_count + memory.cuda_region_count == 0)
    return absl::InvalidArgumentError("memory has no regions: neither memfds nor process_regions nor cuda_regions");
  if (memory.layers == nullptr || memory.layer_count != layers_) {
    return absl::InvalidArgumentError(
        absl::StrCat("memory.layer_count is ", memory.layer_count, ", the space has ", layers_, " layers"));
  }
  if (memory.write_page == nullptr)
    return absl::InvalidArgumentError(
        "memory.write_page is missing: registration is proven with pages that the engine writes");
  if (memory.groups != nullptr && memory.group_count != groups_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("memory.group_count is ", memory.group_count, ", the space has ", groups_.size(), " cache groups"));
  }
  const kvist_group_pages all{memory.pages, memory.page_stride, memory.dims, memory.dim_count};
  for (size_t g = 0; g < groups_.size(); ++g)
    KVIST_RETURN_IF_ERROR(TakePages(memory.groups == nullptr ? all : memory.groups[g], &groups_[g]));
  for (size_t i = 0; i < memory.memfd_count; ++i) {
    UniqueFd copy(::fcntl(memory.memfds[i], F_DUPFD_CLOEXEC, 3));
    if (!copy)
      return absl::InvalidArgumentError(
          absl::StrCat("memory.memfds[", i, "] = ", memory.memfds[i], ": ", std::strerror(errno)));
    memfds_.push_back(std::move(copy));
  }
  process_regions_.assign(memory.process_regions, memory.process_regions + memory.process_region_count);
  for (const kvist_process_region& region : process_regions_) {
    if (region.address == nullptr || region.length == 0)
      return absl::InvalidArgumentError("a region of memory.process_regions has no address or no length");
  }
  KVIST_RETURN_IF_ERROR(TakeCudaRegions(memory));
  const size_t regions = memfds_.size() + process_regions_.size() + cuda_regions_.size();
  layer_places_.assign(memory.layers, memory.layers + memory.layer_count);
  for (const kvist_layer& layer : layer_places_) {
    if (layer.region >= regions)
      return absl::InvalidArgumentError(absl::StrCat("a layer lies in region ", layer.region, " of ", regions));
  }
  for (size_t i = 0; i < memfds_.size(); ++i) {
    if (std::none_of(layer_places_.begin(), layer_places_.end(), [&](const kvist_layer& l) { return l.region == i; }))
      return absl::InvalidArgumentError(absl::StrCat("memory.memfds[", i, "] is one too many: no layer lies in region ", i));
  }
  write_page_ = memory.write_page;
  context_ = memory.context;
  return absl::OkStatus();
}

absl::Status Registration::TakeCudaRegions(const kvist_memory& memory) {
  if ((memory.cuda_regions == nullptr) != (memory.cuda_region_count == 0) ||
      memory.cuda_region_count > shm::kDeviceRegionsMax) {
    return absl::InvalidArgumentError(absl::StrCat("memory.cuda_region_count is ", memory.cuda_region_count,
                                                   ", allowed are 1 to ", shm::kDeviceRegionsMax,
                                                   " with cuda_regions, 0 without"));
  }
  if (memory.cuda_region_count == 0) return absl::OkStatus();
  if (memory.memfd_count + memory.process_region_count > 0)
    return absl::InvalidArgumentError(
        "memory has cuda_regions beside memfds or process_regions: it is a GPU's or the host's");
  cuda_regions_.assign(memory.cuda_regions, memory.cuda_regions + memory.cuda_region_count);
  KVIST_ASSIGN_OR_RETURN(gpu_, EngineGpu::Of(cuda_regions_.front().address));
  for (const kvist_cuda_region& region : cuda_regions_) {
    KVIST_ASSIGN_OR_RETURN(EngineGpu::Region described, gpu_->Describe(region.address, region.length));
    device_regions_.push_back(described);
  }
  return absl::OkStatus();
}

absl::Status Registration::TakePages(const kvist_group_pages& pages, Group* group) {
  KVIST_RETURN_IF_ERROR(InRange("memory.pages", pages.pages, UINT32_MAX));
  if (pages.dim_count > 4 || (pages.dim_count > 0 && pages.dims == nullptr))
    return absl::InvalidArgumentError("memory.dim_count is above 4, or dims is missing");
  if (pages.dim_count > 0) group->dims.assign(pages.dims, pages.dims + pages.dim_count);
  uint64_t segments = 1;
  for (const kvist_dim& dim : group->dims) {
    if (dim.count == 0 || (segments *= dim.count) > shm::kSegmentsMax)
      return absl::InvalidArgumentError(
          absl::StrCat("the counts of memory.dims are 0 or multiply to more than ", shm::kSegmentsMax));
  }
  if (segments != group->segments)
    return absl::InvalidArgumentError(
        absl::StrCat("memory.dims give ", segments, " segments, the space has ", group->segments));
  group->pages = pages.pages;
  group->page_stride = pages.page_stride;
  return absl::OkStatus();
}

void Registration::FillHello(session::v1::Hello* hello) const {
  hello->set_protocol_version(shm::kVersion);
  hello->set_instance(instance_);
  hello->set_role(worker() ? session::v1::Hello::ROLE_WORKER : session::v1::Hello::ROLE_SCHEDULER);
  hello->set_rank(rank_);
  hello->set_probed(probed);
  hello->set_memory_proof(memory_proof);
  hello->set_by_layer(by_layer_);
  session::v1::Space& space = *hello->mutable_space();
  space.set_model(model_);
  space.set_revision(revision_);
  space.set_kv_dtype(kv_dtype_);
  space.set_layout(layout_);
  space.set_page_tokens(page_tokens_);
  space.set_chunk_tokens(chunk_tokens_);
  space.set_tensor_parallel(tensor_parallel_);
  space.set_pipeline_parallel(pipeline_parallel_);
  space.set_slot_order(session::v1::Space::SLOT_ORDER_LAYER_MAJOR);
  for (const Group& from : groups_) {
    session::v1::Space::Group& group = *space.add_groups();
    switch (from.reuse.kind) {
      case GroupKind::kFull: group.set_kind(session::v1::Space::Group::KIND_FULL); break;
      case GroupKind::kWindow: group.set_kind(session::v1::Space::Group::KIND_WINDOW); break;
      case GroupKind::kState: group.set_kind(session::v1::Space::Group::KIND_STATE); break;
    }
    group.set_layers(from.layers);
    group.set_segments(from.segments);
    group.set_segment_bytes(from.segment_bytes);
    group.set_page_tokens(from.page_tokens);
    group.set_window_tokens(from.window_tokens);
    group.set_replicated(from.replicated);
  }
  if (!worker()) return;
  session::v1::KvMemory& memory = *hello->mutable_memory();
  for (const kvist_layer& place : layer_places_) {
    session::v1::KvMemory::Layer& layer = *memory.add_layers();
    layer.set_region(place.region);
    layer.set_offset(place.offset);
  }
  for (const kvist_process_region& from : process_regions_) {
    session::v1::KvMemory::ProcessRegion& region = *memory.add_process_regions();
    region.set_address(reinterpret_cast<uintptr_t>(from.address));
    region.set_length(from.length);
  }
  for (const EngineGpu::Region& from : device_regions_) {
    session::v1::KvMemory::DeviceRegion& region = *memory.add_device_regions();
    region.set_device(from.device.bytes.data(), from.device.bytes.size());
    region.set_handle(from.allocation.bytes.data(), from.allocation.bytes.size());
    region.set_offset(from.offset);
    region.set_length(from.length);
    region.set_pid(::getpid());
  }
  for (const Group& from : groups_) {
    session::v1::KvMemory::Group& group = *memory.add_groups();
    group.set_pages(from.pages);
    group.set_page_stride(from.page_stride);
    for (const kvist_dim& d : from.dims) {
      session::v1::KvMemory::Dim& dim = *group.add_dims();
      dim.set_count(d.count);
      dim.set_stride(d.stride);
    }
  }
}

std::vector<int> Registration::fds() const {
  std::vector<int> fds;
  for (const UniqueFd& fd : memfds_) fds.push_back(fd.get());
  return fds;
}

absl::Status Registration::WriteProbe(size_t of_group, uint64_t nonce) const {
  const Group& group = groups_[of_group];
  std::vector<std::byte> pattern(group.page_bytes());
  for (uint32_t layer = group.first_layer; layer < group.first_layer + group.layers; ++layer) {
    for (const uint32_t page : {0u, group.pages - 1}) {
      shm::FillProbePattern(nonce, LayerIndex{layer}, PageId{page}, pattern);
      if (write_page_(context_, layer, page, pattern.data(), pattern.size()) != 0) {
        return absl::FailedPreconditionError(
            absl::StrCat("the engine's write_page failed for page ", page, " of layer ", layer));
      }
    }
  }
  return absl::OkStatus();
}

std::vector<uint64_t> Registration::Group::SegmentOffsets() const {
  std::vector<uint64_t> offsets{0};
  for (const kvist_dim& dim : dims) {
    std::vector<uint64_t> next;
    for (const uint64_t base : offsets) {
      for (uint64_t i = 0; i < dim.count; ++i) next.push_back(base + i * dim.stride);
    }
    offsets = std::move(next);
  }
  return offsets;
}

bool Registration::ReadRegion(uint32_t region, uint64_t at, std::byte* out, size_t size) const {
  const auto wanted = static_cast<ssize_t>(size);
  if (region < memfds_.size()) return ::pread(memfds_[region].get(), out, size, static_cast<off_t>(at)) == wanted;
  if (gpu_ != nullptr) {
    const kvist_cuda_region& memory = cuda_regions_[region];
    if (at > memory.length || size > memory.length - at) return false;
    return gpu_->Read(static_cast<const std::byte*>(memory.address) + at, out, size).ok();
  }
  const kvist_process_region& memory = process_regions_[region - memfds_.size()];
  if (at > memory.length || size > memory.length - at) return false;
  // As kvistd does it: a wrong description gives an error here, and no SIGSEGV.
  const iovec to{out, size}, from{static_cast<std::byte*>(memory.address) + at, size};
  return ::process_vm_readv(::getpid(), &to, 1, &from, 1, 0) == wanted;
}

absl::Status Registration::ProbeLocally() const {
  for (size_t group = 0; group < groups_.size(); ++group) KVIST_RETURN_IF_ERROR(ProbeLocally(group));
  return absl::OkStatus();
}

absl::Status Registration::ProbeLocally(size_t of_group) const {
  constexpr uint64_t kNonce = 0x6b76697374;  // nobody to convince but ourselves
  KVIST_RETURN_IF_ERROR(WriteProbe(of_group, kNonce));
  const Group& group = groups_[of_group];
  const std::vector<uint64_t> offsets = group.SegmentOffsets();
  std::vector<std::byte> found(group.page_bytes()), wanted(group.page_bytes());
  for (uint32_t layer = group.first_layer; layer < group.first_layer + group.layers; ++layer) {
    const kvist_layer& place = layer_places_[layer];
    for (const uint32_t page : {0u, group.pages - 1}) {
      std::byte* out = found.data();
      for (const uint64_t offset : offsets) {
        const uint64_t at = place.offset + page * group.page_stride + offset;
        if (!ReadRegion(place.region, at, out, group.segment_bytes)) {
          return absl::InvalidArgumentError(
              absl::StrCat("page ", page, " of layer ", layer, " isn't in its region, or its memory isn't mapped"));
        }
        out += group.segment_bytes;
      }
      shm::FillProbePattern(kNonce, LayerIndex{layer}, PageId{page}, wanted);
      if (found != wanted) {
        return absl::FailedPreconditionError(
            absl::StrCat("the KV memory isn't where it was described: page ", page, " of layer ", layer,
                         " differs from what the engine wrote; check base, strides and segments"));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace kvist::connector

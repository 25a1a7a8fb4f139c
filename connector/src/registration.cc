#include "connector/src/registration.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "proto/session.pb.h"
#include "storage/base/runtime_dir.h"
#include "storage/base/shm/frame_socket.h"
#include "storage/base/shm/layout.h"
#include "storage/base/shm/probe_pattern.h"
#include "storage/base/status.h"

namespace kvist::connector {
namespace {

constexpr uint64_t kSegmentsMax = 4096;
constexpr size_t kNameMax = 255;

absl::Status Text(const char* field, const char* value, bool required, std::string* out) {
  if (value == nullptr || *value == '\0') {
    return required ? absl::InvalidArgumentError(absl::StrCat(field, " is missing")) : absl::OkStatus();
  }
  *out = value;
  if (out->size() > kNameMax)
    return absl::InvalidArgumentError(absl::StrCat(field, " has ", out->size(), " bytes, allowed are ", kNameMax));
  return absl::OkStatus();
}

absl::Status Positive(const char* field, uint64_t value) {
  return value > 0 ? absl::OkStatus() : absl::InvalidArgumentError(absl::StrCat(field, " is 0"));
}

// The daemon of this user where it has one, else the system's.
std::string DefaultSocket() {
  const std::string own = DefaultRuntimeDir();
  return (IsPrivateDir(own) ? own : std::string(kSystemRuntimeDir)) + "/" + kEngineSocketName;
}

// A struct of a later library version may be longer; one of an earlier version is not served, because there is none.
absl::Status Size(const char* name, size_t found, size_t wanted) {
  if (found >= wanted) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, ".struct_size is ", found, ", wanted sizeof(", name, ") = ", wanted));
}

}  // namespace

absl::StatusOr<Registration> Registration::Create(const kvist_options& options) {
  KVIST_RETURN_IF_ERROR(Size("kvist_options", options.struct_size, sizeof(kvist_options)));
  const kvist_space& space = options.space;
  KVIST_RETURN_IF_ERROR(Size("kvist_space", space.struct_size, sizeof(kvist_space)));
  Registration r;
  const char* socket = options.socket != nullptr ? options.socket : std::getenv("KVIST_SOCKET");
  r.socket_ = socket != nullptr ? socket : DefaultSocket();
  KVIST_RETURN_IF_ERROR(Text("instance", options.instance, true, &r.instance_));
  KVIST_RETURN_IF_ERROR(Text("space.model", space.model, true, &r.model_));
  KVIST_RETURN_IF_ERROR(Text("space.revision", space.revision, false, &r.revision_));
  KVIST_RETURN_IF_ERROR(Text("space.kv_dtype", space.kv_dtype, true, &r.kv_dtype_));
  KVIST_RETURN_IF_ERROR(Positive("space.layers", space.layers));
  KVIST_RETURN_IF_ERROR(Positive("space.page_tokens", space.page_tokens));
  KVIST_RETURN_IF_ERROR(Positive("space.chunk_tokens", space.chunk_tokens));
  KVIST_RETURN_IF_ERROR(Positive("space.segments", space.segments));
  KVIST_RETURN_IF_ERROR(Positive("space.segment_bytes", space.segment_bytes));
  if (space.chunk_tokens % space.page_tokens != 0) {
    return absl::InvalidArgumentError(absl::StrCat("space.chunk_tokens ", space.chunk_tokens,
                                                   " is not a multiple of space.page_tokens ", space.page_tokens));
  }
  if (space.slot_order != KVIST_LAYER_MAJOR) return absl::InvalidArgumentError("space.slot_order is not KVIST_LAYER_MAJOR");
  r.role_ = options.role;
  r.rank_ = options.rank;
  r.layers_ = space.layers;
  r.page_tokens_ = space.page_tokens;
  r.chunk_tokens_ = space.chunk_tokens;
  r.segments_ = space.segments;
  r.segment_bytes_ = space.segment_bytes;
  if (space.tensor_parallel != 0) r.tensor_parallel_ = space.tensor_parallel;
  if (space.pipeline_parallel != 0) r.pipeline_parallel_ = space.pipeline_parallel;
  if (r.role_ == KVIST_SCHEDULER) return r;
  if (r.role_ != KVIST_WORKER) return absl::InvalidArgumentError("role is neither KVIST_SCHEDULER nor KVIST_WORKER");

  if (options.memory == nullptr)
    return absl::InvalidArgumentError("memory is missing: a worker describes its paged KV memory");
  const kvist_memory& memory = *options.memory;
  KVIST_RETURN_IF_ERROR(Size("kvist_memory", memory.struct_size, sizeof(kvist_memory)));
  if (memory.memfds == nullptr || memory.memfd_count == 0 || memory.memfd_count > shm::kFrameFdsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("memory.memfd_count is ", memory.memfd_count, ", allowed are 1 to ", shm::kFrameFdsMax));
  }
  if (memory.layers == nullptr || memory.layer_count != space.layers) {
    return absl::InvalidArgumentError(
        absl::StrCat("memory.layer_count is ", memory.layer_count, ", space.layers ", space.layers));
  }
  if (memory.dim_count > 4 || (memory.dim_count > 0 && memory.dims == nullptr))
    return absl::InvalidArgumentError("memory.dim_count is above 4, or dims is missing");
  if (memory.write_page == nullptr)
    return absl::InvalidArgumentError(
        "memory.write_page is missing: registration is proven with pages that the engine writes");
  KVIST_RETURN_IF_ERROR(Positive("memory.pages", memory.pages));
  for (size_t i = 0; i < memory.memfd_count; ++i) {
    UniqueFd copy(::fcntl(memory.memfds[i], F_DUPFD_CLOEXEC, 3));
    if (!copy)
      return absl::InvalidArgumentError(
          absl::StrCat("memory.memfds[", i, "] = ", memory.memfds[i], ": ", std::strerror(errno)));
    r.memfds_.push_back(std::move(copy));
  }
  r.layer_places_.assign(memory.layers, memory.layers + memory.layer_count);
  for (const kvist_layer& layer : r.layer_places_) {
    if (layer.region >= memory.memfd_count)
      return absl::InvalidArgumentError(absl::StrCat("a layer lies in region ", layer.region, " of ", memory.memfd_count));
  }
  if (memory.dim_count > 0) r.dims_.assign(memory.dims, memory.dims + memory.dim_count);
  uint64_t segments = 1;
  for (const kvist_dim& dim : r.dims_) {
    if (dim.count == 0 || (segments *= dim.count) > kSegmentsMax)
      return absl::InvalidArgumentError("the counts of memory.dims are 0 or multiply to more than 4096");
  }
  if (segments != space.segments)
    return absl::InvalidArgumentError(
        absl::StrCat("memory.dims give ", segments, " segments, space.segments is ", space.segments));
  r.pages_ = memory.pages;
  r.page_stride_ = memory.page_stride;
  r.write_page_ = memory.write_page;
  r.context_ = memory.context;
  return r;
}

void Registration::FillHello(session::v1::Hello* hello) const {
  hello->set_protocol_version(shm::kVersion);
  hello->set_instance(instance_);
  hello->set_role(worker() ? session::v1::Hello::ROLE_WORKER : session::v1::Hello::ROLE_SCHEDULER);
  hello->set_rank(rank_);
  hello->set_probed(probed);
  session::v1::Space& space = *hello->mutable_space();
  space.set_model(model_);
  space.set_revision(revision_);
  space.set_kv_dtype(kv_dtype_);
  space.set_page_tokens(page_tokens_);
  space.set_chunk_tokens(chunk_tokens_);
  space.set_tensor_parallel(tensor_parallel_);
  space.set_pipeline_parallel(pipeline_parallel_);
  space.set_slot_order(session::v1::Space::SLOT_ORDER_LAYER_MAJOR);
  session::v1::Space::Group& group = *space.add_groups();
  group.set_kind(session::v1::Space::Group::KIND_FULL);
  group.set_layers(layers_);
  group.set_segments(segments_);
  group.set_segment_bytes(segment_bytes_);
  if (!worker()) return;
  session::v1::KvMemory& memory = *hello->mutable_memory();
  for (const kvist_layer& place : layer_places_) {
    session::v1::KvMemory::Layer& layer = *memory.add_layers();
    layer.set_region(place.region);
    layer.set_offset(place.offset);
  }
  for (const kvist_dim& d : dims_) {
    session::v1::KvMemory::Dim& dim = *memory.add_dims();
    dim.set_count(d.count);
    dim.set_stride(d.stride);
  }
  memory.set_pages(pages_);
  memory.set_page_stride(page_stride_);
}

std::vector<int> Registration::fds() const {
  std::vector<int> fds;
  for (const UniqueFd& fd : memfds_) fds.push_back(fd.get());
  return fds;
}

absl::Status Registration::WriteProbe(uint64_t nonce) const {
  std::vector<std::byte> pattern(page_bytes());
  for (uint32_t layer = 0; layer < layers_; ++layer) {
    for (const uint32_t page : {0u, pages_ - 1}) {
      shm::FillProbePattern(nonce, LayerIndex{layer}, PageId{page}, pattern);
      if (write_page_(context_, layer, page, pattern.data(), pattern.size()) != 0) {
        return absl::FailedPreconditionError(
            absl::StrCat("the engine's write_page failed for page ", page, " of layer ", layer));
      }
    }
  }
  return absl::OkStatus();
}

std::vector<uint64_t> Registration::SegmentOffsets() const {
  std::vector<uint64_t> offsets{0};
  for (const kvist_dim& dim : dims_) {
    std::vector<uint64_t> next;
    for (const uint64_t base : offsets) {
      for (uint64_t i = 0; i < dim.count; ++i) next.push_back(base + i * dim.stride);
    }
    offsets = std::move(next);
  }
  return offsets;
}

absl::Status Registration::ProbeLocally() const {
  constexpr uint64_t kNonce = 0x6b76697374;  // nobody to convince but ourselves
  KVIST_RETURN_IF_ERROR(WriteProbe(kNonce));
  const std::vector<uint64_t> offsets = SegmentOffsets();
  std::vector<std::byte> found(page_bytes()), wanted(page_bytes());
  for (uint32_t layer = 0; layer < layers_; ++layer) {
    const kvist_layer& place = layer_places_[layer];
    for (const uint32_t page : {0u, pages_ - 1}) {
      std::byte* out = found.data();
      for (const uint64_t offset : offsets) {
        const uint64_t at = place.offset + page * page_stride_ + offset;
        if (::pread(memfds_[place.region].get(), out, segment_bytes_, static_cast<off_t>(at)) !=
            static_cast<ssize_t>(segment_bytes_)) {
          return absl::InvalidArgumentError(absl::StrCat("page ", page, " of layer ", layer, " ends outside its region"));
        }
        out += segment_bytes_;
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

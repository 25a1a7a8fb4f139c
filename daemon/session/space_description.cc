#include "daemon/session/space_description.h"

#include <openssl/evp.h>

#include "absl/strings/str_cat.h"
#include "cuda/kv_memory.h"
#include "daemon/core/spaces.h"
#include "proto/session.pb.h"
#include "storage/base/check.h"
#include "storage/base/shm/description_limits.h"
#include "storage/base/status.h"
#include "storage/base/utf8.h"

namespace kvist::session {
namespace {

uint32_t PageTokens(const v1::Space& space, const v1::Space::Group& group) {
  return group.page_tokens() != 0 ? group.page_tokens() : space.page_tokens();
}

absl::Status CheckGroup(const v1::Space& space, const v1::Space::Group& group) {
  switch (group.kind()) {
    case v1::Space::Group::KIND_FULL:
    case v1::Space::Group::KIND_STATE: break;
    case v1::Space::Group::KIND_WINDOW:
      KVIST_RETURN_IF_ERROR(InRange("window_tokens", group.window_tokens(), 1, shm::kWindowTokensMax));
      break;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("the kind of a cache group is ", static_cast<int>(group.kind()), ": neither full, window nor state"));
  }
  KVIST_RETURN_IF_ERROR(InRange("page_tokens", PageTokens(space, group), 1, shm::kTokensMax));
  if (group.kind() != v1::Space::Group::KIND_STATE && space.chunk_tokens() % PageTokens(space, group) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunk_tokens ", space.chunk_tokens(), " is not a multiple of page_tokens ", PageTokens(space, group)));
  }
  const uint64_t pages = PagesPerChunk(space, group);
  KVIST_RETURN_IF_ERROR(InRange("pages of a chunk", pages, 1, shm::kPagesPerChunkMax));
  KVIST_RETURN_IF_ERROR(InRange("layers", group.layers(), 1, shm::kLayersMax));
  KVIST_RETURN_IF_ERROR(InRange("segments", group.segments(), 1, shm::kSegmentsMax));
  KVIST_RETURN_IF_ERROR(InRange("segment_bytes", group.segment_bytes(), 1, shm::kSegmentBytesMax));
  const uint64_t page_bytes = group.segments() * group.segment_bytes();
  KVIST_RETURN_IF_ERROR(InRange("bytes of a page in one layer", page_bytes, 1, shm::kPageBytesMax));
  return InRange("bytes of a chunk on one rank", page_bytes * group.layers() * pages, 1, shm::kShardBytesMax);
}

class DigestWriter {
 public:
  DigestWriter() : context_(EVP_MD_CTX_new()) { KVIST_CHECK(EVP_DigestInit_ex(context_, EVP_sha256(), nullptr) == 1); }
  ~DigestWriter() { EVP_MD_CTX_free(context_); }
  void Number(uint64_t v) { Raw(&v, sizeof v); }
  void Text(std::string_view s) {
    Number(s.size());
    Raw(s.data(), s.size());
  }
  SpaceDigest Finish() {
    SpaceDigest digest;
    KVIST_CHECK(EVP_DigestFinal_ex(context_, digest.bytes.data(), nullptr) == 1);
    return digest;
  }

 private:
  void Raw(const void* data, size_t size) { KVIST_CHECK(EVP_DigestUpdate(context_, data, size) == 1); }
  EVP_MD_CTX* context_;
};

SpaceDigest DigestOf(const v1::Space& space, const std::string& tenant) {
  DigestWriter w;
  w.Text(std::string_view("kvist.space.1\0", 14));
  w.Text(tenant);
  w.Text(space.model());
  w.Text(space.revision());
  w.Text(space.kv_dtype());
  w.Text(space.layout());
  w.Number(space.page_tokens());
  w.Number(space.chunk_tokens());
  w.Number(space.tensor_parallel());
  w.Number(space.pipeline_parallel());
  w.Number(space.slot_order());
  for (const v1::Space::Group& group : space.groups()) {
    w.Number(group.kind());
    w.Number(group.layers());
    w.Number(group.segments());
    w.Number(group.segment_bytes());
    w.Number(PagesPerChunk(space, group));
    w.Number(group.kind() == v1::Space::Group::KIND_WINDOW ? group.window_tokens() : 0);
    w.Number(group.replicated() ? 1 : 0);
  }
  return w.Finish();
}

core::GroupSpec SpecOf(const v1::Space& space, const v1::Space::Group& group) {
  core::GroupSpec spec;
  if (group.kind() == v1::Space::Group::KIND_STATE) spec.reuse = {GroupKind::kState};
  if (group.kind() == v1::Space::Group::KIND_WINDOW) {
    spec.reuse = ReuseRule::Window(group.window_tokens(), space.chunk_tokens());
  }
  const Bytes payload{group.segments() * group.segment_bytes() * group.layers() * PagesPerChunk(space, group)};
  if (group.replicated()) spec.ranks_per_shard = space.tensor_parallel();
  const uint32_t shards = space.tensor_parallel() * space.pipeline_parallel() / spec.ranks_per_shard;
  spec.layers = group.layers();
  spec.layer_bytes = payload / group.layers();
  spec.slot_bytes.assign(shards, cuda::SlotBytesFor(payload));
  return spec;
}

}  // namespace

absl::Status InRange(std::string_view field, uint64_t value, uint64_t low, uint64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(absl::string_view(field.data(), field.size()), " is ", value, ", allowed are ", low, " to ", high));
}

absl::Status CheckName(std::string_view field, const std::string& value, bool required) {
  KVIST_RETURN_IF_ERROR(InRange(absl::StrCat("the length of ", absl::string_view(field.data(), field.size())), value.size(),
                                required ? 1 : 0, shm::kNameBytesMax));
  for (size_t i = 0; i < value.size(); ++i) {
    if (ControlAt(value, i) > 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(absl::string_view(field.data(), field.size()), " has a control character"));
    }
  }
  return absl::OkStatus();
}

uint32_t PagesPerChunk(const v1::Space& space, const v1::Space::Group& group) {
  return group.kind() == v1::Space::Group::KIND_STATE ? 1 : space.chunk_tokens() / PageTokens(space, group);
}

absl::Status CheckSpace(const v1::Space& space) {
  KVIST_RETURN_IF_ERROR(CheckName("model", space.model(), true));
  KVIST_RETURN_IF_ERROR(CheckName("revision", space.revision(), false));
  KVIST_RETURN_IF_ERROR(CheckName("kv_dtype", space.kv_dtype(), true));
  KVIST_RETURN_IF_ERROR(CheckName("layout", space.layout(), false));
  KVIST_RETURN_IF_ERROR(InRange("page_tokens", space.page_tokens(), 1, shm::kTokensMax));
  KVIST_RETURN_IF_ERROR(InRange("chunk_tokens", space.chunk_tokens(), 1, shm::kTokensMax));
  KVIST_RETURN_IF_ERROR(InRange("tensor_parallel", space.tensor_parallel(), 1, 64));
  KVIST_RETURN_IF_ERROR(InRange("pipeline_parallel", space.pipeline_parallel(), 1, 64));
  KVIST_RETURN_IF_ERROR(
      InRange("tensor_parallel * pipeline_parallel", uint64_t{space.tensor_parallel()} * space.pipeline_parallel(), 1, 64));
  if (space.slot_order() != v1::Space::SLOT_ORDER_LAYER_MAJOR) {
    return absl::FailedPreconditionError("this kvistd serves the layer-major slot order only");
  }
  KVIST_RETURN_IF_ERROR(
      InRange("the number of cache groups", static_cast<uint64_t>(space.groups_size()), 1, core::Spaces::kGroupsMax));
  for (const v1::Space::Group& group : space.groups()) KVIST_RETURN_IF_ERROR(CheckGroup(space, group));
  return absl::OkStatus();
}

core::SpaceSpec SpecOf(const v1::Space& space, const std::string& tenant) {
  core::SpaceSpec spec;
  spec.digest = DigestOf(space, tenant);
  spec.tenant = tenant;
  spec.model = space.model();
  v1::KeptSpace kept;
  kept.set_tenant(tenant);
  *kept.mutable_space() = space;
  spec.description = kept.SerializeAsString();
  for (const v1::Space::Group& group : space.groups()) spec.groups.push_back(SpecOf(space, group));
  return spec;
}

absl::StatusOr<core::SpaceSpec> SpaceOf(const std::string& description) {
  v1::KeptSpace kept;
  if (!kept.ParseFromString(description)) return absl::InvalidArgumentError("it is no description of a space");
  KVIST_RETURN_IF_ERROR(CheckName("tenant", kept.tenant(), true));
  KVIST_RETURN_IF_ERROR(CheckSpace(kept.space()));
  return SpecOf(kept.space(), kept.tenant());
}

absl::StatusOr<uint32_t> ChunkTokensOf(const std::string& description) {
  v1::KeptSpace kept;
  if (!kept.ParseFromString(description) || kept.space().chunk_tokens() == 0)
    return absl::InvalidArgumentError("it is no description of a space");
  return kept.space().chunk_tokens();
}

absl::StatusOr<std::vector<GroupForm>> FormsOf(const std::string& description) {
  v1::KeptSpace kept;
  if (!kept.ParseFromString(description)) return absl::InvalidArgumentError("it is no description of a space");
  const v1::Space& space = kept.space();
  std::vector<GroupForm> forms;
  for (const v1::Space::Group& group : space.groups()) {
    const bool state = group.kind() == v1::Space::Group::KIND_STATE;
    forms.push_back({space.kv_dtype(), group.layers(), group.segments(), PagesPerChunk(space, group),
                     state ? 1 : PageTokens(space, group), Bytes{group.segment_bytes()}});
  }
  return forms;
}

}  // namespace kvist::session

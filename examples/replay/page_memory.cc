#include "examples/replay/page_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <random>

#include "absl/strings/str_cat.h"

namespace kvist::replay {

bool IsBlockBytes(uint64_t block_bytes) {
  constexpr uint64_t kUnit = 4096;
  constexpr uint64_t kMax = uint64_t{256} << 20;
  static_assert(kUnit % (kPiecesPerBlock * 64) == 0, "pieces are whole cache lines");
  return block_bytes != 0 && block_bytes <= kMax && block_bytes % kUnit == 0;
}

PageMemory::PageMemory(int fd, uint64_t segment_bytes, uint32_t blocks)
    : fd_(fd), segment_bytes_(segment_bytes), pages_(blocks * kPagesPerBlock + 2), tables_(size_t{blocks} * kPagesPerBlock) {
  std::iota(tables_.begin(), tables_.end(), 1u);
  // Fixed, so that two runs copy alike. std::shuffle may differ between libraries, which would not matter either.
  std::shuffle(tables_.begin(), tables_.end(), std::minstd_rand(1));
  for (uint32_t layer = 0; layer < kLayers; ++layer)
    layers_[layer] = {0, uint64_t{layer} * kSegments * pages_ * segment_bytes_};
  dims_[0] = {kSegments, uint64_t{pages_} * segment_bytes_};
}

PageMemory::~PageMemory() {
  if (data_ != nullptr) munmap(data_, uint64_t{kLayers} * kSegments * pages_ * segment_bytes_);
  close(fd_);
}

absl::StatusOr<std::unique_ptr<PageMemory>> PageMemory::Create(uint64_t block_bytes, uint32_t blocks) {
  const auto failed = [](const char* what) { return absl::ErrnoToStatus(errno, absl::StrCat("page memory: ", what)); };
  const int fd = memfd_create("kvist-replay-pages", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return failed("memfd_create");
  std::unique_ptr<PageMemory> memory(new PageMemory(fd, block_bytes / kPiecesPerBlock, blocks));
  const uint64_t bytes = uint64_t{kLayers} * kSegments * memory->pages_ * memory->segment_bytes_;
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) return failed("ftruncate");
  if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) return failed("sealing");
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (data == MAP_FAILED) return failed("mmap");
  memory->data_ = static_cast<std::byte*>(data);
  return memory;
}

std::span<std::byte> PageMemory::At(uint32_t layer, uint32_t page, uint32_t segment) const {
  const uint64_t index = (uint64_t{layer} * kSegments + segment) * pages_ + page;
  return {data_ + index * segment_bytes_, segment_bytes_};
}

int PageMemory::WritePage(void* self, uint32_t layer, uint32_t page, const void* bytes, size_t size) {
  const auto* memory = static_cast<const PageMemory*>(self);
  if (layer >= kLayers || page >= memory->pages_ || size != kSegments * memory->segment_bytes_) return -1;
  const auto* from = static_cast<const std::byte*>(bytes);
  for (uint32_t segment = 0; segment < kSegments; ++segment, from += memory->segment_bytes_) {
    std::memcpy(memory->At(layer, page, segment).data(), from, memory->segment_bytes_);
  }
  return 0;
}

kvist_space PageMemory::space() const {
  kvist_space space{};
  space.struct_size = sizeof space;
  space.model = "kvist-replay";
  space.revision = "1";  // of the bytes in block_bytes.h: raise it when they change
  space.kv_dtype = "bytes";
  space.layers = kLayers;
  space.page_tokens = kPageTokens;
  space.chunk_tokens = kBlockTokens;
  space.segment_bytes = segment_bytes_;
  space.segments = kSegments;
  return space;
}

kvist_memory PageMemory::description() const {
  kvist_memory memory{};
  memory.struct_size = sizeof memory;
  memory.memfds = &fd_;
  memory.memfd_count = 1;
  memory.layers = layers_;
  memory.layer_count = kLayers;
  memory.pages = pages_;
  memory.page_stride = segment_bytes_;
  memory.dims = dims_;
  memory.dim_count = 1;
  memory.write_page = &WritePage;
  memory.context = const_cast<PageMemory*>(this);  // the C ABI has no const; WritePage writes only pages
  return memory;
}

}  // namespace kvist::replay

#include "tests/unit/cuda/kv_world.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <numeric>
#include <utility>

#include "cuda/gpu.h"

namespace kvist::cuda {
namespace {

constexpr std::chrono::seconds kDeadline{60};

// What a layout is made of; Make lays it out.
struct Shape {
  uint32_t layers = 3;
  uint32_t pages = 24;
  uint64_t segment_bytes = 1024;
  uint32_t segments = 1;
  uint32_t pages_per_chunk = 4;
  bool segments_apart = false;  // segment s of all pages before segment s + 1 of all pages
  uint64_t gap = 0;             // bytes after each page (or each segment, when apart)
  bool layers_in_page = false;  // page p of all layers before page p + 1
  uint32_t regions = 1;         // layer l is in region l % regions
  uint64_t margin = 0;          // bytes before a layer
};

NamedLayout Make(std::string name, const Shape& shape) {
  NamedLayout named{std::move(name), {}, std::vector<Bytes>(shape.regions)};
  KvLayout& layout = named.layout;
  layout.pages = shape.pages;
  layout.segment_bytes = {shape.segment_bytes};
  layout.pages_per_chunk = shape.pages_per_chunk;
  const uint64_t cell =
      shape.segments_apart ? shape.segment_bytes + shape.gap : shape.segment_bytes * shape.segments + shape.gap;
  const uint32_t interleaved = shape.layers_in_page ? shape.layers : 1;
  layout.page_stride = {cell * interleaved};
  for (uint64_t s = 0; s < shape.segments; ++s) {
    layout.segment_offsets.push_back(shape.segments_apart ? layout.page_stride * shape.pages * s
                                                          : Bytes{shape.segment_bytes * s});
  }
  const uint64_t block = layout.page_stride.value * shape.pages * (shape.segments_apart ? shape.segments : 1);
  for (uint32_t l = 0; l < shape.layers; ++l) {
    const uint64_t block_at = shape.layers_in_page ? 0 : l / shape.regions * (block + shape.margin);
    layout.layers.push_back(
        {shape.layers_in_page ? 0 : l % shape.regions, {shape.margin + block_at + (shape.layers_in_page ? l * cell : 0)}});
    Bytes& length = named.region_lengths[layout.layers.back().region];
    length = std::max(length, Bytes{shape.margin + block_at + block + 5});
  }
  for (Bytes& length : named.region_lengths) length = std::max(length, Bytes{1});
  return named;
}

template <class Container>
void FillRandomly(Container& bytes, size_t size, Rng& rng) {
  std::byte* to = bytes.data();
  for (size_t at = 0; at < size; at += 8) {
    const uint64_t word = rng();
    std::memcpy(to + at, &word, std::min<size_t>(8, size - at));
  }
}

}  // namespace

std::vector<NamedLayout> KnownLayouts() {
  return {
      Make("one segment, neighbouring pages", {}),
      Make("K and V in the page", {.segments = 2}),
      Make("K of all pages, then V", {.segments = 2, .segments_apart = true}),
      Make("2 x 4 heads apart", {.segment_bytes = 512, .segments = 8, .segments_apart = true}),
      Make("2 x 4 heads in the page", {.segment_bytes = 512, .segments = 8, .gap = 64}),
      Make("a gap after each page", {.segment_bytes = 2000, .segments = 2, .gap = 48}),
      Make("layers within a page", {.layers = 5, .segments = 2, .layers_in_page = true}),
      Make("three regions at odd offsets", {.layers = 7, .regions = 3, .margin = 13}),
      Make("segments of 1 byte", {.segment_bytes = 1, .segments = 3, .margin = 1}),
      Make("segments of 17 bytes", {.segment_bytes = 17, .segments = 2, .segments_apart = true, .gap = 3}),
      Make("segments of 4099 bytes", {.segment_bytes = 4099, .segments = 2, .margin = 7}),
      Make("one page a chunk", {.pages_per_chunk = 1}),
      Make("layers of several units", {.layers = 3, .pages = 160, .segment_bytes = 65536, .pages_per_chunk = 16}),
      Make("many small layers", {.layers = 70, .pages = 32, .segment_bytes = 8192, .pages_per_chunk = 4}),
  };
}

NamedLayout RandomLayout(Rng& rng) {
  const auto below = [&](uint64_t n) { return static_cast<uint32_t>(rng() % n); };
  constexpr uint64_t kSegmentBytes[] = {1, 17, 63, 64, 255, 257, 1024, 4096, 4099, 16384};
  Shape shape;
  shape.layers = 1 + below(9);
  shape.pages = 20 + below(30);
  shape.segment_bytes = kSegmentBytes[below(std::size(kSegmentBytes))];
  shape.segments = 1 + below(6);
  shape.pages_per_chunk = 1 + below(5);
  shape.segments_apart = below(2) == 0;
  shape.gap = below(2) == 0 ? 0 : below(100);
  shape.layers_in_page = below(4) == 0;
  shape.regions = 1 + below(3);
  shape.margin = below(2) == 0 ? 0 : below(200);
  return Make("random", shape);
}

namespace {

std::shared_ptr<const EngineProcess> ThisProcess() {
  UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  REQUIRE(pidfd);
  return std::make_shared<const EngineProcess>(::getpid(), std::move(pidfd));
}

uint64_t AddressOf(const Mapping& mapping) { return reinterpret_cast<uint64_t>(mapping.data()); }

}  // namespace

void KvWorld::Unmap(uint32_t region) {
  const Mapping& view = engine_view_[region];
  // Nothing else may come to lie there, for the view still unmaps it in the end.
  REQUIRE(::mmap(view.data(), view.size().value, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED);
}

KvWorld::KvWorld(const NamedLayout& named, Seal seal, uint32_t slot_count, uint64_t seed, Gpu* gpu)
    : memory_(std::make_shared<KvMemory>()),
      slot_count_(slot_count),
      slot_stride_(SlotBytesFor(named.layout.payload_bytes()).value + kGuard),
      slots_(slot_count * slot_stride_ + kGuard) {
  INFO("layout: " << named.name);
  Rng rng(seed);
  memory_->layouts = {named.layout};
  memory_->gpu = gpu;
  REQUIRE(layout().Validate(named.region_lengths) == absl::OkStatus());
  for (size_t r = 0; r < named.region_lengths.size(); ++r) {
    const Bytes length = named.region_lengths[r];
    UniqueFd fd(::memfd_create("kv", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    REQUIRE(::ftruncate(fd.get(), static_cast<off_t>(length.value)) == 0);
    const bool sealed = seal == Seal::kShrink || (seal == Seal::kMixed && r % 2 == 0);
    if (sealed) REQUIRE(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    engine_fds_.emplace_back(::dup(fd.get()));
    engine_view_.push_back(Mapping::Create(fd.get(), length, Mapping::Access::kReadWrite).value());
    FillRandomly(engine_view_.back(), length.value, rng);
    if (seal == Seal::kProcess) {
      memory_->regions.push_back(EngineRegion::OfProcess(ThisProcess(), AddressOf(engine_view_.back()), length).value());
    } else if (seal == Seal::kDevice) {
      memory_->regions.push_back(EngineRegion::OfDevice({gpu, AddressOf(engine_view_.back()), nullptr}, length));
    } else {
      memory_->regions.push_back(EngineRegion::OfFile(std::move(fd)).value());
    }
    REQUIRE(memory_->regions.back().mapped() == sealed);
  }
  FillRandomly(slots_, slots_.size(), rng);
  if (gpu == nullptr) return;
  const auto pin = [&](void* memory, size_t size) {
    const driver::Current current(gpu->driver(), gpu->context());
    REQUIRE(gpu->driver()->MemHostRegister(memory, size, driver::kHostRegisterPortable) == driver::Result::kSuccess);
    pinned_.emplace_back(memory, [gpu](void* pinned) {
      const driver::Current here(gpu->driver(), gpu->context());
      (void)gpu->driver()->MemHostUnregister(pinned);
    });
  };
  pin(slots_.data(), slots_.size());
  for (const Mapping& view : engine_view_) pin(view.data(), view.size().value);
}

Copy KvWorld::MakeCopy(OpId op, Direction direction, const std::vector<uint32_t>& slots, Rng& rng) const {
  Copy copy{.op = op,
            .direction = direction,
            .memory = memory_,
            .group = {},
            .slots = {},
            .page_table = {},
            .first_layer = 0,
            .layer_count = layers(),
            .progress = nullptr,
            .arrivals = {},
            .pages_ready = nullptr,
            .ready_by_nanos = INT64_MAX};
  std::vector<uint32_t> pages(layout().pages);
  std::iota(pages.begin(), pages.end(), 0);
  // Half the time in order, so that neighbours are joined.
  if (rng() % 2 == 0) std::shuffle(pages.begin(), pages.end(), rng);
  REQUIRE(pages.size() >= slots.size() * layout().pages_per_chunk);
  for (const uint32_t slot : slots) copy.slots.push_back(const_cast<KvWorld*>(this)->slot(slot));
  for (size_t i = 0; i < slots.size() * layout().pages_per_chunk; ++i) copy.page_table.push_back({pages[i]});
  return copy;
}

// By memcmp: a vector's own comparison of std::byte goes byte by byte, which took ThreadSanitizer most of two minutes.
bool KvWorld::Image::operator==(const Image& other) const {
  const auto equal = [](const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0;
  };
  return equal(slots, other.slots) &&
         std::equal(regions.begin(), regions.end(), other.regions.begin(), other.regions.end(), equal);
}

KvWorld::Image KvWorld::Snapshot() const {
  Image image;
  for (const Mapping& view : engine_view_) image.regions.emplace_back(view.data(), view.data() + view.size().value);
  image.slots = slots_;
  return image;
}

template <class Visit>
void KvWorld::ForEachSegment(const Copy& copy, uint32_t layers, Visit visit) const {
  const uint64_t bytes = layout().segment_bytes.value, segments = layout().segment_offsets.size(),
                 pages = layout().pages_per_chunk;
  for (uint64_t l = copy.first_layer; l < copy.first_layer + layers; ++l) {
    for (uint64_t chunk = 0; chunk < copy.slots.size(); ++chunk) {
      for (uint64_t s = 0; s < segments; ++s) {
        for (uint64_t p = 0; p < pages; ++p) {
          const uint64_t page = copy.page_table[chunk * pages + p].value;
          visit(layout().layers[l].region,
                layout().layers[l].offset.value + page * layout().page_stride.value + layout().segment_offsets[s].value,
                static_cast<uint64_t>(copy.slots[chunk] - slots_.data()) + 4096 + ((l * segments + s) * pages + p) * bytes);
        }
      }
    }
  }
}

void KvWorld::Apply(const Copy& copy, Image* image) const {
  ForEachSegment(copy, copy.layer_count, [&](uint32_t region, uint64_t at, uint64_t slot_at) {
    std::byte* page = image->regions[region].data() + at;
    std::byte* slot = image->slots.data() + slot_at;
    const bool load = copy.direction == Direction::kLoad;
    std::memcpy(load ? page : slot, load ? slot : page, layout().segment_bytes.value);
  });
}

bool KvWorld::LayersAreEqual(const Copy& copy, uint32_t layers) const {
  bool equal = true;
  ForEachSegment(copy, layers, [&](uint32_t region, uint64_t at, uint64_t slot_at) {
    equal =
        equal && std::memcmp(engine_view_[region].data() + at, slots_.data() + slot_at, layout().segment_bytes.value) == 0;
  });
  return equal;
}

CopyEngine::Done Ends::Listener() {
  return [this](OpId op, CopyEnd end) {
    std::lock_guard lock(mutex_);
    ends_.emplace_back(op, std::move(end));
    came_.notify_all();
  };
}

absl::Status Ends::Wait(OpId op) { return WaitForEnd(op).status; }

CopyEnd Ends::WaitForEnd(OpId op) {
  std::unique_lock lock(mutex_);
  CopyEnd found{absl::DeadlineExceededError("the test's own")};
  const bool came = came_.wait_for(lock, kDeadline, [&] {
    const auto end = std::find_if(ends_.begin(), ends_.end(), [&](const auto& e) { return e.first == op; });
    if (end != ends_.end()) found = end->second;
    return end != ends_.end();
  });
  REQUIRE(came);
  return found;
}

void Ends::WaitForCount(size_t count) {
  std::unique_lock lock(mutex_);
  REQUIRE(came_.wait_for(lock, kDeadline, [&] { return ends_.size() >= count; }));
}

std::vector<OpId> Ends::order() const {
  std::lock_guard lock(mutex_);
  std::vector<OpId> ops;
  for (const auto& [op, end] : ends_) ops.push_back(op);
  return ops;
}

void Gate::LayersDone(uint32_t layers) {
  std::unique_lock lock(mutex_);
  layers_ = layers;
  changed_.notify_all();
  if (layers >= stop_at_) changed_.wait_for(lock, kDeadline, [&] { return open_; });
}

void Gate::WaitUntilReached() {
  std::unique_lock lock(mutex_);
  REQUIRE(changed_.wait_for(lock, kDeadline, [&] { return layers_ >= stop_at_; }));
}

void Gate::Open() {
  std::lock_guard lock(mutex_);
  open_ = true;
  changed_.notify_all();
}

uint32_t Gate::layers() const {
  std::lock_guard lock(mutex_);
  return layers_;
}

}  // namespace kvist::cuda

#include "examples/tinyllm/describe_memory.h"

#include <cstring>

namespace tinyllm {
namespace {

// kvist's probe: writes a page through PagedMemory::Key and Value, by which attention reads. Were the description below
// wrong, kvistd would find these bytes elsewhere and refuse the session, instead of loading wrong bytes later.
int WritePage(void* context, uint32_t layer, uint32_t page, const void* bytes, size_t size) {
  const auto& memory = *static_cast<const PagedMemory*>(context);
  if (size != memory.page_bytes()) return -1;
  const auto* from = static_cast<const std::byte*>(bytes);
  for (auto row : {&PagedMemory::Key, &PagedMemory::Value}) {
    for (int token = 0; token < kPageTokens; ++token, from += memory.row_bytes()) {
      std::memcpy((memory.*row)(static_cast<int>(layer), page, token), from, memory.row_bytes());
    }
  }
  return 0;
}

// The same, of pages on a GPU: through the engine's own way there, which its stores take, too.
int WriteDevicePage(void* context, uint32_t layer, uint32_t page, const void* bytes, size_t size) {
  auto& device = *static_cast<DevicePages*>(context);
  const int result = WritePage(const_cast<PagedMemory*>(&device.host()), layer, page, bytes, size);
  return result == 0 && device.Write({&page, 1}) && device.Synchronize() ? 0 : -1;
}

}  // namespace

KvistDescription::KvistDescription(const ModelConfig& config, const PagedMemory& memory, DevicePages* device)
    : revision_(config.Revision()), fd_(memory.fd()), dims_{{{.count = 2, .stride = memory.segment_bytes()}}} {  // K, then V
  for (int layer = 0; layer < memory.layers(); ++layer) {
    layers_.push_back({.region = 0, .offset = static_cast<size_t>(layer) * memory.layer_bytes()});
  }

  space_.struct_size = sizeof space_;
  space_.model = "tinyllm";
  space_.revision = revision_.c_str();
  space_.kv_dtype = "bf16";
  space_.layers = static_cast<uint32_t>(memory.layers());
  space_.page_tokens = kPageTokens;
  space_.chunk_tokens = kvist_default_chunk_tokens();
  space_.segment_bytes = memory.segment_bytes();
  space_.segments = 2;
  space_.slot_order = KVIST_LAYER_MAJOR;

  memory_.struct_size = sizeof memory_;
  memory_.layers = layers_.data();
  memory_.layer_count = layers_.size();
  memory_.pages = memory.pages();
  memory_.page_stride = memory.page_bytes();
  memory_.dims = dims_.data();
  memory_.dim_count = dims_.size();
  if (device != nullptr) {
    cuda_region_ = device->region();
    memory_.cuda_regions = &cuda_region_;
    memory_.cuda_region_count = 1;
    memory_.write_page = WriteDevicePage;
    memory_.context = device;
  } else {
    memory_.memfds = &fd_;
    memory_.memfd_count = 1;
    memory_.write_page = WritePage;
    memory_.context = const_cast<PagedMemory*>(&memory);
  }
}

}  // namespace tinyllm

#include "tests/support/fake_engine.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace kvist::test {
namespace {

// Other models, other bytes under the same key.
uint64_t ModelSalt(const std::string& model) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char c : model) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash << 1;
}

// The 64-bit words of one segment: its first names its owner, the rest are a stream from the owner.
uint64_t Owner(uint64_t salt, const kvist_key& key, uint32_t rank, uint32_t page_of_chunk, uint32_t layer,
               uint32_t segment) {
  uint64_t word;
  std::memcpy(&word, key.bytes, 8);
  return salt ^ word ^
         (uint64_t{rank} << 56 | uint64_t{page_of_chunk} << 40 | uint64_t{layer} << 16 | uint64_t{segment} << 1 | 1);
}
uint64_t Word(uint64_t owner, uint32_t i) {
  const uint64_t z = (owner + i * 0x9e3779b97f4a7c15) * 0xbf58476d1ce4e5b9;
  return i == 0 ? owner : z ^ (z >> 31);
}

}  // namespace

FakeEngine::Options FakeEngine::On(const std::string& socket, const std::string& instance) {
  Options options;
  options.socket = socket;
  options.instance = instance;
  return options;
}

FakeEngine::Options FakeEngine::LargeOn(const std::string& socket, const std::string& instance) {
  Options options = On(socket, instance);
  options.pages = 1024;
  options.segment_bytes = 4096;
  return options;
}

FakeEngine::FakeEngine(Options options) : options_(std::move(options)), salt_(ModelSalt(options_.model)) {
  const uint64_t page_bytes = uint64_t{options_.layers} * 2 * options_.segment_bytes;
  for (uint32_t layer = 0; layer < options_.layers; ++layer)
    layers_.push_back({0, uint64_t{layer} * 2 * options_.segment_bytes});
  dims_.push_back({2, options_.segment_bytes});
  memories_.resize(options_.ranks);
  contexts_.resize(options_.ranks);
  descriptions_.resize(options_.ranks);
  process_regions_.resize(options_.ranks);
  cuda_regions_.resize(options_.ranks);
  if (options_.on_gpu) gpu_ = std::make_unique<TestGpu>();
  workers_.resize(options_.ranks);
  for (uint32_t rank = options_.first_rank; rank < end_rank(); ++rank) {
    Memory& memory = memories_[rank];
    memory.size = page_bytes * options_.pages;
    contexts_[rank] = {this, rank};
    if (options_.on_gpu) {
      memory.data = gpu_->Allocate(memory.size);
      continue;
    }
    if (!options_.in_process) {
      memory.fd = ::memfd_create("fake-engine", MFD_CLOEXEC | MFD_ALLOW_SEALING);
      if (memory.fd < 0 || ::ftruncate(memory.fd, static_cast<off_t>(memory.size)) != 0) std::abort();
      if (options_.sealed && ::fcntl(memory.fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) std::abort();
    }
    const int flags = options_.in_process ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    memory.data = static_cast<std::byte*>(::mmap(nullptr, memory.size, PROT_READ | PROT_WRITE, flags, memory.fd, 0));
    if (memory.data == MAP_FAILED) std::abort();
  }
  if (options_.scheduler) {
    status = Client::Connect(SchedulerOptions(), &scheduler_);
    if (!status.ok()) return;
  }
  for (uint32_t rank = options_.first_rank; rank < end_rank(); ++rank) {
    status = Client::Connect(WorkerOptions(rank), &workers_[rank]);
    if (!status.ok()) return;
  }
}

FakeEngine::~FakeEngine() {
  workers_.clear();  // their pages go next
  for (Memory& memory : memories_) {
    if (memory.data == nullptr) continue;  // another process's
    if (options_.on_gpu) {
      gpu_->Free(memory.data);
      continue;
    }
    ::munmap(memory.data, memory.size);
    if (memory.fd >= 0) ::close(memory.fd);
  }
}

kvist_options FakeEngine::CommonOptions() const {
  kvist_options o{};
  o.struct_size = sizeof o;
  o.socket = options_.socket.c_str();
  o.instance = options_.instance.c_str();
  o.connect_timeout_us = options_.connect_timeout_us;
  o.ask_again = options_.ask_again;
  o.by_layer = options_.by_layer;
  o.deadline_us = options_.deadline_us;
  o.space = &space_;
  return o;
}

kvist_space FakeEngine::Space() const {
  kvist_space space{};
  space.struct_size = sizeof space;
  space.model = options_.model.c_str();
  space.revision = options_.revision.c_str();
  space.kv_dtype = options_.kv_dtype.c_str();
  space.layout = options_.layout.c_str();
  space.layers = options_.layers;
  space.page_tokens = kPageTokens;
  space.chunk_tokens = kChunkTokens;
  space.segment_bytes = options_.segment_bytes;
  space.segments = 2;
  space.tensor_parallel = options_.ranks;
  return space;
}

kvist_options FakeEngine::SchedulerOptions() const {
  kvist_options o = CommonOptions();
  o.role = KVIST_SCHEDULER;
  return o;
}

kvist_options FakeEngine::WorkerOptions(uint32_t rank) {
  kvist_memory& m = descriptions_[rank];
  m = {};
  m.struct_size = sizeof m;
  if (options_.on_gpu) {
    cuda_regions_[rank] = {memories_[rank].data, memories_[rank].size};
    m.cuda_regions = &cuda_regions_[rank];
    m.cuda_region_count = 1;
  } else if (options_.in_process) {
    process_regions_[rank] = {memories_[rank].data, memories_[rank].size};
    m.process_regions = &process_regions_[rank];
    m.process_region_count = 1;
  } else {
    m.memfds = &memories_[rank].fd;
    m.memfd_count = 1;
  }
  m.layers = layers_.data();
  m.layer_count = layers_.size();
  m.pages = options_.pages;
  m.page_stride = uint64_t{options_.layers} * 2 * options_.segment_bytes;
  if (options_.wrong_stride) m.page_stride -= options_.segment_bytes;
  m.dims = dims_.data();
  m.dim_count = dims_.size();
  m.write_page = &FakeEngine::WritePage;
  m.context = &contexts_[rank];
  kvist_options o = CommonOptions();
  o.role = KVIST_WORKER;
  o.rank = rank;
  o.memory = &m;
  return o;
}

int FakeEngine::WritePage(void* context, uint32_t layer, uint32_t page, const void* bytes, size_t size) {
  const auto* c = static_cast<ProbeContext*>(context);
  const uint32_t n = c->engine->options_.segment_bytes;
  if (size != 2 * size_t{n}) return 1;
  for (uint32_t segment = 0; segment < 2; ++segment) {
    c->engine->Put(c->engine->Segment(c->rank, page, layer, segment),
                   static_cast<const std::byte*>(bytes) + size_t{segment} * n, n);
  }
  return 0;
}

std::byte* FakeEngine::Segment(uint32_t rank, uint32_t page, uint32_t layer, uint32_t segment) const {
  return memories_[rank].data + ((size_t{page} * options_.layers + layer) * 2 + segment) * options_.segment_bytes;
}

std::vector<uint32_t> FakeEngine::Tokens(uint32_t prompt, uint32_t chunks) {
  std::vector<uint32_t> tokens(size_t{chunks} * kChunkTokens);
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = i < 2 * kChunkTokens ? prompt / 1000 : prompt * 131 + static_cast<uint32_t>(i);
  return tokens;
}

std::vector<kvist_key> FakeEngine::Keys(uint32_t prompt, uint32_t chunks) const {
  Chain chain(kChunkTokens);
  chain.Append(Tokens(prompt, chunks));
  return {chain.keys().begin(), chain.keys().end()};
}

std::vector<uint32_t> FakeEngine::Pages(uint32_t first_chunk, uint32_t chunks) const {
  std::vector<uint32_t> pages;
  // 7 is prime to the number of pages (a power of two in all tests), so this is a permutation.
  for (uint32_t i = 0; i < chunks * kPagesPerChunk; ++i)
    pages.push_back((first_chunk * kPagesPerChunk + i) * 7 % options_.pages);
  return pages;
}

void FakeEngine::Put(std::byte* to, const void* from, size_t size) {
  if (gpu_ != nullptr) return gpu_->Write(to, from, size);
  std::memcpy(to, from, size);
}

void FakeEngine::Get(void* to, const std::byte* from, size_t size) const {
  if (gpu_ != nullptr) return gpu_->Read(to, from, size);
  std::memcpy(to, from, size);
}

uint64_t FakeEngine::WordOf(uint64_t owner, uint32_t i) const {
  const uint32_t full = options_.segment_bytes / 8 / (options_.half_empty ? 2 : 1);
  const uint64_t finite = options_.kv_dtype == "bf16" ? 0xbfff'bfff'bfff'bfff : ~uint64_t{0};
  return i < full ? Word(owner, i) & finite : 0;
}

void FakeEngine::Fill(uint32_t rank, const kvist_key& key, std::span<const uint32_t> pages) {
  std::vector<uint64_t> words(options_.segment_bytes / 8);
  for (uint32_t p = 0; p < pages.size(); ++p) {
    for (uint32_t layer = 0; layer < options_.layers; ++layer) {
      for (uint32_t segment = 0; segment < 2; ++segment) {
        const uint64_t owner = Owner(salt_, key, rank, p, layer, segment);
        for (uint32_t i = 0; i < words.size(); ++i) words[i] = WordOf(owner, i);
        Put(Segment(rank, pages[p], layer, segment), words.data(), options_.segment_bytes);
      }
    }
  }
}

std::string FakeEngine::Check(uint32_t rank, const kvist_key& key, std::span<const uint32_t> pages, uint32_t layers) const {
  std::vector<uint64_t> words(options_.segment_bytes / 8);
  for (uint32_t p = 0; p < pages.size(); ++p) {
    for (uint32_t layer = 0; layer < std::min(layers, options_.layers); ++layer) {
      for (uint32_t segment = 0; segment < 2; ++segment) {
        const uint64_t owner = Owner(salt_, key, rank, p, layer, segment);
        Get(words.data(), Segment(rank, pages[p], layer, segment), options_.segment_bytes);
        for (uint32_t i = 0; i < words.size(); ++i) {
          if (words[i] == WordOf(owner, i)) continue;
          char text[200];
          std::snprintf(
              text, sizeof text,
              "rank %u page %u (of chunk) layer %u segment %u word %u: found %016lx, wanted %016lx of owner %016lx", rank, p,
              layer, segment, i, words[i], WordOf(owner, i), owner);
          return text;
        }
      }
    }
  }
  return "";
}

void FakeEngine::Poison(uint32_t rank, std::span<const uint32_t> pages) {
  const std::vector<std::byte> poison(2 * size_t{options_.segment_bytes}, std::byte{0xee});
  for (const uint32_t page : pages) {
    for (uint32_t layer = 0; layer < options_.layers; ++layer)
      Put(Segment(rank, page, layer, 0), poison.data(), poison.size());
  }
}

kvist_result FakeEngine::StoreAll(std::span<const kvist_key> keys, uint32_t first, int64_t timeout_us, uint32_t pages_from) {
  const auto count = static_cast<uint32_t>(keys.size()) - first;
  const std::vector<uint32_t> pages = Pages(pages_from, count);
  std::vector<kvist_op> ops;
  kvist_result worst{};
  for (uint32_t rank = options_.first_rank; rank < end_rank(); ++rank) {
    for (uint32_t c = 0; c < count; ++c)
      Fill(rank, keys[first + c], std::span(pages).subspan(size_t{c} * kPagesPerChunk, kPagesPerChunk));
    ops.push_back(workers_[rank].Store(keys, first, pages));
  }
  for (uint32_t rank = options_.first_rank; rank < end_rank(); ++rank) {
    const kvist_op op = ops[rank - options_.first_rank];
    const kvist_result result =
        op != 0 ? workers_[rank].Wait(op, timeout_us) : kvist_result{sizeof(kvist_result), KVIST_UNAVAILABLE, 0, 0, 0, 0, 1};
    if (rank == options_.first_rank || result.status != KVIST_OK) worst = result;
  }
  return worst;
}

uint32_t FakeEngine::LoadAll(std::span<const kvist_key> keys, std::string* wrong, int64_t timeout_us, uint32_t pages_from) {
  wrong->clear();
  const Hit hit = scheduler_.Lookup(keys, timeout_us, timeout_us);
  if (hit.chunks == 0 || !hit.lease) return hit.chunks;
  const std::vector<uint32_t> pages = Pages(pages_from, hit.chunks);
  for (uint32_t rank = options_.first_rank; rank < end_rank(); ++rank) {
    Poison(rank, pages);
    const kvist_op op = workers_[rank].Load(hit.lease, 0, hit.chunks, pages);
    if (op == 0) return 0;
    kvist_result result = workers_[rank].Wait(op, timeout_us);
    if (result.status != KVIST_OK) {
      while (result.pages_released == 0) result = workers_[rank].Wait(op, timeout_us);
      return 0;
    }
    for (uint32_t c = 0; c < hit.chunks && wrong->empty(); ++c) {
      *wrong = Check(rank, keys[c], std::span(pages).subspan(size_t{c} * kPagesPerChunk, kPagesPerChunk));
    }
  }
  return hit.chunks;
}

}  // namespace kvist::test

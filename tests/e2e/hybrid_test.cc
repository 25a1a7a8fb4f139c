// A hybrid model's engine: full attention, a sliding window and a recurrent state, whose pages come from one pool of blocks.
#include <fcntl.h>
#include <kvist/client.h>
#include <sys/mman.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <string>
#include <vector>

#include "tests/support/daemon_process.h"
#include "tests/support/temp_dir.h"

namespace {

using kvist::test::DaemonProcess;
using kvist::test::TempDir;

constexpr uint32_t kBlocks = 96, kChunkTokens = 64, kPageTokens = 16, kPagesPerChunk = 4;
constexpr uint64_t kBlockBytes = 2048;  // of one layer
enum Group : uint32_t { kFull, kWindow, kState };
// Tensors 0 and 1 are shared: layers 0 and 1 are the full group's, 2 the window's and 3 and 4 the states'.
constexpr uint32_t kTensorOf[] = {0, 1, 0, 0, 1};
constexpr uint32_t kLayersOf[][2] = {{0, 2}, {2, 1}, {3, 2}};  // [group] first, count

class HybridEngine {
 public:
  HybridEngine(const std::string& socket, int64_t connect_timeout_us) {
    fd_ = ::memfd_create("hybrid", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    REQUIRE(::ftruncate(fd_, kBytes) == 0);
    REQUIRE(::fcntl(fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
    data_ = static_cast<std::byte*>(::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0));
    REQUIRE(data_ != MAP_FAILED);
    kvist_group groups[3]{};
    for (uint32_t g = 0; g < 3; ++g) {
      groups[g].struct_size = sizeof groups[g];
      groups[g].layers = kLayersOf[g][1];
      groups[g].segments = g == kFull ? 2 : 1;  // K and V; the others are one piece
      groups[g].segment_bytes = kBlockBytes / groups[g].segments;
    }
    groups[kWindow].kind = KVIST_WINDOW;
    groups[kWindow].window_tokens = 100;  // the last two chunks
    groups[kState].kind = KVIST_STATE;
    std::vector<kvist_layer> layers;
    for (const uint32_t tensor : kTensorOf) layers.push_back({0, tensor * kBlocks * kBlockBytes});
    const kvist_dim halves{2, kBlockBytes / 2};
    const kvist_group_pages pages[] = {
        {kBlocks, kBlockBytes, &halves, 1}, {kBlocks, kBlockBytes, nullptr, 0}, {kBlocks, kBlockBytes, nullptr, 0}};
    kvist_memory memory{};
    memory.struct_size = sizeof memory;
    memory.memfds = &fd_;
    memory.memfd_count = 1;
    memory.layers = layers.data();
    memory.layer_count = layers.size();
    memory.groups = pages;
    memory.group_count = 3;
    memory.context = this;
    memory.write_page = [](void* context, uint32_t layer, uint32_t page, const void* bytes, size_t size) {
      if (size != kBlockBytes) return 1;
      std::memcpy(static_cast<HybridEngine*>(context)->At(layer, page), bytes, size);
      return 0;
    };
    kvist_options options{};
    options.struct_size = sizeof options;
    options.socket = socket.c_str();
    options.instance = "hybrid";
    options.role = KVIST_WORKER;
    options.memory = &memory;
    options.connect_timeout_us = connect_timeout_us;
    options.deadline_us = 10'000'000;
    kvist_space space{};
    options.space = &space;
    space.struct_size = sizeof space;
    space.model = "hybrid";
    space.kv_dtype = "u8";
    space.page_tokens = kPageTokens;
    space.chunk_tokens = kChunkTokens;
    space.groups = groups;
    space.group_count = 3;
    const kvist::Status status = kvist::Client::Connect(options, &client);
    INFO(status.message);
    REQUIRE(status.ok());
    kvist::Chain chain(kChunkTokens);
    std::vector<uint32_t> tokens(6 * kChunkTokens);
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<uint32_t>(i * i);
    chain.Append(tokens);
    keys.assign(chain.keys().begin(), chain.keys().end());
  }
  ~HybridEngine() {
    client = {};
    ::munmap(data_, kBytes);
    ::close(fd_);
  }

  static uint32_t PagesOf(Group group) { return group == kState ? 1 : kPagesPerChunk; }
  std::byte* At(uint32_t layer, uint32_t page) const {
    return data_ + (uint64_t{kTensorOf[layer]} * kBlocks + page) * kBlockBytes;
  }
  static std::byte Content(Group group, uint32_t chunk, uint32_t page, uint32_t layer) {
    return static_cast<std::byte>(group * 83 + chunk * 17 + page * 5 + layer + 1);
  }
  std::vector<uint32_t> Blocks(uint32_t first, uint32_t count) const {
    std::vector<uint32_t> blocks;
    for (uint32_t i = 0; i < count; ++i) blocks.push_back((first + i) * 5 % kBlocks);
    return blocks;
  }

  // Fills blocks from `block` on with chunks [first, end) of the group, and stores them.
  kvist_result Store(Group group, uint32_t first, uint32_t end, uint32_t block) {
    const auto blocks = Blocks(block, (end - first) * PagesOf(group));
    for (uint32_t i = 0; i < blocks.size(); ++i) {
      for (uint32_t l = kLayersOf[group][0]; l < kLayersOf[group][0] + kLayersOf[group][1]; ++l)
        std::memset(At(l, blocks[i]), static_cast<int>(Content(group, first + i / PagesOf(group), i % PagesOf(group), l)),
                    kBlockBytes);
    }
    const kvist_op op = client.Store(std::span(keys).first(end), first, blocks, group);
    REQUIRE(op != 0);
    return client.Wait(op, 5'000'000);
  }
  // Loads them into blocks from `block` on, but for those that `skip` names; what is wrong, or "".
  std::string Load(const kvist::Lease& lease, Group group, uint32_t first, uint32_t end, uint32_t block,
                   std::vector<uint32_t> skip = {}) {
    const auto blocks = Blocks(block, (end - first) * PagesOf(group));
    auto asked = blocks;
    for (const uint32_t s : skip) asked[s] = KVIST_NO_PAGE;
    const uint32_t from = kLayersOf[group][0], to = from + kLayersOf[group][1];
    for (const uint32_t b : blocks) {
      for (uint32_t l = from; l < to; ++l) std::memset(At(l, b), 0xee, kBlockBytes);
    }
    const kvist_op op = client.Load(lease, first, end - first, asked, group);
    if (op == 0) return kvist_error();
    const kvist_result result = client.Wait(op, 5'000'000);
    if (result.status != KVIST_OK || result.chunks_copied != end - first) return "the load ended badly";
    for (uint32_t i = 0; i < blocks.size(); ++i) {
      for (uint32_t l = from; l < to; ++l) {
        const std::byte wanted =
            asked[i] == KVIST_NO_PAGE ? std::byte{0xee} : Content(group, first + i / PagesOf(group), i % PagesOf(group), l);
        for (uint64_t b = 0; b < kBlockBytes; ++b) {
          if (At(l, blocks[i])[b] != wanted)
            return "group " + std::to_string(group) + " page " + std::to_string(i) + " layer " + std::to_string(l);
        }
      }
    }
    return "";
  }

  kvist::Client client;
  std::vector<kvist_key> keys;

 private:
  static constexpr uint64_t kBytes = 2 * kBlocks * kBlockBytes;
  int fd_ = -1;
  std::byte* data_ = nullptr;
};

TEST_CASE("A hybrid engine resumes where every cache group can, and loads what each needs") {
  TempDir dir;
  DaemonProcess daemon(dir.path(), {"pool.bytes=64MiB"});
  HybridEngine engine(daemon.socket(), 5'000'000);
  CHECK(engine.client.FirstNeeded(kFull, 4) == 0);
  CHECK(engine.client.FirstNeeded(kWindow, 4) == 2);
  CHECK(engine.client.FirstNeeded(kWindow, 1) == 0);
  CHECK(engine.client.FirstNeeded(kState, 4) == 3);

  CHECK(engine.Store(kFull, 0, 5, 0).chunks_copied == 5);
  CHECK(engine.client.Lookup(engine.keys, 1'000'000).chunks == 0);
  CHECK(engine.Store(kState, 3, 4, 30).chunks_copied == 1);
  CHECK(engine.client.Lookup(engine.keys, 1'000'000).chunks == 0);
  CHECK(engine.Store(kWindow, 2, 5, 40).chunks_copied == 3);
  CHECK(engine.Store(kWindow, 2, 5, 40).chunks_skipped == 3);
  const kvist::Hit hit = engine.client.Lookup(engine.keys, 10'000'000);
  REQUIRE(hit.chunks == 4);  // five are there in two groups, but the state is chunk 3's
  REQUIRE(hit.lease);
  CHECK(engine.client.Lookup(std::span(engine.keys).first(3), 1'000'000).chunks == 0);

  CHECK(engine.Load(hit.lease, kFull, 0, 4, 60) == "");
  CHECK(engine.Load(hit.lease, kFull, 1, 3, 60, {0, 3, 4, 7}) == "");
  CHECK(engine.Load(hit.lease, kFull, 1, 3, 60, {0, 1, 2, 3, 4, 5, 6, 7}) == "");
  CHECK(engine.Load(hit.lease, kWindow, 2, 4, 60) == "");
  CHECK(engine.Load(hit.lease, kWindow, 2, 3, 60, {1, 2}) == "");
  CHECK(engine.Load(hit.lease, kState, 3, 4, 60) == "");

  CHECK(engine.Load(hit.lease, kWindow, 1, 3, 60) != "");
  CHECK(engine.Load(hit.lease, kState, 2, 3, 60) != "");
  CHECK(engine.client.Load(hit.lease, 0, 1, engine.Blocks(0, kPagesPerChunk), 3) == 0);
  CHECK(std::string(kvist_error()).find("group is 3") != std::string::npos);
  const std::vector<uint32_t> hole{0, KVIST_NO_PAGE, 2, 3};
  const kvist_op op = engine.client.Store(std::span(engine.keys).first(6), 5, hole, kWindow);
  CHECK(engine.client.Wait(op, 5'000'000).status == KVIST_INVALID_ARGUMENT);
}

TEST_CASE("A hybrid engine's memory is proven group by group, with and without a daemon") {
  TempDir dir;
  // The layers that share a tensor are probed with different patterns, one group after the other.
  DaemonProcess daemon(dir.path(), {"pool.bytes=64MiB"});
  HybridEngine engine(daemon.socket(), 5'000'000);
  CHECK(engine.client.connection() == KVIST_CONNECTED);
  daemon.Kill();
  HybridEngine alone(daemon.socket(), 1000);
  CHECK(alone.client.connection() == KVIST_RECONNECTING);
  daemon.Start();
  CHECK(engine.client.WaitConnected(10'000'000).ok());
  CHECK(alone.client.WaitConnected(10'000'000).ok());
}

}  // namespace

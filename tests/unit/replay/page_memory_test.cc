#include "examples/replay/page_memory.h"

#include <sys/mman.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <set>
#include <vector>

namespace kvist::replay {

TEST_CASE("PageMemory describes where its pages lie") {
  auto memory = PageMemory::Create(64 << 10, 5);
  REQUIRE(memory.ok());
  const kvist_space space = (*memory)->space();
  const kvist_memory described = (*memory)->description();
  CHECK(uint64_t{space.layers} * space.segments * space.segment_bytes * (space.chunk_tokens / space.page_tokens) ==
        64 << 10);
  const size_t bytes = described.dims[0].count * described.dims[0].stride * described.layer_count;
  void* data = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, described.memfds[0], 0);
  REQUIRE(data != MAP_FAILED);

  // What the engine writes is where the description says: through pieces, and through the probe's hook.
  const auto at = [&](uint32_t layer, uint32_t page, uint32_t segment) {
    return static_cast<const std::byte*>(data) + described.layers[layer].offset + page * described.page_stride +
           segment * described.dims[0].stride;
  };
  uint8_t value = 0;
  for (uint32_t place = 0; place < 5; ++place) {
    for (uint32_t page = 0; page < kPagesPerBlock; ++page) {
      for (uint32_t layer = 0; layer < kLayers; ++layer) {
        for (uint32_t segment = 0; segment < kSegments; ++segment) {
          const auto piece = (*memory)->Piece(place, page, layer, segment);
          REQUIRE(piece.size() == space.segment_bytes);
          std::memset(piece.data(), ++value, piece.size());
          const uint32_t id = (*memory)->Pages(5)[place * kPagesPerBlock + page];
          CHECK(std::memcmp(at(layer, id, segment), piece.data(), piece.size()) == 0);
        }
      }
    }
  }
  std::vector<std::byte> probe(space.segments * space.segment_bytes);
  for (size_t i = 0; i < probe.size(); ++i) probe[i] = static_cast<std::byte>(i * 7 >> 3);
  for (const uint32_t page : {0U, described.pages - 1}) {
    CHECK(described.write_page(described.context, 1, page, probe.data(), probe.size()) == 0);
    for (uint32_t segment = 0; segment < kSegments; ++segment) {
      CHECK(std::memcmp(at(1, page, segment), probe.data() + segment * space.segment_bytes, space.segment_bytes) == 0);
    }
  }
  CHECK(described.write_page(described.context, kLayers, 0, probe.data(), probe.size()) != 0);
  CHECK(described.write_page(described.context, 0, described.pages, probe.data(), probe.size()) != 0);
  munmap(data, bytes);
}

TEST_CASE("PageMemory gives every block pages of its own and none that are probed") {
  auto memory = PageMemory::Create(4096, 100);
  REQUIRE(memory.ok());
  const auto pages = (*memory)->Pages(100);
  const std::set<uint32_t> unique(pages.begin(), pages.end());
  CHECK(unique.size() == pages.size());
  CHECK(*unique.begin() > 0);
  CHECK(*unique.rbegin() < (*memory)->description().pages - 1);
}

TEST_CASE("IsBlockBytes takes whole 4 KiB only") {
  CHECK(IsBlockBytes(4096));
  CHECK(IsBlockBytes(64 << 10));
  CHECK(IsBlockBytes(uint64_t{256} << 20));
  for (const uint64_t wrong :
       {uint64_t{0}, uint64_t{1}, uint64_t{4095}, uint64_t{4097}, uint64_t{257} << 20, ~uint64_t{4095}}) {
    CHECK_FALSE(IsBlockBytes(wrong));
  }
}

}  // namespace kvist::replay

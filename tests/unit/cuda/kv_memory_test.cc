#include "cuda/kv_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "tests/support/numa_nodes.h"
#include "tests/unit/cuda/kv_world.h"

namespace kvist::cuda {
namespace {

constexpr uint64_t kHuge = uint64_t{1} << 63;

// 4 layers of 10 pages in 2 regions, K and V in the page with a gap of 24 bytes between them.
KvLayout Good() {
  KvLayout layout;
  layout.layers = {{0, {0}}, {0, {1000}}, {1, {8}}, {1, {1008}}};
  layout.pages = 10;
  layout.page_stride = {100};
  layout.segment_offsets = {{0}, {64}};
  layout.segment_bytes = {36};
  layout.pages_per_chunk = 4;
  return layout;
}
const std::vector<Bytes> kRegions = {{2000}, {2008}};

TEST_CASE("KvLayout accepts a layout that fills its regions to the last byte") {
  CHECK(Good().Validate(kRegions) == absl::OkStatus());
  CHECK(Good().page_bytes() == Bytes{72});
  CHECK(Good().layer_bytes() == Bytes{288});
  CHECK(Good().payload_bytes() == Bytes{1152});
  CHECK(SlotBytesFor(Good().payload_bytes()) == KiB(8));
  for (const NamedLayout& named : KnownLayouts()) CHECK(named.layout.Validate(named.region_lengths) == absl::OkStatus());
}

TEST_CASE("KvLayout refuses each wrong field and names it") {
  struct Case {
    const char* field;
    std::function<void(KvLayout&)> spoil;
  };
  const std::vector<Case> cases = {
      {"layers", [](KvLayout& l) { l.layers.clear(); }},
      {"layers", [](KvLayout& l) { l.layers.resize(KvLayout::kLayersMax + 1); }},
      {"layers[2].region", [](KvLayout& l) { l.layers[2].region = 2; }},
      {"layers[1].region", [](KvLayout& l) { l.layers[1].region = UINT32_MAX; }},
      {"layers[1].offset", [](KvLayout& l) { l.layers[1].offset = {1001}; }},
      {"layers[3].offset", [](KvLayout& l) { l.layers[3].offset = {1009}; }},
      {"layers[0].offset", [](KvLayout& l) { l.layers[0].offset = {kHuge}; }},
      {"layers[0].offset", [](KvLayout& l) { l.layers[0].offset = {UINT64_MAX}; }},
      {"layers[0].offset", [](KvLayout& l) { l.layers[0].offset = {UINT64_MAX - 500}; }},  // wraps to a place inside
      {"pages", [](KvLayout& l) { l.pages = 0; }},
      {"pages", [](KvLayout& l) { l.pages = 11; }},
      {"pages", [](KvLayout& l) { l.pages = UINT32_MAX; }},
      {"page_stride", [](KvLayout& l) { l.page_stride = {0}; }},
      {"page_stride", [](KvLayout& l) { l.page_stride = {101}; }},
      {"page_stride", [](KvLayout& l) { l.page_stride = {35}; }},
      {"page_stride", [](KvLayout& l) { l.page_stride = {kHuge}; }},
      {"page_stride", [](KvLayout& l) { l.page_stride = {UINT64_MAX}; }},
      {"page_stride", [](KvLayout& l) { l.page_stride = {UINT64_MAX / 9 + 1}; }},
      {"segment_offsets", [](KvLayout& l) { l.segment_offsets.clear(); }},
      {"segment_offsets",
       [](KvLayout& l) {
         l.segment_offsets = {{0}, {35}};
       }},
      {"segment_offsets",
       [](KvLayout& l) {
         l.segment_offsets = {{64}, {64}};
       }},
      {"segment_offsets",
       [](KvLayout& l) {
         l.segment_offsets = {{40}, {0}, {20}};
       }},
      {"segment_offsets",
       [](KvLayout& l) {
         l.pages = 9, l.segment_offsets = {{0}, {100}};
       }},  // on segment 0 of the next page
      {"segment_offsets",
       [](KvLayout& l) {
         l.pages = 9, l.segment_offsets = {{0}, {135}};
       }},
      {"segment_offsets",
       [](KvLayout& l) {
         l.pages = 9, l.segment_offsets = {{0}, {65}};
       }},  // its end, on the next page's
      {"segment_offsets",
       [](KvLayout& l) {
         l.segment_offsets = {{0}, {kHuge}};
       }},
      {"segment_offsets",
       [](KvLayout& l) {
         l.segment_offsets = {{0}, {UINT64_MAX}};
       }},
      {"segment_offsets", [](KvLayout& l) { l.segment_offsets.assign(KvLayout::kSegmentsMax + 1, {0}); }},
      {"segment_bytes", [](KvLayout& l) { l.segment_bytes = {0}; }},
      {"segment_bytes", [](KvLayout& l) { l.segment_bytes = {kHuge}; }},
      {"segment_bytes", [](KvLayout& l) { l.segment_bytes = {UINT64_MAX}; }},
      {"segment_bytes",
       [](KvLayout& l) { l.segment_bytes = {UINT64_MAX / 32 + 2}; }},  // the payload wraps to something small
      {"pages_per_chunk", [](KvLayout& l) { l.pages_per_chunk = 0; }},
  };
  for (const Case& c : cases) {
    KvLayout layout = Good();
    c.spoil(layout);
    const absl::Status status = layout.Validate(kRegions);
    INFO("case " << &c - cases.data() << ", expected " << c.field << ", found: " << status);
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    CHECK(status.message().find(c.field) != absl::string_view::npos);
  }
  CHECK(Good().Validate({}).code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("KvLayout finds overlaps exactly where bytes are shared") {
  Rng rng(11);
  int overlapping = 0;
  for (int round = 0; round < 3000; ++round) {
    KvLayout layout;
    layout.layers = {{0, {0}}};
    layout.pages = 1 + static_cast<uint32_t>(rng() % 5);
    layout.page_stride = {1 + rng() % 40};
    layout.segment_bytes = {1 + rng() % 12};
    layout.pages_per_chunk = 1;
    for (uint64_t s = 0, count = 1 + rng() % 4; s < count; ++s) layout.segment_offsets.push_back({rng() % 120});

    std::vector<int> owners(400);
    for (uint64_t p = 0; p < layout.pages; ++p) {
      for (const Bytes offset : layout.segment_offsets) {
        for (uint64_t b = 0; b < layout.segment_bytes.value; ++b) ++owners[p * layout.page_stride.value + offset.value + b];
      }
    }
    bool shared = false;
    for (const int count : owners) shared = shared || count > 1;
    overlapping += shared;
    INFO("round " << round);
    REQUIRE(layout.Validate({{400}}).ok() == !shared);
  }
  CHECK((overlapping > 300 && overlapping < 2700));  // both answers were asked for
}

UniqueFd Memfd(off_t length, unsigned flags = 0) {
  UniqueFd fd(::memfd_create("kv", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags));
  if (fd && length > 0) REQUIRE(::ftruncate(fd.get(), length) == 0);
  return fd;
}

TEST_CASE("EngineRegion maps a memfd only when it is sealed against shrinking") {
  UniqueFd sealed = Memfd(12345);
  REQUIRE(::fcntl(sealed.get(), F_ADD_SEALS, F_SEAL_SHRINK) == 0);
  const UniqueFd engines(::dup(sealed.get()));
  auto mapped = EngineRegion::OfFile(std::move(sealed));
  REQUIRE(mapped.ok());
  REQUIRE(mapped->mapped());
  CHECK(mapped->length() == Bytes{12345});
  std::get<MappedRegion>(mapped->way()).mapping.data()[12344] = std::byte{1};  // writable
  CHECK(::ftruncate(engines.get(), 0) != 0);

  UniqueFd growing = Memfd(4096);
  REQUIRE(::fcntl(growing.get(), F_ADD_SEALS, F_SEAL_GROW) == 0);
  auto unmapped = EngineRegion::OfFile(std::move(growing));
  REQUIRE(unmapped.ok());
  CHECK(!unmapped->mapped());
  CHECK(unmapped->length() == Bytes{4096});
}

TEST_CASE("EngineRegion tells the NUMA node of memory that it maps, whoever has touched it") {
  UniqueFd sealed = Memfd(3 * 4096);
  REQUIRE(::fcntl(sealed.get(), F_ADD_SEALS, F_SEAL_SHRINK) == 0);
  REQUIRE(::pwrite(sealed.get(), "x", 1, 4096) == 1);
  const EngineRegion mapped = EngineRegion::OfFile(std::move(sealed)).value();
  for (const uint64_t at : {0, 4095, 4096, 3 * 4096 - 1})
    CHECK((mapped.NumaNode(ByteOffset{at}) >= 0) == test::TellsNumaNodes());
  CHECK(EngineRegion::OfFile(Memfd(4096))->NumaNode({}) == -1);
}

TEST_CASE("EngineRegion refuses what it could not serve safely") {
  const auto refused = [](UniqueFd fd) {
    const int number = fd.get();
    return EngineRegion::OfFile(std::move(fd)).status().code() == absl::StatusCode::kInvalidArgument && fd.get() == number;
  };
  CHECK(refused(UniqueFd()));
  CHECK(refused(Memfd(0)));
  CHECK(refused(UniqueFd(::open("/dev/null", O_RDWR | O_CLOEXEC))));
  CHECK(refused(UniqueFd(::open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC))));
  CHECK(refused(UniqueFd(::open("/proc/self/stat", O_RDONLY | O_CLOEXEC))));
  int pipe[2];
  REQUIRE(::pipe2(pipe, O_CLOEXEC) == 0);
  CHECK(refused(UniqueFd(pipe[0])));
  CHECK(refused(UniqueFd(pipe[1])));

  const UniqueFd file = Memfd(4096);
  const std::string path = "/proc/self/fd/" + std::to_string(file.get());
  CHECK(refused(UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC))));
  CHECK(refused(UniqueFd(::open(path.c_str(), O_PATH | O_CLOEXEC))));
  CHECK(refused(UniqueFd(::open(path.c_str(), O_RDWR | O_APPEND | O_CLOEXEC))));

  UniqueFd no_writes = Memfd(4096);
  REQUIRE(::fcntl(no_writes.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_WRITE) == 0);
  const bool no_writes_refused = refused(std::move(no_writes));
  CHECK(no_writes_refused);
  // Explicit huge pages: a punched hole faults with SIGBUS whatever the seals say.
  UniqueFd huge = Memfd(2 << 20, MFD_HUGETLB);
  const bool huge_refused = refused(std::move(huge));
  CHECK(huge_refused);  // also where the kernel has none and the descriptor is -1
}

TEST_CASE("KvMemory reads a page segment after segment, mapped or not") {
  for (const Seal seal : {Seal::kShrink, Seal::kNone, Seal::kProcess}) {
    for (const NamedLayout& named : KnownLayouts()) {
      INFO(named.name);
      KvWorld world(named, seal, 1, 5);
      const KvLayout& layout = world.layout();
      const KvWorld::Image image = world.Snapshot();
      for (const uint32_t layer : {0u, world.layers() - 1}) {
        for (const uint32_t page : {0u, layout.pages - 1}) {
          std::vector<std::byte> expected, found(layout.page_bytes().value);
          for (const Bytes offset : layout.segment_offsets) {
            const std::byte* at = image.regions[layout.layers[layer].region].data() + layout.layers[layer].offset.value +
                                  page * layout.page_stride.value + offset.value;
            expected.insert(expected.end(), at, at + layout.segment_bytes.value);
          }
          REQUIRE(world.memory()->ReadPage(layout, {layer}, {page}, Bytes{}, found) == absl::OkStatus());
          CHECK(found == expected);
          // And in two parts, wherever a segment ends.
          const size_t first = found.size() / 3;
          std::fill(found.begin(), found.end(), std::byte{});
          const std::span<std::byte> all(found);
          REQUIRE(world.memory()->ReadPage(layout, {layer}, {page}, Bytes{}, all.first(first)) == absl::OkStatus());
          REQUIRE(world.memory()->ReadPage(layout, {layer}, {page}, Bytes{first}, all.subspan(first)) == absl::OkStatus());
          CHECK(found == expected);
        }
      }
    }
  }
}

TEST_CASE("KvMemory says OutOfRange when the file has shrunk") {
  KvWorld world(KnownLayouts()[0], Seal::kNone, 1, 5);
  std::vector<std::byte> page(world.layout().page_bytes().value);
  REQUIRE(::ftruncate(world.fd(0), 100) == 0);
  CHECK(world.memory()->ReadPage(world.layout(), {0}, {0}, Bytes{}, page).code() == absl::StatusCode::kOutOfRange);
  CHECK(world.memory()->ReadPage(world.layout(), {2}, {world.layout().pages - 1}, Bytes{}, page).code() ==
        absl::StatusCode::kOutOfRange);
}

}  // namespace
}  // namespace kvist::cuda

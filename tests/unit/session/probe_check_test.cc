#include "daemon/session/probe_check.h"

#include <sys/mman.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "storage/base/shm/probe_pattern.h"

namespace kvist::session {
namespace {

TEST_CASE("ProbeCheck goes through large pages in parts of what it is given, and finds a wrong byte in the last one") {
  constexpr uint64_t kSegment = (3 << 20) + 24, kPage = 2 * kSegment;
  constexpr uint32_t kPages = 3, kLayers = 2;
  UniqueFd fd(::memfd_create("kv", MFD_CLOEXEC));
  REQUIRE(::ftruncate(fd.get(), kLayers * kPages * kPage) == 0);
  const int raw = fd.get();
  auto memory = std::make_shared<cuda::KvMemory>();
  absl::StatusOr<cuda::EngineRegion> region = cuda::EngineRegion::OfFile(std::move(fd));
  REQUIRE(region.ok());
  memory->regions.push_back(*std::move(region));
  cuda::KvLayout& layout = memory->layouts.emplace_back();
  layout.pages = kPages;
  layout.page_stride = Bytes{kPage};
  layout.segment_bytes = Bytes{kSegment};
  layout.segment_offsets = {Bytes{0}, Bytes{kSegment}};
  layout.pages_per_chunk = 1;
  std::vector<std::byte> pattern(kPage);
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    layout.layers.push_back({0, ByteOffset{layer * kPages * kPage}});
    for (const uint32_t page : {0U, kPages - 1}) {
      shm::FillProbePattern(7, LayerIndex{layer}, PageId{page}, pattern);
      REQUIRE(::pwrite(raw, pattern.data(), kPage, static_cast<off_t>((layer * kPages + page) * kPage)) ==
              static_cast<ssize_t>(kPage));
    }
  }
  const auto run = [&](uint64_t nonce) {
    ProbeCheck check(memory, GroupId{0}, nonce);
    uint32_t turns = 1;
    absl::StatusOr<bool> all = false;
    for (;; ++turns) {
      Bytes left = MiB(2);
      all = check.GoOn(&left);
      if (!all.ok() || *all) break;
      CHECK(left == Bytes{});
    }
    return std::pair(turns, all.status());
  };
  CHECK(run(7) == std::pair(13U, absl::OkStatus()));  // 24 MiB and the odd ends of four pages
  CHECK(run(8).second.code() == absl::StatusCode::kFailedPrecondition);
  const off_t last = static_cast<off_t>(kLayers * kPages * kPage) - 1;
  REQUIRE(::pwrite(raw, "x", 1, last) == 1);
  const auto [turns, wrong] = run(7);
  CHECK(turns == 13);
  CHECK(wrong.code() == absl::StatusCode::kFailedPrecondition);
  CHECK_THAT(std::string(wrong.message()), Catch::Contains("page 2 of layer 1 differs") && Catch::Contains("(segment 1)"));
}

}  // namespace
}  // namespace kvist::session

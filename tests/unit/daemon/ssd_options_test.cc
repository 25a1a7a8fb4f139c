#include "daemon/ssd_options.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "tests/support/temp_dir.h"

namespace kvist::daemon {
namespace {

Options With(std::string path, Bytes capacity) {
  Options options;
  options.ssd.path = std::move(path);
  options.ssd.capacity = capacity;
  return options;
}

TEST_CASE("StoreOptionsOf spreads a capacity over directories, in segments that a start can waste") {
  const auto one = StoreOptionsOf(With("/a", GiB(64)));
  REQUIRE(one.ok());
  CHECK(one->directories == std::vector<std::string>{"/a"});
  CHECK(one->capacity == GiB(64));
  CHECK(one->segment == MiB(256));
  const auto two = StoreOptionsOf(With("/a:/b/c", GiB(2)));
  REQUIRE(two.ok());
  CHECK(two->directories == std::vector<std::string>{"/a", "/b/c"});
  CHECK(two->segment == MiB(16));
  const auto small = StoreOptionsOf(With("/a", MiB(64)));
  REQUIRE(small.ok());
  CHECK(small->segment == MiB(8));
  for (const auto& options : {*one, *two, *small}) CHECK(options.Validate().ok());
}

TEST_CASE("StoreOptionsOf refuses what is too small for a tier, and says what to do") {
  const absl::Status status = StoreOptionsOf(With("/a:/b", MiB(64))).status();
  CHECK(absl::IsResourceExhausted(status));
  CHECK_THAT(std::string(status.message()),
             Catch::Contains("ssd.capacity: 32MiB for each") && Catch::Contains("ssd.enabled = false"));
}

TEST_CASE("StoreOptionsOf takes a tenth of what is free by default, and of what the tier has there already") {
  const kvist::test::TempDir dir;
  const auto empty = StoreOptionsOf(With(dir / "ssd/not/there/yet", Bytes{}));
  REQUIRE(empty.ok());
  CHECK(empty->capacity >= MiB(64));
  std::ofstream(dir / "segment") << "x";
  std::filesystem::resize_file(dir / "segment", GiB(4096).value);  // without any blocks, so nothing less is free
  const auto full = StoreOptionsOf(With(dir.path(), Bytes{}));
  REQUIRE(full.ok());
  CHECK(full->capacity >= GiB(4096));  // and no less than that
}

}  // namespace
}  // namespace kvist::daemon

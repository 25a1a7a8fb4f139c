#include "storage/ssd/store_directory.h"

#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "storage/ssd/segment_header.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/ssd/records.h"

namespace kvist::ssd {
namespace {

using Origin = StoreDirectory::Origin;
constexpr uint64_t kUnits = 8;

void PutFile(const std::string& path, const void* bytes, size_t size, uint64_t at = 0) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  if (!file.is_open()) file.open(path, std::ios::binary | std::ios::out);
  file.seekp(static_cast<std::streamoff>(at));
  file.write(static_cast<const char*>(bytes), static_cast<std::streamsize>(size));
  REQUIRE(file.good());
}

void FlipByte(const std::string& path, uint64_t at) {
  std::ifstream file(path, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(at));
  const char flipped = static_cast<char>(~file.get());
  REQUIRE(file.good());
  PutFile(path, &flipped, 1, at);
}

void PutSegment(const std::string& directory, uint32_t segment, const StoreId& store, uint64_t first_epoch,
                uint64_t last_epoch) {
  std::vector<std::byte> file(kUnits * kUnit.value);
  const auto put = [&](uint64_t unit, uint64_t epoch) {
    if (epoch == 0) return;
    PutSegmentHeader(MakeSegmentHeader(store, segment, kUnits, epoch, SecretOf(1)),
                     std::span<std::byte, kUnit.value>(file.data() + unit * kUnit.value, kUnit.value));
  };
  put(0, first_epoch);
  put(kUnits - 1, last_epoch);
  PutFile(directory + "/" + SegmentFileName(segment), file.data(), file.size());
}

StoreDirectory Open(const std::string& path, uint32_t device = 0, const std::optional<StoreId>& join = std::nullopt) {
  const auto found = OpenStoreDirectory(path, kUnits, device, join);
  INFO(found.status().ToString());
  REQUIRE(found.ok());
  return *found;
}

TEST_CASE("OpenStoreDirectory makes a store once, for its owner alone, and finds it again") {
  test::TempDir parent;
  const std::string path = parent / "kvist-ssd";
  const StoreDirectory made = Open(path);
  CHECK(made.origin == Origin::kMade);
  CHECK(made.segments.empty());
  struct stat info {};
  REQUIRE(stat(path.c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0700);
  const StoreDirectory again = Open(path);
  CHECK(again.origin == Origin::kFound);
  CHECK(again.store == made.store);
  test::TempDir other;
  CHECK(Open(other / "kvist-ssd").store != made.store);
}

TEST_CASE("OpenStoreDirectory takes of two headers the one of the later use, and says what is wrong with the others") {
  test::TempDir parent;
  const std::string path = parent / "d";
  const StoreId store = Open(path).store;
  PutSegment(path, 0, store, 3, 3);
  PutSegment(path, 16, store, 5, 4);  // the last use was begun and its second header not written
  PutSegment(path, 32, store, 6, 7);
  PutSegment(path, 48, store, 0, 8);  // the first one is torn
  PutSegment(path, 64, store, 0, 0);
  PutSegment(path, 80, DigestOf<StoreId>(9), 9, 9);
  PutSegment(path, 97, store, 10, 10);  // of another device
  PutFile(path + "/segment-1", "x", 1);
  PutFile(path + "/segment-00000112", "x", 1);  // too short
  PutFile(path + "/segment-00000128.bak", "x", 1);
  const StoreDirectory found = Open(path);
  REQUIRE(found.segments.size() == 7);
  const auto epoch = [&](size_t i) {
    return found.segments[i].verdict == Verdict::kGood ? found.segments[i].header.epoch : 0;
  };
  CHECK(epoch(0) == 3);
  CHECK(epoch(1) == 5);
  CHECK(epoch(2) == 7);
  CHECK(epoch(3) == 8);
  CHECK(found.segments[4].verdict == Verdict::kBlank);
  CHECK(found.segments[5].verdict == Verdict::kForeign);
  CHECK(found.segments[6].verdict == Verdict::kBlank);
  CHECK(found.segments[6].segment == 112);
  for (const StoreDirectory::Found& segment : found.segments) CHECK(segment.unreadable == 0);
}

TEST_CASE("OpenStoreDirectory tells a header that the disk refuses from none") {
  test::TempDir parent;
  const std::string path = parent / "d";
  PutSegment(path, 0, Open(path).store, 3, 3);
  std::filesystem::create_directory(path + "/" + SegmentFileName(16));  // can be opened, and not read
  const StoreDirectory found = Open(path);
  REQUIRE(found.segments.size() == 2);
  CHECK(found.segments[0].unreadable == 0);
  CHECK(found.segments[1].unreadable == EISDIR);
  CHECK(found.segments[1].verdict == Verdict::kBlank);
}

TEST_CASE("OpenStoreDirectory learns from the segments which store it is when its file is lost or damaged") {
  test::TempDir parent;
  const std::string path = parent / "d";
  const StoreId store = Open(path, 3).store;
  PutSegment(path, 3, store, 1, 1);
  PutSegment(path, 19, store, 2, 2);
  PutSegment(path, 35, DigestOf<StoreId>(9), 2, 2);
  SECTION("lost") { REQUIRE(std::remove((path + "/store").c_str()) == 0); }
  SECTION("flipped") { FlipByte(path + "/store", 20); }
  SECTION("cut off") { REQUIRE(truncate((path + "/store").c_str(), 20) == 0); }
  SECTION("empty") { REQUIRE(truncate((path + "/store").c_str(), 0) == 0); }
  const StoreDirectory found = Open(path, 3);
  CHECK(found.origin == Origin::kRecovered);
  CHECK(found.store == store);
  CHECK(Open(path, 3).origin == Origin::kFound);
}

TEST_CASE("OpenStoreDirectory refuses what isn't this store's, and leaves it alone") {
  test::TempDir parent;
  const std::string path = parent / "d";
  const StoreId store = Open(path, 2).store;
  const auto refused = [&](uint32_t device, const std::optional<StoreId>& join) {
    const absl::Status status = OpenStoreDirectory(path, kUnits, device, join).status();
    return absl::IsFailedPrecondition(status) && absl::StrContains(status.message(), "ssd.path");
  };
  CHECK(refused(2, DigestOf<StoreId>(1)));
  CHECK(refused(1, store));
  CHECK_FALSE(refused(2, store));
  const uint32_t later = kFormatVersion + 1;
  PutFile(path + "/store", &later, sizeof later, 8);
  CHECK(refused(2, store));
  CHECK(refused(2, std::nullopt));
  test::TempDir second;
  CHECK(Open(second / "e", 5, store).store == store);  // an empty one joins
  CHECK_FALSE(OpenStoreDirectory(parent / "f", kUnits, kDevicesMax).ok());
}

}  // namespace
}  // namespace kvist::ssd

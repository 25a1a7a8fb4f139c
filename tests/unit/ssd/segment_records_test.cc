#include "storage/ssd/segment_records.h"

#include <fcntl.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <string>

#include "storage/base/unique_fd.h"
#include "storage/ssd/record.h"
#include "storage/ssd/segment_header.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/ssd/records.h"

namespace kvist::ssd {
namespace {

TEST_CASE("A record is found behind what was preallocated and never written, and behind other bytes") {
  constexpr uint32_t kUnits = 16384, kAt = 12345;
  constexpr Bytes kSegment = kUnit * kUnits;
  const kvist::test::TempDir dir;
  SegmentHeader header{};
  header.segment = 0;
  header.epoch = 3;
  header.units = kUnits;
  header.secret = SecretOf(9);
  const UniqueFd file(::open((dir / SegmentFileName(0)).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  REQUIRE(file);
  if (::fallocate(file.get(), 0, 0, static_cast<off_t>(kSegment.value)) != 0)
    REQUIRE(::ftruncate(file.get(), static_cast<off_t>(kSegment.value)) == 0);
  const auto records = SegmentRecords::Open({dir.path()}, kSegment);
  REQUIRE(records.ok());
  (*records)->Know(header);
  const SegmentToRead segment{0, 3, kUnits};
  CHECK((*records)->FindNext(segment, 1, kUnits) == kUnits);

  AlignedBytes slot(kUnit * 2);
  FillPayload(slot.data(), 1, kUnit.value);
  Sealer sealer;
  SealRecord(slot.data(), ShardHeader(1, 1, kUnit), header, {0, kAt}, Checksums::kCompute, &sealer);
  const auto write = [&](uint32_t unit, const std::byte* bytes, Bytes size) {
    REQUIRE(::pwrite(file.get(), bytes, size.value, static_cast<off_t>(uint64_t{unit} * kUnit.value)) ==
            static_cast<ssize_t>(size.value));
    REQUIRE(::fsync(file.get()) == 0);
  };
  write(kAt, slot.data(), slot.size());
  CHECK((*records)->FindNext(segment, 1, kUnits) == kAt);
  CHECK((*records)->FindNext(segment, kAt, kUnits) == kAt);
  CHECK((*records)->FindNext(segment, kAt + 1, kUnits) == kUnits);
  CHECK((*records)->FindNext(segment, 1, kAt) == kAt);

  const std::string other(kUnit.value * 3, 'x');
  for (const uint32_t unit : {7u, kAt - 300}) write(unit, reinterpret_cast<const std::byte*>(other.data()), {other.size()});
  CHECK((*records)->FindNext(segment, 1, kUnits) == kAt);
}

}  // namespace
}  // namespace kvist::ssd

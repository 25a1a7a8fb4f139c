#ifndef KVIST_TESTS_UNIT_SSD_SIMULATED_H_
#define KVIST_TESTS_UNIT_SSD_SIMULATED_H_

#include <catch2/catch.hpp>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "storage/ssd/drive.h"
#include "tests/sim/prng.h"
#include "tests/support/sim_disk.h"
#include "tests/unit/ssd/records.h"

namespace kvist::ssd {

// A drive over a simulated disk, and the slots of what was written to it.
struct Simulated {
  static constexpr uint32_t kUnits = 64;  // of a segment

  struct Stored {
    RecordHeader header;
    AlignedBytes slot;
    std::optional<Place> place;  // durable there
    std::optional<int> error;    // or ended so
  };

  explicit Simulated(uint64_t seed, uint32_t segments = 64, Writer::Options writer = {}) : prng(seed) {
    auto made = std::make_unique<test::SimDisk>(&files, kUnits * kUnit.value, &prng);
    disk = made.get();
    writer.store = DigestOf<StoreId>(1);
    writer.seal_step = KiB(8);  // most records take several
    writer.draw_secret = [this] { return SecretOf(static_cast<uint8_t>(++secrets)); };
    drive = std::make_unique<Drive>(
        std::move(made), Drive::Options{.segments = {.device = 0, .segments = segments, .units = kUnits},
                                        .queue = {.piece = KiB(16), .read_budget = KiB(128), .write_budget = KiB(128)},
                                        .writer = std::move(writer),
                                        .reader = {.piece = KiB(16), .check_step = KiB(4)}});
  }

  // Offers another shard; false when the writer takes no more.
  bool Write(uint32_t layers, Bytes layer_bytes) {
    const uint64_t n = next + 1;
    const RecordHeader header = ShardHeader(n, layers, layer_bytes);
    AlignedBytes slot(kUnit * UnitsFor({header.payload_bytes}));
    FillPayload(slot.data(), n, header.payload_bytes);
    if (!drive->writer().Write({n, slot.data(), header, Checksums::kCompute})) return false;
    stored.emplace(n, Stored{header, std::move(slot), {}, {}});
    next = n;
    return true;
  }
  bool WriteSome() { return Write(prng.Between(1, 6), Bytes{prng.Between(1, 9000)}); }

  void Turn() {
    now += absl::Milliseconds(1);
    drive->Turn(now, absl::InfinitePast());
    TakeOutcomes();
    for (const uint32_t segment : drive->writer().TakeFenced()) {
      // What was durable there is given up, too.
      ++fenced;
      fenced_segments.insert(segment);
      for (auto& [n, of] : stored) {
        if (!of.place || of.place->segment != segment) continue;
        drive->segments().Kill(*of.place, UnitsFor({of.header.payload_bytes}));
        of.place.reset();
        of.error = -1;
      }
    }
    drive->segments().CheckInvariants();
  }
  void TakeOutcomes() {
    for (const Writer::Outcome& outcome : drive->writer().TakeOutcomes()) {
      Stored& of = stored.at(outcome.ticket);
      REQUIRE((!of.place && !of.error));
      REQUIRE((!outcome.place || !fenced_segments.contains(outcome.place.segment)));  // nobody trusts it any more
      REQUIRE(static_cast<bool>(outcome.place) == (outcome.error == 0));
      if (outcome.error == 0)
        of.place = outcome.place;
      else
        of.error = outcome.error;
    }
  }
  bool Settle(int turns = 10000) {
    do { Turn(); } while (!drive->idle() && turns-- > 0 && !(drive->writer().starved() && drive->queue().idle()));
    return drive->idle();
  }
  size_t durable() const {
    size_t count = 0;
    for (const auto& [n, of] : stored) count += of.place.has_value();
    return count;
  }

  Reader::Shard Wanted(uint64_t n, std::byte* slot) const {
    const Stored& of = stored.at(n);
    return {.ticket = n,
            .slot = slot,
            .place = *of.place,
            .identity = IdentityOf(of.header),
            .runs = of.header.runs,
            .run_bytes = RunBytes(of.header)};
  }
  // Reads one back; what the reader said last.
  Reader::Progress ReadBack(uint64_t n, std::byte* slot, Reader::Order order = Reader::Order::kWhole) {
    const Reader::Shard wanted = Wanted(n, slot);
    drive->reader().Read({&wanted, 1}, order);
    std::optional<Reader::Progress> last;
    for (int turns = 0; turns < 10000 && !(last && last->ended); ++turns) {
      for (const Reader::Progress& progress : drive->reader().TakeProgress()) last = progress;
      if (!(last && last->ended)) Turn();
    }
    REQUIRE((last && last->ended));
    return *last;
  }
  // Whether the disk holds a record as it was sealed.
  bool OnDisk(uint64_t n) {
    const Stored& of = stored.at(n);
    const std::span<const std::byte> bytes = files.files.at(of.place->segment).bytes;
    return std::memcmp(bytes.data() + OffsetOf(*of.place).value, of.slot.data(), of.slot.size().value) == 0;
  }

  sim::Prng prng;
  test::SimFiles files;
  test::SimDisk* disk = nullptr;
  std::unique_ptr<Drive> drive;
  std::map<uint64_t, Stored> stored;  // by ticket, which is the sequence number
  uint64_t next = 0;
  uint32_t secrets = 0;
  uint32_t fenced = 0;
  std::set<uint32_t> fenced_segments;
  absl::Time now = absl::UnixEpoch() + absl::Hours(1);
};

}  // namespace kvist::ssd

#endif  // KVIST_TESTS_UNIT_SSD_SIMULATED_H_

#include "storage/ssd/rebuild.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "storage/base/check.h"
#include "storage/ssd/segment_scan.h"
#include "tests/unit/ssd/records_in_memory.h"

namespace kvist::ssd {
namespace {

using test::RecordsInMemory;
constexpr absl::Duration kPatience = absl::Seconds(60);

SpaceDigest SpaceNamed(uint32_t i) {
  SpaceDigest digest;
  digest.bytes[0] = static_cast<uint8_t>(i + 1);
  return digest;
}

ChunkKey KeyNamed(uint32_t i) {
  ChunkKey key;
  key.bytes[3] = static_cast<uint8_t>(i);
  key.bytes[31] = static_cast<uint8_t>(i >> 8);
  return key;
}

// Collects what a rebuild gives. Spaces get numbers 100, 101, .. as they come.
struct Taken : RebuildSink {
  std::map<SpaceDigest, uint32_t> numbers;
  std::map<SpaceDigest, std::string> descriptions;
  std::vector<ClearRow> clears;
  std::vector<ChunkRow> chunks;
  RebuildReport report;
  size_t batches = 0, stop_after = SIZE_MAX;
  bool parents_first = true;
  absl::Notification ended;

  std::optional<uint32_t> NumberOf(const SpaceDigest& digest, std::string_view description) override {
    descriptions[digest] = std::string(description);
    return numbers[digest] = 100 + static_cast<uint32_t>(numbers.size());
  }
  bool Take(RowBatch rows) override {
    KVIST_CHECK(rows.rows() > 0 && rows.rows() <= Catalog::kLoadRows);
    clears.insert(clears.end(), rows.clears.begin(), rows.clears.end());
    for (const ChunkRow& row : rows.chunks) {
      parents_first = parents_first && (chunks.empty() || chunks.back().id.position <= row.id.position);
      chunks.push_back(row);
    }
    return ++batches < stop_after;
  }
  void Rebuilt(const RebuildReport& r) override {
    report = r;
    ended.Notify();
  }
  void Wait() { KVIST_CHECK(ended.WaitForNotificationWithTimeout(kPatience)); }
};

// A chunk by what names it on every node: space digest, group, key.
using Name = std::tuple<SpaceDigest, uint16_t, ChunkKey>;
using Chunks = std::map<Name, ChunkRow>;

Chunks Named(const Taken& taken) {
  std::map<uint32_t, SpaceDigest> digests;
  for (const auto& [digest, number] : taken.numbers) digests[number] = digest;
  Chunks chunks;
  for (ChunkRow row : taken.chunks) {
    const SpaceDigest digest = digests.at(row.id.space);
    row.id.space = 0;
    const bool fresh = chunks.emplace(Name{digest, row.id.group, row.id.key}, row).second;
    KVIST_CHECK(fresh);
  }
  return chunks;
}

// A store at work: appends records to segments of several devices in the order of their sequence numbers, as the writer does, and keeps the
// catalog that it would have committed.
class Store {
 public:
  static constexpr uint32_t kUnits = 64;

  explicit Store(uint64_t seed) : random_(seed) {}
  RecordsInMemory disk;
  Chunks catalog;
  std::map<SpaceDigest, uint64_t> clears;

  void Step(bool reuse) {
    const uint32_t what = static_cast<uint32_t>(random_() % 100);
    if (what < 80) return StoreChunk(/*all=*/true);
    if (what < 88) return StoreChunk(/*all=*/false);
    if (what < 90) return Clear();
    if (reuse && disk.segments.size() > 12) ReuseOldest();
  }

 private:
  // A place for so many units: a new segment when the open one is full.
  Place Append(uint32_t device, RecordHeader header) {
    const uint32_t units = UnitsFor({header.payload_bytes});
    Open& open = open_[device];
    if (open.unit == 0 || open.unit + units > kUnits - 1) {
      open = {next_segment_++, 1};
      disk.Open(open.segment, ++epoch_, kUnits);
    }
    header.segment = open.segment;
    header.unit = open.unit;
    disk.Put(header);
    open.unit += units;
    return {header.segment, header.unit};
  }
  void Describe(uint32_t space, uint32_t device) {
    // Before each first shard of a space in a segment; more often is right, too.
    RecordHeader header{};
    header.kind = RecordKind::kSpace;
    header.space = SpaceNamed(space);
    header.sequence = ++sequence_;
    header.payload_bytes = 20;
    const Place place = Append(device, header);
    disk.payloads[{place.segment, place.unit}] = absl::StrCat("space ", space);
  }
  void StoreChunk(bool all) {
    const uint32_t space = static_cast<uint32_t>(random_() % 3), key = static_cast<uint32_t>(random_() % 300);
    const uint16_t group = static_cast<uint16_t>(key % 2), shards = static_cast<uint16_t>(1 + space);
    const Name name{SpaceNamed(space), group, KeyNamed(key)};
    // One that isn't whole is the first of its chunk: else an older record makes it whole again.
    if (!all && (shards == 1 || ever_.count(name) != 0)) return;
    ever_.insert(name);
    ChunkRow row;
    row.id.group = group;
    row.id.key = KeyNamed(key);
    row.id.position = key / 2 % 20;
    if (row.id.position > 0) row.parent = KeyNamed(key - 2);
    row.codec = Codec{static_cast<uint8_t>(random_() % 4 == 0 ? 1 + random_() % 2 : 0)};
    for (uint16_t shard = 0; shard < (all ? shards : shards - 1); ++shard) {
      const uint32_t device = shard % 2;
      Describe(space, device);
      RecordHeader header{};
      header.kind = RecordKind::kShard;
      header.space = SpaceNamed(space);
      header.group = group;
      header.key = row.id.key;
      header.shard = shard;
      header.shards = shards;
      header.position = row.id.position;
      header.has_parent = row.parent.has_value() ? 1 : 0;
      if (row.parent.has_value()) header.parent = *row.parent;
      header.sequence = row.sequence = ++sequence_;
      header.codec = row.codec;
      header.payload_bytes = 1 + key * 977 % (5 * kUnit.value);  // all shards of a chunk have one shape
      row.units = UnitsFor({header.payload_bytes});
      row.places.push_back(Append(device, header));
    }
    if (all) catalog[name] = row;
  }
  void Clear() {
    const uint32_t space = static_cast<uint32_t>(random_() % 4);
    RecordHeader header{};
    header.kind = RecordKind::kClear;
    if (space < 3) header.space = SpaceNamed(space);
    header.sequence = ++sequence_;
    Append(static_cast<uint32_t>(random_() % 2), header);
    clears[header.space] = header.sequence;
    std::erase_if(catalog, [&](const auto& entry) { return space == 3 || std::get<0>(entry.first) == header.space; });
  }
  void ReuseOldest() {
    // The clears in it are written again first, as the writer has to.
    const uint32_t victim = disk.segments.begin()->first;
    std::vector<RecordHeader> kept;
    for (const auto& [place, header] : disk.records) {
      if (place.first == victim && header.kind == RecordKind::kClear && clears[header.space] == header.sequence)
        kept.push_back(header);
    }
    for (const RecordHeader& header : kept) Append(0, header);
    if (open_[0].segment == victim || open_[1].segment == victim) return;
    std::erase_if(catalog, [&](const auto& entry) {
      const auto& places = entry.second.places;
      return std::any_of(places.begin(), places.end(), [&](const Place& place) { return place.segment == victim; });
    });
    disk.Open(victim, ++epoch_, kUnits);
    disk.segments.erase(victim);
  }

  struct Open {
    uint32_t segment = 0;
    uint32_t unit = 0;
  };
  std::mt19937_64 random_;
  std::map<uint32_t, Open> open_;
  uint32_t next_segment_ = 1;
  uint64_t epoch_ = 0, sequence_ = 0;
  std::set<Name> ever_;
};

// What the records say, worked out slowly.
Chunks ToldBy(const RecordsInMemory& disk) {
  std::map<SpaceDigest, uint64_t> cleared;
  std::map<Name, std::vector<RecordHeader>> all;
  std::set<SpaceDigest> described;
  for (const auto& [place, header] : disk.records) {
    if (disk.damaged.count(place) != 0) continue;
    if (header.kind == RecordKind::kClear) cleared[header.space] = std::max(cleared[header.space], header.sequence);
    if (header.kind == RecordKind::kSpace) described.insert(header.space);
    if (header.kind == RecordKind::kShard) all[{header.space, header.group, header.key}].push_back(header);
  }
  Chunks chunks;
  std::map<std::pair<Name, Codec>, std::vector<RecordHeader>> by_form;
  for (const auto& [name, records] : all) {
    for (const RecordHeader& record : records) by_form[{name, record.codec}].push_back(record);
  }
  for (auto& [form, records] : by_form) {
    const Name& name = form.first;
    const uint64_t below = std::max(cleared[SpaceDigest{}], cleared[std::get<0>(name)]);
    std::erase_if(records, [&](const RecordHeader& r) { return r.sequence < below; });
    if (records.empty() || described.count(std::get<0>(name)) == 0) continue;
    std::sort(records.begin(), records.end(), [](const auto& a, const auto& b) { return a.sequence < b.sequence; });
    ChunkRow row;
    row.places.resize(records.back().shards);
    for (const RecordHeader& r : records) {
      row.id = {r.position, 0, r.group, r.key};
      row.parent.reset();
      if (r.has_parent != 0) row.parent = r.parent;
      row.sequence = r.sequence;
      row.units = UnitsFor({r.payload_bytes});
      row.codec = r.codec;
      row.places[r.shard] = {r.segment, r.unit};
    }
    const bool whole =
        std::all_of(row.places.begin(), row.places.end(), [](const Place& place) { return static_cast<bool>(place); });
    if (whole && row.sequence > chunks[name].sequence) chunks[name] = row;
    if (chunks[name].places.empty()) chunks.erase(name);
  }
  return chunks;
}

void CheckClears(const Taken& taken, const Store& store) {
  std::map<SpaceDigest, uint64_t> found;
  for (const ClearRow& row : taken.clears) {
    found[row.space] = row.sequence;
    CHECK(store.disk.records.at({row.place.segment, row.place.unit}).sequence == row.sequence);  // there it says so
  }
  CHECK(found == store.clears);
}

TEST_CASE("Rebuild gives the catalog that was lost, whatever was stored, stored again and cleared") {
  const uint64_t seed = std::random_device()();
  for (uint64_t run = 0; run < 40; ++run) {
    INFO("seed " << seed << " run " << run);
    Store store(seed + run);
    for (int i = 0; i < 400; ++i) store.Step(/*reuse=*/false);
    Taken taken;
    Rebuild rebuild(&store.disk, store.disk.All(), &taken, {.readers = static_cast<uint32_t>(run % 4)});
    rebuild.Run();
    REQUIRE(taken.report.status.ok());
    CHECK(taken.parents_first);
    CHECK(taken.report.gaps == 0);
    const bool same = Named(taken) == store.catalog;
    CHECK(same);
    CheckClears(taken, store);
    for (const auto& [digest, description] : taken.descriptions)
      CHECK(description == absl::StrCat("space ", digest.bytes[0] - 1));
    CHECK(taken.report.counts.chunks == store.catalog.size());
    // Not a read more than there are records, but one at each segment's end and one for each space's description.
    CHECK(store.disk.reads <= store.disk.records.size() + store.disk.segments.size() + 3);
    CHECK(rebuild.progress().segments_read == store.disk.segments.size());
  }
}

TEST_CASE(
    "Rebuild gives what the records say when segments were reused and headers are damaged, and nothing that was cleared") {
  const uint64_t seed = std::random_device()();
  uint64_t gaps = 0, incomplete = 0, superseded = 0, cleared = 0;
  for (uint64_t run = 0; run < 60; ++run) {
    INFO("seed " << seed << " run " << run);
    Store store(seed + run);
    std::mt19937_64 random(seed + run);
    for (int i = 0; i < 600; ++i) store.Step(/*reuse=*/true);
    for (const auto& [place, header] : store.disk.records) {
      if (header.kind != RecordKind::kClear && random() % 20 == 0) store.disk.damaged.insert(place);
    }
    Taken taken;
    Rebuild(&store.disk, store.disk.All(), &taken).Run();
    REQUIRE(taken.report.status.ok());
    const Chunks found = Named(taken);
    const bool same = found == ToldBy(store.disk);
    CHECK(same);
    CheckClears(taken, store);
    for (const auto& [name, row] : found) {
      const auto below = [&](const SpaceDigest& digest) {
        return store.clears.count(digest) != 0 ? store.clears.at(digest) : 0;
      };
      CHECK(row.sequence > std::max(below({}), below(std::get<0>(name))));
    }
    // Rows whose records are all there are back as they were.
    for (const auto& [name, row] : store.catalog) {
      const bool whole = std::none_of(row.places.begin(), row.places.end(), [&](const Place& p) {
        return store.disk.damaged.count({p.segment, p.unit}) != 0;
      });
      if (whole) CHECK((found.count(name) == 1 && found.at(name) == row));
    }
    gaps += taken.report.gaps;
    incomplete += taken.report.counts.incomplete;
    superseded += taken.report.counts.superseded;
    cleared += taken.report.counts.cleared;
  }
  CHECK((gaps > 0 && incomplete > 0 && superseded > 0 && cleared > 0));  // all of it happened
}

TEST_CASE("Rebuild leaves chunks out whose space nothing describes") {
  Store store(1);
  for (int i = 0; i < 100; ++i) store.Step(false);
  for (const auto& [place, header] : store.disk.records) {
    if (header.kind == RecordKind::kSpace && header.space == SpaceNamed(1)) store.disk.payloads.erase(place);
  }
  Taken taken;
  Rebuild(&store.disk, store.disk.All(), &taken).Run();
  REQUIRE(taken.report.status.ok());
  CHECK(taken.numbers.count(SpaceNamed(1)) == 0);
  CHECK(taken.report.counts.undescribed > 0);
  CHECK(taken.report.counts.chunks == taken.chunks.size());
}

TEST_CASE("Rebuild ends early when its sink has enough, or when it is cancelled") {
  RecordsInMemory disk;
  constexpr uint32_t kChunks = 10'000;
  disk.Open(1, 1, 2 * kChunks + 10);
  RecordHeader header{};
  header.kind = RecordKind::kSpace;
  header.segment = 1;
  header.unit = 1;
  header.space = SpaceNamed(0);
  disk.Put(header);
  disk.payloads[{1, 1}] = "words";
  for (uint32_t i = 0; i < kChunks; ++i) {
    header.kind = RecordKind::kShard;
    header.unit = 2 + i;
    header.key = KeyNamed(i);
    header.shards = 1;
    header.sequence = i + 1;
    disk.Put(header);
  }
  {
    Taken taken;
    taken.stop_after = 1;
    Rebuild(&disk, disk.All(), &taken).Run();
    CHECK(absl::IsCancelled(taken.report.status));
    CHECK(taken.batches == 1);
    CHECK(taken.report.highest_sequence == kChunks);
  }
  Taken taken;
  Rebuild rebuild(&disk, disk.All(), &taken);
  rebuild.Cancel();
  rebuild.Run();
  CHECK(taken.ended.HasBeenNotified());
  CHECK(absl::IsCancelled(taken.report.status));
  CHECK(taken.batches == 0);
}

TEST_CASE("ScanSegment passes damage, and doesn't follow headers that say what can't be") {
  RecordsInMemory disk;
  disk.Open(3, 9, 100);
  const auto put = [&](uint32_t unit, uint64_t payload) {
    RecordHeader header{};
    header.kind = RecordKind::kShard;
    header.segment = 3;
    header.unit = unit;
    header.payload_bytes = payload;
    disk.Put(header);
  };
  put(1, 2 * kUnit.value);    // 1..3
  put(4, kUnit.value);        // 4..5, damaged
  put(6, 1);                  // 6..7, unreadable
  put(8, 0);                  // 8
  put(9, uint64_t{1} << 60);  // longer than anything
  put(20, 78 * kUnit.value);  // 20..98: to the last unit before the second segment header
  disk.damaged.insert({3, 4});
  disk.unreadable.insert({3, 6});
  std::vector<uint32_t> seen;
  const auto visit = [&](const RecordHeader& header) { seen.push_back(header.unit); };
  SegmentScanned scanned = ScanSegment(&disk, disk.segments[3], 1, visit, [] { return true; });
  CHECK(seen == std::vector<uint32_t>{1, 8, 20});
  CHECK(scanned.records == 3);
  CHECK(scanned.gaps == 2);
  CHECK(scanned.gap_units == 4 + 11);
  CHECK(scanned.end == 99);
  CHECK(scanned.whole);

  disk.records[{3, 20}].payload_bytes += 1;  // one unit too long: over the segment header
  seen.clear();
  scanned = ScanSegment(&disk, disk.segments[3], 1, visit, [] { return true; });
  CHECK(seen == std::vector<uint32_t>{1, 8});

  seen.clear();
  int asked = 0;
  CHECK_FALSE(ScanSegment(&disk, disk.segments[3], 1, visit, [&] { return ++asked < 2; }).whole);
  CHECK(seen == std::vector<uint32_t>{1});
  CHECK(ScanSegment(&disk, {4, 1, 0}, 1, visit, [] { return true; }).records == 0);
}

}  // namespace
}  // namespace kvist::ssd

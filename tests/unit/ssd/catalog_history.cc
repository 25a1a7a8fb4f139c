#include "tests/unit/ssd/catalog_history.h"

#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string_view>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "storage/base/check.h"

namespace kvist::ssd::test {
namespace {

constexpr absl::Duration kLong = absl::Seconds(60);

ChunkRow RandomChunk(std::mt19937_64& random) {
  ChunkRow row;
  row.id.position = static_cast<uint32_t>(random() % 5);
  row.id.space = static_cast<uint32_t>(random() % 3);
  row.id.group = static_cast<uint16_t>(random() % 2);
  row.id.key.bytes[0] = static_cast<uint8_t>(random() % 16);
  row.id.key.bytes[31] = static_cast<uint8_t>(row.id.position);
  if (row.id.position > 0) row.parent.emplace().bytes[0] = static_cast<uint8_t>(random());
  row.hints = static_cast<uint16_t>(random());
  row.sequence = random();
  row.units = static_cast<uint32_t>(random());
  row.places.resize(1 + random() % 3);
  for (Place& place : row.places)
    place = {.segment = static_cast<uint32_t>(random() % 100), .unit = 1 + static_cast<uint32_t>(random() % 1000)};
  return row;
}

void PutOne(std::mt19937_64& random, CatalogBatch* batch) {
  switch (random() % 16) {
    case 0: {
      SpaceRow row{.number = static_cast<uint32_t>(random() % 3), .digest = {}, .description = absl::StrCat(random())};
      row.digest.bytes[0] = static_cast<uint8_t>(row.number);
      return batch->Put(row);
    }
    case 1:
    case 2: {
      SegmentRow row{
          .number = static_cast<uint32_t>(random() % 100), .state = SegmentState::kOpen, .epoch = random(), .secret = {}};
      row.secret[3] = static_cast<uint8_t>(random());
      return batch->Put(row);
    }
    case 3: return batch->EraseSegment(static_cast<uint32_t>(random() % 100));
    case 4: {
      ClearRow row{.space = {}, .sequence = random(), .place = {1, static_cast<uint32_t>(random())}};
      row.space.bytes[0] = static_cast<uint8_t>(random() % 3);
      return batch->Put(row);
    }
    case 5: return batch->Put(PinRow{.space = 1, .name = absl::StrCat(random() % 8), .description = absl::StrCat(random())});
    case 6: return batch->ErasePin(1, absl::StrCat(random() % 8));
    case 7: return batch->EraseUse(static_cast<uint32_t>(random() % 2), static_cast<uint32_t>(random() % 4));
    case 8: {
      UseRow row{.period = static_cast<uint32_t>(random() % 2),
                 .part = static_cast<uint32_t>(random() % 4),
                 .written = random(),
                 .chunks = {}};
      for (uint64_t n = random() % 5; n > 0; --n) row.chunks.push_back({1, 2, RandomChunk(random).id.key});
      return batch->Put(row);
    }
    case 9:
    case 10: return batch->Erase(RandomChunk(random).id);
    default: return batch->Put(RandomChunk(random));
  }
}

std::string ProgressKey() { return PinKey(0, "progress"); }

}  // namespace

void Apply(const CatalogBatch& batch, Rows* rows) {
  for (const CatalogBatch::Change& change : batch.list()) {
    if (change.erase) {
      rows->erase(std::string(change.row.key()));
    } else {
      (*rows)[std::string(change.row.key())] = std::string(change.row.value());
    }
  }
}

CatalogBatch BatchOf(uint64_t seed, uint64_t i) {
  std::mt19937_64 random(seed * 1'000'003 + i);
  CatalogBatch batch;
  for (uint64_t n = random() % 12; n > 0; --n) PutOne(random, &batch);
  std::string progress(sizeof i, '\0');
  std::memcpy(progress.data(), &i, sizeof i);
  batch.Put(PinRow{.space = 0, .name = "progress", .description = progress});
  return batch;
}

Rows RowsAfter(uint64_t seed, uint64_t batches) {
  Rows rows;
  for (uint64_t i = 0; i < batches; ++i) Apply(BatchOf(seed, i), &rows);
  return rows;
}

uint64_t ProgressOf(const Rows& rows) {
  const auto it = rows.find(ProgressKey());
  if (it == rows.end()) return 0;
  const std::optional<PinRow> pin = ParsePin(it->first, it->second);
  uint64_t i = 0;
  KVIST_CHECK(pin.has_value() && pin->description.size() == sizeof i);
  std::memcpy(&i, pin->description.data(), sizeof i);
  return i + 1;
}

bool Collector::Take(RowBatch batch) {
  largest = std::max(largest, batch.rows());
  const auto take = [&](int phase, const auto& list) {
    if (list.empty()) return;
    in_order = in_order && phase >= phase_;
    phase_ = phase;
    for (const auto& row : list) {
      const EncodedRow bytes = Encode(row);
      in_order = rows.emplace(bytes.key(), bytes.value()).second && in_order;
    }
  };
  take(1, batch.spaces);
  take(2, batch.segments);
  take(3, batch.clears);
  take(4, batch.pins);
  take(5, batch.chunks);
  take(6, batch.uses);
  for (const ChunkRow& row : batch.chunks) {
    in_order = in_order && (!last_chunk.has_value() || last_chunk->position <= row.id.position);
    last_chunk = row.id;
  }
  return true;
}

void Collector::Loaded(const LoadReport& report) {
  report_ = report;
  ended_.Notify();
}

const LoadReport& Collector::Wait() {
  KVIST_CHECK(ended_.WaitForNotificationWithTimeout(kLong));
  return report_;
}

namespace {

// Waits for what is told to the callback that `ask` gets.
absl::Status Told(const std::function<absl::Status(Catalog::Done)>& ask) {
  struct Answer {
    absl::Status status;
    absl::Notification come;
  };
  const auto answer = std::make_shared<Answer>();
  const absl::Status asked = ask([answer](const absl::Status& status) {
    answer->status = status;
    answer->come.Notify();
  });
  if (!asked.ok()) return asked;
  KVIST_CHECK(answer->come.WaitForNotificationWithTimeout(kLong));
  return answer->status;
}

}  // namespace

absl::Status CommitNow(Catalog* catalog, CatalogBatch batch) {
  return Told([&](Catalog::Done done) { return catalog->Commit(std::move(batch), std::move(done)); });
}

absl::Status StartOverNow(Catalog* catalog) {
  return Told([&](Catalog::Done done) {
    catalog->StartOver("a test", std::move(done));
    return absl::OkStatus();
  });
}

Loaded LoadNow(Catalog* catalog) {
  Collector collector;
  const absl::Status begun = catalog->Load(&collector);
  if (!begun.ok()) return {LoadReport{.status = begun}, {}};
  LoadReport report = collector.Wait();
  KVIST_CHECK(collector.in_order);
  return {std::move(report), std::move(collector.rows)};
}

}  // namespace kvist::ssd::test

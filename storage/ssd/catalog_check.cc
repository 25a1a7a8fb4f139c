#include "storage/ssd/catalog_check.h"

#include <algorithm>
#include <tuple>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"

namespace kvist::ssd {
namespace {

auto NameOf(const ChunkRow& row) { return std::tie(row.id.space, row.id.group, row.id.key); }
bool ByName(const ChunkRow& a, const ChunkRow& b) { return NameOf(a) < NameOf(b); }

class Comparing {
 public:
  Comparing(CatalogComparison* result, size_t examples) : result_(*result), examples_(examples) {}

  void Add(CatalogDifference::Kind kind, const ChunkRow& row) {
    uint64_t& count = CountOf(kind);
    if (count++ < examples_) result_.first.push_back({kind, row.id});
  }
  void Both(const ChunkRow& row, const ChunkRow& record) {
    if (row.places != record.places) return Add(CatalogDifference::kElsewhere, record);
    if (row.parent != record.parent || row.id.position != record.id.position)
      return Add(CatalogDifference::kOtherTree, record);
    ++result_.same;
  }

 private:
  uint64_t& CountOf(CatalogDifference::Kind kind) {
    switch (kind) {
      case CatalogDifference::kNoRecord: return result_.no_record;
      case CatalogDifference::kElsewhere: return result_.elsewhere;
      case CatalogDifference::kOtherTree: return result_.other_tree;
      case CatalogDifference::kNoRow: break;
    }
    return result_.no_row;
  }

  CatalogComparison& result_;
  const size_t examples_;
};

}  // namespace

std::optional<std::string> WhyTooOld(std::span<const SegmentRow> rows, std::span<const SegmentToRead> found) {
  absl::flat_hash_map<uint32_t, uint64_t> epochs;
  for (const SegmentRow& row : rows) epochs[row.number] = row.epoch;
  for (const SegmentToRead& segment : found) {
    const auto row = epochs.find(segment.number);
    if (row == epochs.end()) return absl::StrCat("it is too old: it doesn't know segment ", segment.number);
    if (row->second < segment.epoch) {
      return absl::StrCat("it is too old: it knows segment ", segment.number, " in epoch ", row->second,
                          ", and that is in epoch ", segment.epoch);
    }
  }
  return std::nullopt;
}

CatalogComparison Compare(std::vector<ChunkRow> catalog, std::vector<ChunkRow> records, size_t examples) {
  CatalogComparison result;
  result.rows = catalog.size();
  result.records = records.size();
  std::sort(catalog.begin(), catalog.end(), ByName);
  std::sort(records.begin(), records.end(), ByName);
  Comparing comparing(&result, examples);
  auto row = catalog.begin();
  auto record = records.begin();
  while (row != catalog.end() || record != records.end()) {
    if (record == records.end() || (row != catalog.end() && ByName(*row, *record))) {
      comparing.Add(CatalogDifference::kNoRecord, *row++);
    } else if (row == catalog.end() || ByName(*record, *row)) {
      comparing.Add(CatalogDifference::kNoRow, *record++);
    } else {
      comparing.Both(*row++, *record++);
    }
  }
  return result;
}

}  // namespace kvist::ssd

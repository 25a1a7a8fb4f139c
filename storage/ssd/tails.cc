#include "storage/ssd/tails.h"

#include <algorithm>
#include <utility>

namespace kvist::ssd {

void Tails::Forget(absl::FunctionRef<bool(Place)> there) {
  std::erase_if(noted_, [there](const auto& noted) {
    return std::any_of(noted.second.places.begin(), noted.second.places.end(), there);
  });
}

std::set<uint32_t> Tails::Segments() const {
  std::set<uint32_t> segments;
  for (const auto& [id, row] : noted_) {
    for (const Place place : row.places) segments.insert(place.segment);
  }
  return segments;
}

bool Tails::Adopt(ChunkRow row, Judge judge, IsWhole is_whole, Sifted* to) {
  if (!is_whole(row) || judge(row) != Standing::kUsable) return false;
  to->adopted.push_back(row);
  to->usable.push_back(std::move(row));
  return true;
}

Tails::Sifted Tails::Sift(std::vector<ChunkRow> rows, Judge judge, IsWhole is_whole) {
  Sifted sifted;
  for (ChunkRow& row : rows) {
    while (!noted_.empty() && InLoadOrder()(noted_.begin()->first, row.id))
      Adopt(std::move(noted_.extract(noted_.begin()).mapped()), judge, is_whole, &sifted);
    auto tail = noted_.extract(row.id);
    switch (judge(row)) {
      case Standing::kUsable: sifted.usable.push_back(std::move(row)); break;
      case Standing::kWithheld: sifted.withheld.push_back(std::move(row)); break;
      case Standing::kDead:
        if (tail.empty() || !Adopt(std::move(tail.mapped()), judge, is_whole, &sifted)) sifted.dead.push_back(row.id);
        break;
    }
  }
  return sifted;
}

Tails::Sifted Tails::Rest(Judge judge, IsWhole is_whole) {
  Sifted sifted;
  for (auto& [id, row] : std::exchange(noted_, {})) Adopt(std::move(row), judge, is_whole, &sifted);
  return sifted;
}

}  // namespace kvist::ssd

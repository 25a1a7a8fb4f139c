#include "storage/base/did_you_mean.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace kvist {
namespace {

// Edits that make one word of the other.
size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0]++;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string DidYouMean(absl::string_view word, const std::vector<absl::string_view>& candidates) {
  constexpr size_t kWordMax = 64;
  if (word.size() > kWordMax) return "";
  absl::string_view nearest;
  size_t nearest_distance = std::max<size_t>(word.size() / 3, 2) + 1;
  for (const absl::string_view candidate : candidates) {
    const bool part = word.size() >= 3 && (absl::StrContains(candidate, word) || absl::StrContains(word, candidate));
    const size_t distance = part ? std::min<size_t>(EditDistance(word, candidate), 2) : EditDistance(word, candidate);
    if (distance < nearest_distance) {
      nearest = candidate;
      nearest_distance = distance;
    }
  }
  return nearest.empty() ? "" : absl::StrCat(" (did you mean ", nearest, "?)");
}

}  // namespace kvist

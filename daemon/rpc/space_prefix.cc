#include "daemon/rpc/space_prefix.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace kvist::rpc {
namespace {

constexpr size_t kDigits = 64;     // of a SHA-256 digest
constexpr size_t kListedMax = 20;  // in a message

std::string List(const std::vector<const NodeStatus::Space*>& spaces) {
  if (spaces.empty()) return "there is none";
  const size_t listed = std::min(spaces.size(), kListedMax);
  return absl::StrCat(absl::StrJoin(spaces.begin(), spaces.begin() + static_cast<std::ptrdiff_t>(listed), ", ",
                                    [](std::string* out, const NodeStatus::Space* space) {
                                      absl::StrAppend(out, space->digest.substr(0, kShownDigits), " (", space->model, ", ",
                                                      space->tenant, ")");
                                    }),
                      listed < spaces.size() ? absl::StrCat(" and ", spaces.size() - listed, " more") : "");
}

}  // namespace

absl::StatusOr<std::string> ResolveSpace(absl::string_view prefix, const std::vector<NodeStatus::Space>& spaces) {
  if (prefix.empty() || prefix.size() > kDigits || !std::all_of(prefix.begin(), prefix.end(), absl::ascii_isxdigit)) {
    return absl::InvalidArgumentError("a space is named by 1 to 64 hex digits: the beginning of its digest");
  }
  const std::string wanted = absl::AsciiStrToLower(prefix);
  std::vector<const NodeStatus::Space*> all, matches;
  for (const NodeStatus::Space& space : spaces) {
    all.push_back(&space);
    if (absl::StartsWith(space.digest, wanted)) matches.push_back(&space);
  }
  if (matches.empty()) return absl::NotFoundError(absl::StrCat("no space begins with ", wanted, "; spaces: ", List(all)));
  if (matches.size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("several spaces begin with ", wanted, ", give more digits: ", List(matches)));
  }
  return matches[0]->digest;
}

}  // namespace kvist::rpc

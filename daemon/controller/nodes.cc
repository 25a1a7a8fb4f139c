#include "daemon/controller/nodes.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "daemon/controller/node_name.h"
#include "storage/base/status.h"

namespace kvist::controller {
namespace {

constexpr size_t kListedMax = 20;  // in a message

std::string QuotedName(const std::string& name) {
  return absl::StrCat("\"", absl::CHexEscape(name.substr(0, kNodeNameMax)), "\"");
}

}  // namespace

absl::StatusOr<Nodes> Nodes::Create(std::vector<NamedNode> nodes) {
  if (nodes.empty() || nodes.size() > kNodesMax)
    return absl::InvalidArgumentError(absl::StrCat("nodes: ", nodes.size(), "; allowed: 1 to ", kNodesMax));
  std::set<std::string> names;
  for (const NamedNode& node : nodes) {
    if (!IsNodeName(node.name))
      return absl::InvalidArgumentError(absl::StrCat("nodes: ", QuotedName(node.name), "; allowed: ", kNodeNameAllowed));
    if (!names.insert(node.name).second)
      return absl::InvalidArgumentError(absl::StrCat("nodes: ", QuotedName(node.name), " is there twice"));
  }
  return Nodes(std::move(nodes));
}

std::vector<const NamedNode*> Nodes::all() const {
  std::vector<const NamedNode*> all;
  for (const NamedNode& node : nodes_) all.push_back(&node);
  return all;
}

absl::StatusOr<const NamedNode*> Nodes::Find(absl::string_view field, const std::string& name) const {
  if (!IsNodeName(name)) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": ", QuotedName(name), "; allowed: a node's name, ", kNodeNameAllowed));
  }
  std::string known;
  for (const NamedNode& node : nodes_) {
    if (node.name == name) return &node;
    if (const auto at = static_cast<size_t>(&node - nodes_.data()); at < kListedMax) {
      absl::StrAppend(&known, at == 0 ? "" : ", ", node.name);
    }
  }
  if (nodes_.size() > kListedMax) absl::StrAppend(&known, " and ", nodes_.size() - kListedMax, " more");
  return absl::NotFoundError(absl::StrCat(field, ": no node is called ", QuotedName(name), "; nodes: ", known));
}

absl::StatusOr<std::vector<const NamedNode*>> Nodes::ThoseOf(absl::string_view field,
                                                             const std::vector<std::string>& names) const {
  if (names.empty() || (names.size() == 1 && names[0].empty())) return all();
  if (names.size() > kNodesMax)
    return absl::InvalidArgumentError(absl::StrCat(field, ": ", names.size(), " names; allowed: at most ", kNodesMax));
  std::vector<const NamedNode*> those;
  for (const std::string& name : names) { KVIST_ASSIGN_OR_RETURN(those.emplace_back(), Find(field, name)); }
  std::sort(those.begin(), those.end());  // they lie in one array
  those.erase(std::unique(those.begin(), those.end()), those.end());
  return those;
}

}  // namespace kvist::controller

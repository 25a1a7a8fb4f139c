#ifndef KVIST_DAEMON_CONTROLLER_NODES_H_
#define KVIST_DAEMON_CONTROLLER_NODES_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/controller/node_api.h"

namespace kvist::controller {

struct NamedNode {
  std::string name;
  std::unique_ptr<NodeApi> api;
};

// The nodes of a controller, by their names; they stay the same.
//
// Threads: any, once made.
class Nodes {
 public:
  // So many answer in one message: 128 jobs each, of some 200 bytes.
  static constexpr size_t kNodesMax = 128;

  // Errors: InvalidArgument  none, too many, or a name that is none or there twice.
  static absl::StatusOr<Nodes> Create(std::vector<NamedNode> nodes);

  // In the order in which they were given.
  std::vector<const NamedNode*> all() const;
  // The node of that name. Errors of both: InvalidArgument  it is no name.  NotFound  no node of ours.  Both begin with `field`.
  absl::StatusOr<const NamedNode*> Find(absl::string_view field, const std::string& name) const;
  // The nodes of these names, each once, in the order of all(); all of them when there are no names, or the only one is empty.
  template <class Names>
  absl::StatusOr<std::vector<const NamedNode*>> Those(absl::string_view field, const Names& names) const {
    return ThoseOf(field, std::vector<std::string>(names.begin(), names.end()));
  }
  absl::StatusOr<std::vector<const NamedNode*>> OneOrAll(absl::string_view field, const std::string& name) const {
    return ThoseOf(field, {name});
  }

 private:
  explicit Nodes(std::vector<NamedNode> nodes) : nodes_(std::move(nodes)) {}
  absl::StatusOr<std::vector<const NamedNode*>> ThoseOf(absl::string_view field,
                                                        const std::vector<std::string>& names) const;

  std::vector<NamedNode> nodes_;
};

}  // namespace kvist::controller

#endif  // KVIST_DAEMON_CONTROLLER_NODES_H_

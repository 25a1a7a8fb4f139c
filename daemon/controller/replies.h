#ifndef KVIST_DAEMON_CONTROLLER_REPLIES_H_
#define KVIST_DAEMON_CONTROLLER_REPLIES_H_

#include <string>

#include "absl/status/status.h"
#include "proto/controller.pb.h"
#include "proto/node.pb.h"

// A node's answers in the words of a controller: with the node's name, in ids too.
namespace kvist::controller {

// `why` of that node; text that isn't UTF-8 is escaped, because protobuf refuses it.
v1::Outcome ToOutcome(const std::string& node, const absl::Status& why);
v1::Job ToJob(const std::string& node, const node::v1::Job& job);
v1::PinnedPrompt ToPin(const std::string& node, const node::v1::Pin& pin);
v1::LookupReply::InSpace ToInSpace(const std::string& node, const node::v1::LookupReply::InSpace& space);
v1::HealthReply::Node ToHealth(const std::string& node, const node::v1::StatusReply& status);

}  // namespace kvist::controller

#endif  // KVIST_DAEMON_CONTROLLER_REPLIES_H_

#ifndef KVIST_DAEMON_CTL_RENDER_H_
#define KVIST_DAEMON_CTL_RENDER_H_

#include <cstdint>
#include <string>

#include "proto/controller.pb.h"
#include "proto/node.pb.h"

namespace kvist::ctl {

// Replies for people: tables with human sizes, no wider than `columns`: on a narrow terminal columns are left out, which -o json has.
std::string ToTable(const node::v1::StatusReply& status, size_t columns = SIZE_MAX);
std::string ToTable(const node::v1::SsdReply& ssd, size_t columns = SIZE_MAX);
std::string ToTable(const node::v1::SessionsReply& sessions, size_t columns = SIZE_MAX);
std::string ToTable(const node::v1::ReloadReply& reload, size_t columns = SIZE_MAX);
std::string ToTable(const node::v1::Job& job, size_t columns = SIZE_MAX);
std::string ToTable(const node::v1::PromptJobsReply& jobs, size_t columns = SIZE_MAX);  // that have ended
std::string ToTable(const node::v1::ListJobsReply& jobs, size_t columns = SIZE_MAX);
std::string ToTable(const node::v1::Quota& quota, size_t columns = SIZE_MAX);
std::string ToTable(const node::v1::ListQuotasReply& quotas, size_t columns = SIZE_MAX);
std::string ToTable(const node::v1::LookupReply& found, size_t columns = SIZE_MAX);
std::string ToTable(const node::v1::AddPinReply& pinned, size_t columns = SIZE_MAX);
std::string ToTable(const node::v1::ListPinsReply& pins, size_t columns = SIZE_MAX);
std::string ToTable(const node::v1::Pin& pin, size_t columns = SIZE_MAX);  // that was removed

// Replies of a controller, node by node: of those that haven't answered, why.
std::string ToTable(const controller::v1::HealthReply& health, size_t columns = SIZE_MAX);
std::string ToTable(const controller::v1::LookupReply& found, size_t columns = SIZE_MAX);
std::string ToTable(const controller::v1::QueryIpReply& found, size_t columns = SIZE_MAX);
std::string ToTable(const controller::v1::Job& job, size_t columns = SIZE_MAX);
std::string ToTable(const controller::v1::JobsReply& jobs, size_t columns = SIZE_MAX);  // that have ended
std::string ToTable(const controller::v1::ListJobsReply& jobs, size_t columns = SIZE_MAX);
std::string ToTable(const controller::v1::PinReply& pinned, size_t columns = SIZE_MAX);
std::string ToTable(const controller::v1::ListPinsReply& pins, size_t columns = SIZE_MAX);
std::string ToTable(const controller::v1::PinnedPrompt& pin, size_t columns = SIZE_MAX);  // that was removed

// A controller's job as its node has it.
node::v1::Job AtItsNode(const controller::v1::Job& job);

// A reply for programs: one object with the field names of proto/node.proto or controller.proto, every field present, numbers as numbers (protobuf's own
// JSON makes strings of 64-bit integers), lists as arrays; indented, ended by a newline.
std::string ToJson(const google::protobuf::Message& reply);
// The same in one line: for programs that read one object a line.
std::string ToJsonLine(const google::protobuf::Message& reply);

}  // namespace kvist::ctl

#endif  // KVIST_DAEMON_CTL_RENDER_H_

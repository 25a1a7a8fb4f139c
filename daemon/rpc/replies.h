#ifndef KVIST_DAEMON_RPC_REPLIES_H_
#define KVIST_DAEMON_RPC_REPLIES_H_

#include <vector>

#include "daemon/rpc/node_control.h"
#include "proto/node.pb.h"

namespace kvist::rpc {

// The node's words as messages of the admin API: digests are cut to kShownDigits, text that isn't UTF-8 is escaped (protobuf
// refuses it, and model names come from clients). Version and pid are this process's.
node::v1::StatusReply ToReply(const NodeStatus& status);
node::v1::SsdReply ToReply(const SsdStatus& ssd);
node::v1::SessionsReply ToReply(const Page<SessionStatus>& sessions);
node::v1::ReloadReply ToReply(const ReloadResult& result);
node::v1::Job ToReply(const JobStatus& job);
node::v1::ListJobsReply ToReply(const std::vector<JobStatus>& jobs);
node::v1::PromptJobsReply ToReply(const PromptJobs& jobs);
node::v1::Quota ToReply(const QuotaStatus& quota);
node::v1::ListQuotasReply ToReply(const std::vector<QuotaStatus>& quotas);
node::v1::LookupReply ToReply(const std::vector<Found>& found);
node::v1::AddPinReply ToReply(const Pinned& pinned);
node::v1::Pin ToReply(const PinStatus& pin);
node::v1::ListPinsReply ToReply(const Page<PinStatus>& pins);

}  // namespace kvist::rpc

#endif  // KVIST_DAEMON_RPC_REPLIES_H_

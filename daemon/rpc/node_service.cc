#include "daemon/rpc/node_service.h"

#include <grpcpp/server_context.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "daemon/rpc/grpc_status.h"
#include "daemon/rpc/replies.h"
#include "daemon/rpc/space_prefix.h"
#include "proto/node.grpc.pb.h"
#include "storage/base/clock.h"

namespace kvist::rpc {
namespace {

constexpr absl::Duration kQuestionTime = absl::Seconds(5);
constexpr absl::Duration kClearTime = absl::Seconds(60);
constexpr absl::Duration kTimeMax = absl::Minutes(10);  // a handler's thread is never away for longer

// gRPC keeps deadlines on the wall clock; what is left of one is carried over to the monotonic clock.
absl::Time DeadlineOf(const grpc::ServerContext& context, absl::Duration without_one) {
  const std::chrono::system_clock::time_point deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) return MonotonicNow() + without_one;
  const absl::Duration left = absl::FromChrono(deadline - std::chrono::system_clock::now());
  return MonotonicNow() + std::clamp(left, absl::ZeroDuration(), kTimeMax);
}

class NodeService final : public node::v1::Node::Service {
 public:
  explicit NodeService(NodeControl* control) : control_(control) {}

  grpc::Status Status(grpc::ServerContext* context, const node::v1::StatusRequest*, node::v1::StatusReply* reply) override {
    const absl::StatusOr<NodeStatus> status = control_->Status(DeadlineOf(*context, kQuestionTime));
    if (status.ok()) *reply = ToReply(*status);
    return ToGrpc(status.status());
  }

  grpc::Status Sessions(grpc::ServerContext* context, const node::v1::SessionsRequest*,
                        node::v1::SessionsReply* reply) override {
    const absl::StatusOr<std::vector<SessionStatus>> sessions = control_->Sessions(DeadlineOf(*context, kQuestionTime));
    if (sessions.ok()) *reply = ToReply(*sessions);
    return ToGrpc(sessions.status());
  }

  grpc::Status Clear(grpc::ServerContext* context, const node::v1::ClearRequest* request,
                     node::v1::ClearReply* reply) override {
    const absl::StatusOr<uint64_t> chunks = ClearSpace(request->space(), DeadlineOf(*context, kClearTime));
    if (chunks.ok()) reply->set_chunks(*chunks);
    return ToGrpc(chunks.status());
  }

  grpc::Status Reload(grpc::ServerContext* context, const node::v1::ReloadRequest*, node::v1::ReloadReply* reply) override {
    const absl::StatusOr<ReloadResult> result = control_->Reload(DeadlineOf(*context, kQuestionTime));
    if (result.ok()) *reply = ToReply(*result);
    return ToGrpc(result.status());
  }

 private:
  absl::StatusOr<uint64_t> ClearSpace(const std::string& prefix, absl::Time deadline) {
    std::string space;
    if (!prefix.empty()) {
      const absl::StatusOr<NodeStatus> status = control_->Status(deadline);
      if (!status.ok()) return status.status();
      absl::StatusOr<std::string> resolved = ResolveSpace(prefix, status->spaces);
      if (!resolved.ok()) return resolved.status();
      space = *std::move(resolved);
    }
    spdlog::info("clear of {}: asked for on the admin socket",
                 space.empty() ? "everything" : "space " + space.substr(0, kShownDigits));
    return control_->Clear(space, deadline);
  }

  NodeControl* const control_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeNodeService(NodeControl* node) { return std::make_unique<NodeService>(node); }

}  // namespace kvist::rpc

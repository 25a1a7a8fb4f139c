#include "daemon/ctl/controller_client.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <chrono>
#include <utility>

#include "daemon/ctl/channel.h"
#include "proto/controller.grpc.pb.h"
#include "storage/base/status.h"

namespace kvist::ctl {

namespace api = controller::v1;
using ControllerStub = api::Controller::Stub;

struct ControllerClient::State {
  std::unique_ptr<ControllerStub> stub;

  template <class Request, class Reply>
  absl::StatusOr<Reply> Call(grpc::Status (ControllerStub::*method)(grpc::ClientContext*, const Request&, Reply*),
                             const Request& request, absl::Duration timeout) const {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMicroseconds(timeout));
    Reply reply;
    const grpc::Status status = (stub.get()->*method)(&context, request, &reply);
    if (!status.ok()) return FromGrpc(status);
    return reply;
  }
};

ControllerClient::ControllerClient(std::unique_ptr<State> state) : state_(std::move(state)) {}
ControllerClient::ControllerClient(ControllerClient&&) noexcept = default;
ControllerClient& ControllerClient::operator=(ControllerClient&&) noexcept = default;
ControllerClient::~ControllerClient() = default;

absl::StatusOr<ControllerClient> ControllerClient::Connect(const Target& target) {
  KVIST_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel, OpenChannel(target));
  auto state = std::make_unique<State>();
  state->stub = api::Controller::NewStub(channel);
  return ControllerClient(std::move(state));
}

absl::StatusOr<api::LookupReply> ControllerClient::Ask(const api::LookupRequest& request, absl::Duration timeout) {
  return state_->Call(&ControllerStub::Lookup, request, timeout);
}
absl::StatusOr<api::QueryIpReply> ControllerClient::Ask(const api::QueryIpRequest& request, absl::Duration timeout) {
  return state_->Call(&ControllerStub::QueryIp, request, timeout);
}
absl::StatusOr<api::JobsReply> ControllerClient::Ask(const api::MoveRequest& request, absl::Duration timeout) {
  return state_->Call(&ControllerStub::Move, request, timeout);
}
absl::StatusOr<api::JobsReply> ControllerClient::Ask(const api::PrefetchRequest& request, absl::Duration timeout) {
  return state_->Call(&ControllerStub::Prefetch, request, timeout);
}
absl::StatusOr<api::JobsReply> ControllerClient::Ask(const api::ClearRequest& request, absl::Duration timeout) {
  return state_->Call(&ControllerStub::Clear, request, timeout);
}
absl::StatusOr<api::JobsReply> ControllerClient::Ask(const api::CompressRequest& request, absl::Duration timeout) {
  return state_->Call(&ControllerStub::Compress, request, timeout);
}
absl::StatusOr<api::JobsReply> ControllerClient::Ask(const api::DecompressRequest& request, absl::Duration timeout) {
  return state_->Call(&ControllerStub::Decompress, request, timeout);
}
absl::StatusOr<api::PinReply> ControllerClient::Ask(const api::PinRequest& request, absl::Duration timeout) {
  return state_->Call(&ControllerStub::Pin, request, timeout);
}
absl::StatusOr<api::PinnedPrompt> ControllerClient::Ask(const api::UnpinRequest& request, absl::Duration timeout) {
  return state_->Call(&ControllerStub::Unpin, request, timeout);
}
absl::StatusOr<api::HealthReply> ControllerClient::Ask(const api::HealthRequest& request, absl::Duration timeout) {
  return state_->Call(&ControllerStub::Health, request, timeout);
}
absl::StatusOr<api::Job> ControllerClient::Ask(const api::GetJobRequest& request, absl::Duration timeout) {
  return state_->Call(&ControllerStub::GetJob, request, timeout);
}
absl::StatusOr<api::Job> ControllerClient::Ask(const api::CancelJobRequest& request, absl::Duration timeout) {
  return state_->Call(&ControllerStub::CancelJob, request, timeout);
}
absl::StatusOr<api::ListJobsReply> ControllerClient::Ask(const api::ListJobsRequest& request, absl::Duration timeout) {
  return state_->Call(&ControllerStub::ListJobs, request, timeout);
}

absl::StatusOr<api::ListPinsReply> ControllerClient::Ask(api::ListPinsRequest request, absl::Duration timeout) {
  const auto end = std::chrono::steady_clock::now() + 100 * absl::ToChronoMicroseconds(timeout);
  api::ListPinsReply all;
  do {
    if (std::chrono::steady_clock::now() > end) return absl::DeadlineExceededError("the list doesn't end");
    KVIST_ASSIGN_OR_RETURN(const api::ListPinsReply page, state_->Call(&ControllerStub::ListPins, request, timeout));
    all.mutable_pins()->MergeFrom(page.pins());
    for (const api::Outcome& outcome : page.nodes()) {
      const bool known = all.nodes_size() > 0 && all.nodes(all.nodes_size() - 1).node() == outcome.node();
      *(known ? all.mutable_nodes(all.nodes_size() - 1) : all.add_nodes()) = outcome;
    }
    request.set_after(page.next());
  } while (!request.after().empty());
  return all;
}

}  // namespace kvist::ctl

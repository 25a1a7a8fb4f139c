#include "daemon/controller/controller_service.h"

#include <grpcpp/server_context.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "daemon/controller/controller.h"
#include "daemon/rpc/grpc_status.h"
#include "proto/controller.grpc.pb.h"
#include "storage/base/clock.h"

namespace kvist::controller {
namespace {

constexpr absl::Duration kCallTime = absl::Seconds(10);
constexpr absl::Duration kWatchTime = absl::Seconds(60);
constexpr absl::Duration kTimeMax = absl::Minutes(10);  // a handler's thread is never away for longer

// gRPC keeps deadlines on the wall clock; what is left of one is carried over to the monotonic clock.
absl::Time EndOf(const grpc::ServerContext& context, absl::Duration without_one) {
  const std::chrono::system_clock::time_point deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) return MonotonicNow() + without_one;
  const absl::Duration left = absl::FromChrono(deadline - std::chrono::system_clock::now());
  return MonotonicNow() + std::clamp(left, absl::ZeroDuration(), kTimeMax);
}

class ControllerService final : public v1::Controller::Service {
 public:
  explicit ControllerService(Nodes nodes) : controller_(std::move(nodes)) {}

  grpc::Status Lookup(grpc::ServerContext* context, const v1::LookupRequest* request, v1::LookupReply* reply) override {
    return Answer(*context, &Controller::Lookup, *request, reply);
  }
  grpc::Status QueryIp(grpc::ServerContext* context, const v1::QueryIpRequest* request, v1::QueryIpReply* reply) override {
    return Answer(*context, &Controller::QueryIp, *request, reply);
  }
  grpc::Status Move(grpc::ServerContext* context, const v1::MoveRequest* request, v1::JobsReply* reply) override {
    return Answer(*context, &Controller::Move, *request, reply);
  }
  grpc::Status Prefetch(grpc::ServerContext* context, const v1::PrefetchRequest* request, v1::JobsReply* reply) override {
    return Answer(*context, &Controller::Prefetch, *request, reply);
  }
  grpc::Status Clear(grpc::ServerContext* context, const v1::ClearRequest* request, v1::JobsReply* reply) override {
    return Answer(*context, &Controller::Clear, *request, reply);
  }
  grpc::Status Pin(grpc::ServerContext* context, const v1::PinRequest* request, v1::PinReply* reply) override {
    return Answer(*context, &Controller::Pin, *request, reply);
  }
  grpc::Status Unpin(grpc::ServerContext* context, const v1::UnpinRequest* request, v1::PinnedPrompt* reply) override {
    return Answer(*context, &Controller::Unpin, *request, reply);
  }
  grpc::Status ListPins(grpc::ServerContext* context, const v1::ListPinsRequest* request,
                        v1::ListPinsReply* reply) override {
    return Answer(*context, &Controller::ListPins, *request, reply);
  }
  grpc::Status Compress(grpc::ServerContext* context, const v1::CompressRequest* request, v1::JobsReply* reply) override {
    return Answer(*context, &Controller::Compress, *request, reply);
  }
  grpc::Status Decompress(grpc::ServerContext* context, const v1::DecompressRequest* request,
                          v1::JobsReply* reply) override {
    return Answer(*context, &Controller::Decompress, *request, reply);
  }
  grpc::Status Health(grpc::ServerContext* context, const v1::HealthRequest* request, v1::HealthReply* reply) override {
    return Answer(*context, &Controller::Health, *request, reply);
  }
  grpc::Status ListNodes(grpc::ServerContext* context, const v1::ListNodesRequest* request,
                         v1::ListNodesReply* reply) override {
    return Answer(*context, &Controller::ListNodes, *request, reply);
  }
  grpc::Status GetJob(grpc::ServerContext* context, const v1::GetJobRequest* request, v1::Job* reply) override {
    return Answer(*context, &Controller::GetJob, *request, reply);
  }
  grpc::Status CancelJob(grpc::ServerContext* context, const v1::CancelJobRequest* request, v1::Job* reply) override {
    return Answer(*context, &Controller::CancelJob, *request, reply);
  }
  grpc::Status ListJobs(grpc::ServerContext* context, const v1::ListJobsRequest* request,
                        v1::ListJobsReply* reply) override {
    return Answer(*context, &Controller::ListJobs, *request, reply);
  }
  grpc::Status WatchJob(grpc::ServerContext* context, const v1::WatchJobRequest* request,
                        grpc::ServerWriter<v1::Job>* writer) override {
    return rpc::ToGrpc(controller_.WatchJob(
        *request, EndOf(*context, kWatchTime), [writer](const v1::Job& job) { return writer->Write(job); },
        [context] { return context->IsCancelled(); }));  // the watcher has left, or the server ends
  }

 private:
  template <class Request, class Reply>
  grpc::Status Answer(const grpc::ServerContext& context,
                      absl::StatusOr<Reply> (Controller::*call)(const Request&, absl::Time) const, const Request& request,
                      Reply* reply) {
    absl::StatusOr<Reply> answer = (controller_.*call)(request, EndOf(context, kCallTime));
    if (!answer.ok()) return rpc::ToGrpc(answer.status());
    *reply = *std::move(answer);
    return grpc::Status::OK;
  }

  Controller controller_;
};

}  // namespace

std::shared_ptr<grpc::Service> MakeControllerService(Nodes nodes) {
  return std::make_shared<ControllerService>(std::move(nodes));
}

}  // namespace kvist::controller

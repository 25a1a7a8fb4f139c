#include "daemon/rpc/node_service.h"

#include <grpcpp/server_context.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "daemon/rpc/grpc_status.h"
#include "daemon/rpc/replies.h"
#include "daemon/rpc/requests.h"
#include "daemon/rpc/space_prefix.h"
#include "proto/node.grpc.pb.h"
#include "storage/base/clock.h"
#include "storage/base/log_subject.h"

namespace kvist::rpc {
namespace {

constexpr absl::Duration kQuestionTime = absl::Seconds(5);
constexpr absl::Duration kWatchTime = absl::Seconds(60);
constexpr absl::Duration kTimeMax = absl::Minutes(10);  // a handler's thread is never away for longer

// Between two looks at a job that is watched: short at first, because most are over soon.
constexpr absl::Duration kFirstLook = absl::Milliseconds(5);
constexpr absl::Duration kLook = absl::Milliseconds(200);
constexpr int kWatchersMax =
    8;  // each has one of the server's threads (kThreadsMax in admin_server.cc), and others want answers
constexpr size_t kRequestNameMax = 64;

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

  grpc::Status Ssd(grpc::ServerContext* context, const node::v1::SsdRequest*, node::v1::SsdReply* reply) override {
    const absl::StatusOr<SsdStatus> ssd = control_->Ssd(DeadlineOf(*context, kQuestionTime));
    if (ssd.ok()) *reply = ToReply(*ssd);
    return ToGrpc(ssd.status());
  }

  grpc::Status Sessions(grpc::ServerContext* context, const node::v1::SessionsRequest* request,
                        node::v1::SessionsReply* reply) override {
    const absl::StatusOr<Page<SessionStatus>> sessions =
        control_->Sessions(request->after(), DeadlineOf(*context, kQuestionTime));
    if (sessions.ok()) *reply = ToReply(*sessions);
    return ToGrpc(sessions.status());
  }

  grpc::Status Clear(grpc::ServerContext* context, const node::v1::ClearRequest* request, node::v1::Job* reply) override {
    const absl::StatusOr<JobStatus> job = ClearSpace(*request, DeadlineOf(*context, kQuestionTime));
    if (job.ok()) *reply = ToReply(*job);
    return ToGrpc(job.status());
  }

  grpc::Status Reload(grpc::ServerContext* context, const node::v1::ReloadRequest*, node::v1::ReloadReply* reply) override {
    const absl::StatusOr<ReloadResult> result = control_->Reload(DeadlineOf(*context, kQuestionTime));
    if (result.ok()) *reply = ToReply(*result);
    return ToGrpc(result.status());
  }

  grpc::Status ListJobs(grpc::ServerContext* context, const node::v1::ListJobsRequest*,
                        node::v1::ListJobsReply* reply) override {
    const absl::StatusOr<std::vector<JobStatus>> jobs = control_->Jobs(DeadlineOf(*context, kQuestionTime));
    if (jobs.ok()) *reply = ToReply(*jobs);
    return ToGrpc(jobs.status());
  }

  grpc::Status CancelJob(grpc::ServerContext* context, const node::v1::CancelJobRequest* request,
                         node::v1::Job* reply) override {
    const LogSubject about({.job = request->id()});
    spdlog::info("cancel of job {}: asked for by the admin API", request->id());
    const absl::StatusOr<JobStatus> job = control_->CancelJob(request->id(), DeadlineOf(*context, kQuestionTime));
    if (job.ok()) *reply = ToReply(*job);
    return ToGrpc(job.status());
  }

  grpc::Status WatchJob(grpc::ServerContext* context, const node::v1::WatchJobRequest* request,
                        grpc::ServerWriter<node::v1::Job>* writer) override {
    struct Place {
      std::atomic<int>& watchers;
      const bool free = watchers.fetch_add(1) < kWatchersMax;
      ~Place() { watchers.fetch_sub(1); }
    } place{watchers_};
    if (!place.free)
      return ToGrpc(absl::ResourceExhaustedError(absl::StrCat(kWatchersMax, " watch jobs already: list them instead")));

    const absl::Time deadline = DeadlineOf(*context, kWatchTime);
    std::optional<JobStatus> last;
    for (absl::Duration pause = kFirstLook;; pause = std::min(2 * pause, kLook)) {
      absl::StatusOr<JobStatus> job = control_->Job(request->id(), std::min(deadline, MonotonicNow() + kQuestionTime));
      if (!job.ok()) return ToGrpc(job.status());
      if (last.has_value()) last->took = job->took;  // that alone is no progress
      if (last != *job && !writer->Write(ToReply(*job))) return grpc::Status::CANCELLED;
      if (!job->running()) return grpc::Status::OK;
      last = *std::move(job);
      if (context->IsCancelled()) return grpc::Status::CANCELLED;  // the watcher has left, or the server ends
      if (MonotonicNow() + pause > deadline) return ToGrpc(absl::DeadlineExceededError("the job goes on"));
      absl::SleepFor(pause);
    }
  }

  grpc::Status ListQuotas(grpc::ServerContext* context, const node::v1::ListQuotasRequest*,
                          node::v1::ListQuotasReply* reply) override {
    const absl::StatusOr<std::vector<QuotaStatus>> quotas = control_->Quotas(DeadlineOf(*context, kQuestionTime));
    if (quotas.ok()) *reply = ToReply(*quotas);
    return ToGrpc(quotas.status());
  }

  grpc::Status SetQuota(grpc::ServerContext* context, const node::v1::SetQuotaRequest* request,
                        node::v1::Quota* reply) override {
    const absl::StatusOr<QuotaStatus> quota =
        control_->SetQuota(request->tenant(), Bytes{request->bytes()}, DeadlineOf(*context, kQuestionTime));
    if (!quota.ok()) return ToGrpc(quota.status());
    const LogSubject about({.tenant = quota->tenant});
    spdlog::info("quota of tenant {} is {} now: asked for by the admin API", quota->tenant,
                 request->bytes() == 0 ? "none" : std::to_string(request->bytes()) + " bytes");
    *reply = ToReply(*quota);
    return grpc::Status::OK;
  }

  grpc::Status Lookup(grpc::ServerContext* context, const node::v1::LookupRequest* request,
                      node::v1::LookupReply* reply) override {
    const absl::StatusOr<SpaceFilter> filter = ReadFilter(request->space());
    if (!filter.ok()) return ToGrpc(filter.status());
    const absl::StatusOr<Prompt> prompt = ReadPrompt(request->prompt());
    if (!prompt.ok()) return ToGrpc(prompt.status());
    const absl::StatusOr<std::vector<Found>> found = control_->Lookup(*filter, *prompt, DeadlineOf(*context, kQuestionTime));
    if (found.ok()) *reply = ToReply(*found);
    return ToGrpc(found.status());
  }

  grpc::Status AddPin(grpc::ServerContext* context, const node::v1::AddPinRequest* request,
                      node::v1::AddPinReply* reply) override {
    const absl::StatusOr<SpaceFilter> filter = ReadFilter(request->space());
    if (!filter.ok()) return ToGrpc(filter.status());
    const absl::StatusOr<Prompt> prompt = ReadPrompt(request->prompt());
    if (!prompt.ok()) return ToGrpc(prompt.status());
    const absl::StatusOr<PinWish> wish = ReadPinWish(*request);
    if (!wish.ok()) return ToGrpc(wish.status());
    const absl::StatusOr<Pinned> pinned = control_->Pin(*filter, *prompt, *wish, DeadlineOf(*context, kQuestionTime));
    if (!pinned.ok()) return ToGrpc(pinned.status());
    *reply = ToReply(*pinned);
    return grpc::Status::OK;
  }

  grpc::Status ListPins(grpc::ServerContext* context, const node::v1::ListPinsRequest* request,
                        node::v1::ListPinsReply* reply) override {
    const absl::StatusOr<Page<PinStatus>> pins = control_->Pins(request->after(), DeadlineOf(*context, kQuestionTime));
    if (pins.ok()) *reply = ToReply(*pins);
    return ToGrpc(pins.status());
  }

  grpc::Status RemovePin(grpc::ServerContext* context, const node::v1::RemovePinRequest* request,
                         node::v1::Pin* reply) override {
    const absl::StatusOr<PinStatus> pin = control_->RemovePin(request->id(), DeadlineOf(*context, kQuestionTime));
    if (!pin.ok()) return ToGrpc(pin.status());
    *reply = ToReply(*pin);
    const LogSubject about({.pin = reply->id()});
    spdlog::info("pin {} of {} removed: asked for by the admin API", reply->id(), reply->owner());
    return grpc::Status::OK;
  }

  grpc::Status ClearPrompt(grpc::ServerContext* context, const node::v1::ClearPromptRequest* request,
                           node::v1::PromptJobsReply* reply) override {
    return StartOnPrompt("clear", *request, reply, [&](const SpaceFilter& filter, const Prompt& prompt) {
      return control_->ClearPrompt(filter, prompt, {.tier = request->tier()}, request->request(),
                                   DeadlineOf(*context, kQuestionTime));
    });
  }

  grpc::Status Move(grpc::ServerContext* context, const node::v1::MoveRequest* request,
                    node::v1::PromptJobsReply* reply) override {
    const absl::StatusOr<MoveWish> wish = ReadMove(*request);
    if (!wish.ok()) return ToGrpc(wish.status());
    return StartOnPrompt("move", *request, reply, [&](const SpaceFilter& filter, const Prompt& prompt) {
      return control_->Move(filter, prompt, *wish, request->request(), DeadlineOf(*context, kQuestionTime));
    });
  }

  grpc::Status Prefetch(grpc::ServerContext* context, const node::v1::PrefetchRequest* request,
                        node::v1::PromptJobsReply* reply) override {
    const absl::StatusOr<MoveWish> wish = ReadPrefetch(*request);
    if (!wish.ok()) return ToGrpc(wish.status());
    return StartOnPrompt("prefetch", *request, reply, [&](const SpaceFilter& filter, const Prompt& prompt) {
      return control_->Move(filter, prompt, *wish, request->request(), DeadlineOf(*context, kQuestionTime));
    });
  }

  grpc::Status Compress(grpc::ServerContext* context, const node::v1::CompressRequest* request,
                        node::v1::PromptJobsReply* reply) override {
    if (request->method().empty())
      return ToGrpc(absl::InvalidArgumentError("method: it is empty; allowed: lossless, int8, int4, fp8, strongest"));
    return StartOnPrompt("compress", *request, reply, [&](const SpaceFilter& filter, const Prompt& prompt) {
      return control_->Recode(filter, prompt, {request->tier(), request->method()}, request->request(),
                              DeadlineOf(*context, kQuestionTime));
    });
  }

  grpc::Status Decompress(grpc::ServerContext* context, const node::v1::DecompressRequest* request,
                          node::v1::PromptJobsReply* reply) override {
    return StartOnPrompt("decompress", *request, reply, [&](const SpaceFilter& filter, const Prompt& prompt) {
      return control_->Recode(filter, prompt, {request->tier(), ""}, request->request(),
                              DeadlineOf(*context, kQuestionTime));
    });
  }

 private:
  static absl::Status CheckRequestName(const std::string& name) {
    if (name.size() <= kRequestNameMax) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("request: a request's name is at most ", kRequestNameMax, " bytes long"));
  }

  template <class Request, class Start>
  grpc::Status StartOnPrompt(const char* what, const Request& request, node::v1::PromptJobsReply* reply, Start start) {
    const absl::StatusOr<SpaceFilter> filter = ReadFilter(request.space());
    if (!filter.ok()) return ToGrpc(filter.status());
    const absl::StatusOr<Prompt> prompt = ReadPrompt(request.prompt());
    if (!prompt.ok()) return ToGrpc(prompt.status());
    if (const absl::Status why = CheckRequestName(request.request()); !why.ok()) return ToGrpc(why);
    const absl::StatusOr<PromptJobs> jobs = start(*filter, *prompt);
    if (!jobs.ok()) return ToGrpc(jobs.status());
    for (const JobStatus& job : jobs->jobs) {
      const LogSubject about({.space = job.space, .job = job.id});
      spdlog::info("{} of a prompt in space {} is job {}: asked for by the admin API", what,
                   job.space.substr(0, kShownDigits), job.id);
    }
    *reply = ToReply(*jobs);
    return grpc::Status::OK;
  }

  absl::StatusOr<JobStatus> ClearSpace(const node::v1::ClearRequest& request, absl::Time deadline) {
    const std::string& prefix = request.space();
    if (absl::Status why = CheckRequestName(request.request()); !why.ok()) return why;
    std::string space;
    if (!prefix.empty()) {
      const absl::StatusOr<NodeStatus> status = control_->Status(deadline);
      if (!status.ok()) return status.status();
      absl::StatusOr<std::string> resolved = ResolveSpace(prefix, status->spaces);
      if (!resolved.ok()) return resolved.status();
      space = *std::move(resolved);
    }
    const LogSubject about({.space = space});
    spdlog::info("clear of {}{}: asked for by the admin API",
                 space.empty() ? "everything" : "space " + space.substr(0, kShownDigits),
                 request.tier().empty() ? "" : " in " + absl::CHexEscape(request.tier()));
    return control_->Clear({.space = space, .tier = request.tier()}, request.request(), deadline);
  }

  NodeControl* const control_;
  std::atomic<int> watchers_{0};
};

}  // namespace

std::unique_ptr<grpc::Service> MakeNodeService(NodeControl* node) { return std::make_unique<NodeService>(node); }

}  // namespace kvist::rpc

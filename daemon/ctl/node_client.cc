#include "daemon/ctl/node_client.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/ctl/channel.h"
#include "proto/node.grpc.pb.h"
#include "storage/base/runtime_dir.h"
#include "storage/base/status.h"

namespace kvist::ctl {

struct NodeClient::State {
  std::unique_ptr<node::v1::Node::Stub> stub;

  template <class Request, class Reply>
  absl::StatusOr<Reply> Call(grpc::Status (node::v1::Node::Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
                             const Request& request, absl::Duration timeout) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMicroseconds(timeout));
    Reply reply;
    const grpc::Status status = (stub.get()->*method)(&context, request, &reply);
    if (!status.ok()) return FromGrpc(status);
    return reply;
  }

  // The pages of a list as one; `timeout` is each page's. Of a list that grows faster than it comes, what came in 100 times that is lost.
  template <class Request, class Reply>
  absl::StatusOr<Reply> CallPages(grpc::Status (node::v1::Node::Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
                                  absl::Duration timeout) {
    const auto end = std::chrono::steady_clock::now() + 100 * absl::ToChronoMicroseconds(timeout);
    Request request;
    Reply all;
    do {
      if (std::chrono::steady_clock::now() > end) return absl::DeadlineExceededError("the list doesn't end");
      KVIST_ASSIGN_OR_RETURN(const Reply page, Call(method, request, timeout));
      if (page.next() != 0 && page.next() <= request.after())
        return absl::InternalError("kvistd's list doesn't get on: kvistctl and kvistd differ in version");
      request.set_after(page.next());
      all.MergeFrom(page);
    } while (request.after() != 0);
    all.clear_next();
    return all;
  }
};

NodeClient::NodeClient(std::unique_ptr<State> state) : state_(std::move(state)) {}
NodeClient::NodeClient(NodeClient&&) noexcept = default;
NodeClient& NodeClient::operator=(NodeClient&&) noexcept = default;
NodeClient::~NodeClient() = default;

absl::StatusOr<NodeClient> NodeClient::Connect(const std::string& socket) {
  return Connect(Target{.address = {.socket = socket}});
}

absl::StatusOr<NodeClient> NodeClient::Connect(const Target& target) {
  KVIST_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel, OpenChannel(target));
  auto state = std::make_unique<State>();
  state->stub = node::v1::Node::NewStub(channel);
  return NodeClient(std::move(state));
}

absl::StatusOr<node::v1::StatusReply> NodeClient::Status(absl::Duration timeout) {
  return state_->Call(&node::v1::Node::Stub::Status, node::v1::StatusRequest(), timeout);
}

absl::StatusOr<node::v1::SsdReply> NodeClient::Ssd(absl::Duration timeout) {
  return state_->Call(&node::v1::Node::Stub::Ssd, node::v1::SsdRequest(), timeout);
}

absl::StatusOr<node::v1::SessionsReply> NodeClient::Sessions(absl::Duration timeout) {
  return state_->CallPages(&node::v1::Node::Stub::Sessions, timeout);
}

absl::StatusOr<node::v1::Job> NodeClient::Clear(const node::v1::ClearRequest& request, absl::Duration timeout) {
  return state_->Call(&node::v1::Node::Stub::Clear, request, timeout);
}

absl::StatusOr<node::v1::ReloadReply> NodeClient::Reload(absl::Duration timeout) {
  return state_->Call(&node::v1::Node::Stub::Reload, node::v1::ReloadRequest(), timeout);
}

absl::StatusOr<node::v1::ListJobsReply> NodeClient::ListJobs(absl::Duration timeout) {
  return state_->Call(&node::v1::Node::Stub::ListJobs, node::v1::ListJobsRequest(), timeout);
}

absl::StatusOr<node::v1::Job> NodeClient::CancelJob(uint64_t id, absl::Duration timeout) {
  node::v1::CancelJobRequest request;
  request.set_id(id);
  return state_->Call(&node::v1::Node::Stub::CancelJob, request, timeout);
}

absl::StatusOr<node::v1::Job> NodeClient::WatchJob(uint64_t id, absl::Duration timeout,
                                                   const std::function<bool(const node::v1::Job*)>& look) {
  constexpr std::chrono::milliseconds kBetweenLooks(50);
  node::v1::WatchJobRequest request;
  request.set_id(id);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMicroseconds(timeout));
  grpc::CompletionQueue steps;  // of the stream, one at a time: begun, read, read, .. ended
  char end = 0;                 // its address is the last step's tag
  grpc::Status status;
  node::v1::Job next, last;
  bool wanted = true;
  const auto stream = state_->stub->AsyncWatchJob(&context, request, &steps, nullptr);
  for (bool read = false;;) {
    void* step = nullptr;
    bool ok = false;
    const auto came = steps.AsyncNext(&step, &ok, std::chrono::system_clock::now() + kBetweenLooks);
    const bool ended = came == grpc::CompletionQueue::GOT_EVENT && step == &end;
    const bool got = came == grpc::CompletionQueue::GOT_EVENT && !ended && ok && read;
    if (got) last = next;
    if (wanted && !ended && (got || came == grpc::CompletionQueue::TIMEOUT) && !look(got ? &last : nullptr)) {
      wanted = false;
      context.TryCancel();
    }
    if (ended) break;
    if (came != grpc::CompletionQueue::GOT_EVENT) continue;
    read = true;
    if (ok) {
      stream->Read(&next, nullptr);
    } else {
      stream->Finish(&status, &end);
    }
  }
  if (!wanted) return absl::CancelledError("nobody waits for the job any more");
  if (!status.ok()) return FromGrpc(status);
  return last;
}

absl::StatusOr<node::v1::ListQuotasReply> NodeClient::ListQuotas(absl::Duration timeout) {
  return state_->Call(&node::v1::Node::Stub::ListQuotas, node::v1::ListQuotasRequest(), timeout);
}

absl::StatusOr<node::v1::LookupReply> NodeClient::Lookup(const node::v1::LookupRequest& request, absl::Duration timeout) {
  return state_->Call(&node::v1::Node::Stub::Lookup, request, timeout);
}

absl::StatusOr<node::v1::AddPinReply> NodeClient::AddPin(const node::v1::AddPinRequest& request, absl::Duration timeout) {
  return state_->Call(&node::v1::Node::Stub::AddPin, request, timeout);
}

absl::StatusOr<node::v1::PromptJobsReply> NodeClient::ClearPrompt(const node::v1::ClearPromptRequest& request,
                                                                  absl::Duration timeout) {
  return state_->Call(&node::v1::Node::Stub::ClearPrompt, request, timeout);
}

absl::StatusOr<node::v1::PromptJobsReply> NodeClient::Move(const node::v1::MoveRequest& request, absl::Duration timeout) {
  return state_->Call(&node::v1::Node::Stub::Move, request, timeout);
}

absl::StatusOr<node::v1::PromptJobsReply> NodeClient::Prefetch(const node::v1::PrefetchRequest& request,
                                                               absl::Duration timeout) {
  return state_->Call(&node::v1::Node::Stub::Prefetch, request, timeout);
}

absl::StatusOr<node::v1::PromptJobsReply> NodeClient::Compress(const node::v1::CompressRequest& request,
                                                               absl::Duration timeout) {
  return state_->Call(&node::v1::Node::Stub::Compress, request, timeout);
}

absl::StatusOr<node::v1::PromptJobsReply> NodeClient::Decompress(const node::v1::DecompressRequest& request,
                                                                 absl::Duration timeout) {
  return state_->Call(&node::v1::Node::Stub::Decompress, request, timeout);
}

absl::StatusOr<node::v1::ListPinsReply> NodeClient::ListPins(absl::Duration timeout) {
  return state_->CallPages(&node::v1::Node::Stub::ListPins, timeout);
}

absl::StatusOr<node::v1::Pin> NodeClient::RemovePin(uint64_t id, absl::Duration timeout) {
  node::v1::RemovePinRequest request;
  request.set_id(id);
  return state_->Call(&node::v1::Node::Stub::RemovePin, request, timeout);
}

absl::StatusOr<node::v1::Quota> NodeClient::SetQuota(const std::string& tenant, Bytes bytes, absl::Duration timeout) {
  node::v1::SetQuotaRequest request;
  request.set_tenant(tenant);
  request.set_bytes(bytes.value);
  return state_->Call(&node::v1::Node::Stub::SetQuota, request, timeout);
}

endpoint::TlsFiles DefaultTlsFiles() {
  const auto named = [](const char* variable) {
    const char* file = std::getenv(variable);
    return std::string(file == nullptr ? "" : file);
  };
  return {named("KVIST_TLS_CERTIFICATE"), named("KVIST_TLS_KEY"), named("KVIST_TLS_CA")};
}

std::string DefaultSocket() {
  const char* named = std::getenv("KVIST_ADMIN_SOCKET");
  if (named != nullptr && named[0] != '\0') return named;
  const std::string own_dir = DefaultRuntimeDir();
  const std::string own = absl::StrCat(own_dir, "/", kAdminSocketName);
  // In /tmp somebody else could have made the directory, and a daemon that is none.
  if (access(own.c_str(), F_OK) == 0 && (geteuid() == 0 || IsPrivateDir(own_dir))) return own;
  return absl::StrCat(kSystemRuntimeDir, "/", kAdminSocketName);
}

}  // namespace kvist::ctl

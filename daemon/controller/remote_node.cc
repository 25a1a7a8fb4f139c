#include "daemon/controller/remote_node.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>
#include <grpcpp/support/sync_stream.h>

#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/controller/feed_wire.h"
#include "daemon/endpoint/credentials.h"
#include "daemon/rpc/socket_address.h"
#include "proto/controller.grpc.pb.h"
#include "proto/node.grpc.pb.h"
#include "storage/base/clock.h"

namespace kvist::controller {
namespace {

// gRPC waits longer and longer between attempts, up to two minutes, unless it is told not to.
constexpr int kReconnectMillisMin = 100;
constexpr int kReconnectMillisMax = 1000;
// What gRPC calls the least time between attempts is how long one may take; a busy machine's handshake can take seconds.
constexpr int kTlsConnectMillis = 5000;

std::shared_ptr<grpc::Channel> ChannelTo(const endpoint::Address& address, const endpoint::TlsFiles& tls) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kReconnectMillisMin);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, address.is_tls() ? kTlsConnectMillis : kReconnectMillisMin);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kReconnectMillisMax);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // Of two controllers in one process each has connections of its own, as if they were in two.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  if (address.is_tls()) return endpoint::OpenTlsChannel(address, tls, arguments);
  return grpc::CreateCustomChannel(rpc::SocketAddress(address.socket), grpc::InsecureChannelCredentials(), arguments);
}

absl::Status ToStatus(const grpc::Status& status, const std::string& address) {
  const auto code = static_cast<absl::StatusCode>(status.error_code());
  std::string message = status.error_message();
  if (code == absl::StatusCode::kUnavailable) {
    message = absl::StrCat("doesn't answer at ", address, ": ", message);
  } else if (code == absl::StatusCode::kDeadlineExceeded) {
    message = absl::StrCat("no answer in time at ", address);
  } else if (code == absl::StatusCode::kUnimplemented && message.empty()) {
    message = absl::StrCat("the kvistd at ", address, " is older than this controller, and doesn't know the call");
  }
  return {code, message};
}

class RemoteStream final : public ChunkStream {
 public:
  RemoteStream(std::shared_ptr<node::v1::Feed::Stub> feed, std::string address, std::optional<NodeFeed::Position> from)
      : address_(std::move(address)), feed_(std::move(feed)) {
    node::v1::WatchChunksRequest request;
    if (from.has_value()) {
      request.mutable_position()->set_epoch(from->epoch);
      request.mutable_position()->set_sequence(from->sequence);
    }
    reader_ = feed_->WatchChunks(&context_, request);
  }
  // A stream that isn't read to its end must be cancelled before it goes.
  ~RemoteStream() override { context_.TryCancel(); }

  absl::StatusOr<FeedMessage> Read() override {
    node::v1::ChunkNews news;
    if (reader_ == nullptr) return absl::CancelledError("the stream has ended");
    if (reader_->Read(&news)) return FromNews(news);
    const absl::Status why = ToStatus(reader_->Finish(), address_);
    reader_.reset();
    return why.ok() ? absl::UnavailableError(absl::StrCat("the stream from ", address_, " has ended")) : why;
  }
  void Cancel() override { context_.TryCancel(); }

 private:
  const std::string address_;
  const std::shared_ptr<node::v1::Feed::Stub> feed_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<node::v1::ChunkNews>> reader_;
};

class RemoteNode final : public NodeApi {
 public:
  RemoteNode(const endpoint::Address& address, const endpoint::TlsFiles& tls)
      : address_(address.text()),
        channel_(ChannelTo(address, tls)),
        node_(node::v1::Node::NewStub(channel_)),
        controller_(v1::Controller::NewStub(channel_)),
        feed_(node::v1::Feed::NewStub(ChannelTo(address, tls))) {}

  std::string address() const override { return address_; }

  // A kvistd tells its addresses as the controller of itself.
  void Ips(const node::v1::StatusRequest&, absl::Time deadline, Done<std::vector<std::string>> done) override {
    const auto request = std::make_shared<const v1::QueryIpRequest>();
    Ask<OfController, v1::QueryIpRequest, v1::QueryIpReply>(
        controller_->async(), &OfController::QueryIp, *request, deadline,
        [done = std::move(done), request](absl::StatusOr<v1::QueryIpReply> reply) {
          if (!reply.ok()) return done(reply.status());
          std::vector<std::string> ips;
          for (const v1::QueryIpReply::Addresses& addresses : reply->addresses())
            ips.insert(ips.end(), addresses.ips().begin(), addresses.ips().end());
          done(std::move(ips));
        });
  }
  void Status(const node::v1::StatusRequest& request, absl::Time deadline, Done<node::v1::StatusReply> done) override {
    AskNode(&OfNode::Status, request, deadline, std::move(done));
  }
  void Lookup(const node::v1::LookupRequest& request, absl::Time deadline, Done<node::v1::LookupReply> done) override {
    AskNode(&OfNode::Lookup, request, deadline, std::move(done));
  }
  void Clear(const node::v1::ClearRequest& request, absl::Time deadline, Done<node::v1::Job> done) override {
    AskNode(&OfNode::Clear, request, deadline, std::move(done));
  }
  void ClearPrompt(const node::v1::ClearPromptRequest& request, absl::Time deadline,
                   Done<node::v1::PromptJobsReply> done) override {
    AskNode(&OfNode::ClearPrompt, request, deadline, std::move(done));
  }
  void Move(const node::v1::MoveRequest& request, absl::Time deadline, Done<node::v1::PromptJobsReply> done) override {
    AskNode(&OfNode::Move, request, deadline, std::move(done));
  }
  void Prefetch(const node::v1::PrefetchRequest& request, absl::Time deadline,
                Done<node::v1::PromptJobsReply> done) override {
    AskNode(&OfNode::Prefetch, request, deadline, std::move(done));
  }
  void Compress(const node::v1::CompressRequest& request, absl::Time deadline,
                Done<node::v1::PromptJobsReply> done) override {
    AskNode(&OfNode::Compress, request, deadline, std::move(done));
  }
  void Decompress(const node::v1::DecompressRequest& request, absl::Time deadline,
                  Done<node::v1::PromptJobsReply> done) override {
    AskNode(&OfNode::Decompress, request, deadline, std::move(done));
  }
  void AddPin(const node::v1::AddPinRequest& request, absl::Time deadline, Done<node::v1::AddPinReply> done) override {
    AskNode(&OfNode::AddPin, request, deadline, std::move(done));
  }
  void ListPins(const node::v1::ListPinsRequest& request, absl::Time deadline, Done<node::v1::ListPinsReply> done) override {
    AskNode(&OfNode::ListPins, request, deadline, std::move(done));
  }
  void RemovePin(const node::v1::RemovePinRequest& request, absl::Time deadline, Done<node::v1::Pin> done) override {
    AskNode(&OfNode::RemovePin, request, deadline, std::move(done));
  }
  void ListJobs(const node::v1::ListJobsRequest& request, absl::Time deadline, Done<node::v1::ListJobsReply> done) override {
    AskNode(&OfNode::ListJobs, request, deadline, std::move(done));
  }
  void CancelJob(const node::v1::CancelJobRequest& request, absl::Time deadline, Done<node::v1::Job> done) override {
    AskNode(&OfNode::CancelJob, request, deadline, std::move(done));
  }
  std::unique_ptr<ChunkStream> Follow(std::optional<NodeFeed::Position> from) override {
    return std::make_unique<RemoteStream>(feed_, address_, from);
  }
  bool can_be_followed() const override { return true; }

 private:
  using OfNode = node::v1::Node::StubInterface::async_interface;
  using OfController = v1::Controller::StubInterface::async_interface;

  template <class Request, class Reply>
  void AskNode(void (OfNode::*method)(grpc::ClientContext*, const Request*, Reply*, std::function<void(grpc::Status)>),
               const Request& request, absl::Time deadline, Done<Reply> done) {
    Ask<OfNode, Request, Reply>(node_->async(), method, request, deadline, std::move(done));
  }

  template <class Stub, class Request, class Reply>
  void Ask(Stub* stub, void (Stub::*method)(grpc::ClientContext*, const Request*, Reply*, std::function<void(grpc::Status)>),
           const Request& request, absl::Time deadline, Done<Reply> done) {
    struct Call {
      grpc::ClientContext context;
      Reply reply;
    };
    const auto call = std::make_shared<Call>();
    call->context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMicroseconds(deadline - MonotonicNow()));
    (stub->*method)(&call->context, &request, &call->reply,
                    [call, address = address_, done = std::move(done)](const grpc::Status& status) {
                      if (status.ok()) return done(std::move(call->reply));
                      done(ToStatus(status, address));
                    });
  }

  const std::string address_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<node::v1::Node::Stub> node_;
  const std::unique_ptr<v1::Controller::Stub> controller_;
  // On a connection of its own: what isn't read of a stream takes room on its connection, and calls would wait for it.
  const std::shared_ptr<node::v1::Feed::Stub> feed_;
};

}  // namespace

std::unique_ptr<NodeApi> MakeRemoteNode(const endpoint::Address& address, const endpoint::TlsFiles& tls) {
  return std::make_unique<RemoteNode>(address, tls);
}

}  // namespace kvist::controller

#include "daemon/controller/feed_service.h"

#include <grpcpp/server_context.h>
#include <grpcpp/support/sync_stream.h>

#include <utility>

#include "absl/time/time.h"
#include "daemon/controller/feed_wire.h"
#include "daemon/rpc/grpc_status.h"
#include "proto/node.grpc.pb.h"
#include "storage/base/clock.h"

namespace kvist::controller {
namespace {

constexpr absl::Duration kOpenTime = absl::Seconds(5);
constexpr absl::Duration kBeat = absl::Seconds(1);
// Between two looks whether the watcher has left, or the server ends.
constexpr absl::Duration kLook = absl::Milliseconds(200);

class FeedService final : public node::v1::Feed::Service {
 public:
  explicit FeedService(FeedSource* source) : source_(*source) {}

  grpc::Status WatchChunks(grpc::ServerContext* context, const node::v1::WatchChunksRequest* request,
                           grpc::ServerWriter<node::v1::ChunkNews>* writer) override {
    std::optional<NodeFeed::Position> from;
    if (request->has_position()) from = {request->position().epoch(), request->position().sequence()};
    const absl::StatusOr<std::unique_ptr<ChunkWatch>> watch = source_.Watch(from, MonotonicNow() + kOpenTime);
    if (!watch.ok()) return rpc::ToGrpc(watch.status());
    absl::Time told = absl::InfinitePast();
    while (!context->IsCancelled()) {
      absl::StatusOr<std::optional<FeedMessage>> next = (*watch)->Next(MonotonicNow() + kLook);
      if (!next.ok()) return rpc::ToGrpc(next.status());
      std::optional<FeedMessage> message = *std::move(next);
      if (!message.has_value() && MonotonicNow() - told >= kBeat) message = (*watch)->Beat();
      if (!message.has_value()) continue;
      if (!writer->Write(ToNews(*message))) break;
      told = MonotonicNow();
    }
    return grpc::Status::CANCELLED;
  }

 private:
  FeedSource& source_;
};

}  // namespace

std::shared_ptr<grpc::Service> MakeFeedService(FeedSource* source) { return std::make_shared<FeedService>(source); }

}  // namespace kvist::controller

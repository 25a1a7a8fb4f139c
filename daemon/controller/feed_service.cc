#include "daemon/controller/feed_service.h"

#include <grpcpp/server_context.h>
#include <grpcpp/support/sync_stream.h>

#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
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
  FeedService(FeedSource* source, uint32_t watchers_max) : source_(*source), watchers_max_(watchers_max) {}

  grpc::Status WatchChunks(grpc::ServerContext* context, const node::v1::WatchChunksRequest* request,
                           grpc::ServerWriter<node::v1::ChunkNews>* writer) override {
    const Place place(&watchers_);
    if (place.taken() > watchers_max_)
      return rpc::ToGrpc(absl::ResourceExhaustedError(absl::StrCat("more than ", watchers_max_, " watchers")));
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
  // Of a watcher, while it lives.
  class Place {
   public:
    explicit Place(std::atomic<uint32_t>* watchers) : watchers_(*watchers), taken_(++watchers_) {}
    ~Place() { --watchers_; }
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;
    uint32_t taken() const { return taken_; }

   private:
    std::atomic<uint32_t>& watchers_;
    const uint32_t taken_;
  };

  FeedSource& source_;
  const uint32_t watchers_max_;
  std::atomic<uint32_t> watchers_ = 0;
};

}  // namespace

std::shared_ptr<grpc::Service> MakeFeedService(FeedSource* source, uint32_t watchers_max) {
  return std::make_shared<FeedService>(source, watchers_max);
}

}  // namespace kvist::controller

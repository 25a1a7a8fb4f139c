#ifndef KVIST_DAEMON_CHUNK_FEED_H_
#define KVIST_DAEMON_CHUNK_FEED_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/controller/feed_source.h"
#include "daemon/controller/node_feed.h"
#include "daemon/session/reactor.h"

namespace kvist::daemon {

// A kvistd's chunks for those who watch them: joins the core's ChunksChanged to a NodeFeed, and the NodeFeed to watchers on other threads. Until
// somebody watches it costs nothing; from then on it keeps the last changes, so that who returns needs no snapshot.
//
// A watcher asks for one message at a time, by a task on the reactor's thread, which makes it (a slice reads at most 2,048 places) and hands it over. Who
// has heard everything is woken by the next change, and then asks again after kPause, so that changes come in batches and the reactor isn't
// held up by them.
//
// Lifecycle: outlives the service over it and its watches; and the reactor's tasks, so it is destroyed after Reactor::Stop.
// Threads: those of FeedSource; Close from any.
class ChunkFeed final : public controller::FeedSource {
 public:
  static constexpr absl::Duration kPause = absl::Milliseconds(5);
  // At a time, by all ways together: each server's Feed has a share of them.
  static constexpr uint32_t kWatchersOfSocket = 8, kWatchersByTls = 4, kWatchersMax = kWatchersOfSocket + kWatchersByTls;

  // `epoch`: of this life of the node, drawn at random.
  ChunkFeed(session::Reactor* reactor, uint64_t epoch) : reactor_(*reactor), epoch_(epoch) {}
  ~ChunkFeed() override;

  // Ends all watches soon, and lets nobody watch any more, so that a server over it needn't wait for streams that don't end by themselves.
  void Close() { closed_ = true; }

  absl::StatusOr<std::unique_ptr<controller::ChunkWatch>> Watch(std::optional<controller::NodeFeed::Position> from,
                                                                absl::Time deadline) override;

 private:
  class OneWatch;
  struct Mailbox;
  using WatcherId = controller::NodeFeed::WatcherId;

  // On the reactor's thread.
  absl::StatusOr<WatcherId> WatchNow(std::optional<controller::NodeFeed::Position> from);
  void UnwatchNow(WatcherId watcher);
  // Puts the next message into the mailbox; or notes that it is to be told of the next change.
  void Serve(WatcherId watcher, const std::shared_ptr<Mailbox>& mailbox);
  void Changed(const core::ChunksChanged& changed);
  // Tells the feed of spaces that it doesn't know.
  void IntroduceSpaces();
  void Add(const core::ChunkWhere& chunk, std::vector<controller::ChunkState>* states) const;

  session::Reactor& reactor_;
  const uint64_t epoch_;
  std::atomic<bool> closed_ = false;
  // The reactor thread's own.
  std::optional<controller::NodeFeed> feed_;  // from the first watcher on
  std::vector<bool> spaces_;  // [SpaceId] whether it can be told of: its description says how long chunks are
  std::map<WatcherId, std::shared_ptr<Mailbox>> idle_;
};

}  // namespace kvist::daemon

#endif  // KVIST_DAEMON_CHUNK_FEED_H_

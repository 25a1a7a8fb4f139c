#ifndef KVIST_STORAGE_REMOTE_REDIS_STORE_H_
#define KVIST_STORAGE_REMOTE_REDIS_STORE_H_

#include <deque>
#include <map>
#include <memory>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "storage/base/mutex.h"
#include "storage/base/unique_fd.h"
#include "storage/remote/in_flight.h"
#include "storage/remote/redis_connection.h"
#include "storage/remote/redis_options.h"
#include "storage/remote/remote_store.h"

namespace kvist::remote {

// Objects in a Redis or Valkey server or cluster; redis_connection.h draws how they lie there.
//
// A server that belongs to a cluster says so: what it doesn't have it sends elsewhere, with the name of who has it. So a cluster is met by any of its
// servers and nothing is set; which one has what is then asked of them, at once and whenever one sends us elsewhere or can't be reached. What a server has that is
// gone is Unavailable until its cluster has another one for it; the others go on.
//
// One thread with a few connections for bytes and one for questions, that never block, commands pipelined, values received where they belong. Not by hiredis: Debian 12's (0.14)
//   has no TLS, looks names up while its caller waits, and copies a value twice, into its buffer and into a reply; with the sockets our own a
//   deadline is exact, whatever the server does, and spans are safe without a copy: nobody but this thread ever touches them.
// A server that can't be reached ends what waits at once, with Unavailable, and is tried again for the next; guarded_store.h asks less often.
// Threads: Submit from any; `done` on the store's one.
class RedisStore final : public RemoteStore {
 public:
  // Connects when there is something to do. Errors: InvalidArgument, of the options or the files that they name.
  static absl::StatusOr<std::unique_ptr<RedisStore>> Create(const RedisOptions& options);
  ~RedisStore() override;

  absl::Status Submit(Batch batch, Done done) override ABSL_LOCKS_EXCLUDED(mutex_);
  Load load() const override { return in_flight_.load(); }

 private:
  // Connections to one server, and what waits for one of them.
  struct Lane {
    std::vector<std::unique_ptr<RedisConnection>> connections;
    std::deque<std::shared_ptr<RedisOp>> waiting;
  };
  struct Server {
    std::string address;
    Lane bytes;
    Lane questions;  // IsQuestion: of one connection, on which no bytes of others lie before them
  };
  struct Running {
    std::shared_ptr<RunningBatch> batch;
    std::vector<std::shared_ptr<RedisOp>> ops;
  };

  RedisStore(const RedisOptions& options, std::shared_ptr<const TlsContext> tls, UniqueFd event);
  void Wake() const;

  // Of the thread.
  void Run();
  template <class Do>
  void EachLane(Do&& each);                      // questions first; also of servers that are met meanwhile
  Server* ServerAt(const std::string& address);  // null: there are too many
  static Lane* LaneOf(const RedisOp& op, Server* server);
  Server* ServerOf(const RedisOp& op) const;
  void Answered(const std::shared_ptr<RedisOp>& op, Outcome outcome);
  void AskNodes(absl::Time now);
  void NodesTold(const Server& by, std::string_view nodes);
  std::vector<RedisSlotRange> Believed(const Server& by, std::string_view nodes) const;
  void DropServers();                                // that have nothing any more, and nothing on its way
  bool TakeSubmitted() ABSL_LOCKS_EXCLUDED(mutex_);  // false: stop
  void GiveUpLate(absl::Time now);
  // Puts of these names that are given up must not come to be there.
  void TellOfRemovals(const Batch& batch) const;
  void Turn(Lane* lane, absl::Time now);
  void Pump(Lane* lane, absl::Time now);
  bool HasRoom(const RedisConnection& connection, Bytes wanted) const;
  static void TakeUnsent(Lane* lane);
  void End(const std::shared_ptr<RedisOp>& op, Outcome outcome);
  void Announce();
  void Poll(absl::Time now);

  const RedisOptions options_;
  const std::shared_ptr<const TlsContext> tls_;
  const UniqueFd event_;
  InFlight in_flight_;
  Mutex mutex_;
  std::vector<std::shared_ptr<RunningBatch>> submitted_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::vector<std::unique_ptr<Server>> servers_;  // the first is the options'; more are a cluster's
  std::vector<Server*> slots_;                    // [slot] of a cluster whose it is; empty: there is one server
  bool ask_nodes_ = false;
  bool nodes_refused_ = false;  // each slot is learned by its own redirect
  bool drop_servers_ = false;
  bool closing_ = false;
  absl::Time ask_nodes_at_ = absl::InfinitePast();  // not before
  size_t asked_last_ = 0;                           // index of the server
  std::multimap<absl::Time, Running> running_;      // by deadline
  std::vector<std::shared_ptr<RunningBatch>> finished_;
  std::thread thread_;
};

}  // namespace kvist::remote

#endif  // KVIST_STORAGE_REMOTE_REDIS_STORE_H_

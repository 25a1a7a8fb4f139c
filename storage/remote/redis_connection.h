#ifndef KVIST_STORAGE_REMOTE_REDIS_CONNECTION_H_
#define KVIST_STORAGE_REMOTE_REDIS_CONNECTION_H_

#include <poll.h>

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "storage/remote/in_flight.h"
#include "storage/remote/net_address.h"
#include "storage/remote/net_stream.h"
#include "storage/remote/redis_options.h"
#include "storage/remote/redis_reply.h"
#include "storage/remote/redis_slots.h"

namespace kvist::remote {

// How an object lies in Redis. Its first key's value is written when all others are there, and leads to them:
//
//   PREFIX{NAME}        | RedisPrefix 24 B | head | the body's first part |
//   PREFIX{NAME}:TAG:1  | the second part |      PREFIX{NAME}:TAG:2 ..  the others, each of part_bytes but the last
//
// Each put draws a tag, so one that is put over another one replaces it at once, whoever else puts or reads meanwhile; the parts of that one go
// after it. Parts expire after an hour until something leads to them, so a connection that ends within a put leaves nothing for long. (Two puts of
// one name that meet may leave one's parts: expire_after or the server's eviction takes those.) The braces keep an object's keys in one slot of a
// cluster.
struct RedisPrefix {
  uint32_t magic;
  uint32_t part_bytes;
  uint64_t body_bytes;
  uint64_t tag;  // in hexadecimal, 16 digits
};
inline constexpr uint32_t kRedisMagic = 0x3252'564b;  // "KVR2"
static_assert(sizeof(RedisPrefix) == 24 && offsetof(RedisPrefix, part_bytes) == 4 &&
              offsetof(RedisPrefix, body_bytes) == 8 && offsetof(RedisPrefix, tag) == 16);

// One operation on its way through a connection. In steps, each when the one before is answered:
//
//   put     kParts -> kFirst: what lies there is asked for, then written over, and the parts are kept for good -> the parts of what lay there
//           are removed, unawaited; kTakeBack: it came too late and its name was removed, so it goes if it is still what lies there
//   get     kFirst -> kParts -> once more from kFirst, when one is missing: another put may have come between
//   remove  kFirst: what lies there is asked for, if it may have parts -> kEnd: all of it is removed
struct RedisOp {
  enum class Step : uint8_t { kFirst, kParts, kTakeBack, kEnd };
  std::shared_ptr<RunningBatch> batch;
  size_t index = 0;
  Bytes bytes{};              // what it counts for in a connection's window
  bool begun = false;         // some of it was sent
  bool given_up = false;      // nobody waits any more: its spans are the caller's again
  bool removed = false;       // a removal of its name was submitted behind it
  uint32_t redirected = 0;    // so often
  bool asking = false;        // its server has it although the slot isn't its own yet
  bool torn = false;          // get: the first key was found at one server of a slot that moves, a part is at another one
  bool question = false;      // IsQuestion of its batch
  uint32_t replies_left = 0;  // of this step
  Step step = Step::kFirst;
  uint64_t tag = 0;    // put: its own
  bool again = false;  // get: it has been read once
  uint64_t old_tag = 0;
  // What the replies have said.
  absl::Status status;
  std::optional<RedisRedirect> redirect{};
  bool is_there = false;  // exists; put: the first key was written
  bool too_long = false;
  bool not_ours = false;
  RedisPrefix prefix{};                // of what lies there, as far as first_bytes
  uint64_t first_bytes = 0;            // of the first key's value; put, remove: of its prefix
  std::vector<uint64_t> part_bytes{};  // of the others, 0 where there is none

  const Operation& operation() const { return batch->operation(index); }
  Kind kind() const { return batch->batch().kind; }
};

// One connection to a server: commands out, replies in, in the same order.
//
// Lifecycle: idle -> Begin -> resolving, connecting, greeting (TLS, AUTH, SELECT) -> ready -> Issue, as often as wanted -> idle, after an
//   error, with what it was in error().
// Threads: the store's one; nothing blocks. Invariant: an operation that was given up, or has ended, has nothing here that leads to its spans;
//   so none ends well before all of it was sent, whatever the server says.
class RedisConnection final : private ReplyReader::Owner {
 public:
  // An operation that has a `redirect` wasn't done, and nothing here leads to it.
  using Ended = std::function<void(const std::shared_ptr<RedisOp>& op, Outcome outcome)>;
  using NodesTold = std::function<void(std::string_view nodes)>;

  // `address`: instead of the options'.
  RedisConnection(const RedisOptions* options, const std::string& address, std::shared_ptr<const TlsContext> tls,
                  std::function<void()> wake, Ended ended);

  const std::string& host() const { return endpoint_.host; }

  bool idle() const { return state_ == State::kIdle; }
  bool ready() const { return state_ == State::kReady; }
  const absl::Status& error() const { return error_; }  // of the last end
  absl::Time retry_at() const { return retry_at_; }     // before that it shouldn't Begin
  Bytes outstanding() const {
    return outstanding_;
  }  // of operations that were issued, until they have ended and are answered

  void Begin(absl::Time now);
  void Issue(std::shared_ptr<RedisOp> op);
  // Asks which servers of its cluster have which slots, unless that is asked already. `told` hears what CLUSTER NODES answers, nothing where the server
  // refuses; not at all when the connection ends, as it does when no answer comes within connect_timeout.
  void AskNodes(NodesTold told, absl::Time now);
  bool asks_nodes() const { return nodes_told_ != nullptr; }
  // A removal of these names was submitted: a put of one that is given up must not come to be there.
  void Removing(const std::set<std::string_view>& names);
  bool Has(const RedisOp* op) const;
  // Its deadline has passed. It ends without `ended`. What was sent of it is answered some time; if no answer comes for options.linger, or if
  // something of it is still to be sent from its spans, the connection is ended.
  void GiveUp(RedisOp* op, absl::Time now);
  // Goes on as far as it can.
  void Turn(absl::Time now);
  // Ends operations that were begun with `error`, Unavailable or what the server said. The others are to be taken.
  void Close(const absl::Status& error, absl::Time now);
  std::vector<std::shared_ptr<RedisOp>> TakeUnsent() { return std::exchange(unsent_, {}); }

  bool busy() const { return !expected_.empty() || !out_.empty(); }
  bool has_output() const { return ready() && !out_.empty(); }

  // What to poll for, negative fd: nothing; and when to call Turn at the latest.
  pollfd Poll() const;
  absl::Time wake() const;

 private:
  enum class State : uint8_t { kIdle, kResolving, kConnecting, kGreeting, kReady };
  struct Piece {  // of the stream: text, and then bytes of the caller's
    std::shared_ptr<RedisOp> op;
    std::string text;
    std::span<const std::byte> bytes{};
    bool ends_command = true;
    size_t sent = 0;
    size_t size() const { return text.size() + bytes.size(); }
  };
  enum class Awaits : uint8_t {
    kGreeting,
    kAsking,
    kFirst,
    kPart,
    kPrefix,
    kStored,
    kFirstStored,
    kPersisted,
    kCount,
    kNodes,
    kNothing
  };
  struct Expected {
    std::shared_ptr<RedisOp> op;  // none: nobody asked
    Awaits awaits = Awaits::kNothing;
    uint32_t part = 0;
  };

  Scatter BulkBegins(uint64_t length) override;
  void ReplyEnds(const ReplyReader::Reply& reply) override;
  // Whether the reply that comes answers something that was sent to its end; otherwise nothing it says is believed.
  bool WasAsked(std::string_view reply);
  void UnlinkPut(const RedisOp& op);  // what it has put
  void UnlinkParts(const RedisOp& op, uint64_t tag, uint32_t parts);
  void Unlink(std::vector<std::string> keys, bool asking);  // unawaited
  void UnlinkAll(const std::shared_ptr<RedisOp>& op);       // of a removal, as far as it is known what lies there
  // The next step of an operation whose last one is answered. false: it has ended.
  bool NextStep(const std::shared_ptr<RedisOp>& op);
  void PutFirst(const std::shared_ptr<RedisOp>& op);
  // How many parts what lies there has, as far as it is an object.
  uint32_t PartsThere(const RedisOp& op) const;
  bool LacksParts(const RedisOp& op) const;
  void Heard(RedisOp* op, const Expected& expected, const ReplyReader::Reply& reply);
  Outcome OutcomeOf(const RedisOp& op) const;
  Outcome OutcomeHere(const RedisOp& op) const;

  absl::Status Go(absl::Time now);
  absl::Status Connecting(absl::Time now);
  void Greet();
  absl::Status Send();
  absl::Status Receive();
  std::string Key(const std::string& name) const;  // the first one
  std::string Key(const std::string& name, uint64_t tag, uint64_t part) const;
  void Expect(std::shared_ptr<RedisOp> op, Awaits awaits, uint32_t part = 0);
  void Say(std::shared_ptr<RedisOp> op, const std::vector<std::string>& words);
  void SayStore(const std::shared_ptr<RedisOp>& op, uint32_t part);
  void SayAsking(const std::shared_ptr<RedisOp>& op);  // before each command of one that asks

  const RedisOptions* const options_;
  const std::shared_ptr<const TlsContext> tls_;
  const std::string address_;
  const Endpoint endpoint_;
  const Ended ended_;
  NodesTold nodes_told_;
  std::string nodes_;
  absl::Time nodes_until_ = absl::InfiniteFuture();
  Resolver resolver_;
  State state_ = State::kIdle;
  absl::Status error_;
  absl::Time retry_at_ = absl::InfinitePast();
  absl::Time connect_until_;
  std::unique_ptr<NetStream> stream_;
  ReplyReader reader_;
  Progress::Waits waits_ = Progress::Waits::kNothing;  // of the handshake
  bool has_answered_ = false;                          // an operation, since Begin
  bool again_ = false;                                 // there may be more to read without the socket saying so
  std::deque<Piece> out_;
  std::deque<Expected> expected_;
  uint32_t asked_ = 0;     // of the expected replies, the first so many answer commands that were sent to their end
  uint32_t given_up_ = 0;  // expected replies that nobody waits for
  absl::Time now_ = absl::InfinitePast();  // of the last Turn
  absl::Time linger_until_ = absl::InfiniteFuture();
  absl::Status stream_error_;  // of the greeting, or the replies are no answers: the connection is to be closed
  Bytes outstanding_{};
  std::vector<std::shared_ptr<RedisOp>> unsent_;
};

}  // namespace kvist::remote

#endif  // KVIST_STORAGE_REMOTE_REDIS_CONNECTION_H_

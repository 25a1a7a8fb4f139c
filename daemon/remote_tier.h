#ifndef KVIST_DAEMON_REMOTE_TIER_H_
#define KVIST_DAEMON_REMOTE_TIER_H_

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "daemon/remote_generations.h"
#include "daemon/remote_recoding.h"
#include "daemon/session/lower_tier.h"
#include "daemon/task_thread.h"
#include "daemon/tier_busy.h"
#include "storage/codec/codec.h"
#include "storage/remote/guarded_store.h"
#include "storage/remote/sealed_store.h"

namespace kvist::daemon {

// The tier beyond the node: the core's effects as objects of a remote store, one for each shard.
//
// What is there: a chunk is when the object of its first shard is, for that is put last. Which generation of a space's objects counts
//   (RemoteGenerations) an object of its own says, its marker; it is read again at most a second after it was, so a clear on another node is seen
//   that late here. Its number is only put over a smaller one, and read again then: of nodes that put theirs at once the largest stays. What is
//   read and isn't good is removed, so that it isn't found again.
// Read: in whole objects, for one checksum or tag covers a body; so a load's layers arrive chunk by chunk, not one by one.
// Reachable: when the store has answered a question of the tier's own, until its breaker opens; then it is asked again and again.
// Lifecycle: Open -> SpeakTo -> Start, when the ear hears -> destroyed, before the slots are.
// Threads: as RemoteTier says; four of its own beside the store's, so that no question waits behind bytes, no read behind what is being encoded,
// and the store's behind nothing.
class RemoteTier final : public session::RemoteTier {
 public:
  struct Options {
    std::string name;                                 // the tier is called remote:NAME
    std::string where;                                // for people
    absl::Duration ask_for = absl::Milliseconds(50);  // a lookup waits so long at most. Longer: a slow store is felt more
    absl::Duration read_for = absl::Seconds(5);       // and a read
    absl::Duration write_for = absl::Seconds(10);     // and a write, which holds its slots
    Bytes reading = MiB(128);                         // at a time; what is to be read beyond waits
    bool checksums = false;                           // slots have their own (pool.verify)
    std::string generations;                          // the file; empty: kept nowhere, for tests
    std::optional<codec::Method> codec;               // what is written is encoded so; nothing: it isn't
    remote::ObjectSealer::Options sealing;
    remote::GuardOptions guard;
  };
  // Errors: InvalidArgument, of the options; those of RemoteGenerations::Open.
  static absl::StatusOr<std::unique_ptr<RemoteTier>> Open(Options options, std::unique_ptr<remote::RemoteStore> store);
  ~RemoteTier() override;

  // Who hears of all that the store says; outlives this. Before the core has effects for it.
  void SpeakTo(Ear* ear) { ear_ = ear; }
  void Start();

  void Write(const core::SpaceSpec& space, core::WriteStarted write, Slots slots) override;
  void Read(std::vector<ChunkToRead> chunks) override;
  void Clear(const core::SpaceSpec* space, core::SpaceCleared cleared) override;
  void Ask(const core::SpaceSpec& space, core::RemoteAsked asked) override;
  void Forget(const core::SpaceSpec& space, core::RemoteForgotten forgotten) override;
  void Recode(const core::SpaceSpec& space, core::RecodeStarted started) override;
  void StopRecoding(core::JobId job) override;

  // How many of `keys`, from the first on, the store has in every chained group of the space: for operators, who wait until `deadline` at most.
  // Errors: those of the store; Unavailable  at once, while it isn't reachable. Threads: any but the reactor's and the store's.
  absl::StatusOr<uint32_t> Count(const core::SpaceSpec& space, std::vector<ChunkKey> keys, absl::Time deadline);

  // For operators and monitoring. Threads: any.
  struct Status {
    std::string name, where;
    bool reachable = false;
    std::string why_not;
    bool encrypted = false;
    remote::Load load;           // on its way
    uint64_t waiting_reads = 0;  // chunks
    remote::GuardedStore::Figures guard;
    std::array<uint64_t, remote::kVerdicts> verdicts{};
    Bytes written{}, read{};  // bodies as they lie there, since the start
  };
  Status status() const;

 private:
  using Generation = RemoteGenerations::Generation;
  // A question of the core's, or of an operator.
  struct Asking {
    SpaceDigest space;
    uint16_t groups = 0;
    std::vector<ChunkKey> keys;
    absl::Time deadline;
    std::function<void(absl::Status status, std::vector<bool> there)> done;

    absl::Mutex mutex;
    Generation generation;  // that was asked for
    int parts = 0;          // that aren't answered yet
    absl::Status status;
    std::vector<bool> there;
  };
  struct Writing;
  struct Forgetting;
  using Shapes = std::vector<codec::Shape>;  // [group]
  struct ToRead {
    ChunkToRead chunk;
    SpaceDigest name;  // the space's in its generation
    std::shared_ptr<const Shapes> shapes;
  };
  using MarkerBody = std::array<uint64_t, 1>;  // the number
  struct Marker {
    absl::Time read = absl::InfinitePast();   // when the store was asked for what it has answered last
    absl::Time asked = absl::InfinitePast();  // for a write
    bool untold = false;                      // no read has shown yet that the store knows the number
    bool telling = false;                     // it is being read, or put
    std::optional<absl::Time> cleared;        // a clear of ours: its number is to be above what is read from then on
  };

  // A clear that neither the file nor the store is known to have.
  struct Unkept {
    core::JobId job;
    std::optional<SpaceDigest> space;
    uint64_t number = 0;
  };

  RemoteTier(Options options, RemoteGenerations generations)
      : options_(std::move(options)), generations_(std::move(generations)) {}

  // What codecs have to know of the space's chunks.
  std::shared_ptr<const Shapes> ShapesOf(const core::SpaceSpec& space) ABSL_LOCKS_EXCLUDED(mutex_);
  SpaceDigest NameOf(const SpaceDigest& space) ABSL_LOCKS_EXCLUDED(mutex_);
  static remote::Identity MarkerOf(const std::optional<SpaceDigest>& space);
  // On the thread of `asks_`. Says when it is to be called again.
  absl::Duration LookAfter();
  bool MarkersAreFresh(const SpaceDigest& space) ABSL_LOCKS_EXCLUDED(mutex_);
  bool MayReadMarkers(const SpaceDigest& space) ABSL_LOCKS_EXCLUDED(mutex_);  // they weren't just now
  void AskStore(const std::shared_ptr<Asking>& asking);
  void ReadMarkers(const std::shared_ptr<Asking>& asking);
  void AskExists(const std::shared_ptr<Asking>& asking);
  void Probe();
  void TellMarkers();
  void RemoveSome(const std::shared_ptr<Forgetting>& forgetting);
  // On that of `works_`.
  void PutShards(const std::shared_ptr<Writing>& writing);
  void KeepGenerations() ABSL_LOCKS_EXCLUDED(mutex_);
  // On that of `decodes_`.
  void PumpReads();
  bool PutBack(std::vector<ToRead>* chunks);  // false: there is nothing to wait for
  void HaveRead(const std::vector<ToRead>& chunks, const std::vector<remote::SealedStore::Got>& got);
  void EndRead(const ToRead& chunk, absl::Status status, Bytes brought);

  // On any.
  void AskedPart(const std::shared_ptr<Asking>& asking);  // one of its questions was answered
  // What the store has as a marker, of all spaces when of none, having been asked at `asked`. Errors: its own; DataLoss: it is none.
  absl::Status HearMarker(const std::optional<SpaceDigest>& space, const remote::SealedStore::Got& got, absl::Time asked);
  void TellMarker(std::optional<SpaceDigest> space);  // reads it, and puts ours when that is larger
  void PutMarker(std::optional<SpaceDigest> space, uint64_t number);
  void SayKept(const std::function<bool(const Unkept& clear)>& which) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of questions: OK also when some servers of the store couldn't be reached, as long as others answered. What those have isn't there.
  static absl::Status ErrorOfAll(const std::vector<remote::Outcome>& outcomes);
  void Note(const absl::Status& status);  // of a question to the store
  void SayReachable(bool reachable, std::string why_not);

  const Options options_;
  Ear* ear_ = nullptr;
  remote::GuardedStore* guard_ = nullptr;

  mutable absl::Mutex mutex_;
  RemoteGenerations generations_ ABSL_GUARDED_BY(mutex_);
  std::vector<Unkept> unkept_ ABSL_GUARDED_BY(mutex_);
  bool file_fails_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<std::optional<SpaceDigest>, Marker> markers_ ABSL_GUARDED_BY(mutex_);  // nothing: of all spaces
  std::deque<ToRead> reads_ ABSL_GUARDED_BY(mutex_);
  std::map<SpaceDigest, std::shared_ptr<const Shapes>> shapes_ ABSL_GUARDED_BY(mutex_);
  Bytes reading_ ABSL_GUARDED_BY(mutex_){};
  TierBusy busy_ ABSL_GUARDED_BY(mutex_){core::Tier::kRemote};
  bool reachable_ ABSL_GUARDED_BY(mutex_) = false;
  std::string why_not_ ABSL_GUARDED_BY(mutex_) = "it hasn't answered yet";
  Bytes written_ ABSL_GUARDED_BY(mutex_){}, read_ ABSL_GUARDED_BY(mutex_){};
  std::map<core::JobId, std::weak_ptr<RemoteRecoding>> recodings_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::function<void()>> recode_later_ ABSL_GUARDED_BY(mutex_);  // by LookAfter
  TaskThread asks_;                             // small questions, so that none waits behind bytes
  TaskThread works_;                            // sealing and encoding what is written; files
  TaskThread decodes_;                          // what is read
  TaskThread recodes_;                          // RemoteRecoding's
  std::unique_ptr<remote::SealedStore> store_;  // last: its end calls back
};

}  // namespace kvist::daemon

#endif  // KVIST_DAEMON_REMOTE_TIER_H_

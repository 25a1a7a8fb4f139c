#ifndef KVIST_DAEMON_REMOTE_RECODING_H_
#define KVIST_DAEMON_REMOTE_RECODING_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/loss.h"
#include "storage/codec/codec.h"
#include "storage/remote/sealed_store.h"

namespace kvist::daemon {

// Encodes what a remote store has of a prompt another way, where it lies: shard by shard it is read, decoded, encoded, and written again under
// its name. Whoever reads meanwhile finds it one way or the other, or a miss.
//
// A read or a write that fails for a reason that may pass (the store is away, late or full) is tried again, for `patience`: the job may take hours,
// and a store's moment isn't to end it. `progress` says why it waits.
//
// Lifecycle: shared; Start -> `progress` after each chunk, the last time with `ended` -> gone. Stop ends it after the step that is under way.
// Threads: one at a time, on whatever `post` and `later` run things on; but Stop on any, and `progress` also on the store's.
class RemoteRecoding : public std::enable_shared_from_this<RemoteRecoding> {
 public:
  struct Prompt {
    SpaceDigest name;                   // the space's in its generation
    std::vector<codec::Shape> shapes;   // [group]
    std::vector<uint32_t> shards = {};  // [group]
    std::vector<ChunkKey> keys;
    std::optional<codec::Method> method = {};  // nothing: as it is in DRAM
    absl::Duration read_for, write_for;        // each read, and each write
    absl::Duration patience = absl::Minutes(1);
  };
  struct Tally {
    uint64_t chunks = 0;      // (chunk, group)s that are encoded so now
    uint64_t already = 0;     // that were
    uint64_t missing = 0;     // that the store hasn't got, or not whole
    uint64_t failed = 0;      // that stay as they were, or are gone
    Bytes before{}, after{};  // of those that were encoded
    core::Loss loss;
    bool ended = false;
    absl::Status status;  // why it ended before its end; until then, why it waits
  };
  using Post = std::function<void(std::function<void()> task)>;
  using Progress = std::function<void(const Tally& tally)>;

  // `later`: as `post`, but not at once.
  RemoteRecoding(remote::SealedStore* store, Prompt prompt, Post post, Post later, Progress progress)
      : store_(*store),
        prompt_(std::move(prompt)),
        post_(std::move(post)),
        later_(std::move(later)),
        progress_(std::move(progress)) {}

  // When none of `others`, which were stopped, is writing any more: what this one does is to last.
  void Start(std::vector<std::shared_ptr<RemoteRecoding>> others);
  void Stop() { stopped_ = true; }
  // Writes none of these any more; `then` runs when nothing is being written.
  void Leave(const std::vector<ChunkKey>& keys, std::function<void()> then);

 private:
  void Read();  // the shard whose turn it is
  void HaveRead(const remote::SealedStore::Got& got);
  void Write();  // as `is_now_`
  void Written();
  void TryAgain(absl::Status why, void (RemoteRecoding::*step)());
  // What became of the shard; on to the next one.
  enum class Fate : uint8_t { kEncoded, kAlready, kMissing, kFailed };
  void Next(Fate fate);
  void End(absl::Status status);
  remote::Identity Who() const;

  remote::SealedStore& store_;
  const Prompt prompt_;
  const Post post_, later_;
  const Progress progress_;
  std::atomic<bool> stopped_{false};

  size_t key_ = 0;
  uint16_t group_ = 0;
  uint16_t shard_ = 0;
  Fate worst_ = Fate::kEncoded;  // of the chunk's shards so far
  bool any_encoded_ = false;
  std::set<ChunkKey> left_;
  bool writing_ = false;
  std::vector<std::function<void()>> after_write_;
  std::vector<std::byte> payload_, encoded_;
  std::optional<codec::Method> is_now_;  // what is to be written: encoded so
  absl::Time fails_since_ = absl::InfiniteFuture();
  Bytes was_{};
  Tally tally_;
};

}  // namespace kvist::daemon

#endif  // KVIST_DAEMON_REMOTE_RECODING_H_

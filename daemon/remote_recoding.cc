#include "daemon/remote_recoding.h"

#include <span>
#include <utility>

#include "daemon/shard_codec.h"
#include "storage/base/clock.h"

namespace kvist::daemon {

using remote::SealedStore;
using remote::Verdict;

void RemoteRecoding::Start(std::vector<std::shared_ptr<RemoteRecoding>> others) {
  if (!others.empty()) {
    const std::shared_ptr<RemoteRecoding> other = std::move(others.back());
    others.pop_back();
    return other->Leave({}, [self = shared_from_this(), others = std::move(others)] { self->Start(others); });
  }
  if (prompt_.keys.empty() || prompt_.shapes.empty()) return End({});
  Read();
}

void RemoteRecoding::Leave(const std::vector<ChunkKey>& keys, std::function<void()> then) {
  left_.insert(keys.begin(), keys.end());
  if (!writing_) return then();
  after_write_.push_back(std::move(then));
}

remote::Identity RemoteRecoding::Who() const { return {prompt_.name, prompt_.keys[key_], GroupId{group_}, Rank{shard_}}; }

void RemoteRecoding::Read() {
  if (stopped_) return End(absl::CancelledError("it was stopped"));
  payload_.resize(prompt_.shapes[group_].bytes().value);
  const SealedStore::Get get{Who(), 0, payload_};
  const absl::Status taken = store_.Submit({&get, 1}, MonotonicNow() + prompt_.read_for,
                                           [self = shared_from_this()](const std::vector<SealedStore::Got>& got) {
                                             // Encoding is work: not on the store's thread.
                                             self->post_([self, got = got.front()] { self->HaveRead(got); });
                                           });
  if (!taken.ok()) TryAgain(taken, &RemoteRecoding::Read);
}

void RemoteRecoding::HaveRead(const SealedStore::Got& got) {
  if (!got.status.ok()) return TryAgain(got.status, &RemoteRecoding::Read);
  fails_since_ = absl::InfiniteFuture();
  tally_.status = absl::OkStatus();
  if (got.verdict == Verdict::kMissing) return Next(Fate::kMissing);
  const absl::StatusOr<std::optional<codec::Method>> is = MethodOf(got.said.label);
  if (got.verdict != Verdict::kGood || !is.ok()) return Next(Fate::kFailed);
  const codec::Shape& shape = prompt_.shapes[group_];
  was_ = got.bytes;
  if (*is == prompt_.method) return Next(Fate::kAlready);
  if (!DecodeInPlace(got.said.label, shape, got.bytes, payload_).ok()) return Next(Fate::kFailed);
  encoded_.clear();
  is_now_.reset();
  if (!prompt_.method.has_value()) return Write();
  codec::Method used = *prompt_.method;
  absl::StatusOr<std::optional<std::vector<std::byte>>> encoded = EncodeShard(used, shape, payload_, &used);
  if (!encoded.ok()) return End(encoded.status());
  if (!encoded->has_value()) return *is == std::nullopt ? Next(Fate::kAlready) : Write();  // it wouldn't be smaller
  encoded_ = std::move(**encoded);
  if (codec::IsLossy(used)) {
    const absl::StatusOr<core::Loss> loss = LossOf(shape, payload_, encoded_);
    if (!loss.ok()) return End(loss.status());
    tally_.loss.Take(*loss);
  }
  is_now_ = used;
  Write();
}

void RemoteRecoding::Write() {
  if (stopped_) return End(absl::CancelledError("it was stopped"));
  if (left_.contains(prompt_.keys[key_])) return Next(Fate::kMissing);  // forgotten meanwhile
  writing_ = true;
  const SealedStore::Put put{
      Who(), {0, LabelOf(is_now_)}, encoded_.empty() ? std::span<const std::byte>(payload_) : encoded_};
  const absl::Status taken =
      store_.Submit({&put, 1}, MonotonicNow() + prompt_.write_for,
                    [self = shared_from_this(), bytes = Bytes{put.body.size()}](const std::vector<absl::Status>& statuses) {
                      self->post_([self, bytes, status = statuses.front()] {
                        self->Written();
                        if (!status.ok()) return self->TryAgain(status, &RemoteRecoding::Write);
                        self->tally_.before += self->was_;
                        self->tally_.after += bytes;
                        self->any_encoded_ = true;
                        self->Next(Fate::kEncoded);
                      });
                    });
  if (taken.ok()) return;
  Written();
  TryAgain(taken, &RemoteRecoding::Write);
}

void RemoteRecoding::TryAgain(absl::Status why, void (RemoteRecoding::*step)()) {
  const bool may_pass = absl::IsUnavailable(why) || absl::IsDeadlineExceeded(why) || absl::IsResourceExhausted(why);
  const absl::Time now = MonotonicNow();
  fails_since_ = std::min(fails_since_, now);
  if (!may_pass || stopped_ || now - fails_since_ >= prompt_.patience) return End(std::move(why));
  tally_.status = std::move(why);
  progress_(tally_);
  later_([self = shared_from_this(), step] { ((*self).*step)(); });
}

void RemoteRecoding::Written() {
  writing_ = false;
  for (const std::function<void()>& then : std::exchange(after_write_, {})) then();
}

void RemoteRecoding::Next(Fate fate) {
  fails_since_ = absl::InfiniteFuture();
  tally_.status = absl::OkStatus();
  worst_ = std::max(worst_, fate);
  const bool rest_is_missing = fate == Fate::kMissing;  // what isn't whole isn't read by anybody
  if (!rest_is_missing && ++shard_ < prompt_.shards[group_]) return Read();
  const bool already = worst_ == Fate::kAlready && !any_encoded_;
  ++(worst_ == Fate::kFailed    ? tally_.failed
     : worst_ == Fate::kMissing ? tally_.missing
     : already                  ? tally_.already
                                : tally_.chunks);
  worst_ = Fate::kEncoded;
  any_encoded_ = false;
  shard_ = 0;
  if (++group_ == prompt_.shapes.size()) {
    group_ = 0;
    if (++key_ == prompt_.keys.size()) return End({});
  }
  progress_(tally_);
  Read();
}

void RemoteRecoding::End(absl::Status status) {
  tally_.ended = true;
  tally_.status = std::move(status);
  progress_(tally_);
}

}  // namespace kvist::daemon

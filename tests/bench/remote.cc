// What the Redis tier costs beside a bare hiredis loop: the same server, the same object sizes, as many objects on their way. The product names,
// seals and checks what it moves and puts it into the caller's memory; the loop sends from memory that is there and throws away what it gets.
#include <hiredis/hiredis.h>
#include <malloc.h>

#include <algorithm>
#include <array>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "storage/base/clock.h"
#include "storage/base/status.h"
#include "storage/remote/guarded_store.h"
#include "storage/remote/redis_store.h"
#include "storage/remote/sealed_store.h"
#include "tests/bench/local_hits.h"
#include "tests/bench/slices.h"
#include "tests/bench/subcommands.h"
#include "tests/support/redis_server.h"

namespace kvist::bench {
namespace {

constexpr size_t kObjects = 8;   // that lie there
constexpr size_t kOnTheWay = 8;  // at a time
constexpr size_t kBatch = 4;     // of the product: how a prompt's chunks are asked for
constexpr size_t kRemotePairsMin = 9;

remote::Identity IdentityOfObject(size_t n) {
  remote::Identity identity;
  identity.key.bytes[0] = static_cast<uint8_t>(n);
  return identity;
}

class RemoteBench {
 public:
  RemoteBench(Bytes object, Bytes slice, bool encrypt)
      : object_(object), count_(std::max<size_t>(kObjects, slice / object / kBatch * kBatch)) {
    for (auto& buffer : buffers_) buffer.resize(object.value, std::byte{0x5a});
    remote::RedisOptions redis;
    redis.address = server_.address();
    store_ = std::make_unique<remote::SealedStore>(*remote::GuardedStore::Create(*remote::RedisStore::Create(redis), {}),
                                                   remote::ObjectSealer::Options{{}, encrypt});
  }
  ~RemoteBench() {
    if (bare_ != nullptr) redisFree(bare_);
  }

  absl::Status Open() {
    bare_ = redisConnectUnix(server_.socket().c_str());
    if (bare_ == nullptr || bare_->err != 0) return absl::UnavailableError("the bare client doesn't connect");
    for (const bool put : {true, false}) {
      KVIST_RETURN_IF_ERROR(Product(put).status());
      KVIST_RETURN_IF_ERROR(Bare(put).status());
    }
    return absl::OkStatus();
  }

  // Bytes a second.
  absl::StatusOr<double> Product(bool put) {
    failed_ = absl::OkStatus();
    const double start = Now();
    for (size_t i = 0; i < count_; i += kBatch) {
      size_t place = 0;
      {
        absl::MutexLock lock(&mutex_);
        mutex_.Await(absl::Condition(
            +[](RemoteBench* bench) { return bench->running_ < kOnTheWay / kBatch; }, this));
        ++running_;
        place = places_.back();
        places_.pop_back();
      }
      const absl::Status status = put ? SubmitPut(i, place) : SubmitGet(i, place);
      if (!status.ok()) Ended(status, place);
    }
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(
        +[](RemoteBench* bench) { return bench->running_ == 0; }, this));
    if (!failed_.ok()) return failed_;
    return Rate(start);
  }

  absl::StatusOr<double> Bare(bool put) {
    const double start = Now();
    size_t asked = 0;
    for (size_t i = 0; i < count_; ++i) {
      for (; asked < count_ && asked < i + kOnTheWay; ++asked) {
        const std::string key = absl::StrCat("bare:", asked % kObjects);
        const char* words[] = {put ? "SET" : "GET", key.c_str(), reinterpret_cast<const char*>(Buffer(asked).data())};
        const size_t lengths[] = {3, key.size(), object_.value};
        redisAppendCommandArgv(bare_, put ? 3 : 2, words, lengths);
      }
      void* raw = nullptr;
      if (redisGetReply(bare_, &raw) != REDIS_OK) return absl::UnavailableError(bare_->errstr);
      auto* const reply = static_cast<redisReply*>(raw);
      const bool good =
          put ? reply->type == REDIS_REPLY_STATUS : reply->type == REDIS_REPLY_STRING && reply->len == object_.value;
      freeReplyObject(raw);
      if (!good) return absl::DataLossError("the bare client got something else");
    }
    return Rate(start);
  }

 private:
  std::span<std::byte> Buffer(size_t i) { return buffers_[i % buffers_.size()]; }
  double Rate(double start) const { return static_cast<double>(count_ * object_.value) / (Now() - start); }

  // `place`: a batch's own buffers, for batches don't end in their order.
  absl::Status SubmitPut(size_t first, size_t place) {
    std::vector<remote::SealedStore::Put> puts;
    for (size_t i = first; i < first + kBatch; ++i)
      puts.push_back({IdentityOfObject(i % kObjects), {}, Buffer(place * kBatch + i - first)});
    return store_->Submit(puts, MonotonicNow() + absl::Seconds(20),
                          [this, place](const std::vector<absl::Status>& statuses) {
                            absl::Status all;
                            for (const absl::Status& status : statuses) all.Update(status);
                            Ended(all, place);
                          });
  }
  absl::Status SubmitGet(size_t first, size_t place) {
    std::vector<remote::SealedStore::Get> gets;
    for (size_t i = first; i < first + kBatch; ++i)
      gets.push_back({IdentityOfObject(i % kObjects), 0, Buffer(place * kBatch + i - first)});
    return store_->Submit(gets, MonotonicNow() + absl::Seconds(20),
                          [this, place](const std::vector<remote::SealedStore::Got>& got) {
                            absl::Status all;
                            for (const remote::SealedStore::Got& one : got) {
                              all.Update(one.status);
                              if (one.status.ok() && one.verdict != remote::Verdict::kGood)
                                all.Update(absl::DataLossError(NameOf(one.verdict)));
                            }
                            Ended(all, place);
                          });
  }
  void Ended(const absl::Status& status, size_t place) {
    absl::MutexLock lock(&mutex_);
    failed_.Update(status);
    places_.push_back(place);
    --running_;
  }

  const Bytes object_;
  const size_t count_;
  test::RedisServer server_;
  std::array<std::vector<std::byte>, kObjects> buffers_;
  redisContext* bare_ = nullptr;
  absl::Mutex mutex_;
  std::vector<size_t> places_{0, 1};  // that are free
  static_assert(kOnTheWay / kBatch == 2 && kObjects >= kOnTheWay);
  size_t running_ = 0;  // batches
  absl::Status failed_;
  std::unique_ptr<remote::SealedStore> store_;
};

}  // namespace

absl::Status RunRemote(const Settings& settings, Report* report) {
  // On both sides: memory of hundreds of KiB comes back from the heap, not from the kernel with a fault a page.
  ::mallopt(M_MMAP_THRESHOLD, 1 << 30);
  ::mallopt(M_TRIM_THRESHOLD, 1 << 30);
  struct Size {
    const char* name;
    Bytes bytes;
    bool encrypt;
  };
  const Size sizes[] = {
      {"256 KiB", KiB(256), false}, {"2 MiB", MiB(2), false}, {"8 MiB", MiB(8), false}, {"2 MiB, encrypted", MiB(2), true}};
  for (const Size& size : sizes) {
    RemoteBench bench(size.bytes, settings.quick ? size.bytes : MiB(256), size.encrypt);
    KVIST_RETURN_IF_ERROR(bench.Open());
    for (const bool put : {true, false}) {
      KVIST_ASSIGN_OR_RETURN(const std::vector<Pair> pairs,
                             Alternate(
                                 settings.time / 12, [&] { return bench.Product(put); }, [&] { return bench.Bare(put); },
                                 settings.quick ? 1 : kRemotePairsMin));
      const Pair pair = MedianByRatio(pairs);
      report->cases.push_back({absl::StrCat(put ? "put " : "get ", size.name), pair.product / 1e9, "GB/s", pair.limit / 1e9,
                               Better::kHigher, size.encrypt ? std::nullopt : std::optional(0.8)});
    }
  }
  report->notes = absl::StrCat(
      "the limit: hiredis, one value an object, ", kOnTheWay,
      " on their way; without checksums, and its replies thrown away. Of local hits: the same with the store up");
  return MeasureLocalHits(settings, settings.time / 9, report);
}

}  // namespace kvist::bench

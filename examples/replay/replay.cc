#include "examples/replay/replay.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "examples/replay/block_bytes.h"
#include "examples/replay/stop_signal.h"

namespace kvist::replay {
namespace {

constexpr uint64_t kPageMemoryBytes = uint64_t{32}
                                      << 20;  // larger batches gain nothing: a copy of this size takes milliseconds
constexpr uint64_t kBatchBlocksMax = 1024;
constexpr uint32_t kPrefillBlocks = 16;  // 8,192 tokens: a step of an engine that prefills in chunks
constexpr uint64_t kKeysMax = 4096;      // of one lookup: kvistd's limit
constexpr uint64_t kComplaintsMax = 10;  // on stderr; all are counted

// Deadlines that only a broken daemon misses: a replay is here to find it, not to hurry it.
constexpr int64_t kSecondUs = 1'000'000;
constexpr int64_t kConnectUs = 10 * kSecondUs;
constexpr int64_t kLookupUs = 10 * kSecondUs;
constexpr int64_t kCopyUs = 30 * kSecondUs;
constexpr int64_t kAgainUs = 2'000;  // between two offers of a store
constexpr int64_t kLeaseUs = 60 * kSecondUs;

class Stopwatch {
 public:
  double microseconds() const {
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// Calls f(place, name, piece) for every piece of blocks [first, first + count), which lie at places [0, count).
template <class F>
void ForEachPiece(const PageMemory& pages, const Request& request, std::span<const kvist_key> keys, uint32_t first,
                  uint32_t count, F f) {
  for (uint32_t place = 0; place < count; ++place) {
    PieceName name;
    name.block = first + place;
    name.hash_id = request.hash_ids[name.block];
    std::memcpy(&name.key_word, keys[name.block].bytes, sizeof name.key_word);
    for (uint8_t layer = 0; layer < kLayers; ++layer) {
      for (uint16_t page = 0; page < kPagesPerBlock; ++page) {
        for (uint8_t segment = 0; segment < kSegments; ++segment) {
          name.page = page;
          name.layer = layer;
          name.segment = segment;
          f(name, pages.Piece(place, page, layer, segment));
        }
      }
    }
  }
}

absl::Status Connect(const Replay::Options& options, const PageMemory& pages, kvist_role role, Client* client) {
  const std::string instance = absl::StrCat("kvist-replay-", getpid());
  const kvist_memory memory = pages.description();
  const kvist_space space = pages.space();
  kvist_options how{};
  how.struct_size = sizeof how;
  how.socket = options.socket.c_str();
  how.instance = instance.c_str();
  how.role = role;
  how.space = &space;
  how.memory = role == KVIST_WORKER ? &memory : nullptr;
  how.connect_timeout_us = kConnectUs;
  Status status = Client::Connect(how, client);
  if (status.ok()) status = client->WaitConnected(kConnectUs);
  if (status.ok()) return absl::OkStatus();
  const std::string message = absl::StrCat("no session with kvistd at ", options.socket, ": ", status.message, " (",
                                           kvist_status_name(status.code), ")");
  return status.code == KVIST_FAILED_PRECONDITION ? absl::FailedPreconditionError(message) : absl::UnavailableError(message);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Replay>> Replay::Create(const Options& options) {
  const uint64_t batch = std::clamp<uint64_t>(kPageMemoryBytes / options.block_bytes, 1, kBatchBlocksMax);
  const uint64_t needed = std::clamp<uint64_t>(options.full_blocks_max, 1, kKeysMax);
  auto pages = PageMemory::Create(options.block_bytes, static_cast<uint32_t>(std::min(batch, needed)));
  if (!pages.ok()) return pages.status();
  std::unique_ptr<Replay> replay(new Replay(*std::move(pages), options));
  if (absl::Status status = Connect(options, *replay->pages_, KVIST_SCHEDULER, &replay->scheduler_); !status.ok())
    return status;
  if (absl::Status status = Connect(options, *replay->pages_, KVIST_WORKER, &replay->worker_); !status.ok()) return status;
  if (options.await_disk)
    replay->scheduler_.Flush(kConnectUs);  // there is nothing yet; one that never comes is seen in the hits
  return replay;
}

void Replay::Run(const Request& request) {
  ++outcome_.requests;
  outcome_.blocks += request.hash_ids.size();
  outcome_.full_blocks += request.full_blocks;
  const auto count = static_cast<uint32_t>(std::min(request.full_blocks, kKeysMax));
  if (count == 0) return;

  Chain chain(kBlockTokens);
  std::array<uint32_t, kBlockTokens> tokens;
  for (uint32_t block = 0; block < count; ++block) {
    MakeTokens(request.hash_ids[block], tokens);
    chain.Append(tokens);
  }
  const std::span<const kvist_key> keys = chain.keys();
  if (keys.size() != count) return Failed("key chain", KVIST_INTERNAL, "not one key for each full block");

  const uint32_t batch = pages_->blocks();
  uint32_t done = 0;
  Hit hit;
  uint32_t there = 0;
  do {
    hit.lease.Release();  // the budget is the next part's
    hit = LookUp(keys, done, &there);
    while (done < hit.chunks && Load(request, keys, hit.lease, done, std::min(batch, hit.chunks - done)))
      done += std::min(batch, hit.chunks - done);
  } while (hit.lease && done == hit.chunks && done < there);
  outcome_.hit_blocks += done;
  // The lease lives until the end: the misses hang on the hit.
  Prefill(request, keys, done, count);
  Hint(request, keys);
  if (hit.lease) {
    const Stopwatch watch;
    hit.lease.Release();
    outcome_.release.Add(watch.microseconds());
  }
}

Hit Replay::LookUp(std::span<const kvist_key> keys, uint32_t have, uint32_t* there) {
  *there = 0;
  // A hit without a lease is past the instance's lease budget (kvistd's lease.share) and can't be loaded: ask for half of it.
  for (size_t count = keys.size(); count > have;) {
    const Stopwatch watch;
    Hit hit = scheduler_.Lookup(keys.first(count), kLeaseUs, kLookupUs, have);
    outcome_.lookup.Add(watch.microseconds());
    if (hit.status != KVIST_OK) {
      Failed("lookup", hit.status, kvist_error());
      return {};
    }
    if (hit.chunks > count) {
      Failed("lookup", KVIST_INTERNAL, "more hits than keys");
      return {};
    }
    *there = std::max(*there, hit.chunks);
    if (hit.chunks <= have || hit.lease) return hit;
    count = have + (hit.chunks - have) / 2;
  }
  return {};
}

bool Replay::Load(const Request& request, std::span<const kvist_key> keys, const Lease& lease, uint32_t first,
                  uint32_t count) {
  if (pages_lost_) {
    Failed("load", KVIST_DEADLINE_EXCEEDED, "an earlier load has never given its pages back");
    return false;
  }
  uint64_t bytes = 0;
  ForEachPiece(*pages_, request, keys, first, count, [&](const PieceName&, std::span<std::byte> piece) {
    Poison(piece);
    bytes += piece.size();
  });
  kvist_load_args args{};
  args.struct_size = sizeof args;
  args.lease = lease.id();
  args.first_chunk = first;
  args.chunk_count = count;
  const std::span<const uint32_t> table = pages_->Pages(count);
  args.pages = table.data();
  args.page_count = table.size();
  args.deadline_us = kCopyUs;
  const Stopwatch watch;
  kvist_op op = 0;
  const kvist_status started = kvist_load(worker_.get(), &args, &op);
  if (started != KVIST_OK) {
    Failed("load", started, kvist_error());
    return false;
  }
  const kvist_result result = Await(worker_, op);
  if (result.status != KVIST_OK || result.chunks_copied != count) {
    pages_lost_ = result.pages_released == 0;
    Failed("load", result.status, absl::StrCat(result.chunks_copied, " of ", count, " chunks were loaded"));
    return false;
  }
  outcome_.load.Add(watch.microseconds(), bytes);
  Check(request, keys, first, count);
  return true;
}

void Replay::Check(const Request& request, std::span<const kvist_key> keys, uint32_t first, uint32_t count) {
  ForEachPiece(*pages_, request, keys, first, count, [&](const PieceName& name, std::span<const std::byte> piece) {
    const uint64_t wrong = WrongBytes(name, piece);
    if (wrong == 0) return;
    outcome_.wrong_bytes += wrong;
    if (++complaints_ > kComplaintsMax) return;
    std::fprintf(stderr, "%s\n",
                 absl::StrCat("request ", outcome_.requests, ": ", wrong, " wrong bytes in ", DescribeName(name),
                              "; what lies there: ", DescribeOwner(piece))
                     .c_str());
  });
}

void Replay::Prefill(const Request& request, std::span<const kvist_key> keys, uint32_t first, uint32_t count) {
  const uint32_t part = prefill_rate_ == 0 ? pages_->blocks() : std::min(pages_->blocks(), kPrefillBlocks);
  const auto start = std::chrono::steady_clock::now();
  for (uint32_t done = first; done < count;) {
    const uint32_t blocks = std::min(part, count - done);
    if (prefill_rate_ > 0) {
      const double tokens = static_cast<double>(done + blocks - first) * kBlockTokens;
      SleepUntil(start + std::chrono::microseconds(static_cast<int64_t>(1e6 * tokens / static_cast<double>(prefill_rate_))));
      if (StopSignal() != 0) return;
    }
    if (!Store(request, keys, done, blocks)) return;
    done += blocks;
  }
}

void Replay::Hint(const Request& request, std::span<const kvist_key> keys) {
  if (request.stop == KVIST_STOP_UNKNOWN) return;
  kvist_hint_args args{};
  args.struct_size = sizeof args;
  args.stop_reason = request.stop;
  if (const kvist_status status = kvist_hint(scheduler_.get(), keys.data(), keys.size(), &args); status != KVIST_OK)
    Failed("hint", status, kvist_error());
}

bool Replay::Store(const Request& request, std::span<const kvist_key> keys, uint32_t first, uint32_t count) {
  if (pages_lost_) return false;
  uint64_t bytes = 0;
  ForEachPiece(*pages_, request, keys, first, count, [&](const PieceName& name, std::span<std::byte> piece) {
    FillPiece(name, piece);
    bytes += piece.size();
  });
  kvist_store_args args{};
  args.struct_size = sizeof args;
  args.keys = keys.data();
  args.key_count = first + count;
  args.first_chunk = first;
  const std::span<const uint32_t> table = pages_->Pages(count);
  args.pages = table.data();
  args.page_count = table.size();
  args.deadline_us = kCopyUs;
  const Stopwatch since;
  for (uint32_t kept = 0;;) {  // by the tries before
    const kvist_result result = StoreOnce(args, bytes / count, count);
    if (result.status != KVIST_OK) return false;
    const bool again = result.chunks_refused > 0 && since.microseconds() < static_cast<double>(store_patience_us_);
    if (!again) {
      outcome_.skipped_blocks += result.chunks_skipped - std::min(kept, result.chunks_skipped);
      outcome_.refused_blocks += result.chunks_refused;
      return result.chunks_refused == 0;  // without its prefix a later block could never be a hit
    }
    kept += result.chunks_copied;
    usleep(kAgainUs);
  }
}

kvist_result Replay::StoreOnce(const kvist_store_args& args, uint64_t block_bytes, uint32_t count) {
  const Stopwatch watch;
  kvist_op op = 0;
  kvist_result result{};
  result.status = kvist_store(worker_.get(), &args, &op);
  if (result.status != KVIST_OK) {
    Failed("store", result.status, kvist_error());
    return result;
  }
  result = Await(worker_, op);
  if (result.status != KVIST_OK) {
    // Its pages may still be read: they must not be filled again.
    if (result.pages_released == 0) pages_lost_ = kvist_cancel(worker_.get(), op) != KVIST_OK;
    Failed("store", result.status, absl::StrCat(count, " chunks were to be stored"));
    return result;
  }
  if (uint64_t{result.chunks_copied} + result.chunks_skipped + result.chunks_refused != count) {
    Failed("store", KVIST_INTERNAL, "copied, skipped and refused chunks are not those that were asked for");
  }
  outcome_.store.Add(watch.microseconds(), block_bytes * result.chunks_copied);
  outcome_.stored_blocks += result.chunks_copied;
  return result;
}

kvist_result Replay::Await(Client& client, kvist_op op) {
  kvist_result result = client.Wait(op, kCopyUs + kSecondUs);
  // The operation is over, but copies may still touch the pages: bounded by what the client needs to know that they are quiet.
  const Stopwatch watch;
  while (result.pages_released == 0 && watch.microseconds() < static_cast<double>(kCopyUs)) {
    usleep(1000);
    const kvist_result later = client.Poll(op);
    result.pages_released = later.pages_released;
    if (result.status == KVIST_PENDING) result = later;
  }
  return result;
}

void Replay::Failed(absl::string_view hook, kvist_status status, absl::string_view why) {
  ++outcome_.failed_hooks;
  if (++complaints_ > kComplaintsMax) return;
  std::fprintf(
      stderr, "%s\n",
      absl::StrCat("request ", outcome_.requests, ": ", hook, " failed: ", kvist_status_name(status), ": ", why).c_str());
}

}  // namespace kvist::replay

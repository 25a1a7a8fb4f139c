#include "examples/tinyllm/kvist_cache.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "examples/tinyllm/describe_memory.h"

namespace tinyllm {
namespace {

absl::Status ConnectError(const char* role, const kvist::Status& status) {
  return absl::FailedPreconditionError(
      absl::StrCat("kvist_connect as ", role, ": ", kvist_status_name(status.code), ": ", status.message));
}

// Stores under way; beyond it the chunks wait for a later step, as a daemon that is so far behind needs no more work.
constexpr size_t kCopiesMax = 64;

}  // namespace

absl::StatusOr<std::unique_ptr<KvistCache>> KvistCache::Create(const Options& options, const ModelConfig& config,
                                                               const PagedMemory& memory, PagePool& pool) {
  const KvistDescription description(config, memory);
  std::unique_ptr<KvistCache> cache(new KvistCache(options, description.space().chunk_tokens, pool));

  kvist_options session{};
  session.struct_size = sizeof session;
  session.socket = options.socket.empty() ? nullptr : options.socket.c_str();
  session.instance = options.instance.c_str();
  session.space = description.space();
  session.deadline_us = absl::ToInt64Microseconds(options.copy_deadline);
  session.connect_timeout_us = absl::ToInt64Microseconds(options.connect_timeout);

  session.role = KVIST_SCHEDULER;
  if (kvist::Status status = kvist::Client::Connect(session, &cache->scheduler_); !status.ok())
    return ConnectError("scheduler", status);
  session.role = KVIST_WORKER;
  session.rank = 0;
  session.memory = &description.memory();
  if (kvist::Status status = kvist::Client::Connect(session, &cache->worker_); !status.ok())
    return ConnectError("worker", status);
  return cache;
}

bool KvistCache::WaitConnected(absl::Duration timeout) {
  const int64_t timeout_us = absl::ToInt64Microseconds(timeout);
  return scheduler_.WaitConnected(timeout_us).ok() && worker_.WaitConnected(timeout_us).ok();
}

KvistCache::Sequence KvistCache::NewSequence() const {
  Sequence sequence;
  sequence.chain_ = kvist::Chain(chunk_tokens_);
  return sequence;
}

size_t KvistCache::FindHit(Sequence& sequence, std::span<const Token> tokens) {
  if (tokens.size() > sequence.chained_tokens_) {
    sequence.chain_.Append(tokens.subspan(sequence.chained_tokens_));
    sequence.chained_tokens_ = tokens.size();
  }
  const size_t chunks = tokens.size() / chunk_tokens_;
  if (chunks == 0) return 0;
  sequence.hit_ = scheduler_.Lookup(sequence.chain_.keys().first(chunks), absl::ToInt64Microseconds(options_.lease),
                                    absl::ToInt64Microseconds(options_.lookup_deadline));
  ++stats_.lookups;
  sequence.offered_chunks_ = sequence.hit_.chunks;  // no need to store what is there
  if (!sequence.hit_.lease) return 0;               // nothing there, or no budget to keep it there
  return size_t{sequence.hit_.chunks} * chunk_tokens_;
}

bool KvistCache::StartLoad(Sequence& sequence, uint32_t first_chunk, std::span<const PageId> pages) {
  const uint32_t count = sequence.hit_.chunks - first_chunk;
  sequence.load_ = worker_.Load(sequence.hit_.lease, first_chunk, count, pages);
  if (sequence.load_ == 0) {
    ++stats_.loads_failed;
    DropHit(sequence);
    return false;
  }
  ++stats_.loads;
  Hold({.op = sequence.load_, .is_load = true, .awaited = true, .pages = {pages.begin(), pages.end()}});
  return true;
}

KvistCache::LoadState KvistCache::PollLoad(Sequence& sequence, absl::Duration timeout) {
  const bool at_once = timeout <= absl::ZeroDuration();
  const kvist_result result =
      at_once ? worker_.Poll(sequence.load_) : worker_.Wait(sequence.load_, absl::ToInt64Microseconds(timeout));
  if (result.status == KVIST_PENDING) return LoadState::kPending;

  const auto copy = std::ranges::find(copies_, sequence.load_, &Copy::op);
  CountEnd(*copy, result);
  copy->awaited = false;  // if it still touches its pages, Poll follows it to its end
  if (result.pages_released != 0) {
    GiveUpPages(*copy);
    copies_.erase(copy);
  }
  sequence.load_ = 0;
  if (result.status != KVIST_OK) sequence.offered_chunks_ = 0;  // they may be gone: offer them again
  DropHit(sequence);
  return result.status == KVIST_OK ? LoadState::kLoaded : LoadState::kFailed;
}

void KvistCache::StoreFilled(Sequence& sequence, std::span<const Token> tokens, std::span<const PageId> pages) {
  const auto filled = static_cast<uint32_t>(tokens.size() / chunk_tokens_);
  if (filled <= sequence.offered_chunks_ || copies_.size() >= kCopiesMax) return;
  if (tokens.size() > sequence.chained_tokens_) {  // the answer's tokens join the chain when their chunk is full
    sequence.chain_.Append(tokens.subspan(sequence.chained_tokens_));
    sequence.chained_tokens_ = tokens.size();
  }
  const uint32_t first = sequence.offered_chunks_;
  const std::span<const PageId> source = pages.subspan(first * pages_per_chunk(), (filled - first) * pages_per_chunk());
  const kvist_op op = worker_.Store(sequence.chain_.keys().first(filled), first, source);
  if (op == 0) return;  // kvistd is away or busy: offered again with the next chunk
  ++stats_.stores;
  sequence.offered_chunks_ = filled;
  Hold({.op = op, .is_load = false, .awaited = false, .pages = {source.begin(), source.end()}});
}

void KvistCache::Poll() {
  std::erase_if(copies_, [&](Copy& copy) {
    if (copy.awaited) return false;
    const kvist_result result = worker_.Poll(copy.op);
    if (result.status == KVIST_PENDING || result.pages_released == 0) return false;
    if (!copy.is_load) CountEnd(copy, result);
    GiveUpPages(copy);
    return true;
  });
}

void KvistCache::Flush(absl::Duration timeout) {
  const absl::Time end = absl::Now() + timeout;
  std::erase_if(copies_, [&](Copy& copy) {
    if (copy.is_load) return false;
    const absl::Duration left = std::max(end - absl::Now(), absl::ZeroDuration());
    const kvist_result result = worker_.Wait(copy.op, absl::ToInt64Microseconds(left));
    const bool ended = result.status != KVIST_PENDING && result.pages_released != 0;
    if (ended) {
      CountEnd(copy, result);
    } else {
      worker_.Cancel(copy.op);  // its pages are free now; Poll asks for its end
    }
    GiveUpPages(copy);
    return ended;
  });
}

void KvistCache::Hold(Copy copy) {
  pool_.Share(copy.pages);
  copies_.push_back(std::move(copy));
}

void KvistCache::GiveUpPages(Copy& copy) {
  pool_.Release(copy.pages);
  copy.pages.clear();
}

void KvistCache::CountEnd(const Copy& copy, const kvist_result& result) {
  if (copy.is_load) {
    stats_.loads_failed += result.status == KVIST_OK ? 0 : 1;
    stats_.chunks_loaded += result.status == KVIST_OK ? copy.pages.size() / pages_per_chunk() : 0;
  } else {
    stats_.chunks_stored += result.chunks_copied;
    stats_.chunks_skipped += result.chunks_skipped;
    stats_.chunks_refused += result.chunks_refused;
  }
}

}  // namespace tinyllm

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
  std::unique_ptr<DevicePages> device;
  if (options.on_gpu) {
    absl::StatusOr<std::unique_ptr<DevicePages>> created = DevicePages::Create(memory);
    if (!created.ok()) return created.status();
    device = *std::move(created);
  }
  const KvistDescription description(config, memory, device.get());
  std::unique_ptr<KvistCache> cache(new KvistCache(options, description.space().chunk_tokens, std::move(device), pool));

  kvist_options session{};
  session.struct_size = sizeof session;
  session.socket = options.socket.empty() ? nullptr : options.socket.c_str();
  session.instance = options.instance.c_str();
  session.space = &description.space();
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
  sequence.slow_tokens_ = size_t{sequence.hit_.coming} * chunk_tokens_;
  sequence.offered_chunks_ = sequence.hit_.chunks;  // no need to store what is there
  if (!sequence.hit_.lease) return 0;               // nothing there, or no budget to keep it there
  return size_t{sequence.hit_.chunks} * chunk_tokens_;
}

absl::StatusOr<uint32_t> KvistCache::MakeDurable(absl::Duration timeout) {
  uint32_t chunks = 0;
  const kvist::Status status = scheduler_.Flush(absl::ToInt64Microseconds(timeout), &chunks);
  if (!status.ok()) return absl::UnavailableError(status.message);
  return chunks;
}

bool KvistCache::StartLoad(Sequence& sequence, uint32_t first_chunk, std::span<const PageId> pages) {
  const uint32_t count = sequence.hit_.chunks - first_chunk;
  sequence.load_ = worker_.Load(sequence.hit_.lease, first_chunk, count, pages, 0, AfterStream());
  if (sequence.load_ == 0) {
    ++stats_.loads_failed;
    DropHit(sequence);
    return false;
  }
  ++stats_.loads;
  sequence.load_state_ = LoadState::kPending;
  Hold({.op = sequence.load_, .kind = Copy::Kind::kLoad, .awaited = true, .pages = {pages.begin(), pages.end()}});
  return true;
}

KvistCache::LoadState KvistCache::PollCopy(kvist_op op, absl::Duration timeout) {
  const bool at_once = timeout <= absl::ZeroDuration();
  const kvist_result result = at_once ? worker_.Poll(op) : worker_.Wait(op, absl::ToInt64Microseconds(timeout));
  if (result.status == KVIST_PENDING) return LoadState::kPending;

  const auto copy = std::ranges::find(copies_, op, &Copy::op);
  const bool loaded = result.status == KVIST_OK && (device_ == nullptr || device_->Read(copy->pages));
  CountEnd(*copy, result);
  copy->awaited = false;  // if it still touches its pages, Poll follows it to its end
  if (result.pages_released != 0) {
    GiveUpPages(*copy);
    copies_.erase(copy);
  }
  return loaded ? LoadState::kLoaded : LoadState::kFailed;
}

KvistCache::LoadState KvistCache::PollLoad(Sequence& sequence, absl::Duration timeout) {
  if (sequence.load_ != 0 && sequence.load_state_ == LoadState::kPending) {
    sequence.load_state_ = PollCopy(sequence.load_, timeout);
    if (sequence.load_state_ == LoadState::kPending) return LoadState::kPending;
    if (sequence.load_state_ == LoadState::kFailed) sequence.offered_chunks_ = 0;  // they may be gone: offer them again
    DropHit(sequence);
  }
  if (sequence.swap_in_ != 0) {
    const LoadState state = PollCopy(sequence.swap_in_, timeout);
    if (state == LoadState::kPending) return LoadState::kPending;
    sequence.swap_in_ = 0;
    sequence.swapped_in_ = state == LoadState::kLoaded;
    stats_.swaps_in += sequence.swapped_in_ ? 1 : 0;
    DropSwapped(sequence);
  }
  const bool failed = std::exchange(sequence.load_, 0) != 0 && sequence.load_state_ == LoadState::kFailed;
  return failed ? LoadState::kFailed : LoadState::kLoaded;
}

bool KvistCache::SwapOut(Sequence& sequence, std::span<const PageId> pages, absl::Duration timeout) {
  const absl::Time start = options_.now();
  sequence.swapped_ = worker_.Allocate(1, 0, absl::ToInt64Microseconds(options_.lookup_deadline));
  if (!sequence.swapped_) return false;
  std::vector<PageId> table(pages.begin(), pages.end());
  table.resize(pages_per_chunk(), KVIST_NO_PAGE);
  const std::optional<kvist::After> after = AfterWritten(pages);
  const kvist_op op = after ? worker_.SwapOut(sequence.swapped_, 0, 1, table, 0, 0, *after) : 0;
  if (op == 0) {
    DropSwapped(sequence);
    return false;
  }
  const kvist_result result = worker_.Wait(op, absl::ToInt64Microseconds(timeout));
  // Also of one that failed or came too late: it was waited for all the same, and the next one is judged by it.
  swapping_ += options_.now() - start;
  pages_swapped_ += pages.size();
  if (result.status == KVIST_PENDING) {
    worker_.Cancel(op);  // the pages are free now; Poll asks for its end
    copies_.push_back({.op = op, .kind = Copy::Kind::kSwapOut, .awaited = false, .pages = {}});
  }
  if (result.status != KVIST_OK) {
    DropSwapped(sequence);
    return false;
  }
  ++stats_.swaps_out;
  return true;
}

bool KvistCache::StartSwapIn(Sequence& sequence, std::span<const PageId> pages) {
  std::vector<PageId> table(pages.begin(), pages.end());
  table.resize(pages_per_chunk(), KVIST_NO_PAGE);
  sequence.swap_in_ = sequence.swapped_ ? worker_.SwapIn(sequence.swapped_, 0, 1, table, 0, 0, AfterStream()) : 0;
  if (sequence.swap_in_ == 0) {
    DropSwapped(sequence);
    return false;
  }
  std::erase(table, KVIST_NO_PAGE);
  Hold({.op = sequence.swap_in_, .kind = Copy::Kind::kSwapIn, .awaited = true, .pages = std::move(table)});
  return true;
}

absl::Duration KvistCache::SwapTime(size_t pages) const {
  // Before the first: what a round trip and a slow memory would take, so that it is tried where computing isn't cheap.
  const absl::Duration page =
      pages_swapped_ == 0 ? absl::Microseconds(20) : swapping_ / static_cast<int64_t>(pages_swapped_);
  return 2 * page * static_cast<int64_t>(pages);
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
  const std::optional<kvist::After> after = AfterWritten(source);
  const kvist_op op = after ? worker_.Store(sequence.chain_.keys().first(filled), first, source, 0, *after) : 0;
  if (op == 0) return;  // kvistd is away or busy: offered again with the next chunk
  ++stats_.stores;
  sequence.offered_chunks_ = filled;
  Hold({.op = op, .kind = Copy::Kind::kStore, .awaited = false, .pages = {source.begin(), source.end()}});
}

std::optional<kvist::After> KvistCache::AfterWritten(std::span<const PageId> pages) {
  if (device_ != nullptr && !device_->Write(pages)) return std::nullopt;
  return AfterStream();
}

kvist::After KvistCache::AfterStream() const {
  return device_ == nullptr ? kvist::After{} : kvist::After::Stream(device_->stream());
}

void KvistCache::Poll() {
  std::erase_if(copies_, [&](Copy& copy) {
    if (copy.awaited) return false;
    const kvist_result result = worker_.Poll(copy.op);
    if (result.status == KVIST_PENDING || result.pages_released == 0) return false;
    if (copy.kind == Copy::Kind::kStore) CountEnd(copy, result);
    GiveUpPages(copy);
    return true;
  });
}

void KvistCache::Flush(absl::Duration timeout) {
  const absl::Time end = absl::Now() + timeout;
  std::erase_if(copies_, [&](Copy& copy) {
    if (copy.kind != Copy::Kind::kStore) return false;
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
  if (copy.kind == Copy::Kind::kLoad) {
    stats_.loads_failed += result.status == KVIST_OK ? 0 : 1;
    stats_.chunks_loaded += result.status == KVIST_OK ? copy.pages.size() / pages_per_chunk() : 0;
  } else if (copy.kind == Copy::Kind::kStore) {
    stats_.chunks_stored += result.chunks_copied;
    stats_.chunks_skipped += result.chunks_skipped;
    stats_.chunks_refused += result.chunks_refused;
  }
}

}  // namespace tinyllm

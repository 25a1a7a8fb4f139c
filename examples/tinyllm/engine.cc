#include "examples/tinyllm/engine.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace tinyllm {
namespace {

// How long a step waits when there is nothing to compute: short enough to notice a new request soon.
constexpr absl::Duration kIdleWait = absl::Milliseconds(10);
// How long stores may take to end before their pages are needed for something else. What isn't stored by then is computed
// again some day.
constexpr absl::Duration kFlushWait = absl::Milliseconds(200);
// Of fewer tokens the time is that of reading the weights.
constexpr size_t kReportedMin = 64;

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(std::shared_ptr<const Model> model, const Options& options) {
  for (const auto& [name, value, min] :
       {std::tuple<const char*, int64_t, int64_t>{"kv_tokens", options.kv_tokens, kPageTokens},
        {"batch_tokens", options.batch_tokens, 1},
        {"sequences_max", options.sequences_max, 1},
        {"threads", options.threads, 0}}) {
    if (value < min) return absl::InvalidArgumentError(absl::StrCat(name, " is ", value, ", at least ", min, " is needed"));
  }
  absl::StatusOr<std::unique_ptr<PagedMemory>> memory =
      PagedMemory::Create(model->config(), options.kv_tokens / kPageTokens);
  if (!memory.ok()) return memory.status();
  std::unique_ptr<Engine> engine(new Engine(std::move(model), options, *std::move(memory)));
  if (options.kvist) {
    auto kvist = KvistCache::Create(*options.kvist, engine->model_->config(), *engine->memory_, engine->pool_);
    if (!kvist.ok()) return kvist.status();
    engine->kvist_ = *std::move(kvist);
  }
  return engine;
}

Engine::Engine(std::shared_ptr<const Model> model, const Options& options, std::unique_ptr<PagedMemory> memory)
    : model_(std::move(model)),
      options_(options),
      threads_(options.threads),
      memory_(std::move(memory)),
      pool_(memory_->pages()) {}

absl::StatusOr<RequestId> Engine::Submit(std::vector<Token> prompt, int answer_tokens) {
  if (prompt.empty() || answer_tokens < 1)
    return absl::InvalidArgumentError("a request needs a prompt and room for an answer");
  if (std::ranges::any_of(prompt, [](Token token) { return token >= kVocabulary; })) {
    return absl::InvalidArgumentError(absl::StrCat("a token of the prompt isn't in the vocabulary of ", kVocabulary));
  }
  const size_t prompt_size = prompt.size(), tokens_max = prompt_size + static_cast<size_t>(answer_tokens);
  const size_t room =
      std::min<size_t>(static_cast<size_t>(model_->config().context_max), size_t{memory_->pages()} * kPageTokens);
  if (tokens_max > room) {
    return absl::InvalidArgumentError(
        absl::StrCat("prompt and answer have ", tokens_max, " tokens, context_max and kv_tokens allow ", room));
  }
  auto sequence = std::make_unique<Sequence>();
  sequence->tokens = std::move(prompt);
  sequence->answer_at = prompt_size;
  sequence->tokens_max = tokens_max;
  sequence->submitted = absl::Now();
  sequence->answer.id = ++last_id_;
  sequence->answer.prompt_tokens = prompt_size;
  if (kvist_) sequence->kvist = kvist_->NewSequence();
  waiting_.push_back(std::move(sequence));
  return last_id_;
}

bool Engine::Step() {
  if (waiting_.empty() && loading_.empty() && running_.empty()) return false;
  if (kvist_) kvist_->Poll();
  CollectLoads(absl::ZeroDuration());

  const std::vector<Piece> pieces = Schedule();
  if (!pieces.empty()) {
    Compute(pieces);
    FinishAnswers();
  } else if (!loading_.empty()) {
    CollectLoads(kIdleWait);
  } else if (kvist_) {
    kvist_->Flush(kFlushWait);  // stores hold the pages that the next request waits for
  }
  return true;
}

std::vector<Answer> Engine::Run() {
  while (Step()) {}
  return TakeAnswers();
}

void Engine::ForgetLocalPages() {
  if (kvist_) kvist_->Flush(absl::Seconds(5));
  pool_.ForgetKept();
}

// Moves sequences whose load has ended to the running ones. `timeout` is for the first of them.
void Engine::CollectLoads(absl::Duration timeout) {
  for (auto it = loading_.begin(); it != loading_.end();) {
    Sequence& sequence = **it;
    const KvistCache::LoadState state = kvist_->PollLoad(sequence.kvist, std::exchange(timeout, absl::ZeroDuration()));
    if (state == KvistCache::LoadState::kPending) {
      ++it;
      continue;
    }
    const auto first = sequence.pages.begin() + static_cast<ptrdiff_t>(sequence.load_at / kPageTokens);
    if (state == KvistCache::LoadState::kLoaded) {
      const size_t loaded = sequence.load_end - sequence.load_at;
      if (options_.on_loaded && loaded > 0) options_.on_loaded(*memory_, {first, loaded / kPageTokens});
      if (sequence.answer.preemptions == 0) sequence.answer.kvist_tokens = loaded;
      if (sequence.answer.preemptions == 0) sequence.answer.ssd_tokens = std::min(loaded, sequence.kvist.slow_tokens());
      sequence.computed = sequence.load_end;
      if (sequence.swapped_end > 0) {
        const size_t there = PagesFor(sequence.load_end);
        if (kvist_->SwappedIn(sequence.kvist)) {
          sequence.computed = sequence.swapped_end;
        } else {  // pages that the failed swap-in may still touch are held by it
          pool_.Release(std::span(sequence.pages).subspan(there));
          sequence.pages.resize(there);
          sequence.uses_kvist = false;
        }
      }
      NameFilledPages(sequence);
    } else {  // compute instead; pages that the failed load may still touch are held by it
      pool_.Release({first, sequence.pages.end()});
      sequence.pages.erase(first, sequence.pages.end());
      sequence.uses_kvist = false;
    }
    sequence.swapped_end = 0;
    running_.push_back(std::move(*it));
    it = loading_.erase(it);
  }
}

// What the next batch computes: a token of each answer, and of prompts up to batch_tokens, oldest request first.
std::vector<Engine::Piece> Engine::Schedule() {
  std::vector<Piece> pieces;
  size_t budget = static_cast<size_t>(options_.batch_tokens);
  const auto schedule = [&](Sequence& sequence) {
    const bool answering = sequence.remaining() == 1;
    const size_t tokens = answering ? 1 : std::min(sequence.remaining(), budget);
    if (tokens == 0 || !MakeRoom(sequence, sequence.computed + tokens)) return;
    if (!answering) budget -= tokens;
    pieces.push_back({&sequence, tokens});
  };
  for (size_t i = 0; i < running_.size(); ++i) schedule(*running_[i]);  // may preempt the last ones, itself included
  while (budget > 0) {
    const size_t running = running_.size();
    if (!AdmitNext()) break;
    if (running_.size() > running) schedule(*running_.back());  // it has its pages: preempts nobody
  }
  return pieces;
}

// Gives `sequence` pages for its first `tokens` tokens, at the cost of the youngest ones; false when it was itself the
// youngest.
bool Engine::MakeRoom(Sequence& sequence, size_t tokens) {
  const size_t missing = PagesFor(tokens) - std::min(sequence.pages.size(), PagesFor(tokens));
  for (;;) {
    if (std::optional<std::vector<PageId>> pages = pool_.Allocate(missing)) {
      sequence.pages.insert(sequence.pages.end(), pages->begin(), pages->end());
      return true;
    }
    const bool itself = running_.back().get() == &sequence;
    Preempt();
    if (itself) return false;
  }
}

// Takes the youngest sequence's pages away. Its KV is stored first if that is a matter of moments: resuming it is then a
// load.
void Engine::Preempt() {
  if (kvist_) kvist_->Flush(kFlushWait);
  SequencePtr sequence = std::move(running_.back());
  running_.pop_back();
  if (kvist_ && sequence->uses_kvist) SwapOut(*sequence);
  pool_.Release(sequence->pages);
  sequence->pages.clear();
  sequence->computed = sequence->named = 0;
  sequence->content = kNoContent;
  ++sequence->answer.preemptions;
  ++stats_.preemptions;
  waiting_.push_front(std::move(sequence));
}

// Whether taking the KV of so many tokens out and bringing it back takes less time than computing it, by what both have taken so far.
bool Engine::SwapIsCheaper(size_t tokens) const {
  const auto computed = static_cast<int64_t>(stats_.prompt_tokens_computed + stats_.answer_tokens_computed);
  return computed > 0 && kvist_->SwapTime(PagesFor(tokens)) < stats_.computing / computed * static_cast<int64_t>(tokens);
}

// Takes the KV behind the last full chunk out, where that and bringing it back is cheaper than computing it again.
void Engine::SwapOut(Sequence& sequence) {
  const size_t at = sequence.computed / kvist_->chunk_tokens() * kvist_->chunk_tokens();
  const size_t first = at / kPageTokens, count = PagesFor(sequence.computed) - first;
  if (count == 0 || (options_.swap == Options::Swap::kWhenCheaper && !SwapIsCheaper(sequence.computed - at))) return;
  if (!kvist_->SwapOut(sequence.kvist, std::span(sequence.pages).subspan(first, count), kFlushWait)) return;
  sequence.swapped_at = at;
  sequence.swapped_end = sequence.computed;
}

// Brings it back into the sequence's pages, if it goes on where that ends which is there or being loaded. The first `shared_pages` pages
// are others' too and hold what they should.
bool Engine::StartSwapIn(Sequence& sequence, size_t shared_pages) {
  const size_t there = std::max(sequence.computed, sequence.load_end);
  if (there < sequence.swapped_at || there >= sequence.swapped_end) {
    kvist_->DropSwapped(sequence.kvist);
    return false;
  }
  const size_t first = sequence.swapped_at / kPageTokens;
  std::vector<PageId> target(sequence.pages.begin() + static_cast<ptrdiff_t>(first),
                             sequence.pages.begin() + static_cast<ptrdiff_t>(PagesFor(sequence.swapped_end)));
  for (size_t page = first; page < shared_pages; ++page) target[page - first] = KVIST_NO_PAGE;
  return kvist_->StartSwapIn(sequence.kvist, target);
}

// Admits the oldest waiting request, except those whose KV is about to be here: finds what KV of its tokens there is, here
// or in kvist, and takes pages for all of them. False if there is nobody to admit or no room.
bool Engine::AdmitNext() {
  if (running_.size() + loading_.size() >= static_cast<size_t>(options_.sequences_max)) return false;
  const auto next = std::ranges::find_if(waiting_, [&](const SequencePtr& s) { return !IsBeingLoaded(s->tokens); });
  if (next == waiting_.end()) return false;
  Sequence& sequence = **next;
  const std::span<const Token> tokens = sequence.tokens;
  // The last token is always computed: its logits are wanted.
  const std::span<const Token> usable = tokens.first(tokens.size() - 1);

  PagePool::Prefix prefix = pool_.FindPrefix(usable);
  if (PagesFor(tokens.size()) - prefix.pages.size() > pool_.available()) {
    pool_.Release(prefix.pages);
    return false;
  }
  size_t load_at = 0, load_end = kvist_ && sequence.uses_kvist ? kvist_->FindHit(sequence.kvist, usable) : 0;
  if (load_end > prefix.pages.size() * kPageTokens) {
    // Loads are in whole chunks, and must not write to pages that others use: share only what lies before the first chunk to
    // load.
    load_at = prefix.pages.size() * kPageTokens / kvist_->chunk_tokens() * kvist_->chunk_tokens();
    pool_.Release(prefix.pages);
    prefix = pool_.FindPrefix(usable.first(load_at));
  } else {
    load_end = 0;
    if (kvist_) kvist_->DropHit(sequence.kvist);
  }
  std::optional<std::vector<PageId>> pages = pool_.Allocate(PagesFor(tokens.size()) - prefix.pages.size());
  if (!pages) {
    pool_.Release(prefix.pages);
    if (kvist_) kvist_->DropHit(sequence.kvist);
    return false;
  }

  sequence.pages = prefix.pages;
  sequence.pages.insert(sequence.pages.end(), pages->begin(), pages->end());
  sequence.named = prefix.pages.size();
  sequence.content = prefix.content;
  sequence.computed = prefix.pages.size() * kPageTokens;
  if (sequence.answer.preemptions == 0) sequence.answer.local_tokens = sequence.computed;
  sequence.load_at = load_at;
  sequence.load_end = load_end;

  bool loads = false;
  if (load_end > 0) {
    const std::span<const PageId> target =
        std::span(sequence.pages).subspan(load_at / kPageTokens, (load_end - load_at) / kPageTokens);
    loads = kvist_->StartLoad(sequence.kvist, static_cast<uint32_t>(load_at / kvist_->chunk_tokens()), target);
  }
  if (sequence.swapped_end > 0) {
    if ((load_end == 0 || loads) && StartSwapIn(sequence, prefix.pages.size())) {
      if (!loads) sequence.load_at = sequence.load_end = sequence.computed;  // nothing but the swap-in to wait for
      loads = true;
    } else {
      kvist_->DropSwapped(sequence.kvist);
      sequence.swapped_end = 0;
    }
  }
  (loads ? loading_ : running_).push_back(std::move(*next));
  waiting_.erase(next);
  return true;
}

// Whether a load under way brings a chunk or more of these tokens: it is awaited, instead of loading the same once for each
// who needs it.
bool Engine::IsBeingLoaded(std::span<const Token> tokens) const {
  return std::ranges::any_of(loading_, [&](const SequencePtr& other) {
    const auto end = std::ranges::mismatch(tokens, std::span(other->tokens).first(other->load_end)).in1;
    return static_cast<size_t>(end - tokens.begin()) >= other->load_at + kvist_->chunk_tokens();
  });
}

void Engine::Compute(std::span<const Piece> pieces) {
  std::vector<Span> batch;
  for (const Piece& piece : pieces) {
    const Sequence& s = *piece.sequence;
    batch.push_back({std::span(s.tokens).subspan(s.computed, piece.tokens), static_cast<int>(s.computed), s.pages});
    (s.computed < s.answer_at ? stats_.prompt_tokens_computed : stats_.answer_tokens_computed) += piece.tokens;
  }
  std::vector<float> logits;
  const absl::Time start = options_.now();
  model_->Forward(batch, *memory_, threads_, workspace_, logits);
  const absl::Duration took = options_.now() - start;
  stats_.computing += took;
  // A prompt alone: what computing costs, and so what loading is worth.
  if (kvist_ && pieces.size() == 1 && pieces[0].tokens >= kReportedMin)
    kvist_->ReportPrefill(pieces[0].sequence->computed, pieces[0].tokens, took);
  ++stats_.steps;

  for (size_t i = 0; i < pieces.size(); ++i) {
    Sequence& sequence = *pieces[i].sequence;
    sequence.computed += pieces[i].tokens;
    NameFilledPages(sequence);
    if (kvist_) kvist_->StoreFilled(sequence.kvist, std::span(sequence.tokens).first(sequence.computed), sequence.pages);
    if (sequence.remaining() == 0) AddToken(sequence, std::span(logits).subspan(i * kVocabulary, kVocabulary));
  }
}

// Lets others find what the sequence has computed or loaded.
void Engine::NameFilledPages(Sequence& sequence) {
  for (; (sequence.named + 1) * kPageTokens <= sequence.computed; ++sequence.named) {
    const std::span<const Token> tokens = std::span(sequence.tokens).subspan(sequence.named * kPageTokens, kPageTokens);
    sequence.content = pool_.Name(sequence.pages[sequence.named], sequence.content, tokens);
  }
}

void Engine::AddToken(Sequence& sequence, std::span<const float> logits) {
  Answer& answer = sequence.answer;
  const Token token = static_cast<Token>(std::ranges::max_element(logits) - logits.begin());
  if (answer.tokens.empty()) answer.time_to_first_token = absl::Now() - sequence.submitted;
  answer.tokens.push_back(token);
  answer.logits.insert(answer.logits.end(), logits.begin(), logits.end());
  sequence.tokens.push_back(token);
}

void Engine::FinishAnswers() {
  std::erase_if(running_, [&](SequencePtr& sequence) {
    if (sequence->tokens.size() < sequence->tokens_max) return false;
    pool_.Release(sequence->pages);  // stores under way hold theirs a little longer
    answers_.push_back(std::move(sequence->answer));
    return true;
  });
}

}  // namespace tinyllm

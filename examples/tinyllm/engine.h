#ifndef KVIST_EXAMPLES_TINYLLM_ENGINE_H_
#define KVIST_EXAMPLES_TINYLLM_ENGINE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "examples/tinyllm/kvist_cache.h"
#include "examples/tinyllm/model.h"
#include "examples/tinyllm/page_pool.h"
#include "examples/tinyllm/paged_memory.h"
#include "examples/tinyllm/thread_pool.h"

namespace tinyllm {

using RequestId = uint64_t;

// A finished request.
struct Answer {
  RequestId id = 0;
  std::vector<Token> tokens;  // the answer without its prompt
  std::vector<float> logits;  // [tokens][kVocabulary]: what each token was chosen by
  size_t prompt_tokens = 0;
  size_t local_tokens = 0;  // of the prompt: KV found in this engine's pages
  size_t kvist_tokens = 0;  // of the prompt: KV loaded from kvist
  size_t ssd_tokens = 0;    // of those: kvist had to read them from its SSD first
  int preemptions = 0;
  absl::Duration time_to_first_token;  // since Submit
};

// Continuous batching: each step runs one batch of whatever is there to run, prompts in chunks, and every running answer's
// next token.
//
// A request is   waiting   for room                              -> Admit
//                loading   its KV comes from kvist               -> CollectLoads
//                running   computing its prompt, then its answer -> Step; back to waiting when pages run out and it is the
//                          youngest: full chunks are stored, the rest of its KV is swapped out where that is cheaper
//                finished  its answer is for TakeAnswers
//
// Choosing is greedy and the arithmetic is independent of batching, so an answer is a function of its prompt alone, bit for
// bit. Threads: one.
class Engine {
 public:
  struct Options {
    uint32_t kv_tokens = 32768;  // KV memory; more means fewer preemptions
    int batch_tokens = 512;  // of prompts in one step; more makes prefill a little faster and other requests' tokens later
    int sequences_max = 16;  // running at once
    int threads = 0;         // 0: one for each core
    std::optional<KvistCache::Options> kvist = std::nullopt;  // without, the engine keeps to itself
    // Of a preempted request what is in no full chunk: swapped out when that is judged cheaper than computing it again, or always
    // (for tests: the judgement goes by the clock).
    enum class Swap { kWhenCheaper, kAlways } swap = Swap::kWhenCheaper;
    std::function<absl::Time()> now =
        absl::Now;  // by which computing is timed, for that judgement (swaps: kvist->now); for tests
    // Called with pages that a load has just filled. For tests and negative controls, which spoil them.
    std::function<void(const PagedMemory& memory, std::span<const PageId> pages)> on_loaded = nullptr;
  };

  // Errors: InvalidArgument: no memory for a single page, no token in a step, no sequence, or threads below 0: names the
  // option; those of PagedMemory and KvistCache.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(std::shared_ptr<const Model> model, const Options& options);

  // Errors: InvalidArgument: no prompt, nothing to answer, or more tokens than context_max or the KV memory has room for.
  absl::StatusOr<RequestId> Submit(std::vector<Token> prompt, int answer_tokens);
  // Does one batch, or waits a little (bounded) for what must come first. False when no request is left.
  bool Step();
  // The answers since the last call, in the order in which they ended.
  std::vector<Answer> TakeAnswers() { return std::exchange(answers_, {}); }
  // Steps until no request is left, then TakeAnswers.
  std::vector<Answer> Run();

  // Ends stores under way (bounded), then forgets all prefixes in this engine's own pages.
  void ForgetLocalPages();

  struct Stats {
    uint64_t steps = 0;
    uint64_t prompt_tokens_computed = 0;
    uint64_t answer_tokens_computed = 0;
    uint64_t preemptions = 0;
    absl::Duration computing;  // in Model::Forward
  };
  const Stats& stats() const { return stats_; }
  const Model& model() const { return *model_; }
  const PagePool& pool() const { return pool_; }
  const PagedMemory& memory() const { return *memory_; }
  KvistCache* kvist() { return kvist_.get(); }

 private:
  struct Sequence {
    std::vector<Token> tokens;  // prompt, then answer
    size_t answer_at = 0;       // index of the answer's first token
    size_t tokens_max = 0;
    absl::Time submitted;
    Answer answer;

    std::vector<PageId> pages;       // one reference each
    size_t computed = 0;             // tokens whose KV is in the pages
    size_t named = 0;                // pages that have a name in the pool
    ContentId content = kNoContent;  // of the last of them
    size_t load_at = 0;              // first token that the load under way brings
    size_t load_end = 0;             // past the last
    size_t swapped_at = 0;           // first token whose KV was swapped out when the sequence was preempted
    size_t swapped_end = 0;          // past the last; 0: nothing was
    KvistCache::Sequence kvist;
    // Until a load or a swap of its fails: trying again and again could keep it from ever being computed.
    bool uses_kvist = true;

    size_t remaining() const { return tokens.size() - computed; }
  };
  using SequencePtr = std::unique_ptr<Sequence>;
  struct Piece {
    Sequence* sequence;
    size_t tokens;
  };

  Engine(std::shared_ptr<const Model> model, const Options& options, std::unique_ptr<PagedMemory> memory);

  void CollectLoads(absl::Duration timeout);
  std::vector<Piece> Schedule();
  bool MakeRoom(Sequence& sequence, size_t tokens);
  void Preempt();
  bool SwapIsCheaper(size_t tokens) const;
  void SwapOut(Sequence& sequence);
  bool StartSwapIn(Sequence& sequence, size_t shared_pages);
  bool AdmitNext();
  bool IsBeingLoaded(std::span<const Token> tokens) const;
  void Compute(std::span<const Piece> pieces);
  void NameFilledPages(Sequence& sequence);
  void AddToken(Sequence& sequence, std::span<const float> logits);
  void FinishAnswers();
  static size_t PagesFor(size_t tokens) { return (tokens + kPageTokens - 1) / kPageTokens; }

  const std::shared_ptr<const Model> model_;
  const Options options_;
  ThreadPool threads_;
  Model::Workspace workspace_;
  const std::unique_ptr<PagedMemory> memory_;
  PagePool pool_;
  std::unique_ptr<KvistCache> kvist_;  // null: without kvist

  std::deque<SequencePtr> waiting_;
  std::vector<SequencePtr> loading_;
  std::vector<SequencePtr> running_;  // oldest first; the last is the first to be preempted
  std::vector<Answer> answers_;
  RequestId last_id_ = 0;
  Stats stats_;
};

}  // namespace tinyllm

#endif  // KVIST_EXAMPLES_TINYLLM_ENGINE_H_

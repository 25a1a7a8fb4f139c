#include "examples/tinyllm/model.h"

#include <catch2/catch.hpp>

#include <numeric>
#include <random>

#include "examples/tinyllm/record.h"
#include "tests/unit/tinyllm/small_model.h"

namespace tinyllm {
namespace {

// A model with KV memory of its own whose page table is a shuffle.
class Bench {
 public:
  explicit Bench(int threads = 2, uint32_t pages = 64)
      : pool_(threads), memory_(*PagedMemory::Create(SmallModel()->config(), pages)), pages_(pages) {
    std::iota(pages_.begin(), pages_.end(), 0U);
    std::ranges::shuffle(pages_, std::mt19937(7));
  }

  // The logits after each span of `tokens`, in pages [first_page, ..) of the shuffle.
  std::vector<float> Forward(std::span<const Span> batch) {
    std::vector<float> logits;
    SmallModel()->Forward(batch, *memory_, pool_, workspace_, logits);
    return logits;
  }
  Span SpanOf(std::span<const Token> tokens, int first, int count, size_t first_page = 0) const {
    return {tokens.subspan(static_cast<size_t>(first), static_cast<size_t>(count)), first,
            std::span(pages_).subspan(first_page)};
  }
  const PagedMemory& memory() const { return *memory_; }
  PageId page(size_t i) const { return pages_[i]; }

 private:
  ThreadPool pool_;
  std::unique_ptr<PagedMemory> memory_;
  Model::Workspace workspace_;
  std::vector<PageId> pages_;
};

// The logits after `tokens`, computed in chunks of `chunk`.
std::vector<float> Prefill(Bench& bench, std::span<const Token> tokens, int chunk) {
  std::vector<float> logits;
  const int size = static_cast<int>(tokens.size());
  for (int at = 0; at < size; at += chunk) {
    const Span span = bench.SpanOf(tokens, at, std::min(chunk, size - at));
    logits = bench.Forward({&span, 1});
  }
  return logits;
}

TEST_CASE("Model gives the same bits for any chunk size and any number of threads") {
  const std::vector<Token> tokens = RandomTokens(517, 1);
  Bench reference;
  const std::vector<float> expected = Prefill(reference, tokens, 517);
  for (const int chunk : {1, 2, 5, 11, 12, 13, 16, 31, 64, 127, 128, 129, 300}) {
    Bench bench(1 + chunk % 3);
    INFO("chunks of " << chunk);
    CHECK(SameBits(Prefill(bench, tokens, chunk), expected));
  }
}

TEST_CASE("Model gives the same bits whatever is in the batch beside a span") {
  const std::vector<Token> a = RandomTokens(200, 1), b = RandomTokens(77, 2), c = RandomTokens(130, 3);
  Bench alone;
  const std::vector<float> expected = Prefill(alone, a, 200);

  Bench together;
  const Span first[] = {together.SpanOf(b, 0, 40, 20), together.SpanOf(a, 0, 99)};
  together.Forward(first);
  const Span second[] = {together.SpanOf(c, 0, 130, 30), together.SpanOf(b, 40, 1, 20), together.SpanOf(a, 99, 101),
                         together.SpanOf(b, 41, 3, 20)};
  const std::vector<float> logits = together.Forward(second);
  CHECK(SameBits({logits.begin() + 2 * kVocabulary, logits.begin() + 3 * kVocabulary}, expected));
}

TEST_CASE("Model's logits differ when a single bit of any page differs") {
  const std::vector<Token> tokens = RandomTokens(500, 1);
  Bench bench;
  const Span prompt = bench.SpanOf(tokens, 0, 499), last = bench.SpanOf(tokens, 499, 1);
  bench.Forward({&prompt, 1});
  const std::vector<float> expected = bench.Forward({&last, 1});
  REQUIRE(SameBits(bench.Forward({&last, 1}), expected));

  std::mt19937 random(3);
  for (int layer = 0; layer < bench.memory().layers(); ++layer) {
    for (size_t page = 0; page < 500 / kPageTokens; ++page) {
      for (auto row : {&PagedMemory::Key, &PagedMemory::Value}) {
        Bf16* number =
            (bench.memory().*row)(layer, bench.page(page), static_cast<int>(random() % kPageTokens)) + random() % 16;
        *number ^= 0x8000;
        INFO("layer " << layer << " page " << page);
        CHECK_FALSE(SameBits(bench.Forward({&last, 1}), expected));
        *number ^= 0x8000;
      }
    }
  }
  CHECK(SameBits(bench.Forward({&last, 1}), expected));
}

TEST_CASE("Model never looks at pages after its tokens") {
  const std::vector<Token> tokens = RandomTokens(100, 1);
  Bench clean, dirty;
  for (size_t page = 0; page < 64; ++page) {
    for (int token = 0; token < kPageTokens; ++token) *dirty.memory().Value(0, dirty.page(page), token) = 0x7fc0;  // NaN
  }
  CHECK(SameBits(Prefill(clean, tokens, 33), Prefill(dirty, tokens, 33)));
}

TEST_CASE("Model refuses a shape that it can't compute") {
  CHECK(Model::Create({.head_dim = 20}).status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(Model::Create({.heads = 8, .kv_heads = 3}).status().code() == absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tinyllm

#include "examples/tinyllm/page_pool.h"

#include <catch2/catch.hpp>

#include <map>
#include <random>

namespace tinyllm {
namespace {

std::vector<Token> Page(Token first) {
  std::vector<Token> tokens(kPageTokens);
  for (Token& token : tokens) token = first++;
  return tokens;
}

std::vector<Token> operator+(std::vector<Token> a, const std::vector<Token>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST_CASE("PagePool finds the longest prefix that has names and shares it") {
  PagePool pool(4);
  const std::vector<PageId> pages = *pool.Allocate(2);
  const ContentId a = pool.Name(pages[0], kNoContent, Page(0));
  pool.Name(pages[1], a, Page(100));
  const PagePool::Prefix whole = pool.FindPrefix(Page(0) + Page(100) + Page(200));
  CHECK(whole.pages == pages);
  const PagePool::Prefix half = pool.FindPrefix(Page(0) + Page(101));
  CHECK(half.pages == std::vector<PageId>{pages[0]});
  CHECK(half.content == a);
  CHECK(pool.FindPrefix(Page(100)).pages.empty());  // the same tokens after another prefix

  pool.Release(pages);
  CHECK(pool.in_use() == 2);
  pool.Release(whole.pages);
  pool.Release(half.pages);
  CHECK(pool.in_use() == 0);
}

TEST_CASE("PagePool keeps named pages until it needs them, ends of prefixes first") {
  PagePool pool(3);
  const std::vector<PageId> pages = *pool.Allocate(3);
  ContentId content = kNoContent;
  for (Token i = 0; i < 3; ++i) content = pool.Name(pages[i], content, Page(100 * i));
  pool.Release(pages);
  CHECK(pool.available() == 3);

  const std::vector<PageId> taken = *pool.Allocate(1);
  CHECK(taken[0] == pages[2]);
  const PagePool::Prefix rest = pool.FindPrefix(Page(0) + Page(100) + Page(200));
  CHECK(rest.pages.size() == 2);
  CHECK_FALSE(pool.Allocate(1).has_value());

  pool.Release(rest.pages);
  pool.ForgetKept();
  CHECK(pool.FindPrefix(Page(0)).pages.empty());
  CHECK(pool.available() == 2);
}

TEST_CASE("PagePool's counts agree with a simple model under random use") {
  const auto seed = static_cast<uint32_t>(Catch::rngSeed());
  INFO("seed " << seed);
  std::mt19937 random(seed);
  PagePool pool(20);
  std::vector<std::vector<PageId>> held;
  for (int i = 0; i < 5000; ++i) {
    const uint32_t action = random() % 4;
    if (action == 0) {
      if (auto pages = pool.Allocate(random() % 5)) {
        ContentId content = kNoContent;
        for (const PageId page : *pages) content = pool.Name(page, content, Page(random() % 3));
        held.push_back(*std::move(pages));
      }
    } else if (action == 1) {
      held.push_back(pool.FindPrefix(Page(random() % 3) + Page(random() % 3) + Page(random() % 3)).pages);
    } else if (action == 2 && !held.empty()) {
      const std::vector<PageId> again = held[random() % held.size()];
      pool.Share(again);
      held.push_back(again);
    } else if (!held.empty()) {
      std::swap(held[random() % held.size()], held.back());
      pool.Release(held.back());
      held.pop_back();
    }
    std::map<PageId, int> references;
    for (const std::vector<PageId>& pages : held) {
      for (const PageId page : pages) ++references[page];
    }
    REQUIRE(pool.in_use() == references.size());
  }
}

}  // namespace
}  // namespace tinyllm

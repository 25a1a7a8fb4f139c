#include "examples/tinyllm/page_pool.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace tinyllm {

PagePool::PagePool(uint32_t pages) : pages_(pages) {
  for (PageId page = pages; page-- > 0;) free_.push_back(page);
}

std::optional<std::vector<PageId>> PagePool::Allocate(size_t count) {
  if (count > available()) return std::nullopt;
  std::vector<PageId> taken;
  taken.reserve(count);
  while (taken.size() < count) {
    if (free_.empty()) {
      const PageId oldest = kept_.front();
      kept_.pop_front();
      Forget(oldest);
      free_.push_back(oldest);
    }
    taken.push_back(free_.back());
    free_.pop_back();
    pages_[taken.back()].references = 1;
  }
  return taken;
}

void PagePool::Share(std::span<const PageId> pages) {
  for (const PageId page : pages) Use(page);
}

void PagePool::Release(std::span<const PageId> pages) {
  for (auto id = pages.rbegin(); id != pages.rend(); ++id) {
    Page& page = pages_[*id];
    assert(page.references > 0);
    if (--page.references > 0) continue;
    if (page.content) {
      page.kept_at = kept_.insert(kept_.end(), *id);
    } else {
      free_.push_back(*id);
    }
  }
}

PagePool::Prefix PagePool::FindPrefix(std::span<const Token> tokens) {
  Prefix prefix;
  for (; tokens.size() >= kPageTokens; tokens = tokens.subspan(kPageTokens)) {
    const auto found = known_.find(ContentOf(prefix.content, tokens));
    if (found == known_.end()) break;
    prefix.content = found->second.id;
    prefix.pages.push_back(found->second.page);
    Use(prefix.pages.back());
  }
  return prefix;
}

ContentId PagePool::Name(PageId page, ContentId parent, std::span<const Token> tokens) {
  const Content content = ContentOf(parent, tokens);
  const auto [entry, is_new] = known_.try_emplace(content, Entry{last_content_ + 1, page});
  if (is_new) {
    ++last_content_;
    pages_[page].content = content;
  }
  return entry->second.id;
}

void PagePool::ForgetKept() {
  for (const PageId page : std::exchange(kept_, {})) {
    Forget(page);
    free_.push_back(page);
  }
}

PagePool::Content PagePool::ContentOf(ContentId parent, std::span<const Token> tokens) {
  Content content{parent, {}};
  std::copy_n(tokens.begin(), kPageTokens, content.tokens.begin());
  return content;
}

void PagePool::Use(PageId id) {
  Page& page = pages_[id];
  if (page.references++ == 0) kept_.erase(page.kept_at);
}

void PagePool::Forget(PageId page) {
  known_.erase(*pages_[page].content);
  pages_[page].content.reset();
}

}  // namespace tinyllm

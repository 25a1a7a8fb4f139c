#ifndef KVIST_EXAMPLES_TINYLLM_PAGE_POOL_H_
#define KVIST_EXAMPLES_TINYLLM_PAGE_POOL_H_

#include <array>
#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "examples/tinyllm/paged_memory.h"

namespace tinyllm {

// Names what a page holds: 16 tokens after a prefix. Never reused, so the name of a page that is gone finds nothing.
using ContentId = uint64_t;
inline constexpr ContentId kNoContent = 0;  // the empty prefix

// Who uses which page, and which prefixes the pages already hold.
//
// A page is   free       nobody uses it
//             in use     by as many as it has references: sequences that attend to it, copies under way to or from it
//             kept       nobody uses it, but it has a name: found again by FindPrefix until another needs the room (oldest first)
// Allocate makes free or kept pages used; Release of the last reference makes a page kept if it has a name, else free.
//
// Threads: one.
class PagePool {
 public:
  explicit PagePool(uint32_t pages);

  // `count` pages with one reference each, contents unspecified; nothing if there are not as many free and kept ones.
  std::optional<std::vector<PageId>> Allocate(size_t count);
  // One more reference to each of them (already in use).
  void Share(std::span<const PageId> pages);
  // One reference less. The last of `pages` is given up first: prefixes are worth more than what follows them.
  void Release(std::span<const PageId> pages);

  // The pages that hold the longest known prefix of `tokens`, full pages only, with one reference each for the caller.
  struct Prefix {
    std::vector<PageId> pages;
    ContentId content = kNoContent;  // of the last page
  };
  Prefix FindPrefix(std::span<const Token> tokens);
  // Says that `page` (in use) now holds these 16 tokens after `parent`; returns the name to give as parent of the next page.
  // If another page holds the same, that one stays the one to be found.
  ContentId Name(PageId page, ContentId parent, std::span<const Token> tokens);
  // Frees all kept pages: nothing is found until it is computed or loaded again.
  void ForgetKept();

  size_t available() const { return free_.size() + kept_.size(); }
  size_t in_use() const { return pages_.size() - available(); }

 private:
  struct Content {
    ContentId parent;
    std::array<Token, kPageTokens> tokens;
    bool operator==(const Content&) const = default;
    template <class H>
    friend H AbslHashValue(H h, const Content& c) {
      return H::combine(std::move(h), c.parent, c.tokens);
    }
  };
  struct Entry {
    ContentId id;
    PageId page;
  };
  struct Page {
    uint32_t references = 0;
    std::optional<Content> content;       // set while it is the page that FindPrefix finds for it
    std::list<PageId>::iterator kept_at;  // valid while kept
  };

  static Content ContentOf(ContentId parent, std::span<const Token> tokens);
  void Use(PageId page);     // one more reference; from kept, too
  void Forget(PageId page);  // takes its name away

  std::vector<Page> pages_;
  std::vector<PageId> free_;
  std::list<PageId> kept_;  // oldest first
  absl::flat_hash_map<Content, Entry> known_;
  ContentId last_content_ = kNoContent;
};

}  // namespace tinyllm

#endif  // KVIST_EXAMPLES_TINYLLM_PAGE_POOL_H_

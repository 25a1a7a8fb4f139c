"""Who uses which page, and which prefixes the pages already hold."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from torch_engine.model import PAGE_TOKENS

NO_CONTENT = 0  # the empty prefix


class Prefix(NamedTuple):
    pages: list[int]  # one reference each, for the caller
    content: int  # of the last page


class PagePool:
    """A page is

        free    nobody uses it
        in use  by as many as it has references: sequences that attend to it, copies under way to or from it
        kept    nobody uses it, but it has a name: found by find_prefix until another needs the room (oldest first)

    allocate makes free or kept pages used; the last release makes a page kept if it has a name, else free.
    A content id names what a page holds: 16 tokens after a prefix. Ids are never reused, so that of a page that is gone
    finds nothing.
    Threads: one.
    """

    def __init__(self, pages: int) -> None:
        self._references = [0] * pages
        self._free = list(reversed(range(pages)))
        self._kept: OrderedDict[int, None] = OrderedDict()
        self._known: dict[tuple, tuple[int, int]] = {}  # (parent, tokens) -> (content id, page)
        self._name_of: dict[int, tuple] = {}  # page -> its key in _known, while it is the one that is found
        self._last_content = NO_CONTENT

    def allocate(self, count: int) -> list[int] | None:
        """`count` pages with one reference each, contents unspecified; None when there are not as many free and kept
        ones."""
        if count > self.available:
            return None
        while len(self._free) < count:
            self._forget(self._kept.popitem(last=False)[0])
        pages = [self._free.pop() for _ in range(count)]
        for page in pages:
            self._references[page] = 1
        return pages

    def share(self, pages: Sequence[int]) -> None:
        """One more reference to each."""
        for page in pages:
            if self._references[page] == 0:
                del self._kept[page]
            self._references[page] += 1

    def release(self, pages: Sequence[int]) -> None:
        """One reference less. The last page is given up first: prefixes are worth more than what follows them."""
        for page in reversed(pages):
            assert self._references[page] > 0, f"page {page} was given up more often than taken"
            self._references[page] -= 1
            if self._references[page] == 0:
                if page in self._name_of:
                    self._kept[page] = None
                else:
                    self._free.append(page)

    def find_prefix(self, tokens: Sequence[int]) -> Prefix:
        """The pages that hold the longest known prefix of `tokens`, full pages only."""
        pages, content = [], NO_CONTENT
        for first in range(0, len(tokens) - PAGE_TOKENS + 1, PAGE_TOKENS):
            found = self._known.get((content, tuple(tokens[first : first + PAGE_TOKENS])))
            if found is None:
                break
            content = found[0]
            pages.append(found[1])
        self.share(pages)
        return Prefix(pages, content)

    def name(self, page: int, parent: int, tokens: Sequence[int]) -> int:
        """Says that `page` (in use) now holds these 16 tokens after `parent`; the id is the next page's parent.

        When another page holds the same already, that one stays the one to be found.
        """
        key = (parent, tuple(tokens))
        if key not in self._known:
            self._last_content += 1
            self._known[key] = (self._last_content, page)
            self._name_of[page] = key
        return self._known[key][0]

    def forget_kept(self) -> None:
        """Frees all kept pages: nothing is found until it is computed or loaded again."""
        while self._kept:
            self._forget(self._kept.popitem()[0])

    def references(self, page: int) -> int:
        return self._references[page]

    @property
    def available(self) -> int:
        return len(self._free) + len(self._kept)

    @property
    def in_use(self) -> int:
        return len(self._references) - self.available

    def _forget(self, page: int) -> None:
        del self._known[self._name_of.pop(page)]
        self._free.append(page)

import random

from torch_engine.page_pool import NO_CONTENT, PagePool

PAGE = list(range(16))
OTHER = list(range(100, 116))


def test_hands_out_each_page_once_and_no_more_than_there_are():
    pool = PagePool(4)
    pages = pool.allocate(3) + pool.allocate(1)
    assert sorted(pages) == [0, 1, 2, 3]
    assert pool.allocate(1) is None
    pool.release(pages[:2])
    assert pool.allocate(3) is None
    assert sorted(pool.allocate(2)) == sorted(pages[:2])


def test_keeps_a_page_until_its_last_reference_is_gone():
    pool = PagePool(1)
    pages = pool.allocate(1)
    pool.share(pages)
    pool.release(pages)
    assert pool.allocate(1) is None
    pool.release(pages)
    assert pool.allocate(1) == pages


def test_finds_the_longest_named_prefix_in_full_pages():
    pool = PagePool(4)
    first, second = pool.allocate(2)
    content = pool.name(first, NO_CONTENT, PAGE)
    pool.name(second, content, OTHER)
    found = pool.find_prefix(PAGE + OTHER + PAGE)
    assert found.pages == [first, second]
    assert pool.references(first) == 2
    assert pool.find_prefix(PAGE + OTHER[:15]).pages == [first]
    assert pool.find_prefix(OTHER + PAGE).pages == []  # what a page holds depends on all before it
    assert pool.find_prefix(PAGE[:15]).pages == []


def test_keeps_named_pages_until_the_room_is_needed_ends_of_prefixes_first():
    pool = PagePool(3)
    pages = pool.allocate(2)
    pool.name(pages[1], pool.name(pages[0], NO_CONTENT, PAGE), OTHER)
    pool.release(pages)
    assert pool.in_use == 0
    pool.allocate(2)  # the one that was never used, and the end of the prefix
    found = pool.find_prefix(PAGE + OTHER)
    assert found.pages == pages[:1]
    pool.release(found.pages)
    pool.forget_kept()
    assert pool.find_prefix(PAGE).pages == []


def test_content_that_is_gone_names_nothing():
    pool = PagePool(2)
    (parent,) = pool.allocate(1)
    content = pool.name(parent, NO_CONTENT, PAGE)
    pool.release([parent])
    pool.forget_kept()
    (child,) = pool.allocate(1)
    pool.name(child, content, OTHER)
    (again,) = pool.allocate(1)
    pool.name(again, NO_CONTENT, OTHER)  # another parent than that of child
    assert pool.find_prefix(PAGE + OTHER).pages == []


def test_random_operations_lose_no_page():
    generator = random.Random(7)
    pool, taken = PagePool(20), []
    for _ in range(5000):
        if generator.random() < 0.5:
            found = pool.find_prefix([0] * 16 * generator.randrange(4))
            pages = pool.allocate(generator.randrange(1, 5))
            if pages is None:
                pool.release(found.pages)
            else:
                content = found.content
                for page in pages[: generator.randrange(3)]:
                    content = pool.name(page, content, [0] * 16)
                taken.append(found.pages + pages)
        elif taken:
            pool.release(taken.pop(generator.randrange(len(taken))))
        referenced = {page for pages in taken for page in pages}
        assert pool.in_use == len(referenced)
        assert all(pool.references(page) == sum(pages.count(page) for pages in taken) for page in range(20))

import pytest
import torch
from small_model import random_tokens, small_model
from torch_engine.memory import PagedMemory
from torch_engine.model import PAGE_TOKENS, ModelConfig, Span

TOKENS = random_tokens(100, 1)
PAGES = [9, 2, 7, 0, 5, 3, 8]


def kv():
    memory = PagedMemory(small_model().config, 24)
    memory.close()
    return memory.kv


def logits_of(kv, lengths, beside=()):
    """The logits after each of the spans of TOKENS that have these lengths, with other spans in the same batches."""
    found, at = [], 0
    for length in lengths:
        spans = [Span(TOKENS[at : at + length], at, PAGES), *beside]
        found.append(small_model().forward(spans, kv)[0])
        at += length
    return found


def equal(a, b):
    return torch.equal(a.view(torch.int32), b.view(torch.int32))


@pytest.mark.parametrize("lengths", [[1] * 100, [7] * 14 + [2], [16] * 6 + [4], [50, 50], [99, 1]])
def test_logits_dont_depend_on_how_a_prompt_is_cut(lengths):
    assert equal(logits_of(kv(), lengths)[-1], logits_of(kv(), [100])[-1])


def test_logits_dont_depend_on_what_is_computed_beside():
    wanted = logits_of(kv(), [64] + [1] * 36)
    beside = [Span(random_tokens(count, count), 0, pages) for count, pages in ((40, [20, 21, 22]), (5, [13]), (1, [14]))]
    found = logits_of(kv(), [64] + [1] * 36, beside)
    assert all(equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_logits_dont_depend_on_what_unwritten_places_hold():
    dirty = kv()
    dirty.fill_(float("nan"))
    assert equal(logits_of(dirty, [30, 30, 40])[-1], logits_of(kv(), [100])[-1])


def test_logits_depend_on_every_page_of_every_layer():
    clean = kv()
    logits_of(clean, [99])
    wanted = small_model().forward([Span(TOKENS[99:], 99, PAGES)], clean)[0]
    for layer in range(clean.shape[0]):
        for page in PAGES:
            for which in (0, 1):
                spoiled = clean.clone()
                spoiled[layer, page, which, 1, 0, 0].neg_()  # the last page has few tokens
                assert not equal(small_model().forward([Span(TOKENS[99:], 99, PAGES)], spoiled)[0], wanted)


def test_writes_to_the_pages_of_its_span_only():
    memory = kv()
    logits_of(memory, [100])
    written = {page for page in range(memory.shape[1]) if memory[:, page].count_nonzero() > 0}
    assert written == set(PAGES)
    assert memory[:, PAGES[6], :, 100 % PAGE_TOKENS :].count_nonzero() == 0


def test_refuses_a_shape_that_has_no_heads_to_share():
    with pytest.raises(ValueError, match="heads is 4: must be a multiple of kv_heads, 3"):
        ModelConfig(heads=4, kv_heads=3)

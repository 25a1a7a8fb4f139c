"""How SGLang comes to the radix cache, what stops its start, and what its guide says."""

import dataclasses
import re
import shlex
from array import array
from importlib import metadata

import pytest
import tomllib
import torch
from attach_test import GUIDE, commands
from kvist.sglang import device_pool, identity, radix_cache
from kvist.sglang.settings import TreeSettings
from kvist_daemon import REPO
from sglang.srt.mem_cache import registry
from sglang.srt.runtime_context import get_context
from sglang.srt.server_args import prepare_server_args
from tree_engine import kv_pool


@pytest.fixture
def registered(monkeypatch):
    """The plugin as SGLang loads it: by the entry point that the package declares."""
    monkeypatch.setattr(registry, "_RADIX_CACHE_REGISTRY", {})
    declared = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]["entry-points"]
    for name, target in declared["sglang.srt.plugins"].items():
        metadata.EntryPoint(name, target, "sglang.srt.plugins").load()()
    return registry.registered_radix_cache_backends()


def test_sglangs_registry_makes_it(daemon, engines, registered, monkeypatch):
    assert registered == ["kvist"]
    engine = engines(daemon.socket)
    monkeypatch.setattr(radix_cache, "build", lambda context: ("built for", context))
    assert registry.get_radix_cache_factory("kvist")(engine.context) == ("built for", engine.context)


def test_an_installed_package_declares_it():
    try:
        metadata.distribution("kvist")
    except metadata.PackageNotFoundError:
        pytest.skip("kvist runs from its checkout")
    assert [point.value for point in metadata.entry_points(group="sglang.srt.plugins", name="kvist")] == [
        "kvist.sglang_plugin:register"
    ]


def test_the_guides_launch_line_is_parsed_and_served(daemon, engines, registered):
    launches = [command for command in commands() if "--radix-cache-backend" in command]
    assert len(launches) == 1
    words = shlex.split(launches[0])
    args = prepare_server_args(words[words.index("sglang.launch_server") + 1 :])
    assert args.radix_cache_backend in registered and args.page_size == 64 and not args.enable_hierarchical_cache
    assert TreeSettings.of(args.hicache_storage_backend_extra_config) == TreeSettings(namespace="team-a")
    engine = engines(daemon.socket, page=args.page_size, chunk=0, tokens=2048, prefill=1024, namespace="team-a")
    engine.add(array("q", range(600)))
    engine.run()
    engine.settle()
    assert daemon.status()["spaces"][0]["chunks"] == 2  # of 256 tokens


def test_the_guide_explains_each_setting():
    text = GUIDE.read_text()
    for field in dataclasses.fields(TreeSettings):
        assert f"`{field.name}`" in text, field.name


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ('{"namespce": "a"}', "has namespce, which kvist's radix cache doesn't know; it knows socket, namespace"),
        ('{"load_timeout_s": 0}', "load_timeout_s in --hicache-storage-backend-extra-config is 0; wanted is seconds"),
        ('{"load_timeout_s": true}', "wanted is seconds"),
        ('{"chunk_tokens": -1}', "wanted is a whole number, at least 0"),
        ('{"load_min_tokens": 1.5}', "wanted is a whole number, at least 1"),
        ('{"namespace": 7}', "wanted is a text"),
        ("@file.json", "is no JSON"),
        ("[1]", "wanted is a JSON object"),
    ],
)
def test_wrong_settings_stop_the_start(given, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        TreeSettings.of(given)


@pytest.mark.parametrize(
    ("changes", "overridden", "says"),
    [
        ({"disable_radix_cache": True}, {}, "--disable-radix-cache"),
        ({"enable_hierarchical_cache": True}, {}, "take one way to kvist"),
        ({"is_hybrid_swa": True}, {}, "sliding windows"),
        ({"is_hybrid_ssm": True}, {}, "recurrent states"),
        ({}, {"enable_lmcache": True}, "--enable-lmcache"),
        ({}, {"enable_flexkv": True}, "--enable-flexkv"),
        ({}, {"speculative_algorithm": "NGRAM"}, "speculative decoding"),
        ({}, {"disaggregation_mode": "prefill"}, "prefill and decode are parted"),
        ({"pp_size": 2}, {}, "pipeline parallelism"),
        ({"attn_cp_size": 2}, {}, "context parallelism"),
        ({"token_to_kv_pool_allocator": object()}, {}, "KV is allocated by object"),
    ],
)
def test_engines_that_it_cannot_serve_are_refused_by_name(daemon, engines, changes, overridden, says):
    context = engines(daemon.socket).context
    in_context = {name: value for name, value in changes.items() if hasattr(context, name)}
    in_params = {name: value for name, value in changes.items() if name not in in_context}
    context = dataclasses.replace(context, **in_context, params=dataclasses.replace(context.params, **in_params))
    with get_context().override_server_args(**overridden), pytest.raises(ValueError, match=re.escape(says)):
        radix_cache.build(context)


def test_gpu_memory_is_refused_until_kvistd_can_open_it():
    pool = kv_pool("mha", 64, 4)
    pool.v_buffer = [tensor.to("meta") for tensor in pool.v_buffer]  # as far as this machine goes
    with pytest.raises(ValueError, match="CPU engines so far; this one's is on cpu, meta.*comes with kvist's CUDA engine"):
        device_pool.describe(pool, 4, 1)


@pytest.mark.parametrize("change", [{"kv_cache_layout": "hnd"}, {"k_scale_buffer": [torch.zeros(1)]}])
def test_pools_of_other_bytes_are_refused(change):
    pool = kv_pool("mha", 64, 4)
    for name, value in change.items():
        setattr(pool, name, value)
    with pytest.raises(
        ValueError, match="doesn't keep the KV pool MHATokenToKVPool of layout.*it supports MHATokenToKVPool and MLA"
    ):
        device_pool.describe(pool, 4, 1)
    with pytest.raises(ValueError, match="doesn't keep the KV pool _Other"):
        device_pool.describe(type("_Other", (), {})(), 4, 1)


def test_the_space_names_what_changes_the_bytes(daemon, engines):
    """What the storage backend names, too, has its test there."""
    engines(daemon.socket)  # installs SGLang's configuration

    def space(kind="mha", page=4, ranks=1, **settings):
        pool = kv_pool(kind, 64, page)
        groups = device_pool.describe(pool, page, ranks).groups
        return identity.tree_space(None, pool, groups, page, TreeSettings(**settings), ranks)

    base = space()
    assert base == space() and base.chunk_tokens == 256
    assert space("mla", ranks=2).groups[0].replicated and not space(ranks=2).groups[0].replicated
    with get_context().override_server_args(attention_backend="triton"):
        other_backend = space()
    others = [
        space("mla"),
        space(page=8),
        space(ranks=2),
        space(namespace="a"),
        space(weights="a"),
        space(chunk_tokens=8),
        other_backend,
    ]
    assert all(base != other for other in others)


def test_what_else_sglang_asks_of_its_tree(daemon, engines):
    tree = engines(daemon.socket).tree
    tree.check_hicache_events()
    tree.sanity_check()
    assert tree.supports_prefix_sharing() and tree.load_back_is_cache_owned()
    assert tree.full_protected_size() == tree.protected_size() == 0

"""How SGLang comes to the backend, what stops its start, and what it is told."""

import json
import logging
import pathlib
import re
import shlex
import types

import pytest
import sglang
from kvist.sglang import KvistStorage, identity, layout
from kvist.sglang.settings import Settings
from kvist.status import KvistError
from kvist_daemon import REPO
from pools import LAUNCH, config, mha_pool, mla_pool, pages_of
from sglang.srt.mem_cache.pool_host.base import HostKVCache
from sglang.srt.mem_cache.storage import StorageBackendFactory
from sglang.srt.server_args import prepare_server_args

GUIDE = REPO / "examples/sglang/README.md"


def test_sglangs_factory_makes_it(daemon):
    storage = StorageBackendFactory.create_backend("dynamic", config(daemon), None)
    assert type(storage) is KvistStorage
    storage.register_mem_pool_host(mha_pool())
    storage.on_host_pools_registered()
    assert storage.batch_exists(["00" * 32]) == 0
    storage.close()


def test_sglangs_own_injector_of_failures_wraps_it(daemon, monkeypatch):
    monkeypatch.setenv("SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE", "0.3")
    storage = StorageBackendFactory.create_backend("dynamic", config(daemon), None)
    assert type(storage).__name__ == "HiCacheStorageFailureInjector"
    storage.register_mem_pool_host(mha_pool())
    outcomes = {tuple(storage.batch_set_v1(["11" * 32], pages_of(1))) for _ in range(100)}
    assert outcomes == {(True,), (False,)}
    storage._backend.close()


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ({"namespce": "a"}, "namespce, which kvist doesn't know; it knows socket, namespace"),
        ({"deadline_s": 0}, "deadline_s in SGLang's extra config is 0; wanted is seconds"),
        ({"deadline_s": True}, "wanted is seconds"),
        ({"namespace": 7}, "wanted is a text"),
        ({"weights": "x" * 201}, "at most 200 bytes"),
        ({"allocator": "default"}, "\"allocator\" in SGLang's extra config is 'default'"),
    ],
)
def test_wrong_settings_stop_the_start(daemon, setting, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        StorageBackendFactory.create_backend("dynamic", config(daemon, **setting), None)


def test_untried_sglang_is_refused_by_both_ways(daemon, engines, monkeypatch):
    monkeypatch.setattr(sglang, "__version__", "0.5.24")
    wanted = 'SGLang 0.5.23; this is 0.5.24.*"other_versions" in --hicache-storage-backend-extra-config to true'
    with pytest.raises(ValueError, match=wanted):
        KvistStorage(config(daemon), {})
    with pytest.raises(ValueError, match=wanted):
        engines(daemon.socket)
    KvistStorage(config(daemon, other_versions=True), {})
    engine = engines(daemon.socket, other_versions=True)
    engine.add(range(40))
    engine.run()
    with pytest.raises(ValueError, match="other_versions in SGLang's extra config is 'yes'; wanted is true or false"):
        KvistStorage(config(daemon, other_versions="yes"), {})


def test_sglangs_own_settings_are_let_through():
    extra = {
        "prefetch_threshold": 1,
        "prefetch_timeout_base": 1.0,
        "hicache_storage_pass_prefix_keys": True,
        "tp_lcm_size": 8,
    }
    assert Settings.of({**LAUNCH, **extra}) == Settings()


def test_a_pool_outside_shared_memory_is_refused_with_what_to_say(daemon):
    storage = KvistStorage(config(daemon), {})
    with pytest.raises(layout.Unsupported, match=r'not in a memfd.*"allocator": "shm".*@file'):
        storage.register_mem_pool_host(mha_pool(allocator="default"))


def test_pools_that_cannot_be_described_are_refused_by_name(daemon, monkeypatch):
    storage = KvistStorage(config(daemon), {})
    with pytest.raises(
        layout.Unsupported, match="MHATokenToKVPoolHost of layout page_unified .*kvist supports the layouts layer_first"
    ):
        storage.register_mem_pool_host(mha_pool("page_unified"))
    more = mha_pool()
    monkeypatch.setattr(more, "get_size_per_token", lambda: 1000)  # scales beside K and V
    with pytest.raises(layout.Unsupported, match="of which its tensors show"):
        storage.register_mem_pool_host(more)
    moving = mha_pool()
    moving.shared_allocation_domain = object()
    with pytest.raises(layout.Unsupported, match="moves its pages"):
        storage.register_mem_pool_host(moving)
    parted = mla_pool()
    parted._layer_shard_enabled = True
    with pytest.raises(layout.Unsupported, match="shares its pages or layers"):
        storage.register_mem_pool_host(parted)
    copied = mha_pool()
    monkeypatch.setattr(copied, "get_data_page", lambda at, flat=True: HOST_PAGE(copied, at, flat).clone())
    with pytest.raises(layout.Unsupported):
        storage.register_mem_pool_host(copied)
    assert isinstance(copied, HostKVCache)


def HOST_PAGE(pool, at, flat):
    return type(pool).get_data_page(pool, at, flat)


def test_a_pool_that_writes_elsewhere_than_it_says_is_refused(daemon, monkeypatch):
    """The probe pages go through the pool's own indexing."""
    pool = mha_pool()
    honest = pool.set_from_flat_data_page
    monkeypatch.setattr(pool, "set_from_flat_data_page", lambda at, page: honest(0, page))
    storage = KvistStorage(config(daemon), {})
    with pytest.raises(KvistError, match="FAILED_PRECONDITION"):
        storage.register_mem_pool_host(pool)


@pytest.mark.parametrize("args", [{"enable_lora": True}, {"enable_lora": None, "lora_paths": ["a=/b"]}])
def test_lora_is_refused_where_sglangs_hashes_do_not_tell_adapters_apart(daemon, monkeypatch, args):
    seen = types.SimpleNamespace(model_path="m", **args)
    monkeypatch.setattr(identity, "server_args", lambda: seen)
    KvistStorage(config(daemon), {})  # this SGLang binds them
    monkeypatch.setattr("sglang.srt.mem_cache.utils.storage_namespace_seed", lambda extra_key, cache_salt: None)
    with pytest.raises(ValueError, match="LoRA.*page hashes don't tell adapters apart"):
        KvistStorage(config(daemon), {})


def test_shared_salts_are_said_loudly_where_sglang_does_not_hash_them(daemon, monkeypatch, caplog):
    monkeypatch.setattr(identity, "server_args", lambda: None)
    with caplog.at_level(logging.WARNING):
        KvistStorage(config(daemon), {})
        assert "SHARE cached pages" not in caplog.text
        monkeypatch.setattr("sglang.srt.mem_cache.utils.storage_namespace_seed", lambda extra_key, cache_salt: None)
        KvistStorage(config(daemon), {})
    assert "requests of different cache_salt or extra_key SHARE cached pages" in caplog.text


def test_the_space_names_what_changes_the_bytes(daemon, tmp_path, monkeypatch):
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"one")
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter.safetensors").write_bytes(b"a")
    args = types.SimpleNamespace(
        model_path=str(tmp_path), enable_lora=False, lora_paths=[f"a={adapter}"], kv_cache_dtype="auto"
    )
    monkeypatch.setattr(identity, "server_args", lambda: args)
    pool = mha_pool()
    described = layout.describe(pool)
    settings = Settings()

    def space(**changes):
        made = config(daemon, **{key: value for key, value in changes.items() if key in ("tp_rank", "tp_size", "mla")})
        return identity.space_of(
            made, pool, changes.get("name", "kv"), described, changes.get("replicated", False), settings
        )

    base = space(tp_size=2)
    assert base == space(tp_size=2) and base.page_tokens == base.chunk_tokens == 4
    seen = {base.layout, space(tp_size=2, tp_rank=1).layout, space(tp_size=4).layout, space(tp_size=2, name="draft").layout}
    assert len(seen) == 4
    assert space(tp_size=2, replicated=True) == space(tp_size=2, tp_rank=1, replicated=True)
    args.kv_cache_dtype = "fp8_e5m2"
    fp8 = space(tp_size=2)
    weights.write_bytes(b"two!")
    changed = space(tp_size=2)
    (adapter / "adapter.safetensors").write_bytes(b"bb")
    adapted = space(tp_size=2)
    assert len({base.revision, fp8.revision, changed.revision, adapted.revision}) == 4
    args.load_format, args.random_seed = "dummy", 1
    dummy = space(tp_size=2).revision
    args.random_seed = 2
    assert dummy != space(tp_size=2).revision
    args.model_path = "someone/model"  # of a hub: the commit that lies in the cache
    commits = []
    monkeypatch.setattr(
        "huggingface_hub.try_to_load_from_cache", lambda *_, **__: f"/hub/snapshots/{commits[-1]}/config.json"
    )
    for commit in ("aaa", "bbb"):
        commits.append(commit)
        assert space(tp_size=2).revision.startswith(f"commit {commit} ")
    monkeypatch.setattr(sglang, "__version__", "0.0.0")
    assert space(tp_size=2).layout != base.layout
    settings = Settings(namespace="x" * 200)
    long = space(tp_size=2)
    settings = Settings(namespace="x" * 199 + "y")
    assert long.layout != space(tp_size=2).layout and len(long.layout.encode()) <= 255


# ---- the guide ----


def commands():
    """[command] of the guide's shell blocks, joined at backslashes."""
    blocks = re.findall(r"```sh\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    joined = [re.sub(r"\\\n\s*", " ", block) for block in blocks]
    return [line.split("  #")[0].strip() for block in joined for line in block.splitlines() if line.strip()]


def test_the_guides_launch_lines_are_parsed_by_sglang(daemon, monkeypatch):
    launches = [command for command in commands() if "--hicache-storage-backend dynamic" in command]
    assert launches
    for command in launches:
        words = shlex.split(command)
        args = prepare_server_args(words[words.index("sglang.launch_server") + 1 :])
        assert args.enable_hierarchical_cache and args.hicache_storage_backend == "dynamic"
        assert args.page_size == 64 and args.hicache_mem_layout == "page_first"
        extra = json.loads(args.hicache_storage_backend_extra_config)  # as SGLang's allocator reads it: not from a file
        assert extra["allocator"] == "shm"
        given = config(daemon)
        given.extra_config = {**extra, "socket": daemon.socket}
        storage = StorageBackendFactory.create_backend("dynamic", given, None)
        storage.register_mem_pool_host(mha_pool(args.hicache_mem_layout))
        assert storage.batch_set_v1(["22" * 32], pages_of(1)) == [True]
        storage.close()


def test_the_guide_explains_each_setting():
    text = GUIDE.read_text()
    for name in Settings.__dataclass_fields__:
        assert f"`{name}`" in text, name


def test_the_guides_other_commands_name_what_is_there():
    for command in commands():
        for word in shlex.split(command):
            if (
                "/" in word
                and not word.startswith(("-", "http", "/"))
                and "=" not in word
                and pathlib.PurePath(word).suffix == ".sh"
            ):
                assert (REPO / word).exists(), command
    assert any(command.startswith("pip install") for command in commands())

"""Two tensor-parallel ranks, each a process with SGLang's controller, over one kvistd."""

import multiprocessing
import threading
import types
from array import array

import torch
import torch.distributed as dist
from pools import LAUNCH, PAGE, fill, mha_pool, pages_of, read
from sglang.srt.managers.cache_controller import HiCacheController
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.utils import get_storage_hash_str
from sglang.srt.runtime_context import get_context, get_parallel

PAGES = 10
KEPT = (10, 6)  # pages that each rank has stored


class DevicePool:
    device = torch.device("cpu")
    layer_num = 3

    def register_layer_transfer_counter(self, _counter):
        pass


def rank_process(rank, meet, socket, answers):
    try:
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=2)
        get_context().override_server_args().install()
        pool = mha_pool(pages=40)
        with get_parallel().override(
            tp_rank=rank, tp_size=2, attn_tp_size=2, moe_tp_size=2, pp_rank=0, pp_size=1, attn_dcp_rank=0
        ):
            controller = HiCacheController(
                types.SimpleNamespace(get_kvcache=DevicePool),
                pool,
                PAGE,
                dist.group.WORLD,
                threading.Event(),
                io_backend="direct",
                storage_backend="dynamic",
                prefetch_threshold=PAGE,
                model_name="toy",
                storage_backend_extra_config={**LAUNCH, "socket": socket, "weights": "toy"},
            )
        tokens = RadixKey(array("q", range(PAGES * PAGE)))
        names = get_storage_hash_str(tokens, None, page_size=PAGE)
        content = [fill(pool, page, 1000 * rank + page) for page in range(PAGES)]
        kept = KEPT[rank]
        controller.write_storage(pages_of(*range(kept)), tokens, names[:kept])
        stored = controller.ack_backup_queue.get(timeout=60).completed_tokens // PAGE
        dist.barrier()
        controller.prefetch("request", tokens)
        operation = controller.prefetch_hit_queue.get(timeout=60)
        hit = operation.storage_hit_count // PAGE
        operation.host_indices = pages_of(*range(20, 20 + hit))
        controller.prefetch_buffer.put(operation)
        came = 0
        while True:
            ack = controller.ack_prefetch_queue.get(timeout=60)
            if ack.completed_tokens is not None:
                came = ack.completed_tokens // PAGE
            if ack.completed_req:
                break
        right = all(torch.equal(read(pool, 20 + n), content[n]) for n in range(came))
        dist.barrier()
        controller.detach_storage_backend()
        answers.put((rank, stored, hit, came, right))
    except BaseException as error:  # noqa: BLE001
        answers.put((rank, repr(error)))
        raise


def test_ranks_take_what_all_of_them_have_and_each_its_own(daemon, tmp_path):
    spawn = multiprocessing.get_context("spawn")
    answers = spawn.Queue()
    ranks = [
        spawn.Process(target=rank_process, args=(r, tmp_path / "meet", daemon.socket, answers), daemon=True)
        for r in range(2)
    ]
    for process in ranks:
        process.start()
    try:
        found = sorted(answers.get(timeout=180) for _ in ranks)
    finally:
        for process in ranks:
            process.join(30)
            process.kill()
    assert found == [(0, 10, 6, 6, True), (1, 6, 6, 6, True)]

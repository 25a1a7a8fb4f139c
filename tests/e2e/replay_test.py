#!/usr/bin/env python3
"""kvist-replay against real kvistd processes: its counts must be those of the model in tests/support/lru_leaf_model.py, and it must leave
nothing behind, however it ends.

usage: replay_test.py KVIST_REPLAY [--short] [unittest arguments]     $KVISTD names the kvistd, else the one beside KVIST_REPLAY is used
  --short   parts of the long traces only, for slow builds
"""

import gzip
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))
import lru_leaf_model  # noqa: E402

TRACES = ROOT.parent / "shared" / "traces"  # real ones; not part of the project
REPLAY = pathlib.Path()
SHORT = False
DEADLINE_S = 60  # of anything; a hang fails, slowness does not


def await_condition(condition, what):
    end = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"waited {DEADLINE_S} s in vain until {what}")
        time.sleep(0.005)


def processes_of(directory):
    """Processes whose command line names something in the directory."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if os.fsencode(str(directory)) + b"/" in words:
                found.append(int(entry.name))
    return found


def listening_ports(pid):
    """TCP ports at which a process listens."""
    inodes, ports = set(), []
    for entry in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(entry)
        except FileNotFoundError:
            continue  # closed since it was listed
        if target.startswith("socket:["):
            inodes.add(target[len("socket:["):-1])
    for table in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in inodes:
                ports.append(int(words[1].rsplit(":", 1)[1], 16))
    return ports


def row(ids, tail_tokens=0, timestamp=0):
    """A line of a trace: a prompt of so many full blocks, and of a partial one if there is a tail."""
    tokens = len(ids) * 512 if tail_tokens == 0 else (len(ids) - 1) * 512 + tail_tokens
    return json.dumps({"timestamp": timestamp, "input_length": tokens, "output_length": 1, "hash_ids": ids}) + "\n"


def random_trace(seed, requests, branch_blocks_max):
    """Conversations that go on, fork and end, as text."""
    rng = random.Random(seed)
    lines, paths, fresh = [], [[]], 0
    for _ in range(requests):
        path = list(rng.choice(paths[-40:]))
        path = path[: rng.randint(0, len(path))] if rng.random() < 0.4 else path
        more = rng.randint(0, branch_blocks_max)
        path += range(fresh, fresh + more)
        fresh += more
        paths.append(path)
        tail = rng.choice([0, 1, 511]) if path else 0
        lines.append(row(path, tail))
        if tail and path:
            paths[-1] = path[:-1]  # another tail would have another id
    return "".join(lines)


class ReplayTest(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="kvist-replay-test-"))
        self.temporary = self.directory / "t"
        self.temporary.mkdir()
        self.environment = dict(os.environ, TMPDIR=str(self.temporary))

    def tearDown(self):
        self.assertEqual(list(self.temporary.iterdir()), [], "files were left behind")
        self.assertEqual(processes_of(self.directory), [], "processes were left behind")
        shutil.rmtree(self.directory)

    def write(self, name, text):
        path = self.directory / name
        path.write_text(text)
        return path

    def run_replay(self, *arguments):
        return subprocess.run([REPLAY, *map(str, arguments)], env=self.environment, capture_output=True, text=True, timeout=DEADLINE_S * 5)

    def replay_json(self, *arguments):
        done = self.run_replay(*arguments, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("\n"), 1, "one object on one line")
        return json.loads(done.stdout)

    def check_against_model(self, path, fraction, *arguments, limit=None):
        started = time.monotonic()
        found = self.replay_json("--trace", path, "--dram-fraction", fraction, *arguments, *([] if limit is None else ["--limit", limit]))
        seconds = time.monotonic() - started
        expected = lru_leaf_model.replay(lru_leaf_model.read_trace(path, limit), fraction)
        self.assertEqual({key: found[key] for key in expected}, expected)
        self.assertEqual(found["wrong_bytes"], 0)
        self.assertAlmostEqual(found["hit_ratio"], expected["hit_blocks"] / max(1, expected["blocks"]), places=12)
        print(f"{path.name}, fraction {fraction}: {found['requests']} requests, {found['hit_blocks']} hits, {found['stored_blocks']} stored, "
              f"load {found['load_gbps']:.2f} GB/s, store {found['store_gbps']:.2f} GB/s, {seconds:.1f} s", flush=True)
        return found

    # ---- counts

    def test_generated_traces(self):
        for seed in range(3 if SHORT else 8):
            path = self.write("generated.jsonl", random_trace(seed, 300, 9))
            with self.subTest(seed=seed):
                for fraction in (0.005, 0.03, 0.2, 1.0):
                    self.check_against_model(path, fraction, "--block-bytes", "4KiB")

    def test_two_tiers(self):
        """With a disk that holds everything nearly all that was ever stored is a hit, though memory has room for little of it."""
        path = self.write("tiers.jsonl", random_trace(7, 300, 9))
        common = ("--trace", path, "--block-bytes", "16KiB", "--dram-fraction")
        memory, all_in_memory = (self.replay_json(*common, fraction) for fraction in (0.1, 1))
        # Nothing waits for a disk: where others keep it busy some of what leaves memory isn't written.
        for _ in range(3):
            disk = self.replay_json(*common, 0.1, "--ssd-fraction", 1)
            self.assertEqual(disk["wrong_bytes"], 0)
            if disk["hit_blocks"] > 0.9 * all_in_memory["hit_blocks"]:
                break
        print(f"two tiers: {memory['hit_blocks']} hits in memory alone, {disk['hit_blocks']} with a disk, {all_in_memory['hit_blocks']} where all fits")
        self.assertGreater(disk["hit_blocks"], 0.9 * all_in_memory["hit_blocks"])
        self.assertLess(memory["hit_blocks"], 0.8 * all_in_memory["hit_blocks"], "the trace proves nothing")

    def test_requests_longer_than_the_pool(self):
        for seed in range(100, 103):
            path = self.write("long.jsonl", random_trace(seed, 120, 120))
            with self.subTest(seed=seed):
                for fraction in (1e-6, 0.002, 0.01):
                    self.check_against_model(path, fraction, "--block-bytes", "16KiB")

    def test_requests_longer_than_the_page_memory(self):
        # 1 MiB blocks: 32 of them fill the page memory. Prompts of 100 blocks are loaded and stored in batches.
        self.check_against_model(self.write("batches.jsonl", random_trace(200, 20, 100)), 0.3, "--block-bytes", "1MiB")

    def test_request_with_more_blocks_than_one_lookup_asks_for(self):
        ids = list(range(5000))
        path = self.write("huge.jsonl", row(ids) + row(ids) + row(ids[:100] + [9000]) + row(ids[:4200], 7))
        for fraction in (1.0, 0.5):
            found = self.check_against_model(path, fraction, "--block-bytes", "4KiB")
        self.assertGreater(found["hit_blocks"], 2000)

    def test_prompts_without_a_full_block(self):
        found = self.check_against_model(self.write("short.jsonl", row([]) + row([1], 100) + row([1], 100)), 0.1)
        self.assertEqual((found["blocks"], found["hit_blocks"]), (2, 0))

    @unittest.skipUnless((TRACES / "conversation_dev.jsonl.gz").exists(), f"no traces in {TRACES}")
    def test_conversation_trace(self):
        path = TRACES / "conversation_dev.jsonl.gz"
        for fraction in (0.0001, 0.01, 0.3):
            self.check_against_model(path, fraction, limit=600 if SHORT else 2000)
        found = self.check_against_model(path, 0.10, limit=1000 if SHORT else None)
        self.assertGreater(found["hit_blocks"], 0)

    @unittest.skipUnless((TRACES / "synthetic_trace.jsonl.gz").exists(), f"no traces in {TRACES}")
    def test_synthetic_trace(self):
        path = TRACES / "synthetic_trace.jsonl.gz"
        for fraction in (0.002, 0.03, 0.5):
            self.check_against_model(path, fraction, "--block-bytes", "16KiB", limit=500 if SHORT else 2000)

    @unittest.skipUnless((TRACES / "weka_cc_dev.jsonl.gz").exists(), f"no traces in {TRACES}")
    def test_agents_trace(self):
        self.check_against_model(TRACES / "weka_cc_dev.jsonl.gz", 0.03, "--block-bytes", "4KiB", limit=200 if SHORT else 2000)

    # ---- a daemon that is there already

    def start_daemon(self, slots, block_bytes, share):
        slot = block_bytes + 4096
        place = self.directory
        settings = {"daemon.state_dir": f"'{place}/state'", "session.socket": f"'{place}/engine.sock'", "admin.socket": f"'{place}/admin.sock'",
                    "pool.bytes": slots * slot, "pool.slab_bytes": slot, "lease.share": share, "metrics.listen": "''", "log.level": "'warn'",
                    "ssd.enabled": "false"}
        sections = {}
        for key, value in settings.items():
            section, name = key.split(".")
            sections.setdefault(section, []).append(f"{name} = {value}\n")
        config = self.write("kvistd.toml", "".join(f"[{name}]\n" + "".join(lines) for name, lines in sections.items()))
        program = os.environ.get("KVISTD") or REPLAY.parent / "kvistd"
        daemon = subprocess.Popen([program, "--config", config], stdout=subprocess.PIPE, text=True)
        self.addCleanup(daemon.kill)
        self.addCleanup(daemon.stdout.close)
        while (line := daemon.stdout.readline()) not in ("READY\n", ""):
            pass
        self.assertEqual(line, "READY\n", "kvistd ended before it was ready")
        return daemon, place / "engine.sock"

    def stop_daemon(self, daemon):
        daemon.terminate()
        self.assertEqual(daemon.wait(DEADLINE_S), 0)

    def test_second_run_hits_what_the_first_has_stored(self):
        path = self.write("two.jsonl", random_trace(300, 100, 9))
        requests = lru_leaf_model.read_trace(path)
        full = sum(len(ids) for _, ids in requests)
        daemon, socket = self.start_daemon(lru_leaf_model.slots_of(requests, 1.0), 4096, 1.0)
        try:
            first = self.replay_json("--trace", path, "--socket", socket, "--block-bytes", 4096)
            second = self.replay_json("--trace", path, "--socket", socket, "--block-bytes", 4096)
        finally:
            self.stop_daemon(daemon)
        self.assertEqual(first["hit_blocks"] + first["stored_blocks"], full)
        self.assertEqual((second["hit_blocks"], second["stored_blocks"], second["wrong_bytes"]), (full, 0, 0))

    def test_hit_beyond_the_lease_budget_is_loaded_in_parts(self):
        path = self.write("budget.jsonl", row(list(range(100))) * 2)
        daemon, socket = self.start_daemon(100, 4096, 0.4)
        try:
            found = self.replay_json("--trace", path, "--socket", socket, "--block-bytes", 4096)
        finally:
            self.stop_daemon(daemon)
        self.assertEqual((found["stored_blocks"], found["hit_blocks"], found["wrong_bytes"]), (100, 100, 0))

    def test_no_daemon_at_the_socket(self):
        done = self.run_replay("--trace", self.write("one.jsonl", row([1])), "--socket", self.directory / "none.sock")
        self.assertEqual(done.returncode, 1)
        self.assertIn("none.sock", done.stderr)

    # ---- how it ends

    def start_waiting_replay(self):
        """A replay whose second request is an hour away, once its daemon serves."""
        path = self.write("slow.jsonl", row([1]) + row([1, 2], timestamp=3_600_000))
        replay = subprocess.Popen([REPLAY, "--trace", path, "--trace-time", "--block-bytes", "4KiB"], env=self.environment,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(replay.kill)
        self.addCleanup(replay.stdout.close)
        self.addCleanup(replay.stderr.close)
        await_condition(lambda: any(self.temporary.glob("*/engine.sock")) or replay.poll() is not None, "kvistd has its socket")
        self.assertIsNone(replay.poll(), "it ended early")
        return replay

    def test_signals_end_it_and_its_daemon(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            replay = self.start_waiting_replay()
            replay.send_signal(number)
            self.assertEqual(replay.wait(DEADLINE_S), 128 + number)
            self.assertEqual(list(self.temporary.iterdir()), [])

    def test_its_daemon_takes_no_port(self):
        replay = self.start_waiting_replay()
        [daemon] = [pid for pid in processes_of(self.temporary) if pid != replay.pid]
        await_condition(lambda: any(self.temporary.glob("*/admin.sock")), "kvistd has all its sockets")
        self.assertEqual(listening_ports(daemon), [])
        replay.terminate()
        self.assertEqual(replay.wait(DEADLINE_S), 128 + signal.SIGTERM)

    def test_its_daemon_does_not_outlive_kill_9(self):
        replay = self.start_waiting_replay()
        daemons = [pid for pid in processes_of(self.temporary) if pid != replay.pid]
        self.assertEqual(len(daemons), 1)
        replay.kill()
        replay.wait(DEADLINE_S)
        await_condition(lambda: not processes_of(self.temporary), "kvistd has ended")
        for left in self.temporary.iterdir():
            shutil.rmtree(left)  # nobody was left to do it

    def test_trace_time_keeps_the_distance(self):
        path = self.write("timed.jsonl", row([1], timestamp=5000) + row([1, 2], timestamp=5400))
        started = time.monotonic()
        self.assertEqual(self.replay_json("--trace", path, "--trace-time", "--block-bytes", "4KiB", "--dram-fraction", 1)["hit_blocks"], 1)
        self.assertGreaterEqual(time.monotonic() - started, 0.4)

    def test_prefill_rate_takes_as_long_as_an_engine(self):
        """A second for 40 blocks, once: what was stored isn't computed again."""
        path = self.write("prefill.jsonl", row(list(range(40))) * 2)
        started = time.monotonic()
        found = self.replay_json("--trace", path, "--prefill-rate", 40 * 512, "--block-bytes", "4KiB", "--dram-fraction", 1)
        self.assertGreaterEqual(time.monotonic() - started, 1)
        self.assertIn(" 3 ", self.run_replay("--trace", path, "--prefill-rate", 40 * 512, "--dram-fraction", 1).stdout.split("store ")[1])
        self.assertEqual((found["stored_blocks"], found["hit_blocks"], found["wrong_bytes"]), (40, 40, 0))

    def test_signal_ends_a_prefill(self):
        path = self.write("slow_prefill.jsonl", row(list(range(40))))
        replay = subprocess.Popen([REPLAY, "--trace", path, "--prefill-rate", "1", "--block-bytes", "4KiB"], env=self.environment,
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(replay.kill)
        await_condition(lambda: any(self.temporary.glob("*/engine.sock")) or replay.poll() is not None, "kvistd has its socket")
        replay.terminate()
        self.assertEqual(replay.wait(DEADLINE_S), 128 + signal.SIGTERM)

    def test_table_shows_every_hook(self):
        done = self.run_replay("--trace", self.write("table.jsonl", row([1, 2]) * 2), "--dram-fraction", 1)
        self.assertEqual(done.returncode, 0, done.stderr)
        for word in ("hits", "lookup", "load", "store", "release", "GB/s", "p99"):
            self.assertIn(word, done.stdout)
        self.assertEqual(done.stderr, "", "no progress bar where there is no terminal")

    # ---- wrong input

    def refused(self, *arguments):
        done = self.run_replay(*arguments)
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assertEqual(done.stdout, "")
        return done.stderr

    def test_wrong_usage(self):
        path = self.write("good.jsonl", row([1]))
        self.assertIn("--trace", self.refused())
        self.assertIn("--nonsense", self.refused("--trace", path, "--nonsense"))
        self.assertIn("--dram-fraction", self.refused("--trace", path, "--dram-fraction", "-1"))
        self.assertIn("--dram-fraction", self.refused("--trace", path, "--dram-fraction", "nan"))
        for wrong in ("1000", "-4096", "-4KiB", "512MiB", "99999999999999999999", "many"):
            self.assertEqual(self.refused("--trace", path, "--block-bytes=" + wrong).splitlines()[0],
                             "--block-bytes: must be a multiple of 4 KiB, at most 256 MiB; it is " + wrong)
        self.assertIn("--block-bytes", self.refused("--trace", path, "--block-bytes", "64bananas"))
        for wrong in ("0", "-1", "1.5", "1e3", "18446744073709551616"):
            self.assertEqual(self.refused("--trace", path, "--limit=" + wrong).splitlines()[0],
                             "--limit: must be a whole number from 1 to 18446744073709551615; it is " + wrong)
        self.assertIn("--prefill-rate", self.refused("--trace", path, "--prefill-rate", "0"))
        self.assertIn("--socket", self.refused("--trace", path, "--socket", "x", "--dram-fraction", "0.1"))

    def test_unusable_traces_are_named_with_their_line(self):
        self.assertIn("nothing.jsonl", self.refused("--trace", self.directory / "nothing.jsonl"))
        self.assertIn("empty.jsonl:1:", self.refused("--trace", self.write("empty.jsonl", "")))
        for text in ("{", "[]", '{"timestamp": 0, "input_length": -5, "hash_ids": []}', '{"timestamp": 0, "input_length": 5, "hash_ids": [1.5]}',
                     '{"timestamp": 1e17, "input_length": 512, "hash_ids": [1]}', "\0",
                     '{"timestamp": 0, "hash_ids": [1]}', '{"timestamp": "x", "input_length": 512, "hash_ids": [1]}'):
            with self.subTest(text=text):
                self.assertIn("bad.jsonl:3:", self.refused("--trace", self.write("bad.jsonl", row([1]) + row([2]) + text + "\n")))
        self.assertIn("/dev/zero:1:", self.refused("--trace", "/dev/zero"))
        whole = gzip.compress("".join(row(list(range(i, i + 50))) for i in range(2000)).encode())
        cut = self.directory / "cut.jsonl.gz"
        cut.write_bytes(whole[: len(whole) // 2])
        self.assertRegex(self.refused("--trace", cut), r"cut\.jsonl\.gz:\d+: .*too early")
        damaged = self.directory / "damaged.jsonl.gz"
        damaged.write_bytes(whole[:500] + bytes(200) + whole[700:])
        self.assertRegex(self.refused("--trace", damaged), r"damaged\.jsonl\.gz:\d+: ")


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    REPLAY = pathlib.Path(sys.argv.pop(1)).resolve()
    if "--short" in sys.argv:
        sys.argv.remove("--short")
        SHORT = True
    unittest.main()

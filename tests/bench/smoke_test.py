#!/usr/bin/env python3
"""Runs one subcommand of kvist-bench as quickly as can be and checks what it prints. No figure is judged.

usage: smoke_test.py KVIST_BENCH SUBCOMMAND [OPTION]...
"""

import json
import math
import random
import subprocess
import sys
import tempfile

# Cases that a subcommand always has, and whether they have a goal.
CASES = {
    "lookup": {
        "512 chunks above empty, p50": 1,
        "512 chunks above empty from cold caches, p50": 1,
        "512 chunks, p99": None,
        "chain of 131,072 tokens": 1.1,
        "memory at 10 M, each chunk": 1,
        "512 chunks at 10 M beside 1 M, p50": 1.5,
    },
    "clear": {"round trip during a clear, p99": 1, "clear of 1 M at 1,000 round trips a second": 5},
    "directory": {
        case: goal
        for how in ("nothing shared", "some shared", "all shared")
        for case, goal in (
            (f"{how}: a (chunk, node)", 1),
            (f"{how}: 512 chunks, p99", 1),
            (f"{how}: 512 chunks beside changes, p99", 1),
            (f"{how}: 512 chunks beside snapshots, p99", 1),
            (f"{how}: changes", None),
        )
    },
    "roundtrip": {"idle same core": 1.5, "warm same core": None, "idle daemon cpu": 1},
    "copy": {
        **{f"{way} {size} KiB pages, 256 MiB": 0.85 for way in ("store", "load") for size in (16, 32, 64)},
        **{f"{way} {size} KiB pages, one chunk": None for way in ("store", "load") for size in (16, 32, 64)},
        **{f"process_vm {way} 64 KiB pages, 256 MiB": 0.85 for way in ("store", "load")},
        **{f"limit check, {way}: loop, plain memcpy": 1 for way in ("store", "load")},
    },
    "copy --device cuda": {
        **{
            f"{way} {size} KiB pages, 256 MiB": goal
            for way in ("store", "load")
            for size, goal in ((4, 0.6), (16, 0.85), (32, 0.95), (64, 0.97), (256, 0.97))
        },
        **{f"{way} {size} KiB pages, cpu": 1 for way in ("store", "load") for size in (64, 256)},
        "store and load at once, 64 KiB pages": 0.85,
        "first layer of a load, 64 KiB pages": 1.3,
    },
    "codec": {
        "lossless ratio": 1,
        "lossless encode beside planes + zstd-1": 0.9,
        "lossless decode beside planes + zstd-1": 0.9,
        "int8 ratio": 1,
        "int8 encode beside memcpy": 0.1,
        "int8 decode beside memcpy": 0.6,
        "fp8 ratio": None,
        "int4 ratio": 1,
        "strongest ratio": 1,
        "strongest error beside int4": 1,
        "strongest attention error beside int4": 1,
    },
    "ssd": {
        **{f"{way} {size} MiB shards": 0.9 for way in ("write", "read") for size in (2, 16)},
        **{f"{way} {size} MiB shards, cpu": 1 for way in ("write", "read") for size in (2, 16)},
        "layer 0 of 64 chunks": 2,
        "load of 64 chunks from disk": 0.9,
        "wait for layer 0 of 64 chunks": 2,
        "seal of a header, 64 layers": None,
    },
    "remote": {
        **{f"{way} {size}": 0.8 for way in ("put", "get") for size in ("256 KiB", "2 MiB", "8 MiB")},
        **{f"{way} 2 MiB, encrypted": None for way in ("put", "get")},
        **{
            f"local hit, {store}, {figure}": goal if store != "both up" else None
            for store in ("both up", "killed", "hung")
            for figure, goal in (("p50", 1.05), ("p99", 1.5))
        },
    },
    "restart": {
        "first hit after kill -9": 1,
        "all found after kill -9": 1,
        "all found without catalog": 2,
        "first hit without catalog": None,
    },
    "policy": {
        "conversation_dev 3 %: LHD + 0.5 points beside LRU": 1,
        "conversation_dev 3 %: LHD gains": 1,
        "conversation_dev 1 %: hits, LHD leaf beside OPT": None,
        "a ghost": 1,
        "core a block, conversation_dev 10 %": None,
    },
    "granularity": {
        "conversation_dev, 256 tokens: tail lost a turn": None,
        "weka_cc_dev, 64 tokens: index a 1,000 tokens": None,
        "load of 2048 tokens in chunks of 64 beside 512": None,
    },
    "overhead": {"throughput, all misses": 0.97, "KV bytes per token, stored": None, "prefill vs bare GEMM": 0.3},
}
KEYS = ["case", "value", "unit", "limit", "ratio", "better", "goal"]


def check(condition, what):
    if not condition:
        sys.exit(f"smoke_test: {what}")


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    check(done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def write_trace(path):
    """Conversations about nothing, each of whose turns repeats the turns before it; one in three goes on."""
    chance = random.Random(1)
    block, talks = 0, []
    with open(path, "w") as trace:
        for row in range(200):
            talk = chance.choice(talks) if talks and chance.random() < 0.3 else []
            turn = list(range(block, block + chance.randint(1, 9)))
            block += len(turn)
            talks.append(talk + turn)
            trace.write(json.dumps({"timestamp": row, "input_length": 512 * len(talks[-1]), "output_length": 1,
                                    "hash_ids": talks[-1], "stop": "end_turn"}) + "\n")
    return path


def main():
    bench, subcommand, *options = sys.argv[1:]
    name = " ".join([subcommand, *options])
    with tempfile.TemporaryDirectory() as folder:
        arguments = [bench, subcommand, *options, "--quick"]
        if name == "policy":
            arguments += ["--trace", write_trace(f"{folder}/conversation_dev.jsonl")]
        check_report(name, arguments)


def check_report(name, arguments):
    report = json.loads(run(*arguments, "--json"))
    check(list(report) == ["benchmark", "machine", "cases"], f"keys of the report: {list(report)}")
    check(report["benchmark"] == name.split()[0] and report["machine"], "benchmark or machine is wrong")
    goals = {}
    for case in report["cases"]:
        check(list(case) == KEYS, f"keys of a case: {list(case)}")
        check(case["better"] in ("higher", "lower"), f"better: {case}")
        check(all(math.isfinite(case[key]) for key in ("value", "limit", "ratio")), f"not a number: {case}")
        check(case["limit"] > 0 and abs(case["ratio"] - case["value"] / case["limit"]) < 1e-9, f"ratio is not value / limit: {case}")
        goals[case["case"]] = case["goal"]
    for case, goal in CASES[name].items():
        check(case in goals, f"no case {case!r} among {list(goals)}")
        check(goals[case] == goal, f"goal of {case!r}: {goals[case]}, not {goal}")

    table = run(*arguments)
    check(all(case in table for case in goals), f"the table lacks a case:\n{table}")


if __name__ == "__main__":
    main()

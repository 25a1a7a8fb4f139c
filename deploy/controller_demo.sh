#!/usr/bin/env bash
# Shows what an operator can do with a prompt: an engine's document is looked up, pinned, moved to SSD and to Redis, compressed there, cleared, and
# stays cleared after a restart. Asks nothing and leaves nothing running.
#
# usage: deploy/controller_demo.sh [--short] [--bin DIR]
#   --short     a short document: seconds, for tests
#   --bin DIR   kvistd, kvistctl and tinyllm are there; else what is missing is installed (apt; root or sudo) and they are built
#
# One kvistd with DRAM, a disk and a redis-server of its own; tinyllm is the engine, whose tokens are bytes. Every step is a kvistctl call, and is
# checked by looking the document up again: `kvistctl CALL -o json` says the same to programs. Exit status 0 only when all is as it should be.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)

phase_seconds=300

bin=''; bytes=8192
while [ $# -gt 0 ]; do
  case "$1" in
    --short) bytes=2048 ;;
    --bin) bin=${2:?--bin needs a directory}; shift ;;
    *) sed -n '2,9p' "$0"; exit 2 ;;
  esac
  shift
done

stopped_in_order=(engine kvistd redis)
# shellcheck source=deploy/demo_lib.sh
. "$root/deploy/demo_lib.sh"

ctl() { "$bin/kvistctl" --socket "$work/admin.sock" "$@"; }
show() { echo "  \$ kvistctl $*"; ctl "$@" 2>&1 | tee "$work/shown" | sed 's/^/    /'; }
shown() { grep -qE -- "$1" "$work/shown" || fail "kvistctl didn't say \"$1\""; }
prompt=(--tokens "$work/tokens")

tokens_in() {  # dram, ssd or remote: so many tokens of the document
  ctl lookup "${prompt[@]}" -o json | sed -n "s/^ *\"$1_tokens\": \([0-9]*\),\{0,1\}$/\1/p" | head -n 1
}
expect() {  # tier, at least so many tokens, at most
  local found; found=$(tokens_in "$1")
  [ "${found:-0}" -ge "$2" ] && [ "${found:-0}" -le "$3" ] || fail "$1 has ${found:-no} tokens of the document instead of $2 to $3"
}

start_kvistd() {
  start kvistd "$bin/kvistd" --set "daemon.state_dir=$work/state" --set "session.socket=$work/engine.sock" --set "admin.socket=$work/admin.sock" \
    --set metrics.listen= --set pool.bytes=256MiB --set ssd.capacity=1GiB \
    --set "remote.store=redis://$work/redis.sock" --set remote.lookup_wait=2s
  await "kvistd reaches Redis" sh -c "'$bin/kvistctl' --socket '$work/admin.sock' status -o json | grep -q '\"reachable\": true'"
}

run_engine() {  # the exit status that is right, phase, tinyllm's arguments
  local expected=$1 phase=$2 status=0; shift 2
  start engine timeout "$phase_seconds" "$bin/tinyllm" demo --socket "$work/engine.sock" --documents "$work/documents" --rounds 1 \
    --document-bytes "$bytes" --answer-tokens 4 --phases "$phase" "$@"
  wait "${pids[engine]}" || status=$?
  unset "pids[engine]"
  [ "$status" = "$expected" ] || fail "$phase: tinyllm ended with status $status instead of $expected"
}

build_for_demo

mkdir "$work/documents"
head -c "$bytes" "$root/LICENSE" >"$work/documents/LICENSE"

say "a redis-server, a kvistd with DRAM, a disk and that Redis; an engine reads the document"
start redis redis-server --port 0 --unixsocket "$work/redis.sock" --unixsocketperm 700 --dir "$work" --save '' --appendonly no
start_kvistd
run_engine 0 cold --logits-out "$work/logits" --prompt-out "$work/tokens"
all=$(wc -l <"$work/tokens")

say "looked up"
show lookup "${prompt[@]}"
expect dram 256 "$all"
have=$(tokens_in dram)

say "pinned"
show pins add "${prompt[@]}" --owner demo --for 10m

say "moved to SSD: pinned chunks stay in DRAM, so the pin goes first"
show pins remove "$(ctl pins -o json | sed -n 's/^ *"id": "\{0,1\}\([0-9]*\)"\{0,1\},$/\1/p' | head -n 1)"
# What others need of it stays in DRAM: so each reader's prompt, which ends in chunks of its own.
for reader in 2 1; do show move --tokens "$work/tokens.$reader" --from dram --to ssd; done
expect ssd "$have" "$have"

say "compressed there, bit for bit"
show compress --tokens "$work/tokens.1" --tier ssd --method lossless
shown ', 1\.[2-9][0-9] times less, bit for bit'

say "read back into DRAM before anybody asks for it"
show prefetch "${prompt[@]}"
expect dram "$have" "$have"
run_engine 0 encoded --logits-compare "$work/logits"  # and it says what it said at first

say "moved to Redis"
show move "${prompt[@]}" --from dram --to remote:shared --keep-source
say "compressed there, bit for bit first"
show compress "${prompt[@]}" --tier remote:shared --method lossless
shown ', 1\.[2-9][0-9] times less, bit for bit'
show compress "${prompt[@]}" --tier remote:shared --method int8
shown ', 1\.[0-9]+ times less, relative error 0\.0[0-9]+, of attention 0\.0[0-9]+'
say "and as it was; what int8 has lost stays lost, so from here on the engine's answers are other ones where they come from Redis"
show decompress "${prompt[@]}" --tier remote:shared

say "cleared, from every tier"
keys=$(redis-cli -s "$work/redis.sock" dbsize)
show clear "${prompt[@]}" --yes
[ "$(redis-cli -s "$work/redis.sock" dbsize)" -lt "$keys" ] || fail "Redis still has all of its $keys keys"
for tier in dram ssd remote; do expect "$tier" 0 0; done

say "kvistd is ended with kill -9 and started again"
kill -KILL "${pids[kvistd]}"
wait "${pids[kvistd]}" 2>/dev/null || true
unset "pids[kvistd]"
start_kvistd
show lookup "${prompt[@]}"
for tier in dram ssd remote; do expect "$tier" 0 0; done
run_engine 0 cleared --logits-compare "$work/logits"  # the chat, which isn't of this document, is there still

for name in kvistd redis; do stop "$name"; done
say "done: it stayed cleared; nothing is left running"

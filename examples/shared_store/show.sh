#!/usr/bin/env bash
# Shows two kvistds that share a store beyond the node: what was computed on node A, node B loads. Asks nothing and leaves nothing running.
#
# usage: examples/shared_store/show.sh [--short] [--bin DIR]
#   --short     a short document: seconds, for tests; times to first token then say little
#   --bin DIR   kvistd, kvistctl and tinyllm are there; else what is missing is installed (apt; root or sudo) and they are built
#
# Both nodes are on this machine, with sockets, state and DRAM of their own and no disk; a redis-server on a unix socket is all that they share.
#   cold      on A: kvistd knows nothing; the document is computed, stored, and written to Redis behind the engine's back
#   shared    on B, which has never seen it: its KV comes from Redis
#   control   on B: one loaded page is corrupted on purpose: the logits must differ, else the comparison would prove nothing
#   cleared   A is told to clear, B is started anew with empty DRAM: it must find nothing, though Redis still holds the old objects
# Logits are compared bit for bit with those of the cold run. Exit status 0 only when all of that is as it should be.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)

phase_seconds=300   # one run of tinyllm takes 1 to 30 s on 2 cores with other work beside it

bin=''; workload=(--document-bytes 11000 --answer-tokens 16)
while [ $# -gt 0 ]; do
  case "$1" in
    --short) workload=(--document-bytes 2000 --answer-tokens 4) ;;
    --bin) bin=${2:?--bin needs a directory}; shift ;;
    *) sed -n '2,6p' "$0"; exit 2 ;;
  esac
  shift
done

stopped_in_order=(engine A B redis)
# shellcheck source=deploy/demo_lib.sh
. "$root/deploy/demo_lib.sh"

remote() {  # node, key: what its kvistd says of its tier beyond the node
  "$bin/kvistctl" status -o json --socket "$work/$1/admin.sock" | sed -n '/"remote": {/,/}/s/^ *"'"$2"'": \([^,]*\),\{0,1\}$/\1/p'
}
reaches() { [ "$(remote "$1" reachable)" = true ]; }
has_written_all() {
  [ "$(remote "$1" chunks_written)" -gt 0 ] && [ "$(remote "$1" chunks_waiting)" = 0 ] && [ "$(remote "$1" bytes_on_their_way)" = 0 ]
}

start_node() {  # A or B
  local dir=$work/$1
  mkdir -p -m 0700 "$dir"
  # remote.lookup_wait is 50 ms by default; a machine that builds meanwhile gets more.
  start "$1" "$bin/kvistd" --set "daemon.state_dir=$dir/state" --set "session.socket=$dir/engine.sock" --set "admin.socket=$dir/admin.sock" \
    --set metrics.listen= --set pool.bytes=256MiB --set ssd.enabled=false \
    --set "remote.store=redis://$work/redis.sock" --set "remote.secret_file=$work/secret" --set remote.lookup_wait=2s
  await "kvistd $1 reaches the store" reaches "$1"
}

run_engine() {  # the exit status that is right, node, phase, tinyllm's arguments
  local expected=$1 node=$2 phase=$3 status=0; shift 3
  rm -f "$work/engine.log"
  start engine timeout "$phase_seconds" "$bin/tinyllm" demo --socket "$work/$node/engine.sock" --documents "$work/documents" --rounds 1 "${workload[@]}" \
    --phases "$phase" "$@"
  wait "${pids[engine]}" || status=$?
  unset "pids[engine]"
  [ "$status" = "$expected" ] ||
    fail "$phase: tinyllm ended with status $status instead of $expected (0 equal, 1 could not run, 2 differs, 3 equal, but nothing was loaded)"
}

build_for_demo

mkdir "$work/documents"
cp "$root/LICENSE" "$work/documents/LICENSE"
# The same on all nodes that share: what lies in the store is named and sealed with it.
(umask 077 && head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \n' >"$work/secret")

say "starting a redis-server, and kvistd A and B"
start redis redis-server --port 0 --unixsocket "$work/redis.sock" --unixsocketperm 700 --dir "$work" --save '' --appendonly no
start_node A
start_node B

say "A: the document is computed"
run_engine 0 A cold --logits-out "$work/logits"
await "A has written what it stored" has_written_all A
say "A has written $(remote A chunks_written) chunks, $(remote A bytes_written) bytes"

say "B: an engine that asks the same"
run_engine 0 B shared --logits-compare "$work/logits" --logits-out "$work/logits"
read_chunks=$(remote B chunks_read)
[ "$read_chunks" -gt 0 ] || fail "B has read nothing from the store"
say "B has read $read_chunks chunks, $(remote B bytes_read) bytes"
say "B: the same with one loaded page corrupted on purpose"
run_engine 2 B control --logits-compare "$work/logits" --corrupt-one-page

say "A clears, and B is started anew"
"$bin/kvistctl" clear --yes --socket "$work/A/admin.sock" >/dev/null || fail "kvistctl clear"
keys=$(redis-cli -s "$work/redis.sock" dbsize)
[ "$keys" -ge "$read_chunks" ] || fail "Redis has $keys keys left: so nothing is shown"
say "Redis still has $keys keys; B asks for the document again"
stop B
start_node B
run_engine 3 B cleared --logits-compare "$work/logits" --logits-out "$work/logits"
[ "$(remote B chunks_found)" = 0 ] || fail "B has found what A had cleared"
[ "$(remote B lookups_asked)" -gt 0 ] && [ "$(remote B lookups_unanswered)" = 0 ] || fail "B hasn't asked the store, or had no answer"

echo
sed -n '/^time to first token/,/^mean/p' "$work/engine.log"
echo
echo "logits, bit for bit:   B, loaded from the store = A, computed: yes   with one page corrupted: differs, as it must   after the clear = A, computed again: yes"
for name in A B redis; do
  pid=${pids[$name]}
  stop "$name"
  if kill -0 "$pid" 2>/dev/null; then fail "$name (pid $pid) is still running"; fi
done
say "done; nothing is left running"

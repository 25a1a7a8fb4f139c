#!/usr/bin/env bash
# Shows kvist at work on this machine, from nothing; the README's first command. Asks nothing and leaves nothing running.
#
# usage: deploy/quickstart.sh
#
# Installs the packages that are missing (apt; root or sudo), builds kvistd, kvistctl and the example engine tinyllm into
# build/release, and starts kvistd with its defaults (in a private directory when one already runs here, when the default
# directories can't be written, or when there is a state directory, whose SSD tier may know the answers already). Then tinyllm
# answers questions over real documents five times:
#   cold      kvistd knows nothing: everything is computed and stored
#   warm      the engine has forgotten its pages: they are loaded from kvistd
#   restart   a new engine process: they are loaded from kvistd
#   killed    all of it is flushed to kvistd's SSD tier, kvistd is ended with kill -9 and started again: they are loaded from there
#             (left out, saying so, where there is too little free disk for an SSD tier)
#   control   one loaded page is corrupted on purpose: the logits must differ, else the comparison would prove nothing
# Logits are compared bit for bit with those of the cold run. Exit status 0 only when all of that is as it should be.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"

ready_seconds=60     # kvistd serves before it has touched its memory: seconds at most
phase_seconds=600    # one run of tinyllm takes 10 to 40 s on 2 cores
stop_seconds=30
ssd_mib=192          # the answers' KV is 98 MiB; less would lose some of it
ssd_private_mib=256  # of a private directory, which goes afterwards; leaves as much free at least

say() { printf '[%4d s] %s\n' "$SECONDS" "$*"; }
fail() { say "FAILED: $*" >&2; exit 1; }

work=$(mktemp -d "${TMPDIR:-/tmp}/kvist-quickstart.XXXXXX")
daemon=''; engine=''; drain=''; made=''

gone() { timeout "$stop_seconds" tail --pid="$1" -s 0.1 -f /dev/null; }  # waits until this process has ended

stop() {  # pid: asks it to end, waits, insists
  kill -TERM "$1" 2>/dev/null || return 0
  gone "$1" || kill -KILL "$1" 2>/dev/null || true
  wait "$1" 2>/dev/null || true
}

stop_daemon() {
  [ -z "$daemon" ] || stop "$daemon"
  [ -z "$drain" ] || stop "$drain"
  daemon=''; drain=''
}

cleanup() {
  local status=$?
  trap - EXIT INT TERM
  [ -z "$engine" ] || stop "$engine"
  stop_daemon
  if [ $status != 0 ] && [ -s "$work/kvistd.log" ]; then
    echo "kvistd's last words:" >&2
    tail -n 20 "$work/kvistd.log" >&2
  fi
  rm -rf "$work"
  # Unless somebody else's kvistd has it by now.
  [ -z "$made" ] || [ ! -e "$made/lock" ] || flock -n "$made/lock" rm -rf "$made" || true
  exit $status
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

start_daemon() {  # kvistd's arguments; returns when it serves, or fails when it ends or the time is up
  local line deadline=$((SECONDS + ready_seconds))
  rm -f "$work/output"; mkfifo "$work/output"
  "$bin/kvistd" "$@" >"$work/output" 2>&1 &
  daemon=$!
  exec 3<"$work/output"
  while IFS= read -r -t $((deadline > SECONDS ? deadline - SECONDS : 1)) -u 3 line; do
    printf '%s\n' "$line" >>"$work/kvistd.log"
    if [[ $line == *READY* ]]; then
      cat <&3 >>"$work/kvistd.log" &
      drain=$!
      exec 3<&-
      return 0
    fi
  done
  exec 3<&-
  stop_daemon
  return 1
}

run_engine() {  # the exit status that is right, name, tinyllm's arguments
  local expected=$1 name=$2 status=0; shift 2
  timeout "$phase_seconds" "$bin/tinyllm" demo "${socket[@]}" --documents /usr/share/common-licenses --documents "$root" "$@" \
    >"$work/$name.log" 2>&1 &
  engine=$!
  wait "$engine" || status=$?
  engine=''
  if [ "$status" != "$expected" ]; then
    cat "$work/$name.log" >&2
    fail "$name: tinyllm ended with status $status instead of $expected (0 equal, 1 could not run, 2 differs, 3 nothing was loaded," \
      "4 something was loaded in the cold run)"
  fi
}

say "packages"
deploy/install_dependencies.sh build

say "building kvistd, kvistctl and tinyllm into build/release"
tests=ON
[ -z "$(deploy/install_dependencies.sh test --missing)" ] || tests=OFF  # tests/run.sh installs what they need
if ! { cmake --preset release -DKVIST_TESTS=$tests && cmake --build --preset release --target kvistd kvistctl tinyllm; } >"$work/build.log" 2>&1; then
  tail -n 60 "$work/build.log" >&2
  fail "the build; the lines above say why"
fi
bin=$root/build/release/bin

say "starting kvistd"
socket=(); admin=(); settings=()
# As kvistd says it: by user, XDG_STATE_HOME and HOME, any of which may be unset. Empty: there is no such place for this user.
state=$({ "$bin/kvistd" config dump 2>/dev/null || true; } | sed -n 's/^state_dir = "\(.*\)"$/\1/p')
private=yes
if "$bin/kvistctl" status >/dev/null 2>&1; then
  say "a kvistd runs on this machine already and is left alone; this one gets a private directory"
elif [ -z "$state" ]; then
  say "this user has no home directory, so no place where kvistd's state would be; this one gets a private directory"
elif [ -e "$state" ]; then
  say "$state is there, with what a kvistd has left; this one gets a private directory, so that it knows nothing"
elif made=$state; start_daemon; then
  private=no  # the state directory wasn't there: what kvistd makes in it for this show goes with it
else
  say "not with its defaults: $(tail -n 1 "$work/kvistd.log" 2>/dev/null); so in a private directory"
  # A directory that kvistd has made before it failed is nobody's, unless somebody else's kvistd has its lock.
  [ ! -e "$state/lock" ] || flock -n "$state/lock" rm -rf "$state" || true
  made=''
fi
if [ $private = yes ]; then
  mkdir -m 0700 "$work/run" "$work/state"
  socket=(--socket "$work/run/engine.sock"); admin=(--socket "$work/run/admin.sock")
  # No port for figures: that is for the kvistd of this machine.
  settings=(--set "daemon.state_dir=$work/state" --set "session.socket=$work/run/engine.sock" --set "admin.socket=$work/run/admin.sock"
            --set metrics.listen=)
  # By default the tier would be a tenth of what is free.
  if [ "$(df --output=avail -BM "$work" | tail -n 1 | tr -dc 0-9)" -ge $((2 * ssd_private_mib)) ]; then
    settings+=(--set "ssd.capacity=${ssd_private_mib}MiB")
  fi
  start_daemon "${settings[@]}" ||
    fail "kvistd did not become ready within $ready_seconds s"
fi
say "kvistd is ready (pid $daemon)"
# 0 where there is no tier.
ssd_bytes=$({ "$bin/kvistctl" status -o json "${admin[@]}" || true; } | sed -n '/"ssd": {/,/}/s/.*"capacity_bytes": \([0-9]*\).*/\1/p')
ssd=yes
[ "${ssd_bytes:-0}" -ge $((ssd_mib << 20)) ] || ssd=no

say "tinyllm: cold, then warm"
run_engine 0 cold-warm --phases cold,warm --logits-out "$work/logits"
say "tinyllm: a new process"
last=restart; flush=()
[ $ssd = no ] || flush=(--flush)
run_engine 0 restart --phases restart "${flush[@]}" --logits-compare "$work/logits" --logits-out "$work/logits"
if [ $ssd = yes ]; then
  last=killed
  grep '^flushed' "$work/restart.log" || fail "nothing was flushed"
  say "kill -9 for kvistd; a new one, and a new engine"
  kill -KILL "$daemon"
  gone "$daemon" || fail "kvistd (pid $daemon) survives kill -9"
  wait "$daemon" 2>/dev/null || true
  daemon=''
  [ -z "$drain" ] || stop "$drain"
  start_daemon "${settings[@]}" || fail "kvistd did not start again"
  for _ in $(seq 300); do  # it serves at once, and finds what it has meanwhile
    ! "$bin/kvistctl" status -o json "${admin[@]}" | grep '"recovering": false' >/dev/null || break
    sleep 0.1
  done
  run_engine 0 killed --phases killed --logits-compare "$work/logits" --logits-out "$work/logits"
  sed -n '/^killed$/,/^time to first token/p' "$work/killed.log" | sed '/^$/d; /^time/d'
  awk '/^killed$/ { on = 1; next } on && NF > 6 && $0 ~ /bit for bit/ { n += /[^ ] +[0-9]+ +[0-9]+ +[0-9]+ +[1-9][0-9]* +[0-9.]+ / } END { exit n > 0 ? 0 : 1 }' "$work/killed.log" ||
    fail "nothing came from the SSD tier after kill -9"
else
  say "left out: kill -9 of kvistd and what comes from its SSD tier then, for that has room for $((${ssd_bytes:-0} >> 20)) MiB here instead of" \
    "$ssd_mib: free some disk, or set TMPDIR to where there is some"
fi
say "tinyllm: negative control, one loaded page corrupted on purpose"
run_engine 2 control --phases control --logits-compare "$work/logits" --corrupt-one-page

echo
sed -n '/^time to first token/,/^mean/p' "$work/$last.log"
echo
"$bin/kvistctl" status "${admin[@]}" || fail "kvistctl status"
echo
killed='after kill -9 of kvistd, from SSD = cold: yes'
[ $ssd = yes ] || killed='after kill -9 of kvistd: left out, too little free disk'
echo "logits, bit for bit:   warm = cold: yes   after the engine's restart = cold: yes   $killed   with one page corrupted: differs, as it must"

pid=$daemon
stop_daemon
if kill -0 "$pid" 2>/dev/null; then fail "kvistd (pid $pid) is still running"; fi
say "done; nothing is left running. Next: tests/run.sh, or README.md on how to link your engine"

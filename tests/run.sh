#!/usr/bin/env bash
# Installs what is missing, builds, and runs every test; the README's second command.
#
# usage: tests/run.sh [--quick] [--full] [--until SECONDS]
#   --quick   the release build and the format check only
#   --full    long campaigns (more seeds, more deaths and kills, an hour of fuzzing) instead of the short ones: hours, not minutes
#   --until   steps that haven't begun so many seconds after the start are left out, and named at the end: for who is stopped at a fixed time, on a
#             machine whose speed nobody knows. What users meet comes first for that
#
# Steps: dependencies; clang-format; release build and its tests; the quickstart, which is what a user tries first; the real engines
# (tests/engines/run.sh, which keeps 7 GB of Python packages in ~/.cache/kvist); clang build with -Werror=thread-safety and clang-tidy; tsan (ThreadSanitizer)
# build and tests of what has threads; asan (AddressSanitizer and UndefinedBehaviorSanitizer) build and tests of what reads bytes that it didn't
# write, has threads, or is the core; a minute of fuzzing. The layering test is one of the tests.
# Each step's output goes to build/test_logs/ and is shown when it fails. The last line is "N passed, N failed": steps and tests.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

sanitizers=(tsan asan); clang=yes; engines=yes; fuzz_seconds=60; until=''
while [ $# -gt 0 ]; do
  case "$1" in
    --quick) sanitizers=(); clang=no; engines=no; fuzz_seconds=0 ;;
    --full) export KVIST_CAMPAIGN=full; fuzz_seconds=3600 ;;
    --until) until=${2:-}; [[ $until =~ ^[0-9]+$ ]] || { echo "--until takes seconds" >&2; exit 2; }; shift ;;
    *) sed -n '2,16p' "$0"; exit 2 ;;
  esac
  shift
done

logs=$PWD/build/test_logs
mkdir -p "$logs"
jobs=$(nproc)
passed=0; failed=0
summary=()
failed_tests=()  # named once more at the end, which is what is read first
left_out=()
# Up to gcc 13 the runtime takes a thread-local block of a library that was opened later for one of an old glibc when it lies at 16 modulo 4096,
# and reads a size in front of it where there is none: LeakSanitizer then crashes at the end ("Tracer caught signal 11"). So it shouldn't look.
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:intercept_tls_get_addr=0}
export LSAN_OPTIONS=${LSAN_OPTIONS:-suppressions=$PWD/tests/lsan.supp:print_suppressions=0}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
# The first race ends its process, also one that a test kills before it could tell by its exit status.
export TSAN_OPTIONS=${TSAN_OPTIONS:-halt_on_error=1:die_after_fork=0:suppressions=$PWD/tests/tsan.supp}
export CTEST_OUTPUT_ON_FAILURE=1

# What of the tests each preset builds and runs, by label: unit, e2e, sim, check say how a test runs, beside that it may beside others; threads,
# bytes and core what is in it. Sanitizers double and triple times, so they get what they can find something in.
declare -A labels=([release]='' [asan]='threads bytes core' [tsan]='threads')
# ThreadSanitizer finds a race the first time that its two accesses come, in any order: few deaths will do. A seed takes the sanitizers ten
# times as long.
declare -A campaign=([asan]='KVIST_SIM_SEEDS=200 KVIST_STORE_SEEDS=100 KVIST_KILL_POINTS=100' [tsan]='KVIST_DEATHS=20 KVIST_RANK_DEATHS=4 KVIST_DAEMON_KILLS=2 KVIST_JOB_RACE_SECONDS=8')

# Each command runs in a process group of its own (set -m), so that a run that is ended ends all that it started.
group=''
trap '[ -z "$group" ] || kill -TERM -- "-$group" 2>/dev/null; exit 143' TERM
trap '[ -z "$group" ] || kill -TERM -- "-$group" 2>/dev/null; exit 130' INT

run() {  # log, command...
  local log=$1 status=0; shift
  "$@" </dev/null >"$log" 2>&1 &
  group=$!
  wait "$group" || status=$?
  group=''
  return $status
}

finish() {  # name, started, verdict, passed, failed
  passed=$((passed + $4)); failed=$((failed + $5))
  summary+=("$(printf '%-22s %5d s   %s' "$1" $((SECONDS - $2)) "$3")")
  printf '== %s: %s (%d s)\n' "$1" "$3" $((SECONDS - $2))
}

in_time() {  # name: whether it may still begin
  [ -z "$until" ] || [ $SECONDS -lt "$until" ] && return
  left_out+=("$1")
  printf '== %s: left out, %d s are over\n' "$1" $SECONDS
  return 1
}

step() {  # name, command...: one step that passes or fails
  local name=$1 log=$logs/${1// /_}.log started=$SECONDS; shift
  printf '== %s ...\n' "$name"
  if run "$log" "$@"; then
    grep -E '^(installed|installing|row 29:) ' "$log"
    finish "$name" "$started" passed 1 0
  else
    grep -E '(error|undefined reference to|Error).*:' "$log" | head -n 60 || tail -n 60 "$log"
    finish "$name" "$started" "FAILED, all of it in ${log#"$PWD"/}" 0 1
    return 1
  fi
}

build() {  # preset
  local targets=() label
  for label in ${labels[$1]:-}; do targets+=(--target "tests_$label"); done
  cmake --preset "$1" && cmake --build --preset "$1" "${targets[@]}" -j "$jobs" -- -k 0
}

ctests() {  # preset, JUnit files: what may runs beside each other, all others (they watch the clock, or the whole machine) one by one
  local which=(--test-output-size-passed 100000) beside='^(unit|sim|beside)$'
  [ -z "${labels[$1]}" ] || which+=(-L "^(${labels[$1]// /|})\$")
  [ "${KVIST_CAMPAIGN:-}" = full ] || export ${campaign[$1]:-}
  ctest --test-dir "build/$1" --no-tests=error "${which[@]}" -L "$beside" -j "$jobs" --output-junit "$2"
  ctest --test-dir "build/$1" --no-tests=error "${which[@]}" -LE "$beside" --output-junit "$3"
}

run_tests() {  # preset
  local preset=$1 name="$1 tests" started=$SECONDS log=$logs/$1_tests.log beside=$logs/$1_beside.xml others=$logs/$1_others.xml
  local list counts verdict
  rm -f "$beside" "$others"
  printf '== %s ...\n' "$name"
  run "$log" ctests "$preset" "$beside" "$others" || true  # the files tell
  if ! list=$(python3 -B tests/check/count_tests.py "$beside" "$others" 2>>"$log"); then
    tail -n 120 "$log"
    finish "$name" "$started" "FAILED to run, see ${log#"$PWD"/}" 0 1
    return
  fi
  read -ra counts <<<"${list##*$'\n'}"
  verdict="${counts[0]} passed, ${counts[1]} failed, ${counts[2]} skipped"
  [ "${counts[1]}" = 0 ] || verdict="$verdict, all of it in ${log#"$PWD"/}"
  sed '$d' <<<"$list"
  mapfile -t -O ${#failed_tests[@]} failed_tests < <(sed -n "s/^FAILED: /$name: /p" <<<"$list")
  # Figures that tests print: deaths, rows of the fault matrix, seeds to the first find of each planted bug.
  grep -hE '^(rows? [0-9]|kvistd killed|planted bug|[0-9]+ seeds|seed [0-9]+: [0-9]+ deaths)' "$beside" "$others" || true
  finish "$name" "$started" "$verdict" "${counts[0]}" "${counts[1]}"
}

build_and_test() {  # preset
  in_time "$1 build" && step "$1 build" build "$1" && in_time "$1 tests" && run_tests "$1"
}

run_engines() {
  local started=$SECONDS log=$logs/engines.log counts
  printf '== engines ...\n'
  run "$log" tests/engines/run.sh || true  # the last line tells
  if ! [[ "$(tail -n 1 "$log")" =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed$ ]]; then
    tail -n 60 "$log"
    finish engines "$started" "FAILED to run, see ${log#"$PWD"/}" 0 1
    return
  fi
  counts=("${BASH_REMATCH[@]}")
  grep -vE '^[0-9]+ passed' "$log"
  finish engines "$started" "${counts[1]} passed, ${counts[2]} failed" "${counts[1]}" "${counts[2]}"
}

if step dependencies deploy/install_dependencies.sh test; then  # not in a group of its own: sudo may ask for a password
  set -m
  step format tests/check/format.sh
  build_and_test release
  in_time quickstart && step quickstart deploy/quickstart.sh
  if [ $engines = yes ] && in_time engines; then run_engines; fi
  if [ $clang = yes ] && in_time "clang and clang-tidy"; then step "clang and clang-tidy" build clang; fi
  for preset in "${sanitizers[@]}"; do build_and_test "$preset"; done
  if [ $fuzz_seconds != 0 ] && in_time fuzz; then step fuzz tests/fuzz/run.sh $fuzz_seconds; fi
fi

echo
[ ${#failed_tests[@]} = 0 ] || printf 'FAILED  %s\n' "${failed_tests[@]}"
[ ${#left_out[@]} = 0 ] || printf 'LEFT OUT for want of time: %s\n' "${left_out[@]}"
printf "%s\n" "${summary[@]}" "$(printf "%-22s %5d s" "all" "$SECONDS")"
echo "$passed passed, $failed failed"
[ $failed = 0 ]

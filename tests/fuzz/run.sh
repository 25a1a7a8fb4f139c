#!/usr/bin/env bash
# Builds the fuzz targets and runs each for its share of the time, from its corpus on.
#
# usage: tests/fuzz/run.sh SECONDS
#
# Prints a line per target: executions, how many a second, crashes, edges covered of all in the program (much of it is libraries). A crash fails the run; its input stays in
# build/fuzz/crashes, and the line before says how to see it again. What the fuzzer found worth keeping stays in build/fuzz/found.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
[[ ${1:-} =~ ^[0-9]+$ ]] || { sed -n '2,7p' "$0"; exit 2; }

targets=(handshake ring config ssd codec remote)
share=$(($1 / ${#targets[@]}))
[ $share -gt 0 ] || share=1
build=build/fuzz

cmake --preset fuzz >/dev/null && cmake --build --preset fuzz --target fuzz_targets -j "$(nproc)" >"$build/build.log" ||
  { grep -E 'error' "$build/build.log"; exit 1; }
python3 -B tests/fuzz/seeds.py tests/fuzz/corpus "$build/seeds" || exit
mkdir -p "$build/crashes"

failed=0
for target in "${targets[@]}"; do
  mkdir -p "$build/found/$target"
  log=$build/$target.log
  options=(-max_total_time="$share" -timeout=10 -rss_limit_mb=2048 -max_len=4096 -print_final_stats=1
           -artifact_prefix="$build/crashes/$target-")
  [ ! -f "tests/fuzz/$target.dict" ] || options+=(-dict="tests/fuzz/$target.dict")
  status=0
  "$build/bin/${target}_fuzz" "${options[@]}" "$build/found/$target" "$build/seeds/$target" >"$log" 2>&1 || status=$?
  executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  a_second=$(sed -n 's/^stat::average_exec_per_sec: *//p' "$log")
  edges=$(grep -oE 'cov: [0-9]+' "$log" | tail -n 1)
  edges=${edges#cov: }
  all=$(sed -n 's/^INFO: Loaded .* (\([0-9]*\) inline 8-bit counters).*/\1/p' "$log" | awk '{ sum += $1 } END { print sum }')
  printf 'row 29: fuzz %-10s %10s executions  %7s exec/s  %d crashes  %6s of %6s edges covered (%s %%)\n' "$target" "${executions:-0}" \
    "${a_second:-0}" $((status != 0)) "${edges:-0}" "${all:-0}" $((${edges:-0} * 100 / (${all:-0} > 0 ? all : 1)))
  if [ $status != 0 ]; then
    failed=1
    tail -n 60 "$log"
    crash=$(sed -n "s/.*Test unit written to //p" "$log" | tail -n 1)
    echo "crash: $build/bin/${target}_fuzz ${crash:-(no input written; see $log)}"
  fi
done
exit $failed

#!/usr/bin/env bash
# Row 41 of the fault matrix: lets a kvistd work for so long, and fails when what it holds at rest grows (resident memory, descriptors, slots).
#
# usage: tests/soak.sh [MINUTES]      (1; from 30 on with an SSD tier)
#   $KVIST_BIN   where kvistd and the tests were built (build/release/bin)
# The last line is one JSON object with the slopes; the exit status says whether all stayed within their bounds, which
# tests/e2e/soak_test.cc states.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

minutes=${1:-1}
[[ $minutes =~ ^[1-9][0-9]*$ ]] || { sed -n '2,7p' "$0"; exit 2; }
soak=${KVIST_BIN:-build/release/bin}/soak_test
if [ ! -x "$soak" ]; then
  echo "$soak isn't there: cmake --preset release && cmake --build --preset release --target soak_test" >&2
  exit 2
fi
output=$(KVIST_SOAK_SECONDS=$((minutes * 60)) "$soak" 2>&1)
status=$?
grep -v '^soak: ' <<<"$output"
summary=$(sed -n 's/^soak: //p' <<<"$output")
[ -n "$summary" ] || summary='{"row": 41, "passed": false}'
echo "$summary"
exit $status

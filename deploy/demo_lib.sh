# What demonstrations share; sourced by them, after they have set:
#   root   the checkout    bin   where kvistd, kvistctl and tinyllm are; empty: to be built
#   stopped_in_order       names of what `start` may start, in the order in which they end
# They run in a directory of their own, "$work", that is gone when they are; so is all that they started, also when they are killed.

state_seconds=60  # until a daemon serves, reaches its store, or has written what it has
stop_seconds=30

say() { printf '[%3d s] %s\n' "$SECONDS" "$*"; }
fail() { say "FAILED: $*" >&2; exit 1; }

work=$(mktemp -d "${TMPDIR:-/tmp}/kvist-demo.XXXXXX")
declare -A pids=()  # of what runs, by its name

start() {  # name, command...
  local name=$1; shift
  setpriv --pdeathsig TERM "$@" >>"$work/$name.log" 2>&1 &
  pids[$name]=$!
}

stop() {  # name: asks it to end, waits, insists
  local pid=${pids[$1]:-}
  [ -n "$pid" ] || return 0
  unset "pids[$1]"
  kill -TERM "$pid" 2>/dev/null || true
  timeout "$stop_seconds" tail --pid="$pid" -s 0.1 -f /dev/null || kill -KILL "$pid" 2>/dev/null || true
  wait "$pid" 2>/dev/null || true
}

end_all() {
  local status=$? name
  trap - EXIT INT TERM
  trap '' PIPE  # also when nobody listens any more
  set +e
  for name in "${stopped_in_order[@]}"; do
    stop "$name"
    if [ $status != 0 ] && [ -s "$work/$name.log" ]; then
      echo "the last words of $name:" >&2
      tail -n 20 "$work/$name.log" >&2
    fi
  done
  rm -rf "$work"
  exit $status
}
trap end_all EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

await() {  # what, command...: until it succeeds
  local what=$1 deadline=$((SECONDS + state_seconds)); shift
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $deadline ] || fail "$what: not within $state_seconds s"
    sleep 0.05
  done
}

build_for_demo() {  # installs what is missing, and builds, when $bin is empty
  local tests=ON
  [ -z "$bin" ] || return 0
  cd "$root"
  say "packages"
  deploy/install_dependencies.sh examples
  say "building kvistd, kvistctl and tinyllm into build/release"
  [ -z "$(deploy/install_dependencies.sh test --missing)" ] || tests=OFF  # tests/run.sh installs what they need
  if ! { cmake --preset release -DKVIST_TESTS=$tests && cmake --build --preset release --target kvistd kvistctl tinyllm; } >"$work/build.log" 2>&1; then
    tail -n 60 "$work/build.log" >&2
    fail "the build; the lines above say why"
  fi
  bin=$root/build/release/bin
}

#!/usr/bin/env bash
# Installs the Debian 12 packages that kvist needs. Says what it installs, asks nothing; does nothing when all is there.
#
# usage: deploy/install_dependencies.sh [build|test|examples|engines] [--missing]
#   build      what kvistd, kvistctl and the examples need (the default)
#   test       that, and what the tests, benchmarks and checks need
#   examples   build's, and what examples/ start beside kvistd
#   engines    what kvistd and tests/engines need; Python packages come from pip
#   --missing  only prints which of them are not installed
# Works as root or through sudo.
set -euo pipefail

build_packages=(
  g++ cmake ninja-build ccache pkg-config
  libabsl-dev libprotobuf-dev protobuf-compiler libgrpc++-dev protobuf-compiler-grpc
  libssl-dev zlib1g-dev libspdlog-dev libfmt-dev libtomlplusplus-dev libcli11-dev nlohmann-json3-dev libnuma-dev libsystemd-dev
  prometheus-cpp-dev libcpp-httplib-dev libxxhash-dev libzstd-dev liburing-dev librocksdb-dev libcurl4-openssl-dev
)
test_packages=(
  catch2                             # every test
  libopenblas-dev                    # the GEMM that kvist-bench measures the example engine against
  clang clang-format-14 clang-tidy-14  # the thread-safety build; versions are fixed because other ones format otherwise
  lld                                # links the sanitizers' builds in a tenth of the time
  libclang-rt-14-dev                 # libFuzzer and the sanitizers of clang
  python3 python3-venv               # checks; the environment in which a server of S3 is run
  systemd                            # its programs check deploy/systemd; none is started
  redis-server                       # the remote tiers' tests start one
  libhiredis-dev                     # the loop that kvist-bench measures the Redis tier against
  openssl                            # certificates for tests
  prometheus                         # promtool, which judges /metrics; with systemd, apt starts its server, too
)
examples_packages=(
  redis-server  # the store of examples/shared_store; with systemd, apt starts one, too
)
engines_packages=(
  python3 python3-venv
  python3-dev  # torch and SGLang compile extensions when they first run
)

case "${1:-build}" in
  build) wanted=("${build_packages[@]}") ;;
  test) wanted=("${build_packages[@]}" "${test_packages[@]}") ;;
  examples) wanted=("${build_packages[@]}" "${examples_packages[@]}") ;;
  engines) wanted=("${build_packages[@]}" "${engines_packages[@]}") ;;
  *) sed -n '2,10p' "$0"; exit 2 ;;
esac

if ! command -v apt-get >/dev/null; then
  echo "No apt-get here. Install what these Debian 12 packages hold, then go on: ${wanted[*]}" >&2
  exit 1
fi

installed=$(dpkg-query -W -f='${db:Status-Status} ${Package}\n' "${wanted[@]}" 2>/dev/null | sed -n 's/^installed //p' || true)
missing=()
for package in "${wanted[@]}"; do
  grep -qxF -e "$package" <<<"$installed" || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0
if [ "${2:-}" = --missing ]; then
  printf '%s\n' "${missing[@]}"
  exit 0
fi

as_root=(env DEBIAN_FRONTEND=noninteractive)
if [ "$(id -u)" != 0 ]; then
  command -v sudo >/dev/null || { echo "These packages are missing and only root can install them: ${missing[*]}" >&2; exit 1; }
  as_root=(sudo "${as_root[@]}")
fi

echo "installing with apt: ${missing[*]}"
started=$SECONDS
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { "${as_root[@]}" apt-get update -q && "${as_root[@]}" apt-get install -y -q --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
  tail -n 30 "$log" >&2
  echo "apt failed; the lines above say why" >&2
  exit 1
fi
echo "installed ${#missing[@]} packages in $((SECONDS - started)) s"

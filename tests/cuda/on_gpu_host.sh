#!/usr/bin/env bash
# Tests and measures on a machine that has a GPU with its driver, and none of kvist's libraries.
#
#   tests/cuda/on_gpu_host.sh pack [FILE]     where kvist builds: packs what the preset gpu-only builds, with its libraries, into FILE
#                                             (build/kvist-on-gpu.tar.gz, at most 60 MiB)
#   tar xzf FILE -C /tmp && /tmp/kvist-on-gpu/run.sh [FOLDER]     where the GPU is: runs all of it; what it says is kept in FOLDER, too
#   tests/cuda/on_gpu_host.sh [FOLDER]        both, on one machine
set -euo pipefail
cd "$(dirname "$0")/../.."

readonly place=/tmp/kvist-on-gpu  # programs know their loader by this path
readonly programs=(kvistd kvistctl kvist-bench gpu_memory_test tinyllm tinyllm_gpu_test)

pack() {  # FILE
  local file=$1 staging
  command -v patchelf > /dev/null || { echo "installing patchelf"; apt-get install -qq -y patchelf > /dev/null; }
  cmake --preset release > /dev/null
  cmake --build --preset gpu-only
  staging=$(mktemp -d)
  trap 'rm -rf "$staging"' RETURN
  local to=$staging/kvist-on-gpu program
  mkdir -p "$to/bin" "$to/lib"
  for program in "${programs[@]}"; do
    strip -o "$to/bin/$program" "build/release/bin/$program"
    ldd "build/release/bin/$program" | awk '/=> \//{print $3} /ld-linux/{print $1}' | xargs -I{} cp -Ln {} "$to/lib/"
    patchelf --set-interpreter "$place/lib/ld-linux-x86-64.so.2" --set-rpath "$place/lib" "$to/bin/$program"
  done
  # What the CUDA driver needs of the C library: parts of two don't go together.
  local libc
  libc=$(dirname "$(ldd build/release/bin/kvistd | awk '/libc\.so/{print $3}')")
  cp -L "$libc"/{libdl.so.2,libpthread.so.0,librt.so.1} "$to/lib/"
  for program in "$to"/lib/*.so*; do
    case $program in */ld-linux*) ;; *) strip "$program"; patchelf --set-rpath "$place/lib" "$program" ;; esac
  done
  cp tests/cuda/run.sh tests/cuda/gemm_beside.py tests/cuda/copy_paths.cu "$to/"
  tar czf "$file" -C "$staging" kvist-on-gpu
  local size
  size=$(du -cm "$file" | awk 'END{print $1}')
  echo "packed $file: $size MiB"
  [ "$size" -le 60 ]
}

case ${1:-} in
  pack) pack "${2:-build/kvist-on-gpu.tar.gz}" ;;
  *)
    pack build/kvist-on-gpu.tar.gz
    rm -rf "$place"
    tar xzf build/kvist-on-gpu.tar.gz -C "$(dirname "$place")"
    exec "$place/run.sh" "$@"
    ;;
esac

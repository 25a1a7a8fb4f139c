#!/usr/bin/env bash
# Where the GPU is: what on_gpu_host.sh has packed, one after the other. Ends with a line that a machine can read.
#
# usage: run.sh [FOLDER]     each step's output is in FOLDER, too (default: a new one in /tmp). 4 minutes on an H200.
set -uo pipefail
cd "$(dirname "$0")"
out=${1:-$(mktemp -d /tmp/kvist-on-gpu-XXXX)}
mkdir -p "$out"
passed=0 failed=0 skipped=0

step() {  # name, command...
  local name=$1
  shift
  echo "== $name"
  if timeout 300 "$@" > "$out/$name.txt" 2>&1; then passed=$((passed + 1)); else
    failed=$((failed + 1))
    echo "FAILED: $*"
  fi
  tail -60 "$out/$name.txt"
}
skip() {
  echo "== $1: skipped: $2"
  skipped=$((skipped + 1))
}

if ! nvidia-smi -L > "$out/gpus.txt" 2>&1; then
  echo "skipped: no GPU here (nvidia-smi: $(head -1 "$out/gpus.txt"))"
  exit 0
fi
{ date -u +%F; cat "$out/gpus.txt"; nvidia-smi --query-gpu=driver_version,pcie.link.gen.current,pcie.link.width.current --format=csv; } | tee "$out/machine.txt"

step tests ./bin/gpu_memory_test '~[fake]~Row 4*'
# A process that has used CUDA can't fork engines that use it: by itself.
step deaths env KVIST_GPU_DEATHS=50 ./bin/gpu_memory_test 'Row 4*'
step tinyllm ./bin/tinyllm_gpu_test
if command -v compute-sanitizer > /dev/null; then
  step memcheck compute-sanitizer --error-exitcode 1 ./bin/gpu_memory_test 'An engine on a GPU*'
else
  skip memcheck "no compute-sanitizer"
fi
# Which way of copying suits which page: decides the design (cuda/README.md).
if command -v nvcc > /dev/null; then
  step copy_paths_build nvcc -O2 -std=c++17 -arch=native -o "$out/copy_paths" copy_paths.cu -lcuda
  step copy_paths "$out/copy_paths"
else
  skip copy_paths "no nvcc"
fi
for round in 1 2 3; do step "bench_$round" ./bin/kvist-bench copy --device cuda --seconds 8; done
step bench_dma ./bin/kvist-bench copy --device cuda --seconds 8 --set copy.gpu_kernel=false
if python3 -c 'import torch; assert torch.cuda.is_available()' 2> /dev/null; then
  step bench_beside_gemm python3 gemm_beside.py ./bin/kvist-bench copy --device cuda --seconds 8 -- \
    ./bin/kvist-bench copy --device cuda --seconds 8 --set copy.gpu_kernel=false
  if [ -x "$out/copy_paths" ]; then
    ways=()
    for kib in 4 16 64; do
      for way in dma "warp 4" "staged 32"; do ways+=("$out/copy_paths" "$way" "$kib" 1 --); done
    done
    step copy_paths_beside_gemm python3 gemm_beside.py "${ways[@]}"
  fi
else
  skip gemm "no PyTorch with CUDA"
fi
echo "results in $out"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]

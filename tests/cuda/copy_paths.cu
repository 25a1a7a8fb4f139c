// Which way of moving scattered pages between pinned host memory and a GPU suits which page size: 256 MiB, both directions, medians of
// several rounds, beside one contiguous copy in the same round. Built and run by run.sh where the GPU is; beside a GEMM of another process by
// gemm_beside.py.
//
//   dma        a driver's batches (cuMemcpyBatchAsync) of 8 MiB, or a loop of single copies where it has none; `loop` is that loop in any case;
//              `dma x2`, `dma x4`: the batches in turn on so many streams
//   block      a gather/scatter kernel that reads and writes mapped pinned memory itself, a page to a block, on so many blocks
//   warp       likewise, 4 KiB to a warp, all of it in flight at once
//   staged     DMA in one piece between host and a ring of two halves on the GPU, and the warp kernel between the ring and the pages; `staged 4`:
//              halves of 4 MiB
//
// copy_paths WAY KIB SECONDS: that way alone, for pages of KIB, loads and then stores, for so long; for gemm_beside.py.
//
// The second table is the processor's time for handing the work over, without waiting for its end.
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#define CHECK(call)                                                                       \
  do {                                                                                    \
    if (const auto result = (call); static_cast<int>(result) != 0) {                      \
      std::fprintf(stderr, "%s: error %d\n", #call, static_cast<int>(result));            \
      std::exit(1);                                                                       \
    }                                                                                     \
  } while (false)

constexpr size_t kBytes = size_t{256} << 20;
constexpr size_t kRingBytes = size_t{32} << 20;
constexpr int kRounds = 5;

struct Piece {
  uint4* to;
  const uint4* from;
};

// A block takes a page at a time.
__global__ void CopyPages(const Piece* pieces, uint32_t count, uint32_t words) {
  for (uint32_t piece = blockIdx.x; piece < count; piece += gridDim.x) {
    for (uint32_t word = threadIdx.x; word < words; word += blockDim.x) pieces[piece].to[word] = pieces[piece].from[word];
  }
}

// A warp takes 4 KiB at a time: 8 words of 16 bytes a lane.
__global__ void CopyParts(const Piece* pieces, uint32_t count, uint32_t words) {
  constexpr uint32_t kInFlight = 8, kWords = 32 * kInFlight;
  const uint32_t lane = threadIdx.x % 32, parts = words / kWords;
  const uint32_t warps = gridDim.x * (blockDim.x / 32);
  for (uint32_t at = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; at < count * parts; at += warps) {
    const Piece piece = pieces[at / parts];
    const uint32_t first = at % parts * kWords + lane;
    uint4 some[kInFlight];
#pragma unroll
    for (uint32_t i = 0; i < kInFlight; ++i) some[i] = piece.from[first + i * 32];
#pragma unroll
    for (uint32_t i = 0; i < kInFlight; ++i) piece.to[first + i * 32] = some[i];
  }
}

using Clock = std::chrono::steady_clock;

double Since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

struct Way {
  const char* name;
  std::function<void()> hand_over;  // only begins it
};

int main(int argc, char** argv) {
  const char* only = argc > 3 ? argv[1] : nullptr;
  const double only_seconds = argc > 3 ? std::atof(argv[3]) : 0;
  CHECK(cudaSetDevice(0));
  char *host, *pages, *ring;
  CHECK(cudaHostAlloc(reinterpret_cast<void**>(&host), kBytes, cudaHostAllocMapped | cudaHostAllocPortable));
  CHECK(cudaMalloc(reinterpret_cast<void**>(&pages), kBytes));
  CHECK(cudaMalloc(reinterpret_cast<void**>(&ring), 2 * kRingBytes));
  Piece* pieces;  // read by kernels through the bus, as the daemon's would be
  CHECK(cudaHostAlloc(reinterpret_cast<void**>(&pieces), kBytes / 4096 * sizeof(Piece), cudaHostAllocMapped));
  int least, greatest;
  CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  cudaStream_t streams[4];
  for (cudaStream_t& stream : streams) CHECK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest));
  const cudaStream_t stream = streams[0], copies = streams[1];
  cudaEvent_t filled[2], emptied[2];
  for (int i = 0; i < 2; ++i) {
    CHECK(cudaEventCreateWithFlags(&filled[i], cudaEventDisableTiming));
    CHECK(cudaEventCreateWithFlags(&emptied[i], cudaEventDisableTiming));
  }
  using Batch = CUresult (*)(CUdeviceptr*, CUdeviceptr*, size_t*, size_t, CUmemcpyAttributes*, size_t*, size_t, size_t*, CUstream);
  void* found = nullptr;
  CUdriverProcAddressQueryResult why;
  (void)cuGetProcAddress("cuMemcpyBatchAsync", &found, 12080, CU_GET_PROC_ADDRESS_DEFAULT, &why);
  const auto batch = reinterpret_cast<Batch>(found);
  if (only == nullptr) std::printf("%s\n", batch == nullptr ? "no cuMemcpyBatchAsync: dma is the loop" : "dma by cuMemcpyBatchAsync");

  std::mt19937 random(1);
  std::vector<std::vector<double>> handed_over;
  bool first = true;
  for (const size_t kib : {4, 8, 16, 32, 64, 128, 256}) {
    if (only != nullptr && kib != static_cast<size_t>(std::atoi(argv[2]))) continue;
    const size_t size = kib << 10, count = kBytes / size;
    std::vector<uint32_t> order(count);
    std::iota(order.begin(), order.end(), 0u);
    std::shuffle(order.begin(), order.end(), random);
    for (const bool load : {true, false}) {
      std::vector<CUdeviceptr> to(count), from(count);
      std::vector<size_t> sizes(count, size);
      for (size_t i = 0; i < count; ++i) {
        char* page = pages + order[i] * size;
        char* slot = host + i * size;
        to[i] = reinterpret_cast<CUdeviceptr>(load ? page : slot);
        from[i] = reinterpret_cast<CUdeviceptr>(load ? slot : page);
      }
      const auto contiguous = [&] {
        CHECK(cudaMemcpyAsync(load ? pages : host, load ? host : pages, kBytes, cudaMemcpyDefault, stream));
      };
      const auto loop = [&] {
        for (size_t i = 0; i < count; ++i) CHECK(cuMemcpyAsync(to[i], from[i], size, stream));
      };
      const auto dma = [&](size_t on_streams) {
        if (batch == nullptr) return loop();
        CUmemcpyAttributes attributes{};
        attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
        size_t start = 0, failed = 0, turn = 0;
        const size_t at_once = std::max<size_t>(1, (size_t{8} << 20) / size);
        for (size_t i = 0; i < count; i += at_once, ++turn)
          CHECK(batch(&to[i], &from[i], &sizes[i], std::min(at_once, count - i), &attributes, &start, 1, &failed, streams[turn % on_streams]));
      };
      const auto list = [&] {
        for (size_t i = 0; i < count; ++i) pieces[i] = {reinterpret_cast<uint4*>(to[i]), reinterpret_cast<const uint4*>(from[i])};
      };
      const auto words = static_cast<uint32_t>(size / sizeof(uint4));
      const auto block = [&](int blocks) {
        list();
        CopyPages<<<blocks, 512, 0, stream>>>(pieces, static_cast<uint32_t>(count), words);
      };
      const auto warp = [&](int blocks) {
        list();
        CopyParts<<<blocks, 512, 0, stream>>>(pieces, static_cast<uint32_t>(count), words);
      };
      const auto staged = [&](size_t half_bytes) {
        const size_t at_once = half_bytes / size;
        constexpr int blocks = 16;
        for (size_t i = 0; i < count; ++i) {
          auto* staging = reinterpret_cast<uint4*>(ring + (i / at_once % 2) * half_bytes + i % at_once * size);
          auto* page = reinterpret_cast<uint4*>(load ? to[i] : from[i]);
          pieces[i] = load ? Piece{page, staging} : Piece{staging, page};
        }
        for (size_t i = 0, turn = 0; i < count; i += at_once, ++turn) {
          const size_t n = std::min(at_once, count - i);
          char* half = ring + turn % 2 * half_bytes;
          char* slot = host + i * size;
          const auto launch = [&] { CopyParts<<<blocks, 512, 0, stream>>>(pieces + i, static_cast<uint32_t>(n), words); };
          if (load) {
            if (turn >= 2) CHECK(cudaStreamWaitEvent(copies, emptied[turn % 2], 0));
            CHECK(cudaMemcpyAsync(half, slot, n * size, cudaMemcpyDefault, copies));
            CHECK(cudaEventRecord(filled[turn % 2], copies));
            CHECK(cudaStreamWaitEvent(stream, filled[turn % 2], 0));
            launch();
            CHECK(cudaEventRecord(emptied[turn % 2], stream));
          } else {
            if (turn >= 2) CHECK(cudaStreamWaitEvent(stream, emptied[turn % 2], 0));
            launch();
            CHECK(cudaEventRecord(filled[turn % 2], stream));
            CHECK(cudaStreamWaitEvent(copies, filled[turn % 2], 0));
            CHECK(cudaMemcpyAsync(slot, half, n * size, cudaMemcpyDefault, copies));
            CHECK(cudaEventRecord(emptied[turn % 2], copies));
          }
        }
      };
      const std::vector<Way> ways = {
          {"dma", [&] { dma(1); }},
          {"loop", loop},
          {"dma x2", [&] { dma(2); }},
          {"block 16", [&] { block(16); }},
          {"block 64", [&] { block(64); }},
          {"warp 4", [&] { warp(4); }},
          {"warp 16", [&] { warp(16); }},
          {"staged 1", [&] { staged(size_t{1} << 20); }},
          {"staged 4", [&] { staged(size_t{4} << 20); }},
          {"staged 8", [&] { staged(size_t{8} << 20); }},
          {"staged 32", [&] { staged(size_t{32} << 20); }}};
      if (only != nullptr) {
        for (const Way& way : ways) {
          if (std::strcmp(way.name, only) != 0) continue;
          const Clock::time_point start = Clock::now();
          double rounds = 0;
          for (; Since(start) < only_seconds; ++rounds) {
            way.hand_over();
            for (const cudaStream_t of : streams) CHECK(cudaStreamSynchronize(of));
          }
          std::printf("%s %zu KiB %s %.1f GB/s\n", only, kib, load ? "load" : "store", rounds * kBytes / Since(start) * 1e-9);
        }
        continue;
      }
      if (std::exchange(first, false)) {
        std::printf("%8s %6s %10s", "page KiB", "way", "GB/s");
        for (const Way& way : ways) std::printf(" %9s", way.name);
        std::printf("   (ratio to contiguous)\n");
      }
      std::vector<std::vector<double>> ratios(ways.size()), handing(ways.size());
      std::vector<double> limits;
      const auto measure = [&](const std::function<void()>& hand_over, double* handed) {
        const Clock::time_point start = Clock::now();
        hand_over();
        *handed = Since(start);
        for (const cudaStream_t of : streams) CHECK(cudaStreamSynchronize(of));
        return Since(start);
      };
      for (int round = -1; round < kRounds; ++round) {
        double handed = 0;
        const double limit = measure(contiguous, &handed);
        if (round >= 0) limits.push_back(limit);
        for (size_t way = 0; way < ways.size(); ++way) {
          const double seconds = measure(ways[way].hand_over, &handed);
          if (round < 0) continue;
          ratios[way].push_back(limit / seconds);
          handing[way].push_back(handed);
        }
      }
      const auto median = [](std::vector<double>& of) {
        std::sort(of.begin(), of.end());
        return of[of.size() / 2];
      };
      std::printf("%8zu %6s %10.1f", kib, load ? "load" : "store", kBytes / median(limits) * 1e-9);
      for (std::vector<double>& of : ratios) std::printf(" %9.2f", median(of));
      std::printf("\n");
      std::fflush(stdout);
      handed_over.emplace_back();
      for (std::vector<double>& of : handing) handed_over.back().push_back(median(of) * 1e3 * (double{1 << 30} / kBytes));
    }
  }
  if (only != nullptr) return 0;
  std::printf("handing over, ms/GiB, the same lines\n");
  for (const std::vector<double>& line : handed_over) {
    std::printf("%26s", "");
    for (const double ms : line) std::printf(" %9.1f", ms);
    std::printf("\n");
  }
  return 0;
}

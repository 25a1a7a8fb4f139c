// Which way of moving scattered pages between pinned host memory and a GPU suits which page size: 256 MiB, both directions, medians of
// several rounds, beside one contiguous copy in the same round. Built and run by run.sh where the GPU is; beside a GEMM of another process by
// gemm_beside.py.
//
//   dma        a driver's batch (cuMemcpyBatchAsync), or a loop of single copies where it has none; `loop` is that loop in any case
//   kernel     a gather/scatter kernel that reads and writes mapped pinned memory itself, on so many blocks
//   staged     DMA in one piece between host and a ring of 2 x 4 MiB on the GPU, and a kernel between the ring and the pages
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <random>
#include <vector>

#define CHECK(call)                                                                       \
  do {                                                                                    \
    if (const auto result = (call); static_cast<int>(result) != 0) {                      \
      std::fprintf(stderr, "%s: error %d\n", #call, static_cast<int>(result));            \
      std::exit(1);                                                                       \
    }                                                                                     \
  } while (false)

constexpr size_t kBytes = size_t{256} << 20;
constexpr size_t kRingBytes = size_t{4} << 20;
constexpr int kRounds = 7;

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

double Seconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

int main() {
  CHECK(cudaSetDevice(0));
  char *host, *pages, *ring;
  CHECK(cudaHostAlloc(reinterpret_cast<void**>(&host), kBytes, cudaHostAllocMapped | cudaHostAllocPortable));
  CHECK(cudaMalloc(reinterpret_cast<void**>(&pages), kBytes));
  CHECK(cudaMalloc(reinterpret_cast<void**>(&ring), 2 * kRingBytes));
  Piece* pieces;  // read by kernels through the bus, as the daemon's would be
  CHECK(cudaHostAlloc(reinterpret_cast<void**>(&pieces), kBytes / 4096 * sizeof(Piece), cudaHostAllocMapped));
  int least, greatest;
  CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  cudaStream_t stream, copies;
  CHECK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest));
  CHECK(cudaStreamCreateWithPriority(&copies, cudaStreamNonBlocking, greatest));
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

  std::printf("%8s %6s %12s %10s", "page KiB", "way", "contiguous", "GB/s");
  for (const char* name : {"dma", "loop", "kernel 4", "kernel 16", "kernel 64", "staged 4", "staged 16"}) std::printf(" %10s", name);
  std::printf("   (ratio to contiguous)\n");
  std::mt19937 random(1);
  for (const size_t kib : {4, 8, 16, 32, 64, 128, 256}) {
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
        CHECK(cudaStreamSynchronize(stream));
      };
      const auto loop = [&] {
        for (size_t i = 0; i < count; ++i) CHECK(cuMemcpyAsync(to[i], from[i], size, stream));
        CHECK(cudaStreamSynchronize(stream));
      };
      const auto dma = [&] {
        if (batch == nullptr) return loop();
        CUmemcpyAttributes attributes{};
        attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
        size_t start = 0, failed = 0;
        const size_t at_once = std::max<size_t>(1, (size_t{8} << 20) / size);
        for (size_t i = 0; i < count; i += at_once)
          CHECK(batch(&to[i], &from[i], &sizes[i], std::min(at_once, count - i), &attributes, &start, 1, &failed, stream));
        CHECK(cudaStreamSynchronize(stream));
      };
      const auto kernel = [&](int blocks) {
        for (size_t i = 0; i < count; ++i) pieces[i] = {reinterpret_cast<uint4*>(to[i]), reinterpret_cast<const uint4*>(from[i])};
        CopyPages<<<blocks, 512, 0, stream>>>(pieces, static_cast<uint32_t>(count), static_cast<uint32_t>(size / 16));
        CHECK(cudaStreamSynchronize(stream));
      };
      const auto staged = [&](int blocks) {
        const size_t at_once = std::max<size_t>(1, kRingBytes / size);
        for (size_t i = 0; i < count; ++i) {
          auto* staging = reinterpret_cast<uint4*>(ring + (i / at_once % 2) * kRingBytes + i % at_once * size);
          auto* page = reinterpret_cast<uint4*>(load ? to[i] : from[i]);
          pieces[i] = load ? Piece{page, staging} : Piece{staging, page};
        }
        for (size_t i = 0, turn = 0; i < count; i += at_once, ++turn) {
          const size_t n = std::min(at_once, count - i);
          char* half = ring + turn % 2 * kRingBytes;
          char* slot = host + i * size;
          const auto launch = [&] {
            CopyPages<<<blocks, 512, 0, stream>>>(pieces + i, static_cast<uint32_t>(n), static_cast<uint32_t>(size / 16));
          };
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
        CHECK(cudaStreamSynchronize(stream));
        CHECK(cudaStreamSynchronize(copies));
      };
      const std::vector<std::function<void()>> ways = {dma, loop, [&] { kernel(4); }, [&] { kernel(16); }, [&] { kernel(64); },
                                                       [&] { staged(4); }, [&] { staged(16); }};
      std::vector<std::vector<double>> ratios(ways.size());
      std::vector<double> limits;
      for (int round = -1; round < kRounds; ++round) {
        const double limit = Seconds(contiguous);
        if (round >= 0) limits.push_back(limit);
        for (size_t way = 0; way < ways.size(); ++way) {
          const double seconds = Seconds(ways[way]);
          if (round >= 0) ratios[way].push_back(limit / seconds);
        }
      }
      const auto median = [](std::vector<double>& of) {
        std::sort(of.begin(), of.end());
        return of[of.size() / 2];
      };
      std::printf("%8zu %6s %12s %10.1f", kib, load ? "load" : "store", "", kBytes / median(limits) * 1e-9);
      for (std::vector<double>& of : ratios) std::printf(" %10.2f", median(of));
      std::printf("\n");
      std::fflush(stdout);
    }
  }
  return 0;
}

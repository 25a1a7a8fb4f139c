#ifndef KVIST_TESTS_BENCH_PLANE_SPLIT_H_
#define KVIST_TESTS_BENCH_PLANE_SPLIT_H_

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace kvist::bench {

// The limit of lossless codecs: 16-bit values split into their two bytes, each plane by zstd's level 1. As the libraries do it: contexts and
// buffers are kept, planes are split and joined 16 values at a time.
class PlaneSplit {
 public:
  static constexpr size_t kUnit = 32;  // bytes of 16 values
  struct Options {
    size_t payload_bytes = 0;  // a multiple of block_bytes
    // Split and compressed at a time, a multiple of kUnit: what is split is still in the cache when zstd takes it, if that holds a block.
    size_t block_bytes = 0;
    // Whether a block's low plane stays as it is when zstd takes less than a 20th off a sample of it: then it is split to where it stays.
    bool samples_low = false;
  };
  explicit PlaneSplit(const Options& options);
  ~PlaneSplit();
  PlaneSplit(const PlaneSplit&) = delete;
  PlaneSplit& operator=(const PlaneSplit&) = delete;

  // Bytes that it takes. / Whether it came back whole; of what was encoded last.
  size_t Encode(std::span<const std::byte> payload);
  bool Decode(std::span<std::byte> payload);

 private:
  struct Contexts;
  struct Block {
    bool low_as_it_is = false;
    size_t lengths[2] = {};
  };
  bool LowShrinks(std::span<const std::byte> block);
  std::byte* EncodedAt(size_t block, int plane) {
    return encoded_.data() + (2 * block + static_cast<size_t>(plane)) * room_;
  }

  const Options options_;
  const size_t plane_bytes_;  // of a block
  const size_t room_;         // for a plane, encoded
  std::unique_ptr<Contexts> contexts_;
  std::vector<std::byte> planes_[2];  // of one block
  std::vector<std::byte> encoded_;    // [block][plane], room_ each
  std::vector<Block> blocks_;
};

}  // namespace kvist::bench

#endif  // KVIST_TESTS_BENCH_PLANE_SPLIT_H_

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
  static constexpr size_t kUnit = 32;         // bytes of 16 values
  explicit PlaneSplit(size_t payload_bytes);  // a multiple of kUnit
  ~PlaneSplit();
  PlaneSplit(const PlaneSplit&) = delete;
  PlaneSplit& operator=(const PlaneSplit&) = delete;

  // Bytes that it takes. / Whether it came back whole; of what was encoded last.
  size_t Encode(std::span<const std::byte> payload);
  bool Decode(std::span<std::byte> payload);

 private:
  struct Contexts;
  std::unique_ptr<Contexts> contexts_;
  std::vector<std::byte> planes_[2];
  std::vector<std::byte> encoded_[2];
  size_t lengths_[2] = {};
};

}  // namespace kvist::bench

#endif  // KVIST_TESTS_BENCH_PLANE_SPLIT_H_

#ifndef KVIST_TESTS_BENCH_KV_VALUES_H_
#define KVIST_TESTS_BENCH_KV_VALUES_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/codec/shape.h"

namespace kvist::bench {

// A shard's payload for measuring codecs: bf16, layer-major, [layer][K or V][token][head * head_dim + channel].
struct KvValues {
  codec::Shape shape;
  uint32_t heads = 0;
  uint32_t head_dim = 0;
  std::vector<std::byte> payload;
};

struct KvSizes {
  uint32_t layers, tokens, heads, head_dim;
};

// Values of N(0, s_c), s_c log-normal(0, 1) for each channel of each layer; keys AR(1) of 0.9 along the tokens. The same from one seed.
KvValues MakeKvValues(const KvSizes& sizes, uint64_t seed);
// What a file of exactly such values holds. Errors: InvalidArgument  it has another size, or the sizes are too large.  Unavailable  it can't be read.
absl::StatusOr<KvValues> ReadKvValues(const std::string& path, const KvSizes& sizes);

}  // namespace kvist::bench

#endif  // KVIST_TESTS_BENCH_KV_VALUES_H_

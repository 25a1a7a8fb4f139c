#include "tests/bench/kv_values.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <random>

#include "absl/strings/str_cat.h"
#include "storage/base/status.h"

namespace kvist::bench {
namespace {

codec::Shape ShapeOf(const KvSizes& sizes) {
  return {.element = codec::Element::kBf16,
          .layers = sizes.layers,
          .segments = 2,
          .keys = 1,
          .tokens = sizes.tokens,
          .channels = sizes.heads * sizes.head_dim};
}

uint16_t ToBf16(double value) {
  const auto narrow = static_cast<float>(value);
  uint32_t bits = 0;
  std::memcpy(&bits, &narrow, sizeof bits);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

}  // namespace

KvValues MakeKvValues(const KvSizes& sizes, uint64_t seed) {
  constexpr double kCorrelation = 0.9;
  KvValues made{ShapeOf(sizes), sizes.heads, sizes.head_dim, {}};
  made.payload.resize(made.shape.bytes().value);
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::vector<double> scale(made.shape.channels), before(made.shape.channels);
  std::byte* out = made.payload.data();
  for (uint64_t matrix = 0; matrix < made.shape.matrices(); ++matrix) {
    const bool key = made.shape.IsKey(matrix);
    for (double& s : scale) s = std::exp(normal(random));
    for (uint32_t t = 0; t < sizes.tokens; ++t) {
      for (size_t c = 0; c < scale.size(); ++c, out += 2) {
        const double fresh = normal(random);
        const bool follows = key && t > 0;
        before[c] = follows ? kCorrelation * before[c] + std::sqrt(1 - kCorrelation * kCorrelation) * fresh : fresh;
        const uint16_t bits = ToBf16(scale[c] * before[c]);
        std::memcpy(out, &bits, sizeof bits);
      }
    }
  }
  return made;
}

absl::StatusOr<KvValues> ReadKvValues(const std::string& path, const KvSizes& sizes) {
  if (uint64_t{sizes.heads} * sizes.head_dim > std::numeric_limits<uint32_t>::max())
    return absl::InvalidArgumentError(absl::StrCat("--kv: --heads ", sizes.heads, " of --head-dim ", sizes.head_dim,
                                                   " make more channels than 32 bits count"));
  KvValues read{ShapeOf(sizes), sizes.heads, sizes.head_dim, {}};
  KVIST_RETURN_IF_ERROR(read.shape.Validate());
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return absl::UnavailableError(absl::StrCat("--kv: ", path, " can't be opened"));
  const auto size = static_cast<uint64_t>(file.tellg());
  if (size != read.shape.bytes().value)
    return absl::InvalidArgumentError(absl::StrCat("--kv: ", path, " has ", size, " bytes; --layers ", sizes.layers,
                                                   ", --tokens ", sizes.tokens, ", --heads ", sizes.heads,
                                                   " and --head-dim ", sizes.head_dim, " make ", read.shape.bytes().value));
  read.payload.resize(size);
  file.seekg(0);
  if (!file.read(reinterpret_cast<char*>(read.payload.data()), static_cast<std::streamsize>(size)))
    return absl::UnavailableError(absl::StrCat("--kv: ", path, " can't be read"));
  return read;
}

}  // namespace kvist::bench

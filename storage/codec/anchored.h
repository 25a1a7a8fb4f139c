#ifndef KVIST_STORAGE_CODEC_ANCHORED_H_
#define KVIST_STORAGE_CODEC_ANCHORED_H_

#include <vector>

#include "storage/codec/entropy.h"
#include "storage/codec/matrix_coder.h"
#include "storage/codec/twins.h"

namespace kvist::codec {

// The strongest: values rounded to steps, as coarse as the layer may have them; what is left after a guess is coded by how often it comes.
//
//   | AnchoredPart 16 B | sides [3][channel]: step codes, centres, guesses | kinds, when there are any: [2][token] | residuals [token][channel] |
//
//   code = value / step, rounded, 8 bits          residual = code - guess, modulo 256
//   guess, for each channel one of   its centre | the code of the token before | the code of the token's twin, or the centre when it has none
//   anchors (every Parameters::anchor tokens) and what has no other: the centre
//
// Steps: the error that Parameters names for the layer, as if it were even in a step. A channel's step goes by the square root of its
//   size: equal steps would make the whole error least, steps by size each channel's; queries may dwell on small channels. No step is
//   less than a 110th of its channel's largest magnitude, so that codes have 8 bits: with outliers the error is larger than named.
// Guesses: whichever leaves the smaller numbers: keys mostly the token before, values their twin or the centre.
// Kinds (twins.h): bytes 0 of all, then bytes 1; where no channel's guess is the twin there are none.
class AnchoredCoder final : public MatrixCoder {
 public:
  AnchoredCoder(const Shape& shape, const Parameters& parameters, const Kernels& kernels);
  static size_t Bound(const Shape& shape);
  size_t Encode(uint64_t matrix, std::span<const std::byte> payload, uint8_t* part) override;
  bool Decode(uint64_t matrix, std::span<const uint8_t> part, std::byte* values) override;

 private:
  float ChooseSteps(uint64_t matrix, const RawValue* rows);
  void ChooseGuesses();
  bool ReadGuesses();
  void TellTwins(std::span<const Kind> kinds);
  bool ReadTwins(std::span<const uint8_t> packed);
  // The codes of its twin, or the centres.
  const uint8_t* TwinOf(size_t token) const;
  // Writes them, compressed when that is less; gives the length.
  static size_t Pack(std::span<const uint8_t> bytes, Compressor* compressor, uint8_t* at);
  bool Unpack(std::span<const uint8_t> packed, std::vector<uint8_t>* bytes);

  const Kernels& kernels_;
  const Shape shape_;
  const Parameters parameters_;
  const size_t tokens_;
  const size_t channels_;
  std::vector<uint8_t> codes_;      // [token][channel]
  std::vector<uint8_t> residuals_;  // [token][channel]
  std::vector<uint8_t> sides_;      // [3][channel]
  std::vector<uint8_t> guesses_;    // [channel]
  std::vector<uint8_t> before_;     // [channel] masks: whether the guess is the token before, the twin
  std::vector<uint8_t> twin_;
  std::vector<uint32_t> twins_;    // [token], or empty
  std::vector<uint8_t> kinds_;     // [2][token]
  std::vector<float> squares_;     // [channel], summed
  std::vector<uint16_t> largest_;  // [channel], magnitudes
  std::vector<float> scales_;      // [channel]: steps or their inverses
  std::vector<int32_t> sums_, direct_, moved_, twinned_;
  Compressor compressor_{Compressor::How::kHuffman};
  Compressor repeats_{Compressor::How::kRepeats};
  Decompressor decompressor_;
};

struct AnchoredPart {
  float top;  // of the StepTable
  // 3 * channels: as they are; else compressed. Residuals have all that is behind them, in the same way
  uint32_t side_bytes;
  uint32_t kind_bytes;  // 0: there are none; 2 * tokens: as they are; else compressed
  uint32_t reserved;    // zero
};
static_assert(sizeof(AnchoredPart) == 16);

}  // namespace kvist::codec

#endif  // KVIST_STORAGE_CODEC_ANCHORED_H_

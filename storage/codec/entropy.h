#ifndef KVIST_STORAGE_CODEC_ENTROPY_H_
#define KVIST_STORAGE_CODEC_ENTROPY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

// Bytes into fewer, and back. Knows zstd, and nobody else does.
namespace kvist::codec {

// Each is used by one thread at a time; memory for it is taken once. Stops the process when there is none, as new does.
class Compressor {
 public:
  enum class How : uint8_t {
    kHuffman,  // by how often each byte comes; nothing is looked for that comes again
    kRepeats,  // both: zstd's level 1
  };
  explicit Compressor(How how);
  ~Compressor();
  Compressor(const Compressor&) = delete;
  Compressor& operator=(const Compressor&) = delete;

  // Writes to `out` and gives the length; nothing when that isn't less than input.size() or doesn't fit: then `out` holds anything.
  std::optional<size_t> Compress(std::span<const uint8_t> input, std::span<uint8_t> out);

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

class Decompressor {
 public:
  Decompressor();
  ~Decompressor();
  Decompressor(const Decompressor&) = delete;
  Decompressor& operator=(const Decompressor&) = delete;

  // Fills `out` to its last byte; false when the input doesn't, whatever it holds, or isn't one frame of today's zstd. Allocates nothing.
  bool Decompress(std::span<const uint8_t> input, std::span<uint8_t> out);

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

// Whether Huffman would take at least a 20th off: by the entropy of at most 4,096 bytes of them, one of each
// stretch of as many bytes, at places that follow no row's length.
bool SeemsCompressible(std::span<const uint8_t> bytes);

}  // namespace kvist::codec

#endif  // KVIST_STORAGE_CODEC_ENTROPY_H_

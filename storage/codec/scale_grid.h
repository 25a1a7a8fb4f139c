#ifndef KVIST_STORAGE_CODEC_SCALE_GRID_H_
#define KVIST_STORAGE_CODEC_SCALE_GRID_H_

#include <algorithm>
#include <cstddef>

#include "storage/codec/shape.h"

namespace kvist::codec {

// Which values of a matrix share a scale: `group` tokens of a channel in keys, `group` channels of a token in all else. Scales lie as
// [line][cell]; the last line or cell of a matrix may have fewer values.
//
//   keys:  a line is `group` tokens, a cell a channel          else:  a line is a token, a cell `group` channels
struct ScaleGrid {
  size_t tokens, channels;
  size_t line_tokens, cell_channels;

  ScaleGrid(const Shape& shape, uint32_t group, bool key)
      : tokens(shape.tokens), channels(shape.channels), line_tokens(key ? group : 1), cell_channels(key ? 1 : group) {}

  size_t lines() const { return (tokens + line_tokens - 1) / line_tokens; }
  size_t cells() const { return (channels + cell_channels - 1) / cell_channels; }
  size_t scales() const { return lines() * cells(); }

  size_t FirstToken(size_t line) const { return line * line_tokens; }
  size_t EndToken(size_t line) const { return std::min(tokens, FirstToken(line) + line_tokens); }
  size_t FirstChannel(size_t cell) const { return cell * cell_channels; }
  size_t EndChannel(size_t cell) const { return std::min(channels, FirstChannel(cell) + cell_channels); }

  // What one line's cells have, for each channel: to[channel] = of(cell).
  template <class To, class Of>
  void Spread(To* to, Of of) const {
    if (cell_channels == 1) {
      for (size_t c = 0; c < channels; ++c) to[c] = of(c);
      return;
    }
    for (size_t cell = 0; cell < cells(); ++cell) std::fill(to + FirstChannel(cell), to + EndChannel(cell), of(cell));
  }
};

}  // namespace kvist::codec

#endif  // KVIST_STORAGE_CODEC_SCALE_GRID_H_

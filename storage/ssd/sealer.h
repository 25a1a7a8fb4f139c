#ifndef KVIST_STORAGE_SSD_SEALER_H_
#define KVIST_STORAGE_SSD_SEALER_H_

#include <cstddef>
#include <memory>
#include <span>

#include "storage/ssd/format.h"

namespace kvist::ssd {

// Makes seals: HMAC-SHA-256 with a context that is kept, keyed anew only when the secret is another than the last one.
// Threads: one at a time. Cost: tests/bench (ssd), the row "seal".
class Sealer {
 public:
  Sealer();
  ~Sealer();
  Sealer(Sealer&&) noexcept;
  Sealer& operator=(Sealer&&) noexcept;

  // Of `first` and `second`, one behind the other.
  Seal Of(const Secret& secret, std::span<const std::byte> first, std::span<const std::byte> second);

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

// Fresh from the system's generator.
Secret DrawSecret();

}  // namespace kvist::ssd

#endif  // KVIST_STORAGE_SSD_SEALER_H_

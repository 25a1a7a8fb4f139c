#ifndef KVIST_STORAGE_REMOTE_REDIS_REPLY_H_
#define KVIST_STORAGE_REMOTE_REDIS_REPLY_H_

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "storage/base/units.h"

namespace kvist::remote {

// Where the bytes of a bulk go, one behind the other.
using Scatter = std::array<std::span<std::byte>, 3>;

// Reads replies of a Redis server (RESP2: simple strings, errors, integers, bulks; arrays are nothing that we ask for) from a stream, and
// large ones straight into where they belong: what is beyond the first buffer is received by the kernel's copy alone.
//
// Lifecycle: Room says where the next bytes of the stream may be put, Filled how many came. Owner is told of replies meanwhile.
// Invariants: holds at most a buffer of kBuffer, whatever the server sends; touches a scatter only within Filled, or by what is read into Room.
// Threads: one.
class ReplyReader {
 public:
  enum class Type : uint8_t { kText, kError, kInteger, kBulk, kNil };
  struct Reply {
    Type type = Type::kNil;
    std::string text;     // kText, kError
    int64_t integer = 0;  // kInteger
    uint64_t length = 0;  // kBulk: as sent, whether it was kept or not
  };
  class Owner {
   public:
    virtual ~Owner() = default;
    // A bulk of so many bytes is coming. The answer has room for all of it, or for nothing: then it is skipped.
    virtual Scatter BulkBegins(uint64_t length) = 0;
    virtual void ReplyEnds(const Reply& reply) = 0;
  };

  std::span<const iovec> Room();
  // Errors: Unavailable, it isn't that protocol; then the stream is no more use.
  absl::Status Filled(size_t bytes, Owner* owner);
  // Touch the scatter no more: the rest of the bulk is skipped.
  void Skip() { scatter_ = {}; }
  void Reset();

 private:
  static constexpr Bytes kBuffer = KiB(64);
  static constexpr uint64_t kLineMax = 4096;               // Redis' errors have less
  static constexpr uint64_t kBulkMax = uint64_t{1} << 30;  // Redis' own limit is 512 MiB

  uint64_t ScatterRoom() const;
  void Scattered(size_t bytes);
  absl::Status Line(std::string_view line, Owner* owner);

  std::vector<std::byte> buffer_;  // once something is to be read
  size_t begin_ = 0;               // of what is in the buffer and not read yet
  size_t end_ = 0;
  bool in_bulk_ = false;
  uint64_t bulk_left_ = 0;
  Scatter scatter_{};  // the rest of it
  Reply reply_;
  std::array<iovec, 4> room_{};
};

}  // namespace kvist::remote

#endif  // KVIST_STORAGE_REMOTE_REDIS_REPLY_H_

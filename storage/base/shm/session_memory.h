#ifndef KVIST_STORAGE_BASE_SHM_SESSION_MEMORY_H_
#define KVIST_STORAGE_BASE_SHM_SESSION_MEMORY_H_

#include <span>
#include <utility>

#include "absl/status/statusor.h"
#include "storage/base/mapping.h"
#include "storage/base/shm/layout.h"
#include "storage/base/unique_fd.h"

namespace kvist::shm {

// One side's mapping of a session's memory.
//
// Lifecycle: the daemon creates it, sealed against growing and shrinking (neither side can make the other fault), and passes the
//   memfd in Welcome; the connector maps it.
// Threads: the accessors are plain pointers; layout.h says who writes what.
class SessionMemory {
 public:
  struct Created;
  // A new zeroed memory and its sealed memfd. Errors: those of memfd_create and mmap.
  static absl::StatusOr<Created> Create();
  // Maps what the daemon sent. Errors: FailedPrecondition  not sealed, another size, magic or version.
  static absl::StatusOr<SessionMemory> Map(int fd);

  Header* header() const { return reinterpret_cast<Header*>(mapping_.data()); }
  Entry* ring() const { return reinterpret_cast<Entry*>(mapping_.data() + kRingOffset); }
  Cell* cell(uint32_t i) const { return reinterpret_cast<Cell*>(mapping_.data() + kBoardOffset) + i; }
  std::byte* arena() const { return mapping_.data() + kArenaOffset; }

 private:
  Mapping mapping_;
};

struct SessionMemory::Created {
  SessionMemory memory;
  UniqueFd fd;
};

}  // namespace kvist::shm

#endif  // KVIST_STORAGE_BASE_SHM_SESSION_MEMORY_H_

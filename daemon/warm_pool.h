#ifndef KVIST_DAEMON_WARM_POOL_H_
#define KVIST_DAEMON_WARM_POOL_H_

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/core/core.h"
#include "daemon/file_keeper.h"
#include "storage/base/unique_fd.h"
#include "storage/base/units.h"
#include "storage/pool/sections.h"

namespace kvist::daemon {

// The pool's memory and the core's index in files of memory that a service manager keeps: the next kvistd goes on with what lies whole
// there, whether this one is stopped to be started again or dies at any instruction.
//
//   kvist-pool-ID-R    memory of region R of pool ID
//   kvist-index-ID-N   the N-th index of that pool: a Header, then a core's sections (daemon/core/index_image.h)
//
// Of a pool's indexes one counts, the newest that says so. One that may have killed its kvistd isn't trusted for ever: when a taking over has
// ended the process, or kLivesMax of them in a row have lived less than kShortLife, all is given up.
//
// Lifecycle: Open -> file() and sections() serve pool and core -> TakeOver fills that core -> Start: from now on this index counts and is
//   kept, and slots may change. Destroyed before that (a start that fails), all is as it was found.
// Threads: one, but sections(), which are the core's.
class WarmPool {
 public:
  // What must be the same for what lies in slots to be of use.
  struct Shape {
    std::vector<Bytes> regions;
    Bytes slab_bytes;
    bool checksums = false;  // pool.verify: stores leave checksums, and loads ask for them
  };
  static constexpr uint64_t kLivesMax = 5;
  static constexpr absl::Duration kShortLife = absl::Seconds(10);
  static constexpr size_t kRegionsMax = 64;

  // Takes the pool that was kept, if it has this shape, and gives up what else was. Without one it makes one, or when it may not, there is
  // none: nullptr.
  // Errors: those of memfd_create, ftruncate and mmap; InvalidArgument  more than kRegionsMax regions.
  static absl::StatusOr<std::unique_ptr<WarmPool>> Open(Shape shape, FileKeeper keeper, bool may_make);
  ~WarmPool();
  WarmPool(const WarmPool&) = delete;
  WarmPool& operator=(const WarmPool&) = delete;

  int file(size_t region) const { return pool_[region].get(); }
  pool::Sections* sections() { return sections_.get(); }

  // Nothing when no pool was kept. `core` must be new, over slots of this shape.
  std::optional<core::Core::TakenOver> TakeOver(core::Core* core);
  void Start();

 private:
  struct Header;
  WarmPool(Shape shape, FileKeeper keeper) : shape_(std::move(shape)), keeper_(std::move(keeper)) {}
  bool FindKept();
  bool Trusted(const std::string& name, const Header& header) const;
  void GiveUpOthers();
  absl::Status MakePool();
  absl::Status MakeIndex();

  const Shape shape_;
  FileKeeper keeper_;
  std::string id_;
  uint64_t number_ = 1;  // of this index
  std::vector<UniqueFd> pool_;
  bool pool_is_new_ = false;
  UniqueFd index_;
  std::unique_ptr<pool::FileSections> sections_;
  Header* header_ = nullptr;
  std::optional<pool::SectionsOfFile> left_;
  Header* left_header_ = nullptr;
  bool started_ = false;
};

}  // namespace kvist::daemon

#endif  // KVIST_DAEMON_WARM_POOL_H_

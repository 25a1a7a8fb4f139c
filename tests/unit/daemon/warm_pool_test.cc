#include "daemon/warm_pool.h"

#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "storage/pool/slot_allocator.h"

namespace kvist::daemon {
namespace {

WarmPool::Shape ShapeOf(std::vector<Bytes> regions) { return {std::move(regions), MiB(1), false}; }
const std::vector<Bytes> kRegions{MiB(3), MiB(5)};

// Who keeps files for one kvistd after the other.
class Manager {
 public:
  FileKeeper Keeper() {
    FileKeeper keeper;
    for (const auto& [name, file] : files_) keeper.kept[name] = UniqueFd(::dup(file.get()));
    keeper.keep = [this](const std::string& name, int file) {
      CHECK(!files_.contains(name));
      files_[name] = UniqueFd(::dup(file));
    };
    keeper.drop = [this](const std::string& name) { CHECK(files_.erase(name) == 1); };
    return keeper;
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& [name, file] : files_) names.push_back(name);
    return names;
  }

 private:
  std::map<std::string, UniqueFd> files_;
};

std::unique_ptr<WarmPool> Open(Manager& manager, bool may_make = true, WarmPool::Shape shape = ShapeOf(kRegions)) {
  auto warm = WarmPool::Open(std::move(shape), manager.Keeper(), may_make);
  REQUIRE(warm.ok());
  return *std::move(warm);
}

// Whether a core could take over what was kept.
bool TakesOver(WarmPool& warm) {
  pool::SlotAllocator slots = pool::SlotAllocator::Create({.regions = kRegions, .slab_bytes = MiB(1)}).value();
  core::Core core({}, &slots, warm.sections());
  return warm.TakeOver(&core).has_value();
}

std::pair<dev_t, ino_t> IdentityOf(int file) {
  struct stat status {};
  REQUIRE(::fstat(file, &status) == 0);
  return {status.st_dev, status.st_ino};
}

// A kvistd that is killed does nothing any more: its objects stay as they are.
void Kill(std::unique_ptr<WarmPool> warm) {
  static std::vector<std::unique_ptr<WarmPool>> killed;
  killed.push_back(std::move(warm));
}

TEST_CASE("A pool is kept from its start on, and the next kvistd has it") {
  Manager manager;
  std::unique_ptr<WarmPool> first = Open(manager);
  CHECK(!TakesOver(*first));
  CHECK(manager.Names().empty());
  first->Start();
  CHECK(manager.Names().size() == 3);
  const auto memory = IdentityOf(first->file(1));
  first.reset();

  for (int restart = 0; restart < 3; ++restart) {
    std::unique_ptr<WarmPool> next = Open(manager);
    CHECK(IdentityOf(next->file(1)) == memory);
    CHECK(TakesOver(*next));
    next->Start();
    CHECK(manager.Names().size() == 3);
    if (restart == 1) Kill(std::move(next));
  }
}

TEST_CASE("A start that fails, or is killed before it serves, changes nothing") {
  Manager manager;
  std::unique_ptr<WarmPool> first = Open(manager);
  first->Start();
  const std::vector<std::string> names = manager.Names();
  first.reset();
  for (const bool killed : {false, true}) {
    for (const bool took : {false, true}) {
      std::unique_ptr<WarmPool> fails = Open(manager);
      if (took) CHECK(TakesOver(*fails));
      if (killed) {
        Kill(std::move(fails));
      } else {
        fails.reset();
      }
      CHECK(manager.Names() == names);
    }
  }
  CHECK(TakesOver(*Open(manager)));
}

TEST_CASE("A pool of another shape is given up at once, and where none may be made there is none") {
  Manager manager;
  Open(manager)->Start();
  CHECK(manager.Names().size() == 3);
  WarmPool::Shape other = ShapeOf(kRegions);
  SECTION("other regions") { other.regions.pop_back(); }
  SECTION("other slabs") { other.slab_bytes = MiB(2); }
  SECTION("checksums") { other.checksums = true; }
  CHECK(Open(manager, /*may_make=*/false, other) == nullptr);
  CHECK(manager.Names().empty());
  Open(manager)->Start();
  CHECK(Open(manager, /*may_make=*/false) != nullptr);  // one that was kept is no new one
  CHECK(WarmPool::Open(ShapeOf(std::vector<Bytes>(65, MiB(2))), manager.Keeper(), true).status().code() ==
        absl::StatusCode::kInvalidArgument);
}

TEST_CASE("A pool with which five kvistds in a row die soon is given up") {
  Manager manager;
  std::unique_ptr<WarmPool> first = Open(manager);
  first->Start();
  Kill(std::move(first));
  uint64_t lives = 1;
  while (true) {
    std::unique_ptr<WarmPool> next = Open(manager);
    const bool took = TakesOver(*next);
    next->Start();
    Kill(std::move(next));
    if (!took) break;
    REQUIRE(++lives <= WarmPool::kLivesMax);
  }
  CHECK(lives == WarmPool::kLivesMax);
  CHECK(manager.Names().size() == 3);
}

}  // namespace
}  // namespace kvist::daemon

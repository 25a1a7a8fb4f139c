#include "storage/base/mapping.h"

#include <sys/mman.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <cstring>
#include <utility>

#include "storage/base/unique_fd.h"

namespace kvist {
namespace {

UniqueFd MemFd(Bytes length) {
  UniqueFd fd(memfd_create("mapping_test", MFD_CLOEXEC));
  REQUIRE(fd);
  REQUIRE(ftruncate(fd.get(), static_cast<off_t>(length.value)) == 0);
  return fd;
}
bool IsMapped(void* at) { return msync(at, 1, MS_ASYNC) == 0; }

TEST_CASE("Mapping shares the file's bytes, also after the descriptor is closed") {
  UniqueFd fd = MemFd(KiB(8));
  auto writer = Mapping::Create(fd.get(), KiB(8), Mapping::Access::kReadWrite);
  auto reader = Mapping::Create(fd.get(), KiB(4), Mapping::Access::kRead);
  REQUIRE(writer.ok());
  REQUIRE(reader.ok());
  fd.reset();
  CHECK(reader->size() == KiB(4));
  std::strcpy(reinterpret_cast<char*>(writer->data()), "twig");
  CHECK(std::strcmp(reinterpret_cast<char*>(reader->data()), "twig") == 0);
}

TEST_CASE("Mapping unmaps when it goes, and only then") {
  UniqueFd fd = MemFd(KiB(4));
  std::byte* at = nullptr;
  {
    auto created = Mapping::Create(fd.get(), KiB(4), Mapping::Access::kReadWrite);
    REQUIRE(created.ok());
    at = created->data();
    Mapping moved = std::move(*created);
    CHECK(created->data() == nullptr);
    CHECK(created->size() == Bytes{});
    Mapping assigned;
    assigned = std::move(moved);
    CHECK(assigned.data() == at);
    CHECK(assigned.size() == KiB(4));
    CHECK(IsMapped(at));
  }
  CHECK_FALSE(IsMapped(at));
}

TEST_CASE("Mapping says why it can't map") {
  CHECK_FALSE(Mapping::Create(-1, KiB(4), Mapping::Access::kRead).ok());
  UniqueFd fd = MemFd(KiB(4));
  CHECK_FALSE(Mapping::Create(fd.get(), Bytes{}, Mapping::Access::kRead).ok());
}

}  // namespace
}  // namespace kvist

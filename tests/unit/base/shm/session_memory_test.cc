#include "storage/base/shm/session_memory.h"

#include <sys/mman.h>
#include <unistd.h>
#include <catch2/catch.hpp>

namespace shm = kvist::shm;

TEST_CASE("SessionMemory is shared between its maker and who maps it, and can't be resized") {
  auto created = shm::SessionMemory::Create();
  REQUIRE(created.ok());
  auto mapped = shm::SessionMemory::Map(created->fd.get());
  REQUIRE(mapped.ok());
  created->memory.cell(7)->copied = 42;
  CHECK(mapped->cell(7)->copied == 42);
  CHECK(::ftruncate(created->fd.get(), 0) != 0);
  CHECK(::ftruncate(created->fd.get(), 1 << 30) != 0);
}

TEST_CASE("SessionMemory::Map refuses what isn't sealed or isn't of this layout") {
  const kvist::UniqueFd unsealed(::memfd_create("x", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(::ftruncate(unsealed.get(), static_cast<off_t>(shm::kSessionBytes.value)) == 0);
  CHECK(shm::SessionMemory::Map(unsealed.get()).status().code() == absl::StatusCode::kFailedPrecondition);
  auto created = shm::SessionMemory::Create();
  REQUIRE(created.ok());
  created->memory.header()->version = shm::kVersion + 1;
  CHECK(shm::SessionMemory::Map(created->fd.get()).status().code() == absl::StatusCode::kFailedPrecondition);
}

#include "daemon/session/memory_proof.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <string>

#include "tests/support/temp_dir.h"

namespace kvist::session {
namespace {

TEST_CASE("A proof holds for the process and the description that it was made for, and for no other") {
  const MemoryProofs proofs = MemoryProofs::Ephemeral().value();
  const std::string proof = proofs.Of(1000, 77, "memory");
  CHECK(proof.size() == 32);
  CHECK(proofs.Holds(proof, 1000, 77, "memory"));
  CHECK_FALSE(proofs.Holds(proof, 1001, 77, "memory"));
  CHECK_FALSE(proofs.Holds(proof, 1000, 78, "memory"));
  CHECK_FALSE(proofs.Holds(proof, 1000, 77, "memory."));
  CHECK_FALSE(proofs.Holds("", 1000, 77, "memory"));
  CHECK_FALSE(proofs.Holds(proof.substr(0, 31), 1000, 77, "memory"));
  CHECK_FALSE(MemoryProofs::Ephemeral()->Holds(proof, 1000, 77, "memory"));
}

TEST_CASE("The key in a file is made once, for nobody else's eyes, and what it proved holds the next time") {
  const test::TempDir dir;
  const std::string path = dir / "key";
  const std::string proof = MemoryProofs::Open(path)->Of(1, 2, "m");
  struct stat made {};
  REQUIRE(::stat(path.c_str(), &made) == 0);
  CHECK((made.st_mode & 0777) == 0600);
  CHECK(made.st_size == 32);
  CHECK(MemoryProofs::Open(path)->Holds(proof, 1, 2, "m"));
}

TEST_CASE("A file that isn't the key is named, not used") {
  const test::TempDir dir;
  for (const size_t size : {0, 31, 33}) {
    const std::string path = dir / ("key" + std::to_string(size));
    std::ofstream(path) << std::string(size, 'x');
    const absl::Status status = MemoryProofs::Open(path).status();
    CHECK(absl::IsDataLoss(status));
    CHECK_THAT(std::string(status.message()), Catch::Contains(path));
  }
  CHECK_FALSE(MemoryProofs::Open(dir / "no/such/folder").ok());
}

}  // namespace
}  // namespace kvist::session

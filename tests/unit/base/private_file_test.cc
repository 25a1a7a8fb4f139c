#include "storage/base/private_file.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <string>

#include "tests/support/temp_dir.h"

namespace kvist {
namespace {

TEST_CASE("ReadPrivateFile reads a secret that only its owner and group can, and says of others how to mend that") {
  const test::TempDir dir;
  const std::string path = dir / "secret";
  std::ofstream(path) << "very secret\n";
  for (const mode_t mode : {0400, 0600, 0640}) {
    REQUIRE(::chmod(path.c_str(), mode) == 0);
    CHECK(*ReadPrivateFile("tls.key_file", path) == "very secret\n");
  }
  for (const mode_t mode : {0644, 0604, 0602, 0601}) {
    REQUIRE(::chmod(path.c_str(), mode) == 0);
    const absl::Status status = ReadPrivateFile("tls.key_file", path).status();
    CHECK(absl::IsFailedPrecondition(status));
    CHECK(status.message() == "tls.key_file: other users may read " + path + ": chmod o-rwx " + path);
  }
  const absl::Status missing = ReadPrivateFile("tls.key_file", dir / "none").status();
  CHECK(absl::IsNotFound(missing));
  CHECK_THAT(std::string(missing.message()), Catch::StartsWith("tls.key_file: opening "));
}

}  // namespace
}  // namespace kvist

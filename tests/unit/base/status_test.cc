#include "storage/base/status.h"

#include <catch2/catch.hpp>
#include <cerrno>
#include <memory>
#include <string>

namespace kvist {
namespace {

absl::StatusOr<std::unique_ptr<int>> Half(int n) {
  if (n % 2 != 0) return absl::InvalidArgumentError("odd");
  return std::make_unique<int>(n / 2);
}
absl::StatusOr<int> Quarter(int n) {
  KVIST_ASSIGN_OR_RETURN(const std::unique_ptr<int> half, Half(n));
  KVIST_ASSIGN_OR_RETURN(auto quarter, Half(*half));
  return *quarter;
}
absl::Status IsFourfold(int n) {
  KVIST_RETURN_IF_ERROR(Quarter(n).status());
  return absl::OkStatus();
}

TEST_CASE("KVIST_ASSIGN_OR_RETURN and KVIST_RETURN_IF_ERROR pass values on and errors out") {
  CHECK(Quarter(8).value() == 2);
  CHECK(Quarter(6).status() == absl::InvalidArgumentError("odd"));
  CHECK(IsFourfold(4).ok());
  CHECK(IsFourfold(3) == absl::InvalidArgumentError("odd"));
}

TEST_CASE("ErrnoStatus says what was tried and why it failed") {
  const absl::Status status = ErrnoStatus("open of a segment", ENOENT);
  CHECK(status.code() == absl::StatusCode::kNotFound);
  CHECK(std::string(status.message()).find("open of a segment") != std::string::npos);
  CHECK(std::string(status.message()).find("No such file") != std::string::npos);
}

}  // namespace
}  // namespace kvist

#include "cuda/driver/driver.h"

#include <catch2/catch.hpp>
#include <string>

#include "tests/unit/cuda/gpu_under_test.h"

namespace kvist::cuda::driver {
namespace {

TEST_CASE("A machine without a driver is told so, by the library's name") {
  const absl::Status status = Driver::Load("libcuda-that-nobody-has.so.1").status();
  CHECK(absl::IsNotFound(status));
  CHECK_THAT(std::string(status.message()), Catch::Contains("libcuda-that-nobody-has.so.1"));
}

TEST_CASE("A library that is no driver is refused, and what it lacks named") {
  const absl::Status status = Driver::Load("libz.so.1").status();
  CHECK(absl::IsFailedPrecondition(status));
  CHECK_THAT(std::string(status.message()), Catch::Contains("cuGetProcAddress_v2") && Catch::Contains("12.0"));
}

TEST_CASE("A device is found by its UUID, and one that isn't there is told beside those that are") {
  const FakeDriver& fake = FakeDriver::Get();
  CHECK(fake.driver()->Find(fake.uuid(1)).value() == 1);
  Uuid other;
  other.bytes[3] = std::byte{0xab};
  const absl::Status status = fake.driver()->Find(other).status();
  CHECK(absl::IsNotFound(status));
  CHECK_THAT(std::string(status.message()),
             Catch::Contains("GPU-000000ab-0000-0000-0000-000000000000") && Catch::Contains(ToText(fake.uuid(0))));
}

TEST_CASE("Errors of the driver become typed ones that name the call") {
  const Driver& driver = *FakeDriver::Get().driver();
  CHECK(driver.Check(Result::kSuccess, "cuX").ok());
  CHECK(absl::IsResourceExhausted(driver.Check(Result::kOutOfMemory, "cuX")));
  CHECK(absl::IsInvalidArgument(driver.Check(Result::kInvalidValue, "cuX")));
  CHECK(absl::IsUnavailable(driver.Check(Result::kLaunchFailed, "cuX")));
  CHECK(driver.Check(Result::kOutOfMemory, "cuX").message() == "cuX: CUDA_ERROR_OUT_OF_MEMORY (2)");
}

TEST_CASE("Only what ends a context counts as a lost device") {
  for (const int code : {4, 214, 219, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 999})
    CHECK(Driver::IsLost(static_cast<Result>(code)));
  for (const int code : {0, 1, 2, 100, 101, 201, 205, 208, 400, 500, 600, 701, 704, 705, 708, 711, 712, 713, 720, 801})
    CHECK_FALSE(Driver::IsLost(static_cast<Result>(code)));
}

}  // namespace
}  // namespace kvist::cuda::driver

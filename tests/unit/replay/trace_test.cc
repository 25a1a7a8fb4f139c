#include "examples/replay/trace.h"

#include <zlib.h>

#include <catch2/catch.hpp>
#include <cstdint>
#include <fstream>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/support/temp_dir.h"

namespace kvist::replay {
namespace {

constexpr uint64_t kAll = std::numeric_limits<uint64_t>::max();

std::string Row(const std::string& timestamp = "0", const std::string& ids = "1, 2") {
  return absl::StrCat(R"({"timestamp": )", timestamp, R"(, "input_length": 1024, "hash_ids": [)", ids, "]}\n");
}

class File {
 public:
  explicit File(const std::string& bytes) { std::ofstream(path(), std::ios::binary) << bytes; }
  std::string path() const { return dir_ / "trace"; }

 private:
  const test::TempDir dir_;
};

// What is said of these bytes, after the file's name.
std::string Refusal(const std::string& bytes, uint64_t limit = kAll) {
  const File file(bytes);
  const absl::StatusOr<Trace> trace = ReadTrace(file.path(), limit);
  CHECK(trace.status().code() == absl::StatusCode::kInvalidArgument);
  const std::string said(trace.status().message());
  REQUIRE_THAT(said, Catch::StartsWith(file.path() + ":"));
  return said.substr(file.path().size());
}

std::string Gzip(const std::string& bytes) {
  const test::TempDir dir;
  const std::string path = dir / "gz";
  gzFile file = gzopen(path.c_str(), "wb1");
  REQUIRE(gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size())) == static_cast<int>(bytes.size()));
  gzclose(file);
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST_CASE("ReadTrace reads lines of any length, compressed or not, the last one also without its end") {
  std::string ids = "1";
  for (int i = 2; i < 100'000; ++i) absl::StrAppend(&ids, ", ", i);  // longer than what is read at a time
  const std::string text = "\n" + Row("5") + "  \r\n" + Row("7.5", ids) + Row("9").substr(0, Row("9").size() - 1);
  for (const std::string& bytes : {text, Gzip(text)}) {
    const absl::StatusOr<Trace> trace = ReadTrace(File(bytes).path(), kAll);
    INFO(trace.status().ToString());
    REQUIRE(trace.ok());
    REQUIRE(trace->requests.size() == 3);
    CHECK(trace->requests[0].timestamp_ms == 5);
    CHECK(trace->requests[1].hash_ids.size() == 99'999);
    CHECK(trace->requests[1].full_blocks == 2);
    CHECK(trace->requests[2].timestamp_ms == 9);
    CHECK(trace->unique_full_blocks == 2);
  }
  CHECK(ReadTrace(File(Row() + Row() + "nonsense").path(), 2)->requests.size() == 2);
}

TEST_CASE("ReadTrace refuses NUL bytes with their line, and ends where a file of them doesn't") {
  const std::string nul(1, '\0');
  CHECK_THAT(Refusal(nul), Catch::StartsWith(":1: there is a NUL byte"));
  CHECK_THAT(Refusal(Row() + nul + Row()), Catch::StartsWith(":2: there is a NUL byte"));
  CHECK_THAT(Refusal(Row() + "\n" + Row().insert(20, nul)), Catch::StartsWith(":3: there is a NUL byte"));
  CHECK_THAT(Refusal(Gzip(Row() + nul)), Catch::StartsWith(":2: there is a NUL byte"));
  CHECK_THAT(std::string(ReadTrace("/dev/zero", kAll).status().message()),
             Catch::StartsWith("/dev/zero:1: there is a NUL byte"));
}

TEST_CASE("ReadTrace refuses a line that no request can have") {
  const std::string line(size_t{66} << 20, 'x');
  CHECK_THAT(Refusal(Gzip(Row() + line)), Catch::StartsWith(":2: the line is longer than 64 MiB"));
}

TEST_CASE("ReadTrace refuses timestamps that can't be kept") {
  for (const char* wrong : {"4000000000001", "1e300", "-1", "9223372036854775807"}) {
    INFO(wrong);
    CHECK_THAT(Refusal(Row() + Row(wrong)),
               Catch::StartsWith(":2: \"timestamp\" is ") && Catch::EndsWith(", allowed are 0 to 4000000000000 ms"));
  }
  CHECK_THAT(Refusal(Row("1e999")), Catch::StartsWith(":1: "));
  CHECK(ReadTrace(File(Row("4e12")).path(), kAll).ok());
}

TEST_CASE("ReadTrace says of a number what it is and what it may be") {
  const auto row = [](absl::string_view tokens, absl::string_view id = "1") {
    return absl::StrCat(R"({"timestamp": 0, "input_length": )", tokens, R"(, "hash_ids": [)", id, "]}\n");
  };
  const std::string tokens = ":1: \"input_length\" (tokens) is ", id = ":1: an id of \"hash_ids\" is ";
  const std::string whole = "; allowed: a whole number from 0 on",
                    large = ", too large; allowed: at most 18446744073709551615";
  for (const char* wrong : {"1024.5", "-1", "-1e+20", "1024.0"}) {
    CHECK(Refusal(row(wrong)) == tokens + wrong + whole);
    CHECK(Refusal(row("512", wrong)) == id + wrong + whole);
  }
  CHECK(Refusal(row("18446744073709551616")) == tokens + "1.8446744073709552e+19" + large);
  CHECK(Refusal(row("512", "1e30")) == id + "1e+30" + large);
  CHECK(Refusal(row("\"512\"")) == tokens + "no number: string" + whole);
  CHECK(Refusal(row("512", "[1]")) == id + "no number: array" + whole);
  CHECK(Refusal("{\"timestamp\": 0, \"hash_ids\": [1]}") == ":1: \"input_length\" (tokens) is missing");
  CHECK(ReadTrace(File(row("18446744073709551615", "18446744073709551615")).path(), kAll).ok());
}

TEST_CASE("ReadTrace names the line at which a compressed file ends or breaks") {
  std::string text;
  for (int i = 0; i < 2000; ++i) text += Row(absl::StrCat(i), absl::StrCat(i, ", ", i * i));
  const std::string whole = Gzip(text);
  CHECK_THAT(Refusal(whole.substr(0, whole.size() / 2)), Catch::Contains("ends too early"));
  std::string damaged = whole;
  damaged.replace(500, 200, 200, '\0');
  CHECK_THAT(Refusal(damaged), Catch::Contains(": "));
  CHECK_THAT(Refusal(""), Catch::StartsWith(":1: there is no request"));
}

}  // namespace
}  // namespace kvist::replay

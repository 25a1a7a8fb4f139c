#include "storage/remote/redis_reply.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <random>

#include "absl/strings/str_cat.h"
#include "storage/remote/redis_status.h"
#include "tests/unit/remote/asked.h"

namespace kvist::remote {
namespace {

// Writes down what it is told; bulks go into `into` when they have room there.
class Told final : public ReplyReader::Owner {
 public:
  explicit Told(size_t room) : into(room) {}
  Scatter BulkBegins(uint64_t length) override {
    if (length > into.size()) return {};
    const size_t third = into.size() / 3;
    return {std::span(into).first(third), std::span(into).subspan(third, third), std::span(into).subspan(2 * third)};
  }
  void ReplyEnds(const ReplyReader::Reply& reply) override {
    switch (reply.type) {
      case ReplyReader::Type::kText: absl::StrAppend(&log, "+", reply.text); break;
      case ReplyReader::Type::kError: absl::StrAppend(&log, "-", reply.text); break;
      case ReplyReader::Type::kInteger: absl::StrAppend(&log, ":", reply.integer); break;
      case ReplyReader::Type::kNil: absl::StrAppend(&log, "nil"); break;
      case ReplyReader::Type::kBulk:
        absl::StrAppend(&log, "$", reply.length);
        if (reply.length <= into.size())
          absl::StrAppend(&log, "=", std::string(reinterpret_cast<const char*>(into.data()), reply.length));
    }
    absl::StrAppend(&log, "|");
  }
  std::vector<std::byte> into;
  std::string log;
};

// Hands over the stream as the room and `most` allow.
absl::Status Feed(ReplyReader* reader, Told* told, std::string_view stream, const std::function<size_t()>& most) {
  while (!stream.empty()) {
    size_t left = std::min(stream.size(), most());
    size_t filled = 0;
    for (const iovec& room : reader->Room()) {
      const size_t n = std::min(left, room.iov_len);
      std::memcpy(room.iov_base, stream.data() + filled, n);
      filled += n;
      left -= n;
    }
    stream.remove_prefix(filled);
    if (absl::Status status = reader->Filled(filled, told); !status.ok()) return status;
  }
  return absl::OkStatus();
}

TEST_CASE("ReplyReader reads replies however they are cut") {
  const std::string stream =
      absl::StrCat("+OK\r\n$5\r\nhello\r\n$-1\r\n:-42\r\n-ERR no\r\n$0\r\n\r\n$12\r\nhello\r\nworld\r\n$20\r\n",
                   std::string(20, 'x'), "\r\n:1\r\n");
  const std::string expected = "+OK|$5=hello|nil|:-42|-ERR no|$0=|$12=hello\r\nworld|$20|:1|";
  for (uint32_t seed = 0; seed < 200; ++seed) {
    std::mt19937 chance(seed);
    ReplyReader reader;
    Told told(12);
    REQUIRE(Feed(&reader, &told, stream, [&] { return seed == 0 ? 1 : 1 + chance() % 30; }).ok());
    CHECK(told.log == expected);
  }
}

TEST_CASE("ReplyReader reads large bulks into their places and skips those that have none") {
  const auto large = Pattern(300'000, 1);
  const std::string text(reinterpret_cast<const char*>(large.data()), large.size());
  const std::string stream = absl::StrCat("$300000\r\n", text, "\r\n$300001\r\n", text, "z\r\n+OK\r\n");
  for (uint32_t seed = 0; seed < 20; ++seed) {
    std::mt19937 chance(seed);
    ReplyReader reader;
    Told told(300'000);
    REQUIRE(Feed(&reader, &told, stream, [&] { return 1 + chance() % 200'000; }).ok());
    CHECK(told.log == absl::StrCat("$300000=", text, "|$300001|+OK|"));
  }
}

TEST_CASE("ReplyReader skips the rest of a bulk that was given up, and touches nothing of it") {
  for (size_t cut = 0; cut < 40; ++cut) {
    ReplyReader reader;
    Told told(60);
    const std::string stream = absl::StrCat("$60\r\n", std::string(60, 'x'), "\r\n+OK\r\n");
    REQUIRE(Feed(&reader, &told, stream.substr(0, 5 + cut), [] { return 1000; }).ok());
    reader.Skip();
    const auto before = told.into;
    std::fill(told.into.begin(), told.into.end(), std::byte{7});
    REQUIRE(Feed(&reader, &told, stream.substr(5 + cut), [] { return 1000; }).ok());
    CHECK(told.into == std::vector<std::byte>(60, std::byte{7}));
    CHECK(told.log.ends_with("+OK|"));
  }
}

TEST_CASE("ReplyReader refuses what isn't the protocol, and never grows") {
  for (const std::string stream : {"HTTP/1.1 400 Bad Request\r\n", "\r\n", "$\r\n", "$-2\r\n", "$99999999999999999999\r\n",
                                   "$2000000000\r\n", ":x\r\n", "*1\r\n", "$3\r\nabcde\r\n", "%2\r\n"}) {
    ReplyReader reader;
    Told told(10);
    INFO(stream);
    CHECK(!Feed(&reader, &told, stream, [] { return 1; }).ok());
  }
  ReplyReader reader;
  Told told(10);
  CHECK(!Feed(&reader, &told, "+" + std::string(10'000, 'a'), [] { return 1000; }).ok());
}

TEST_CASE("ReplyReader survives noise, and streams with a byte changed") {
  const std::string stream = "+OK\r\n$5\r\nhello\r\n$-1\r\n:-42\r\n-ERR no\r\n$12\r\nhello\r\nworld\r\n";
  for (size_t at = 0; at < stream.size(); ++at) {
    for (int value = 0; value < 256; ++value) {
      std::string changed = stream;
      changed[at] = static_cast<char>(value);
      ReplyReader reader;
      Told told(12);
      (void)Feed(&reader, &told, changed, [] { return 7; });
      CHECK(told.log.size() < 200);
    }
  }
}

TEST_CASE("RedisStatus says what errors mean to us") {
  CHECK(absl::IsResourceExhausted(RedisStatus("OOM command not allowed when used memory > 'maxmemory'.")));
  CHECK(absl::IsUnavailable(RedisStatus("LOADING Redis is loading the dataset in memory")));
  CHECK(absl::IsPermissionDenied(RedisStatus("NOAUTH Authentication required.")));
  CHECK(absl::IsPermissionDenied(RedisStatus("WRONGPASS invalid username-password pair")));
  CHECK(absl::IsFailedPrecondition(RedisStatus("READONLY You can't write against a read only replica.")));
  CHECK(absl::IsFailedPrecondition(RedisStatus("")));
}

}  // namespace
}  // namespace kvist::remote

// What [remote] says: the store's URL, the files with its secrets, and which generation of its objects counts.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "daemon/remote_generations.h"
#include "daemon/remote_options.h"
#include "daemon/remote_url.h"
#include "storage/base/kept_file.h"
#include "tests/support/temp_dir.h"

namespace kvist::daemon {
namespace {

namespace fs = std::filesystem;

void WriteFile(const std::string& path, const std::string& text, fs::perms mode = fs::perms(0600)) {
  std::ofstream(path) << text;
  fs::permissions(path, mode);
}
std::string ReadFile(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}
SpaceDigest SpaceNumber(uint8_t n) {
  SpaceDigest digest;
  digest.bytes[0] = n;
  return digest;
}

}  // namespace

TEST_CASE("RemoteUrl::Parse takes each kind of store, and says what is allowed of anything else") {
  const auto redis = RemoteUrl::Parse("redis://cache.example");
  REQUIRE(redis.ok());
  CHECK(redis->address == "cache.example:6379");
  CHECK_FALSE(redis->tls);
  const auto tls = RemoteUrl::Parse("rediss://[::1]:6380/12");
  REQUIRE(tls.ok());
  CHECK(tls->tls);
  CHECK(tls->address == "[::1]:6380");
  CHECK(tls->database == 12);
  CHECK(RemoteUrl::Parse("redis://[::1]")->address == "[::1]:6379");
  CHECK(RemoteUrl::Parse("redis:///run/redis.sock")->address == "unix:/run/redis.sock");
  CHECK(RemoteUrl::Parse("file:///mnt/kv")->directory == "/mnt/kv");
  const auto s3 = RemoteUrl::Parse("s3://bucket/some/prefix");
  REQUIRE(s3.ok());
  CHECK(s3->bucket == "bucket");
  CHECK(s3->prefix == "some/prefix/");
  CHECK(RemoteUrl::Parse("s3://bucket")->prefix == "kvist/");
  for (const char* wrong :
       {"", "redis", "redis://", "redis://:6379/x", "redis://host:1/70000", "redis://user:password@host", "rediss:///socket",
        "file://relative", "file:///", "s3://", "s3:///prefix", "http://host", "redis://a b"}) {
    CAPTURE(wrong);
    const auto url = RemoteUrl::Parse(wrong);
    CHECK_FALSE(url.ok());
    CHECK(std::string(url.status().message()).find("allowed") != std::string::npos);
  }
}

TEST_CASE("a secret is made once, and read by its owner only") {
  const kvist::test::TempDir dir;
  const std::string path = dir / "remote.secret";
  CHECK(absl::IsNotFound(ReadSecret(path, false).status()));
  const auto made = ReadSecret(path, true);
  REQUIRE(made.ok());
  CHECK((fs::status(path).permissions() & fs::perms(0077)) == fs::perms::none);
  const auto again = ReadSecret(path, true);
  REQUIRE(again.ok());
  CHECK(*again == *made);
  WriteFile(path, std::string(64, 'a'), fs::perms(0644));
  CHECK(absl::IsFailedPrecondition(ReadSecret(path, true).status()));
  for (const std::string& wrong : {std::string(63, 'a'), std::string(65, 'a'), std::string(64, 'g'), std::string()}) {
    WriteFile(path, wrong);
    CHECK(absl::IsInvalidArgument(ReadSecret(path, true).status()));
  }
}

TEST_CASE("OpenRemoteTier names what is wrong with its files, and never what stands in them") {
  const kvist::test::TempDir dir;
  Options options;
  options.daemon.state_dir = dir.path();
  options.remote.store = "s3://bucket";
  CHECK(absl::IsInvalidArgument(OpenRemoteTier(options).status()));  // no keys
  options.remote.credentials_file = dir / "credentials";
  CHECK(absl::IsNotFound(OpenRemoteTier(options).status()));
  const std::string secret = "hunter2-and-more";
  for (const std::string& wrong : {std::string("password = 7"), "pass = \"" + secret + "\"", "password = \"" + secret}) {
    WriteFile(options.remote.credentials_file, wrong);
    const absl::Status status = OpenRemoteTier(options).status();
    CHECK(absl::IsInvalidArgument(status));
    CHECK(std::string(status.message()).find("remote.credentials_file") != std::string::npos);
    CHECK(std::string(status.message()).find(secret) == std::string::npos);
  }
  WriteFile(options.remote.credentials_file, "access_key = \"a\"\nsecret_key = \"b\"\n");
  CHECK(OpenRemoteTier(options).ok());
}

TEST_CASE("generations only rise, name objects apart, and outlive the process") {
  const kvist::test::TempDir dir;
  const std::string path = dir / "generations";
  RemoteGenerations generations = *RemoteGenerations::Open(path);
  const SpaceDigest one = SpaceNumber(1), two = SpaceNumber(2);
  CHECK(RemoteGenerations::NameIn(one, generations.Of(one)) == one);
  CHECK(generations.Raise(one, 1));
  CHECK_FALSE(generations.Raise(one, 1));
  CHECK_FALSE(generations.Raise(one, 0));
  const SpaceDigest cleared = RemoteGenerations::NameIn(one, generations.Of(one));
  CHECK(cleared != one);
  CHECK(RemoteGenerations::NameIn(two, generations.Of(two)) == two);
  CHECK(generations.Raise(std::nullopt, 3));
  CHECK(RemoteGenerations::NameIn(one, generations.Of(one)) != cleared);
  CHECK(RemoteGenerations::NameIn(two, generations.Of(two)) != two);
  CHECK(RemoteGenerations::NameIn(one, generations.Of(one)) != RemoteGenerations::NameIn(two, generations.Of(two)));
  REQUIRE(KeepFile(path, generations.Text()).ok());
  const auto read = RemoteGenerations::Open(path);
  REQUIRE(read.ok());
  CHECK(read->Of(one) == generations.Of(one));
  CHECK(read->Of(two) == generations.Of(two));
  // Cut off anywhere, or changed, it isn't believed: what was cleared could come back.
  const std::string text = ReadFile(path);
  for (size_t length = 0; length < text.size(); ++length) {
    WriteFile(path, text.substr(0, length));
    CHECK(absl::IsDataLoss(RemoteGenerations::Open(path).status()));
  }
  WriteFile(path, text + "all 9\n");
  CHECK(absl::IsDataLoss(RemoteGenerations::Open(path).status()));
}

}  // namespace kvist::daemon

#include "storage/remote/redis_store.h"

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/support/redis_server.h"
#include "tests/unit/remote/asked.h"
#include "tests/unit/remote/redis_keys.h"

namespace kvist::remote {
namespace {

constexpr uint64_t kPart = 64 << 10;

RedisOptions OptionsOf(const test::RedisServer& server) {
  RedisOptions options;
  options.address = server.address();
  options.part = {kPart};
  return options;
}

struct Read {
  Outcome outcome;
  std::vector<std::byte> head = std::vector<std::byte>(8);
  std::vector<std::byte> body;
};
Read GetFrom(RemoteStore* store, const std::string& name, size_t room) {
  Read read;
  read.body.resize(room);
  read.outcome = Ask(store, Kind::kGet, {GetOf(name, read.head, read.body)})[0];
  return read;
}

TEST_CASE("RedisStore gives back what was put, of any length") {
  test::RedisServer server;
  const auto store = *RedisStore::Create(OptionsOf(server));
  const auto head = Pattern(8, 9);
  size_t before = 0;
  // A shorter one over a longer one, too: what is left of that isn't its.
  for (const size_t size :
       {size_t{0}, size_t{1}, kPart - 1, kPart, kPart + 1, 5 * kPart, 3 * kPart + 5, 2 * kPart, kPart, size_t{100}}) {
    INFO(size);
    const auto body = Pattern(size, size);
    CHECK(Ask(store.get(), Kind::kPut, {PutOf("object", head, body)})[0].status.ok());
    for (const size_t room : {size, size + 1, size + 7 * kPart}) {
      Read read = GetFrom(store.get(), "object", room);
      REQUIRE(read.outcome.status.ok());
      CHECK(read.outcome.found == Found::kYes);
      CHECK(read.outcome.body.value == size);
      read.body.resize(size);
      CHECK((read.head == head && read.body == body));
    }
    if (size > 0) CHECK(GetFrom(store.get(), "object", size - 1).outcome.found == Found::kTooLong);
    before = std::max(before, size);
    // Nothing is left of what lay there before, some time.
    const std::string keys = absl::StrCat(":", std::max<size_t>(1, (size + kPart - 1) / kPart), "\r\n");
    for (const absl::Time until = In(absl::Seconds(10)); server.Command({"DBSIZE"}) != keys;)
      REQUIRE(MonotonicNow() < until);
  }
  CHECK(Ask(store.get(), Kind::kExists, {Named("object"), Named("other")})[0].found == Found::kYes);
  CHECK(Ask(store.get(), Kind::kExists, {Named("object"), Named("other")})[1].found == Found::kNo);
  CHECK(GetFrom(store.get(), "other", 10).outcome.found == Found::kNo);
  CHECK(Ask(store.get(), Kind::kRemove, {Named("object", {before}), Named("other")})[0].status.ok());
  CHECK(Ask(store.get(), Kind::kExists, {Named("object")})[0].found == Found::kNo);
  CHECK(server.Command({"DBSIZE"}) == ":0\r\n");
  CHECK(store->load().operations == 0);
  CHECK(store->load().bytes == 0);
}

TEST_CASE("RedisStore takes nothing for an object that isn't a whole one") {
  test::RedisServer server;
  const auto store = *RedisStore::Create(OptionsOf(server));
  const auto head = Pattern(8, 9);
  const auto body = Pattern(3 * kPart, 1);
  const auto found = [&] { return GetFrom(store.get(), "object", body.size()).outcome; };
  REQUIRE(Ask(store.get(), Kind::kPut, {PutOf("object", head, body)})[0].status.ok());
  SECTION("a part is missing") {
    server.Command({"DEL", PartKey(server, "kvist:{object}", 1)});
    CHECK(found().found == Found::kInParts);
  }
  SECTION("a part is shorter, or longer") {
    server.Command({"SET", PartKey(server, "kvist:{object}", 2), "short"});
    CHECK(found().found == Found::kInParts);
    server.Command({"SET", PartKey(server, "kvist:{object}", 2), std::string(kPart + 1, 'x')});
    CHECK(found().found == Found::kInParts);
  }
  SECTION("it was put in other parts") {
    RedisOptions options = OptionsOf(server);
    options.part = {2 * kPart};
    CHECK(GetFrom(RedisStore::Create(options)->get(), "object", body.size()).outcome.found != Found::kYes);
  }
  SECTION("something else, of any length, or type") {
    for (const size_t size : {0, 1, 23, 24, 32, 100}) {
      server.Command({"SET", "kvist:{object}", std::string(size, 'x')});
      CHECK(found().found == Found::kNotOurs);
    }
    server.Command({"SET", "kvist:{object}", std::string(kPart + 33, 'x')});
    CHECK(found().found == Found::kTooLong);
    server.Command({"DEL", "kvist:{object}"});
    server.Command({"LPUSH", "kvist:{object}", "x"});
    CHECK(found().status.ok());
    CHECK(found().found == Found::kNotOurs);
  }
  SECTION("its first value is cut off anywhere in the head") {
    for (int length = 0; length < 32; ++length) {
      REQUIRE(Ask(store.get(), Kind::kPut, {PutOf("object", head, body)})[0].status.ok());
      server.Command({"EVAL", "return redis.call('SET',KEYS[1],redis.call('GETRANGE',KEYS[1],0,ARGV[1]))", "1",
                      "kvist:{object}", absl::StrCat(length)});
      CHECK(found().found == (length < 23 ? Found::kNotOurs : Found::kInParts));
    }
  }
  // And goes on.
  REQUIRE(Ask(store.get(), Kind::kRemove, {Named("object")})[0].status.ok());
  REQUIRE(Ask(store.get(), Kind::kPut, {PutOf("object", head, body)})[0].status.ok());
  CHECK(found().found == Found::kYes);
}

TEST_CASE("RedisStore puts over what lies there at once: readers find the one or the other") {
  test::RedisServer server;
  const auto reader = *RedisStore::Create(OptionsOf(server));
  const auto head = Pattern(8, 9);
  const std::vector<std::vector<std::byte>> bodies{Pattern(5 * kPart, 1), Pattern(5 * kPart, 2), Pattern(2 * kPart + 7, 3),
                                                   Pattern(100, 4)};
  REQUIRE(Ask(reader.get(), Kind::kPut, {PutOf("object", head, bodies[0])})[0].status.ok());
  std::atomic<bool> ended = false;
  std::vector<std::thread> writers;
  for (size_t w = 0; w < 2; ++w) {
    writers.emplace_back([&, w] {
      const auto writer = *RedisStore::Create(OptionsOf(server));
      for (size_t i = w; !ended; ++i) {
        Answer<Outcome> put;  // not Ask: Catch is the main thread's
        const Operation operation = PutOf("object", head, bodies[i % bodies.size()]);
        if (!writer->Submit({Kind::kPut, {operation}, In(absl::Seconds(20))}, put.Done()).ok()) break;
        if (!put.Wait()[0].status.ok()) break;
      }
    });
  }
  int good = 0, between = 0;
  const absl::Time until = In(absl::Seconds(2));
  while (MonotonicNow() < until || (good <= 10 && MonotonicNow() < until + absl::Seconds(20))) {
    Read read = GetFrom(reader.get(), "object", bodies[0].size());
    if (absl::IsUnavailable(read.outcome.status)) {  // it was put twice while it was read
      ++between;
      continue;
    }
    REQUIRE(read.outcome.status.ok());
    REQUIRE(read.outcome.found == Found::kYes);
    ++good;
    read.body.resize(read.outcome.body.value);
    REQUIRE(std::find(bodies.begin(), bodies.end(), read.body) != bodies.end());
  }
  ended = true;
  for (std::thread& writer : writers) writer.join();
  INFO(good << " read, " << between << " times between two puts");
  CHECK(good > 10);
}

TEST_CASE("RedisStore logs in, and says when it may not") {
  test::RedisServer server({"--requirepass", "secret", "--user", "kvist", "on", ">pass", "~kvist:*", "+@all"});
  RedisOptions options = OptionsOf(server);
  options.connect_timeout = absl::Seconds(20);
  const auto put = [&] {
    const auto store = RedisStore::Create(options);
    REQUIRE(store.ok());
    const auto body = Pattern(10, 1);
    return Ask(store->get(), Kind::kPut, {PutOf("object", {}, body)})[0].status;
  };
  CHECK(absl::IsPermissionDenied(put()));
  options.password = "wrong";
  CHECK(absl::IsPermissionDenied(put()));
  options.password = "secret";
  CHECK(put().ok());
  options.user = "kvist";
  CHECK(absl::IsPermissionDenied(put()));
  options.password = "pass";
  CHECK(put().ok());
  options.database = 3;
  CHECK(put().ok());
  options.database = 99;  // it has 16
  CHECK(absl::IsFailedPrecondition(put()));
  options.database = 0;
  options.prefix = "other:";
  CHECK(absl::IsPermissionDenied(put()));
}

TEST_CASE("RedisStore puts no object whose parts wouldn't stay") {
  test::RedisServer server({"--user", "kvist", "on", ">pass", "~kvist:*", "+@all", "-persist"});
  RedisOptions options = OptionsOf(server);
  options.user = "kvist";
  options.password = "pass";
  const auto store = *RedisStore::Create(options);
  const auto one = Pattern(kPart, 1), several = Pattern(3 * kPart, 1);
  CHECK(Ask(store.get(), Kind::kPut, {PutOf("object", {}, one)})[0].status.ok());
  CHECK(absl::IsPermissionDenied(Ask(store.get(), Kind::kPut, {PutOf("large", {}, several)})[0].status));
  for (const absl::Time until = In(absl::Seconds(10)); server.Command({"DBSIZE"}) != ":1\r\n";)
    REQUIRE(MonotonicNow() < until);
}

TEST_CASE("RedisStore removes no more names than an object of that size may have, whatever lies there") {
  test::RedisServer server;
  const auto store = *RedisStore::Create(OptionsOf(server));
  RedisPrefix endless{kRedisMagic, 1, uint64_t{1} << 40, 0};
  const std::string there(reinterpret_cast<const char*>(&endless), sizeof endless);
  server.Command({"CONFIG", "RESETSTAT"});
  server.Command({"SET", "kvist:{object}", there});
  CHECK(Ask(store.get(), Kind::kRemove, {Named("object", {3 * kPart})})[0].status.ok());
  CHECK(server.Command({"DBSIZE"}) == ":0\r\n");
  server.Command({"SET", "kvist:{object}", there});
  const auto body = Pattern(100, 1);
  CHECK(Ask(store.get(), Kind::kPut, {PutOf("object", {}, body)})[0].status.ok());
  CHECK(GetFrom(store.get(), "object", body.size()).outcome.found != Found::kNo);
  // What came in was a few hundred bytes a command, not a name for each of 8,192 parts.
  const std::string stats = server.Command({"INFO", "stats"});
  const size_t at = stats.find("total_net_input_bytes:");
  REQUIRE(at != std::string::npos);
  CHECK(std::stoull(stats.substr(at + 22)) < 20'000);
}

TEST_CASE("RedisStore says that a server is full, and leaves no half of an object") {
  test::RedisServer server({"--maxmemory", "8mb", "--maxmemory-policy", "noeviction"});
  RedisOptions options = OptionsOf(server);
  options.part = MiB(1);
  const auto store = *RedisStore::Create(options);
  const auto body = Pattern(12 << 20, 1);
  CHECK(absl::IsResourceExhausted(Ask(store.get(), Kind::kPut, {PutOf("object", {}, body)})[0].status));
  const absl::Time until = In(absl::Seconds(10));
  while (Ask(store.get(), Kind::kExists, {Named("object")})[0].found != Found::kNo) REQUIRE(MonotonicNow() < until);
}

TEST_CASE("RedisStore's objects go away after their time when that is asked for") {
  test::RedisServer server;
  RedisOptions options = OptionsOf(server);
  const auto body = Pattern(2 * kPart, 1);
  options.expire_after = absl::Minutes(1);
  const auto store = *RedisStore::Create(options);
  REQUIRE(Ask(store.get(), Kind::kPut, {PutOf("object", body, body)})[0].status.ok());
  for (const std::string& key : {std::string("kvist:{object}"), PartKey(server, "kvist:{object}", 1)}) {
    const std::string left = server.Command({"PTTL", key});
    CHECK((left > ":50000\r\n" && left <= ":60000\r\n" && left.size() == 8));
  }
}

TEST_CASE("RedisStore serves many threads and batches at once") {
  test::RedisServer server;
  const auto store = *RedisStore::Create(OptionsOf(server));
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 10; ++round) {
        std::vector<std::vector<std::byte>> bodies;
        std::vector<std::vector<std::byte>> read;
        std::vector<Operation> puts;
        std::vector<Operation> gets;
        for (size_t i = 0; i < 10; ++i)
          bodies.push_back(Pattern((i * 20'011) % (3 * kPart), i + 100 * static_cast<size_t>(t)));
        for (size_t i = 0; i < 10; ++i) read.emplace_back(bodies[i].size());
        for (size_t i = 0; i < 10; ++i) {
          const std::string name = absl::StrCat("object-", t, "-", i);
          puts.push_back(PutOf(name, {}, bodies[i]));
          gets.push_back(GetOf(name, {}, read[i]));
        }
        Answer<Outcome> put;
        if (!store->Submit({Kind::kPut, std::move(puts), In(absl::Seconds(20))}, put.Done()).ok()) ++wrong;
        for (const Outcome& outcome : put.Wait()) wrong += !outcome.status.ok();
        Answer<Outcome> get;
        if (!store->Submit({Kind::kGet, std::move(gets), In(absl::Seconds(20))}, get.Done()).ok()) ++wrong;
        for (const Outcome& outcome : get.Wait()) wrong += outcome.found != Found::kYes;
        wrong += read != bodies;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(store->load().bytes == 0);
}

TEST_CASE("RedisStore goes on with what waits for its window") {
  test::RedisServer server;
  RedisOptions options = OptionsOf(server);
  options.window = KiB(64);
  options.connections = GENERATE(1u, 2u);
  const auto store = *RedisStore::Create(options);
  const auto body = Pattern(kPart, 1);
  std::vector<Operation> puts(200, PutOf("object", {}, body));
  const absl::Time start = MonotonicNow();
  for (const Outcome& outcome : Ask(store.get(), Kind::kPut, puts)) CHECK(outcome.status.ok());
  CHECK(MonotonicNow() - start < absl::Seconds(10));  // by its answers, not by its deadline
}

TEST_CASE("RedisStore refuses options that make no sense") {
  const auto refused = [](const auto& change) {
    RedisOptions options;
    change(options);
    return absl::IsInvalidArgument(RedisStore::Create(options).status());
  };
  for (const std::string address : {"", "host", "host:", "host:0", "host:65536", ":1", "unix:", "host:x"})
    CHECK(refused([&](RedisOptions& options) { options.address = address; }));
  CHECK(refused([](RedisOptions& options) { options.address = "unix:/" + std::string(200, 'a'); }));
  CHECK(refused([](RedisOptions& options) { options.user = "u"; }));
  CHECK(refused([](RedisOptions& options) { options.prefix = "a{b"; }));
  CHECK(refused([](RedisOptions& options) { options.part = {1}; }));
  CHECK(refused([](RedisOptions& options) { options.connections = 0; }));
  CHECK(refused([](RedisOptions& options) { options.tls = {true, "/no/such/file", "", "", ""}; }));
  CHECK(refused([](RedisOptions& options) { options.address = "unix:/socket", options.tls.enabled = true; }));
  CHECK(!refused([](RedisOptions& options) {
    options.address = "unix:/socket";
    options.tls = {true, "", "", "", "redis.example"};
  }));
  CHECK(!refused([](RedisOptions& options) { options.address = "[::1]:6379"; }));
}

}  // namespace
}  // namespace kvist::remote

// RedisStore with real clusters: found from any server, while slots move, while servers die.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "storage/remote/guarded_store.h"
#include "storage/remote/redis_slots.h"
#include "storage/remote/redis_store.h"
#include "tests/support/redis_cluster.h"
#include "tests/support/scripted_server.h"
#include "tests/unit/remote/asked.h"

namespace kvist::remote {
namespace {

constexpr uint64_t kPart = 64 << 10;

RedisOptions At(const std::string& address) {
  RedisOptions options;
  options.address = address;
  options.part = {kPart};
  return options;
}

// Objects of one to four parts.
std::vector<std::byte> BodyOf(size_t n) { return Pattern(n % 4 * kPart + 100 * n, n); }
std::string NameOf(size_t n) { return absl::StrCat("object-", n); }

std::vector<Outcome> PutAll(RemoteStore* store, size_t count) {
  std::vector<std::vector<std::byte>> bodies;
  std::vector<Operation> operations;
  for (size_t n = 0; n < count; ++n) bodies.push_back(BodyOf(n));
  for (size_t n = 0; n < count; ++n) operations.push_back(PutOf(NameOf(n), {}, bodies[n]));
  return Ask(store, Kind::kPut, std::move(operations));
}

// What came of getting them; what was found is right.
std::vector<Outcome> GetAll(RemoteStore* store, size_t count) {
  std::vector<std::vector<std::byte>> rooms(count);
  std::vector<Operation> operations;
  for (size_t n = 0; n < count; ++n) {
    rooms[n].resize(BodyOf(n).size());
    operations.push_back(GetOf(NameOf(n), {}, rooms[n]));
  }
  std::vector<Outcome> outcomes = Ask(store, Kind::kGet, std::move(operations));
  for (size_t n = 0; n < count; ++n)
    if (outcomes[n].status.ok() && outcomes[n].found == Found::kYes) REQUIRE(rooms[n] == BodyOf(n));
  return outcomes;
}

size_t Found(const std::vector<Outcome>& outcomes) {
  return std::count_if(outcomes.begin(), outcomes.end(),
                       [](const Outcome& o) { return o.status.ok() && o.found == Found::kYes; });
}
size_t Well(const std::vector<Outcome>& outcomes) {
  return std::count_if(outcomes.begin(), outcomes.end(), [](const Outcome& o) { return o.status.ok(); });
}

template <class Holds>
bool Soon(Holds&& holds, absl::Duration within = absl::Seconds(30)) {
  for (const absl::Time until = In(within); MonotonicNow() < until; absl::SleepFor(absl::Milliseconds(20)))
    if (holds()) return true;
  return false;
}

// A name whose slot this master has.
std::string NameAt(const test::RedisCluster& cluster, size_t master, uint16_t* slot) {
  for (size_t n = 0;; ++n) {
    *slot = RedisSlotOf(NameOf(n));
    if (cluster.master_of(*slot) == master) return NameOf(n);
  }
}

// A server that answers each CLUSTER, ASKING and EXISTS with what `reply` says to it.
void Serve(int connection, const std::function<std::string(std::string_view command)>& reply) {
  char buffer[4096];
  for (ssize_t n = 0; (n = ::read(connection, buffer, sizeof buffer)) > 0;) {
    std::string replies;
    std::string_view said(buffer, static_cast<size_t>(n));
    for (size_t at = 0; (at = said.find_first_of("ACE")) != std::string_view::npos; said.remove_prefix(at + 1)) {
      for (const std::string_view command : {"CLUSTER", "ASKING", "EXISTS"})
        if (said.substr(at, command.size()) == command) replies += reply(command);
    }
    if (!replies.empty() && ::send(connection, replies.data(), replies.size(), MSG_NOSIGNAL) < 0) return;
  }
}

TEST_CASE("RedisStore finds its way in a cluster from any of its servers, and learns it at once") {
  constexpr size_t kObjects = 400;
  test::RedisCluster cluster(3);
  const size_t first = GENERATE(size_t{0}, size_t{2});
  const auto store = *RedisStore::Create(At(cluster.address(first)));
  REQUIRE(Well(PutAll(store.get(), kObjects)) == kObjects);
  for (size_t i = 0; i < 3; ++i) CHECK(cluster.server(i).Command({"DBSIZE"}) > ":200");
  const uint64_t redirects = cluster.redirects();
  CHECK(redirects > 0);
  CHECK(redirects < 8 * kObjects);  // commands of what was on its way already
  CHECK(Found(GetAll(store.get(), kObjects)) == kObjects);
  CHECK(Well(PutAll(store.get(), kObjects)) == kObjects);
  std::vector<Operation> names;
  for (size_t n = 0; n < kObjects; ++n) names.push_back(Named(NameOf(n), {4 * kPart}));
  CHECK(Found(Ask(store.get(), Kind::kExists, names)) == kObjects);
  CHECK(Well(Ask(store.get(), Kind::kRemove, names)) == kObjects);
  CHECK(Found(Ask(store.get(), Kind::kExists, names)) == 0);
  CHECK(cluster.redirects() == redirects);  // it knows
  CHECK(Soon([&] { return cluster.keys() == 0; }));
  CHECK(store->load().operations == 0);
}

TEST_CASE("RedisStore serves what the other servers of a cluster have while one is gone") {
  constexpr size_t kObjects = 120;
  test::RedisCluster cluster(3);
  const auto store = *RedisStore::Create(At(cluster.address(0)));
  const auto guarded = *GuardedStore::Create(*RedisStore::Create(At(cluster.address(0))), {});
  REQUIRE(Well(PutAll(store.get(), kObjects)) == kObjects);
  REQUIRE(Found(GetAll(guarded.get(), kObjects)) == kObjects);
  size_t lost = 0;
  const size_t gone = GENERATE(size_t{0}, size_t{1});  // the one that was named, too
  for (size_t n = 0; n < kObjects; ++n) lost += cluster.master_of(RedisSlotOf(NameOf(n))) == gone;
  REQUIRE(lost > 20);
  cluster.server(gone).process().Kill();
  for (int round = 0; round < 10; ++round) {
    for (RemoteStore* const asked : {static_cast<RemoteStore*>(store.get()), static_cast<RemoteStore*>(guarded.get())}) {
      const auto outcomes = GetAll(asked, kObjects);
      CHECK(Found(outcomes) == kObjects - lost);
      for (size_t n = 0; n < kObjects; ++n) CHECK((outcomes[n].status.ok() || absl::IsUnavailable(outcomes[n].status)));
    }
  }
  CHECK(guarded->figures().opened == 0);  // it answers what it has
  cluster.server(gone).Start();
  CHECK(Soon([&] { return Well(PutAll(store.get(), kObjects)) == kObjects; }));
  CHECK(Found(GetAll(store.get(), kObjects)) == kObjects);
}

TEST_CASE("RedisStore goes on with the successor of a server that died") {
  constexpr size_t kObjects = 60;
  test::RedisCluster cluster(3, true);
  const auto store = *RedisStore::Create(At(cluster.address(0)));  // which dies
  REQUIRE(Well(PutAll(store.get(), kObjects)) == kObjects);
  REQUIRE(Soon([&] { return cluster.server(0).Command({"DBSIZE"}) == cluster.server(3).Command({"DBSIZE"}); }));
  cluster.server(0).process().Kill();
  CHECK(Soon([&] { return Found(GetAll(store.get(), kObjects)) == kObjects; }));
  CHECK(Well(PutAll(store.get(), kObjects)) == kObjects);
}

TEST_CASE("RedisStore serves a slot before, while and after it moves to another server") {
  test::RedisCluster cluster(3);
  const auto store = *RedisStore::Create(At(cluster.address(2)));
  uint16_t slot = 0;
  const std::string name = NameAt(cluster, 0, &slot);
  const auto body = Pattern(3 * kPart + 7, 1);
  const auto other = Pattern(2 * kPart + 9, 2);
  const auto get = [&](const std::vector<std::byte>& wanted) {
    std::vector<std::byte> room(wanted.size());
    const Outcome outcome = Ask(store.get(), Kind::kGet, {GetOf(name, {}, room)})[0];
    return outcome.status.ok() && outcome.found == Found::kYes && room == wanted;
  };
  SECTION("it is there") {
    REQUIRE(Well(Ask(store.get(), Kind::kPut, {PutOf(name, {}, body)})) == 1);
    cluster.BeginMove(slot, 0, 1);
    CHECK(get(body));
    cluster.MoveKeys(slot, 0, 1);
    CHECK(get(body));  // ASK
    CHECK(Found(Ask(store.get(), Kind::kExists, {Named(name)})) == 1);
    cluster.EndMove(slot, 1);
    CHECK(get(body));  // MOVED
  }
  SECTION("it comes to be there meanwhile") {
    const auto small = Pattern(kPart - 100, 3);
    cluster.BeginMove(slot, 0, 1);
    CHECK_FALSE(get(small));
    CHECK(Well(Ask(store.get(), Kind::kPut, {PutOf(name, {}, small)})) == 1);
    CHECK(get(small));
    cluster.MoveKeys(slot, 0, 1);
    cluster.EndMove(slot, 1);
    CHECK(get(small));
  }
  SECTION("it has parts here and there") {
    REQUIRE(Well(Ask(store.get(), Kind::kPut, {PutOf(name, {}, body)})) == 1);
    cluster.BeginMove(slot, 0, 1);
    // One key after the other, in either order of them.
    for (size_t moved = 0; moved < 4; ++moved) {
      std::vector<std::byte> room(body.size());
      const Outcome outcome = Ask(store.get(), Kind::kGet, {GetOf(name, {}, room)})[0];
      // Not missing, and not damaged: that is removed.
      CHECK((absl::IsUnavailable(outcome.status) || (outcome.found == Found::kYes && room == body)));
      // Nor is another one put beside it.
      CHECK(absl::IsUnavailable(Ask(store.get(), Kind::kPut, {PutOf(name, {}, other)})[0].status));
      cluster.MoveKeys(slot, 0, 1, 1);
    }
    cluster.MoveKeys(slot, 0, 1);
    cluster.EndMove(slot, 1);
    CHECK(get(body));
    CHECK(Well(Ask(store.get(), Kind::kPut, {PutOf(name, {}, other)})) == 1);
    CHECK(get(other));
  }
  CHECK(Well(Ask(store.get(), Kind::kRemove, {Named(name, {4 * kPart})})) == 1);
  CHECK_FALSE(get(body));
  CHECK(Soon([&] { return cluster.keys() == 0; }));
}

TEST_CASE("RedisStore ends what is sent round and round") {
  std::atomic<int> asked = 0;
  std::string where;
  test::ScriptedServer liar(
      [&](int connection) {
        Serve(connection, [&](std::string_view command) -> std::string {
          if (command == "ASKING") return "+OK\r\n";
          if (command == "CLUSTER") return "-NOPERM this user has no permissions\r\n";
          return (++asked % 2 == 0 ? "-MOVED 7 " : "-ASK 7 ") + where + "\r\n";
        });
      },
      true);
  where = liar.address();
  const auto store = *RedisStore::Create(At(liar.address()));
  const Outcome outcome = Ask(store.get(), Kind::kExists, {Named("a")}, absl::Seconds(10))[0];
  CHECK(absl::IsUnavailable(outcome.status));
  CHECK(asked == 6);
}

TEST_CASE("RedisStore lives with a server that answers who has what late, twice, or never") {
  const int answers = GENERATE(0, 1, 2);
  std::atomic<int> asked = 0;
  test::ScriptedServer slow([&](int connection) {
    Serve(connection, [&](std::string_view command) -> std::string {
      if (command == "EXISTS") return "-MOVED 7 127.0.0.1:1\r\n";
      ++asked;
      absl::SleepFor(absl::Milliseconds(1500));
      return answers == 0 ? "" : answers == 1 ? "$-1\r\n" : "$-1\r\n$-1\r\n";
    });
  });
  const auto store = *RedisStore::Create(At(slow.address()));
  const auto until = MonotonicNow() + absl::Seconds(5);
  for (size_t n = 0; MonotonicNow() < until; ++n) {
    const absl::Status status = Ask(store.get(), Kind::kExists, {Named(NameOf(n))}, absl::Milliseconds(300))[0].status;
    CHECK((absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)));
  }
  CHECK(asked > 1);
  CHECK(store->load().operations == 0);
}

TEST_CASE("RedisStore is closed in the middle of redirects") {
  test::RedisCluster cluster(3);
  for (int round = 0; round < 20; ++round) {
    auto store = *RedisStore::Create(At(cluster.address(0)));
    std::vector<std::vector<std::byte>> bodies(60, BodyOf(7));
    std::vector<Operation> operations;
    for (size_t n = 0; n < bodies.size(); ++n) operations.push_back(PutOf(NameOf(n), {}, bodies[n]));
    Answer<Outcome> answer;
    REQUIRE(store->Submit({Kind::kPut, operations, In(absl::Seconds(20))}, answer.Done()).ok());
    absl::SleepFor(absl::Microseconds(200 * round));
    store = nullptr;
    CHECK(answer.there());
  }
}

TEST_CASE("RedisStore ends what is sent to nowhere") {
  const std::string where =
      GENERATE(as<std::string>(), "127.0.0.1:1", "?:7000", "unix:/run/redis.sock", "::", "256.0.0.1:7");
  test::ScriptedServer liar(
      [&](int connection) { Serve(connection, [&](std::string_view) { return "-MOVED 7 " + where + "\r\n"; }); });
  const auto store = *RedisStore::Create(At(liar.address()));
  for (int i = 0; i < 20; ++i) {
    const Outcome outcome = Ask(store.get(), Kind::kExists, {Named("a")}, absl::Seconds(10))[0];
    CHECK(absl::IsUnavailable(outcome.status));
  }
  CHECK(store->load().operations == 0);
}

}  // namespace
}  // namespace kvist::remote

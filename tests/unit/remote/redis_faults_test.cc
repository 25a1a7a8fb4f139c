// Redis servers that are gone, hung, slow, full or lying: what is promised then is an answer in time, and spans that nobody touches after it.
#include <poll.h>
#include <signal.h>
#include <time.h>

#include <catch2/catch.hpp>

#include "absl/strings/str_cat.h"
#include "storage/remote/guarded_store.h"
#include "storage/remote/redis_store.h"
#include "tests/support/redis_server.h"
#include "tests/support/scripted_server.h"
#include "tests/support/slow_proxy.h"
#include "tests/unit/remote/asked.h"
#include "tests/unit/remote/redis_keys.h"

namespace kvist::remote {
namespace {

constexpr absl::Duration kSoon = absl::Seconds(10);  // a bound for what should take moments, on a busy machine

RedisOptions At(const std::string& address) {
  RedisOptions options;
  options.address = address;
  options.linger = absl::Milliseconds(100);
  return options;
}

struct Timed {
  Outcome outcome;
  absl::Duration took;
};
Timed Try(RemoteStore* store, Kind kind, Operation operation, absl::Duration time) {
  const absl::Time start = MonotonicNow();
  Outcome outcome = Ask(store, kind, {std::move(operation)}, time)[0];
  return {std::move(outcome), MonotonicNow() - start};
}

// Questions and bytes have connections of their own, each of which comes back when it does.
bool Works(RemoteStore* store) {
  std::vector<std::byte> room(1);
  const bool answers = Ask(store, Kind::kExists, {Named("anything")}, absl::Seconds(1))[0].status.ok();
  return answers && Ask(store, Kind::kGet, {GetOf("anything", {}, room)}, absl::Seconds(1))[0].status.ok();
}
void WaitUntilItWorks(RemoteStore* store) {
  const absl::Time until = In(absl::Seconds(20));
  while (!Works(store)) REQUIRE(MonotonicNow() < until);
}

TEST_CASE("RedisStore says at once that a server refuses") {
  test::TempDir folder;
  const auto store = *RedisStore::Create(At("unix:" + (folder / "nobody")));
  for (int i = 0; i < 3; ++i) {
    const Timed tried = Try(store.get(), Kind::kExists, Named("a"), absl::Seconds(20));
    CHECK(absl::IsUnavailable(tried.outcome.status));
    CHECK_THAT(std::string(tried.outcome.status.message()), Catch::Contains((folder / "nobody") + ": connect: "));
    CHECK(tried.took < kSoon);
  }
}

TEST_CASE("RedisStore says that a host has no address") {
  const auto store = *RedisStore::Create(At("no-such-host.invalid:6379"));
  const Timed tried = Try(store.get(), Kind::kExists, Named("a"), absl::Seconds(20));
  CHECK(absl::IsUnavailable(tried.outcome.status));
}

TEST_CASE("RedisStore ends what is on its way when the server is killed, and goes on with the next server") {
  test::RedisServer server;
  const auto store = *RedisStore::Create(At(server.address()));
  const auto body = Pattern(4 << 20, 1);
  REQUIRE(Ask(store.get(), Kind::kPut, {PutOf("a", {}, body)})[0].status.ok());
  server.process().Signal(SIGSTOP);
  std::vector<Answer<Outcome>> answers(20);
  std::vector<std::vector<std::byte>> rooms(answers.size(), std::vector<std::byte>(body.size()));
  for (size_t i = 0; i < answers.size(); ++i) {
    Operation operation = i % 2 == 0 ? GetOf("a", {}, rooms[i]) : PutOf("b", {}, body);
    REQUIRE(
        store->Submit({i % 2 == 0 ? Kind::kGet : Kind::kPut, {operation}, In(absl::Seconds(60))}, answers[i].Done()).ok());
  }
  const absl::Time start = MonotonicNow();
  server.process().Kill();
  for (const auto& answer : answers) CHECK(absl::IsUnavailable(answer.Wait()[0].status));
  CHECK(MonotonicNow() - start < kSoon);
  CHECK(store->load().bytes == 0);
  server.Start();
  WaitUntilItWorks(store.get());
}

TEST_CASE("RedisStore keeps deadlines when the server hangs, and touches nothing after them") {
  test::RedisServer server;
  RedisOptions options = At(server.address());
  options.linger = GENERATE(absl::Milliseconds(1), absl::Seconds(60));
  const auto store = *RedisStore::Create(options);
  auto body = Pattern(8 << 20, 1);
  const auto whole = body;
  REQUIRE(Ask(store.get(), Kind::kPut, {PutOf("a", {}, body)})[0].status.ok());
  server.process().Signal(SIGSTOP);
  std::vector<std::byte> room(body.size());
  for (const Kind kind : {Kind::kGet, Kind::kPut, Kind::kExists, Kind::kRemove, Kind::kGet}) {
    Operation operation = Named("other");
    if (kind == Kind::kGet) operation = GetOf("a", {}, room);
    if (kind == Kind::kPut) operation = PutOf("b", {}, body);
    const Timed tried = Try(store.get(), kind, operation, absl::Milliseconds(100));
    CHECK((absl::IsDeadlineExceeded(tried.outcome.status) || absl::IsUnavailable(tried.outcome.status)));
    CHECK(tried.took < kSoon);
  }
  CHECK(store->load().bytes == 0);
  // What the server says and takes now is nobody's.
  std::fill(room.begin(), room.end(), std::byte{7});
  std::fill(body.begin(), body.end(), std::byte{8});
  server.process().Signal(SIGCONT);
  WaitUntilItWorks(store.get());
  std::vector<std::byte> read(whole.size());
  const Outcome there = Ask(store.get(), Kind::kGet, {GetOf("a", {}, read)})[0];
  CHECK(there.status.message() == "");
  REQUIRE(there.found == Found::kYes);
  CHECK(read == whole);
  CHECK(room == std::vector<std::byte>(room.size(), std::byte{7}));
  // A put that was given up is there as it was, or not at all.
  const Outcome half = Ask(store.get(), Kind::kGet, {GetOf("b", {}, read)})[0];
  CHECK((half.found != Found::kYes || read == whole));
}

TEST_CASE("RedisStore takes back what a server stores after its deadline, of names that were removed since, and no other") {
  test::RedisServer server;
  RedisOptions options = At(server.address());
  options.part = KiB(16);
  options.linger = absl::Seconds(10);  // else what was given up would end the connection, and nobody hear what came of it
  const auto store = *RedisStore::Create(options);
  const size_t bytes = GENERATE(1000, 50'000);
  INFO(bytes);
  const auto before = Pattern(bytes, 1), after = Pattern(bytes, 2);
  std::vector<std::byte> room(bytes);
  const auto find = [&](const std::string& name) { return Ask(store.get(), Kind::kGet, {GetOf(name, {}, room)})[0].found; };
  for (const std::string name : {"kept", "removed"})
    REQUIRE(Ask(store.get(), Kind::kPut, {PutOf(name, {}, before)})[0].status.ok());
  server.process().Signal(SIGSTOP);
  // A put that isn't sent before its deadline is never done: all three go at once, with time enough for a thread that waits for a processor.
  const std::vector<std::string> late = {"kept", "removed", "new"};
  const absl::Time deadline = In(absl::Seconds(2));
  std::vector<Answer<Outcome>> answers(late.size());
  for (size_t i = 0; i < late.size(); ++i)
    REQUIRE(store->Submit({Kind::kPut, {PutOf(late[i], {}, after)}, deadline}, answers[i].Done()).ok());
  for (const auto& answer : answers) CHECK(absl::IsDeadlineExceeded(answer.Wait()[0].status));
  CHECK(absl::IsDeadlineExceeded(
      Ask(store.get(), Kind::kRemove, {Named("removed", {bytes})}, absl::Milliseconds(100))[0].status));
  server.process().Signal(SIGCONT);
  WaitUntilItWorks(store.get());
  // Of several keys none was removed, and who wanted that tries again.
  if (bytes > 1000) REQUIRE(Ask(store.get(), Kind::kRemove, {Named("removed", {bytes})})[0].status.ok());
  for (int i = 0; i < 2000 && find("removed") != Found::kNo; ++i) absl::SleepFor(absl::Milliseconds(1));
  CHECK(find("removed") == Found::kNo);
  // As it was, or as it should have come to be: one key is written at once, and of several the first one wasn't sent.
  REQUIRE(find("kept") == Found::kYes);
  CHECK(room == (bytes == 1000 ? after : before));
  CHECK(find("new") == (bytes == 1000 ? Found::kYes : Found::kNo));
  // What nothing leads to doesn't last.
  const std::string keys = bytes == 1000 ? ":2\r\n" : ":4\r\n";
  for (int i = 0; i < 2000 && LastingKeys(server) != keys; ++i) absl::SleepFor(absl::Milliseconds(1));
  CHECK(LastingKeys(server) == keys);
}

TEST_CASE("RedisStore refuses what is beyond its limits while the server hangs, and ends with it") {
  test::RedisServer server;
  RedisOptions options = At(server.address());
  options.limits = {16, MiB(4)};
  auto store = *RedisStore::Create(options);
  WaitUntilItWorks(store.get());
  server.process().Signal(SIGSTOP);
  const auto body = Pattern(1 << 20, 1);
  std::vector<Answer<Outcome>> answers(5);
  for (size_t i = 0; i < 4; ++i)
    REQUIRE(store->Submit({Kind::kPut, {PutOf("a", {}, body)}, In(absl::Seconds(60))}, answers[i].Done()).ok());
  const absl::Time start = MonotonicNow();
  CHECK(absl::IsResourceExhausted(
      store->Submit({Kind::kPut, {PutOf("a", {}, body)}, In(absl::Seconds(60))}, answers[4].Done())));
  CHECK(store->load().bytes == MiB(4).value);
  store = nullptr;
  CHECK(MonotonicNow() - start < kSoon);
  for (size_t i = 0; i < 4; ++i) CHECK(absl::IsCancelled(answers[i].Wait()[0].status));
}

TEST_CASE("RedisStore keeps deadlines when bytes go and come one a second, or five seconds late") {
  test::RedisServer server;
  const auto direct = *RedisStore::Create(At(server.address()));
  const auto body = Pattern(100'000, 1);
  REQUIRE(Ask(direct.get(), Kind::kPut, {PutOf("a", {}, body)})[0].status.ok());
  test::SlowProxy slow(server.socket());
  if (GENERATE(false, true)) {
    slow.BytesPerSecond(1);
  } else {
    slow.Delay(std::chrono::seconds(5));
  }
  auto store = *RedisStore::Create(At(slow.address()));
  std::vector<std::byte> room(body.size());
  for (int i = 0; i < 3; ++i) {
    for (const Kind kind : {Kind::kGet, Kind::kPut}) {
      const Timed tried =
          Try(store.get(), kind, kind == Kind::kGet ? GetOf("a", {}, room) : PutOf("b", {}, body), absl::Milliseconds(200));
      CHECK((absl::IsDeadlineExceeded(tried.outcome.status) || absl::IsUnavailable(tried.outcome.status)));
      CHECK(tried.took < kSoon);
      CHECK(store->load().bytes == 0);
    }
  }
  store = nullptr;
}

TEST_CASE("RedisStore believes no liar") {
  const std::string lie =
      GENERATE(as<std::string>(), "HTTP/1.1 400 Bad Request\r\n\r\n", "$-1\r\n$-1\r\n$-1\r\n$-1\r\n", "+OK\r\n", ":1\r\n",
               "*2\r\n+a\r\n+b\r\n", "$5\r\nabcdefgh", "-NOPERM no\r\n", "-MOVED 1 127.0.0.1:1\r\n", "",
               "$1000000000\r\nabc", "$40\r\n0123456789012345678901234567890123456789\r\n");
  INFO(lie);
  test::ScriptedServer liar([lie](int client) {
    char buffer[4096];
    if (::recv(client, buffer, sizeof buffer, 0) <= 0) return;
    ::send(client, lie.data(), lie.size(), MSG_NOSIGNAL);
    if (lie.empty()) return;
    while (::recv(client, buffer, sizeof buffer, 0) > 0) {}
  });
  const auto store = *RedisStore::Create(At(liar.address()));
  std::vector<std::byte> head(8);
  std::vector<std::byte> room(10);
  const Timed tried = Try(store.get(), Kind::kGet, GetOf("a", head, room), absl::Milliseconds(200));
  CHECK((!tried.outcome.status.ok() || tried.outcome.found != Found::kYes));
  CHECK(tried.took < kSoon);
  const auto body = Pattern(100, 1);
  const Timed put = Try(store.get(), Kind::kPut, PutOf("a", {}, body), absl::Milliseconds(200));
  CHECK((!put.outcome.status.ok() || lie == "+OK\r\n"));
  CHECK(store->load().bytes == 0);
}

// A server that answers the half of a put, and what comes behind it, before it was asked; and hears nobody after its first client.
struct Hasty {
  explicit Hasty(const std::string& answer)
      : server([this, answer](int client) {
          char buffer[4096];
          ssize_t n = ::recv(client, buffer, sizeof buffer, 0);
          if (n <= 0 || served.exchange(true)) return;
          received.assign(buffer, static_cast<size_t>(n));
          ::send(client, answer.data(), answer.size(), MSG_NOSIGNAL);
          go_on.WaitForNotificationWithTimeout(absl::Seconds(20));
          ::send(client, kMore.data(), kMore.size(), MSG_NOSIGNAL);
          while ((n = ::recv(client, buffer, sizeof buffer, 0)) > 0) received.append(buffer, static_cast<size_t>(n));
          ended.Notify();
        }) {}

  static inline const std::string kMore = std::string(50, 'm');
  std::atomic<bool> served = false;
  std::string received;  // once it has ended
  absl::Notification go_on;
  absl::Notification ended;
  test::ScriptedServer server;
};

TEST_CASE("RedisStore answers questions while bytes are on their way") {
  // Answers EXISTS in its turn, and stops at the first command of another kind.
  test::ScriptedServer server([](int client) {
    std::string said;
    char buffer[4096];
    for (ssize_t n; (n = ::recv(client, buffer, sizeof buffer, 0)) > 0;) {
      said.append(buffer, static_cast<size_t>(n));
      if (said.find("GET") != std::string::npos || said.find("SET") != std::string::npos) {
        while (::recv(client, buffer, sizeof buffer, 0) > 0) {}
        return;
      }
      for (size_t at;
           (at = said.find("\r\nthe-name")) != std::string::npos || (at = said.find("{the-name}")) != std::string::npos;) {
        said.erase(0, at + 10);
        ::send(client, ":1\r\n", 4, MSG_NOSIGNAL);
      }
    }
  });
  RedisOptions options = At(server.address());
  options.connections = GENERATE(1u, 2u);
  const auto body = Pattern(2 << 20, 1);
  std::vector<std::byte> room(5000);
  std::vector<Answer<Outcome>> slow(6);
  const auto store = *RedisStore::Create(options);  // ends before what it was lent
  for (size_t i = 0; i < slow.size(); ++i) {
    const Operation operation = i % 2 == 0 ? PutOf("a", {}, body) : GetOf("a", {}, room);
    REQUIRE(store->Submit({i % 2 == 0 ? Kind::kPut : Kind::kGet, {operation}, In(absl::Seconds(20))}, slow[i].Done()).ok());
  }
  for (int i = 0; i < 3; ++i) CHECK(Ask(store.get(), Kind::kExists, {Named("the-name")}, absl::Seconds(10))[0].status.ok());
  for (const Answer<Outcome>& one : slow) CHECK(!one.there());
}

TEST_CASE(
    "RedisStore takes a second connection for what a socket doesn't take, and asks the first while that is being made") {
  std::atomic<int> connections = 0;
  std::atomic<int> asked = 0;
  const auto count_gets = [&](int client) {
    char buffer[4096];
    for (ssize_t n; (n = ::recv(client, buffer, sizeof buffer, 0)) > 0;)
      asked += static_cast<int>(std::count(buffer, buffer + n, '*'));
  };
  test::ScriptedServer server([&](int client) {
    // The second one greets only when all gets have come, by the first.
    if (++connections == 1) {
      const std::string welcome = "+OK\r\n";
      char buffer[4096];
      if (::recv(client, buffer, sizeof buffer, 0) <= 0 || ::send(client, welcome.data(), welcome.size(), MSG_NOSIGNAL) < 0)
        return;
    }
    count_gets(client);
  });
  RedisOptions options = At(server.address());
  options.password = "secret";  // so that a connection isn't ready before it was answered
  options.connect_timeout = absl::Seconds(60);
  std::vector<std::byte> room(128 << 10);
  std::vector<Answer<Outcome>> answers(6);
  const auto store = *RedisStore::Create(options);  // ends before what it was lent
  const auto get = [&](size_t i) {
    REQUIRE(store->Submit({Kind::kGet, {GetOf("a", {}, room)}, In(absl::Seconds(60))}, answers[i].Done()).ok());
  };
  const auto soon = [](const auto& holds) {
    for (const absl::Time until = In(absl::Seconds(20)); !holds() && MonotonicNow() < until;) std::this_thread::yield();
    return holds();
  };
  get(0);
  get(1);
  CHECK(soon([&] { return asked == 2; }));
  CHECK(connections == 1);
  for (size_t i = 2; i < answers.size(); ++i) get(i);
  CHECK(soon([&] { return connections == 2 && asked == 6 + 1; }));  // the other one's AUTH
}

TEST_CASE("RedisStore reads nothing of a put that was answered while it was sent, after its end") {
  const std::string answer = GENERATE(as<std::string>(), "-ERR Protocol error: unauthenticated bulk length\r\n", "+OK\r\n",
                                      ":1\r\n", "$3\r\nabc\r\n");
  INFO(answer);
  Hasty hasty("$0\r\n\r\n" + answer);  // what lies there was asked for before
  auto body = Pattern(2 << 20, 1);
  const auto whole = body;
  auto store = *RedisStore::Create(At(hasty.server.address()));
  absl::Notification done;
  absl::Status status;
  REQUIRE(store
              ->Submit({Kind::kPut, {PutOf("a", {}, body)}, In(absl::Seconds(20))},
                       [&](const std::vector<Outcome>& outcomes) {
                         std::fill(body.begin(), body.end(), std::byte{8});  // its span is the caller's again
                         status = outcomes[0].status;
                         done.Notify();
                       })
              .ok());
  REQUIRE(done.WaitForNotificationWithTimeout(absl::Seconds(20)));
  CHECK(absl::IsUnavailable(status));
  hasty.go_on.Notify();
  REQUIRE(hasty.ended.WaitForNotificationWithTimeout(absl::Seconds(20)));
  const std::string_view sent(reinterpret_cast<const char*>(whole.data()), whole.size());
  const size_t begin = hasty.received.find(sent.substr(0, 100));
  REQUIRE(begin != std::string::npos);
  const std::string_view received = std::string_view(hasty.received).substr(begin);
  CHECK(received.size() < sent.size());
  CHECK(received == sent.substr(0, received.size()));
}

TEST_CASE("RedisStore touches no room of a get that was answered before it was sent, after its deadline") {
  Hasty hasty("$0\r\n\r\n-ERR x\r\n$116\r\n" + std::string(20, 'a'));
  RedisOptions options = At(hasty.server.address());
  options.connections = 1;
  const auto store = *RedisStore::Create(options);
  const auto body = Pattern(2 << 20, 1);
  std::vector<std::byte> room(5000);  // no question, which would have a connection of its own
  Answer<Outcome> put;
  Answer<Outcome> get;
  REQUIRE(store->Submit({Kind::kPut, {PutOf("a", {}, body)}, In(absl::Seconds(20))}, put.Done()).ok());
  REQUIRE(store->Submit({Kind::kGet, {GetOf("b", {}, room)}, In(absl::Milliseconds(300))}, get.Done()).ok());
  put.Wait();
  get.Wait();
  std::fill(room.begin(), room.end(), std::byte{7});
  hasty.go_on.Notify();
  // What it says more is read, and nobody's.
  Ask(store.get(), Kind::kExists, {Named("c")}, absl::Milliseconds(300));
  CHECK(room == std::vector<std::byte>(room.size(), std::byte{7}));
}

TEST_CASE("RedisStore doesn't spin on a server that ends each connection") {
  std::atomic<int> connections = 0;
  test::ScriptedServer closing([&connections](int) { ++connections; });
  const auto store = *RedisStore::Create(At(closing.address()));
  for (int i = 0; i < 5; ++i) {
    const Timed tried = Try(store.get(), Kind::kExists, Named("a"), absl::Seconds(5));
    CHECK(absl::IsUnavailable(tried.outcome.status));
    CHECK(tried.took < kSoon);
  }
  CHECK(connections <= 20);
}

TEST_CASE("GuardedStore opens its breaker for a hung Redis and closes it when that answers again") {
  test::RedisServer server;
  GuardOptions options;
  options.breaker = {3, absl::Seconds(1), absl::Seconds(1)};
  const auto guard = *GuardedStore::Create(*RedisStore::Create(At(server.address())), options);
  WaitUntilItWorks(guard.get());
  server.process().Signal(SIGSTOP);
  absl::Time until = In(absl::Seconds(20));
  while (guard->figures().opened == 0) {
    REQUIRE(MonotonicNow() < until);
    Answer<Outcome> answer;
    if (guard->Submit({Kind::kExists, {Named("a")}, In(absl::Milliseconds(110))}, answer.Done()).ok()) answer.Wait();
  }
  CHECK(absl::IsUnavailable(guard->Submit({Kind::kExists, {Named("a")}, In(absl::Seconds(1))}, [](const auto&) {})));
  CHECK(guard->load().operations == 0);
  server.process().Signal(SIGCONT);
  until = In(absl::Seconds(20));
  while (guard->figures().breaker != Breaker::State::kClosed) {
    REQUIRE(MonotonicNow() < until);
    Answer<Outcome> answer;
    if (guard->Submit({Kind::kExists, {Named("a")}, In(absl::Milliseconds(500))}, answer.Done()).ok()) answer.Wait();
    absl::SleepFor(absl::Milliseconds(5));
  }
  CHECK(Works(guard.get()));
}

TEST_CASE("RedisStore leaves a connection alone that is slow and goes on with what was given up") {
  std::atomic<int> connections = 0;
  test::ScriptedServer slow([&connections](int client) {
    ++connections;
    char buffer[4096];
    pollfd hangup{client, POLLRDHUP, 0};
    // Commands come faster than answers, and all of them in the end.
    for (ssize_t asked = 0, answered = 0; answered == 0 || answered < asked; ++answered) {
      const ssize_t n = ::recv(client, buffer, sizeof buffer, answered < asked ? MSG_DONTWAIT : 0);
      if (n > 0) asked += std::count(buffer, buffer + n, '*');
      if (::poll(&hangup, 1, 100) != 0 || ::send(client, ":1\r\n", 4, MSG_NOSIGNAL) != 4) return;
    }
  });
  RedisOptions options = At(slow.address());
  options.linger = absl::Seconds(1);
  options.connections = 1;
  const auto store = *RedisStore::Create(options);
  // 1.5 s of answers, each long before the connection is given up.
  for (const Outcome& outcome :
       Ask(store.get(), Kind::kExists, std::vector<Operation>(15, Named("a")), absl::Milliseconds(50)))
    CHECK(absl::IsDeadlineExceeded(outcome.status));
  const Timed tried = Try(store.get(), Kind::kExists, Named("b"), absl::Seconds(20));
  CHECK(tried.outcome.status.message() == "");
  CHECK(tried.outcome.found == Found::kYes);
  CHECK(connections == 1);
}

TEST_CASE("RedisStore's errors don't say the password") {
  test::ScriptedServer server([](int client) {
    const std::string answer = "-ERR unknown command 'AUTH', with args beginning with: 'secret'\r\n";
    char buffer[4096];
    while (::recv(client, buffer, sizeof buffer, 0) > 0) ::send(client, answer.data(), answer.size(), MSG_NOSIGNAL);
  });
  RedisOptions options = At(server.address());
  options.password = "secret";
  options.connect_timeout = absl::Seconds(20);
  const auto store = *RedisStore::Create(options);
  const Timed tried = Try(store.get(), Kind::kExists, Named("a"), absl::Seconds(20));
  CHECK(absl::IsFailedPrecondition(tried.outcome.status));
  CHECK(tried.outcome.status.message() == "redis: ERR");
}

TEST_CASE("RedisStore doesn't spin while it connects") {
  test::ScriptedServer silent([](int client) {
    char buffer[4096];
    while (::recv(client, buffer, sizeof buffer, 0) > 0) {}
  });
  RedisOptions options = At(silent.address());
  options.password = "secret";  // so that it isn't ready before it was answered
  options.connections = 2;
  const auto store = *RedisStore::Create(options);
  const auto busy = [] {
    timespec time;
    KVIST_CHECK(::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time) == 0);
    return absl::DurationFromTimespec(time);
  };
  const absl::Duration before = busy();
  const Timed tried = Try(store.get(), Kind::kExists, Named("a"), absl::Milliseconds(500));
  CHECK(absl::IsDeadlineExceeded(tried.outcome.status));
  CHECK(busy() - before < absl::Milliseconds(100));
}

TEST_CASE("RedisStore refuses what is submitted while it is destroyed") {
  test::ScriptedServer silent([](int client) {
    char buffer[4096];
    while (::recv(client, buffer, sizeof buffer, 0) > 0) {}
  });
  DestroyWhileSubmitting(*RedisStore::Create(At(silent.address())), Named("a"), 20);
  DestroyWhileSubmitting(*GuardedStore::Create(*RedisStore::Create(At(silent.address())), {}), Named("a"), 20);
}

}  // namespace
}  // namespace kvist::remote

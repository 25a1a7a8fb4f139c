#include "daemon/session/reactor.h"

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "daemon/session/short_slice.h"
#include "storage/base/shm/futex.h"
#include "tests/unit/session/served.h"

namespace kvist::session {
namespace {

TEST_CASE("Reactor hears every session, with more of them than it can wait for at once and with fewer") {
  const size_t words = GENERATE(size_t{1}, size_t{3}, shm::FutexWordsMax());
  Served served({.words = words});
  std::vector<std::unique_ptr<Client>> clients;
  for (uint64_t id = 1; id <= 6; ++id) clients.push_back(std::make_unique<Client>(served, id));
  for (int round = 0; round < 50; ++round) {
    for (size_t i = 0; i < clients.size(); ++i) {
      INFO("words " << words << ", round " << round << ", client " << i);
      REQUIRE(clients[i]->Ask(kHung));
      if ((round * i) % 7 == 3) REQUIRE(Soon([&] { return clients[i]->Sleeps(); }));
    }
  }
}

TEST_CASE("Reactor tells the core which region of the pool is near a worker") {
  std::vector<int> asked;
  Served served({.region_near = [&](int node) {
    asked.push_back(node);
    return 0U;
  }});
  const ClientEnd worker(served, 1, std::make_shared<const cuda::KvMemory>()), scheduler(served, 2);
  CHECK(asked == std::vector<int>{ClientEnd::kNumaNode, -1});
}

TEST_CASE("Reactor gets short slices from a kernel that has them, so that it runs as soon as it is woken") {
  bool has_them = false;
  std::thread([&] { has_them = AskForShortSlices(); }).join();
  if (!has_them) WARN("this kernel has no slices of a thread's own: nothing to see");
  const int64_t ours = SliceNanos();
  std::atomic<int64_t> of_reactor{-1};
  Served served({});
  served.reactor->Run([&] { of_reactor.store(SliceNanos()); });
  REQUIRE(Soon([&] { return of_reactor.load() >= 0; }));
  CHECK(of_reactor.load() == (has_them ? kShortSliceNanos : ours));
}

TEST_CASE("Reactor hears a session that was quiet while another keeps it busy") {
  Served served({.words = GENERATE(size_t{1}, shm::FutexWordsMax())});
  Client quiet(served, 1);
  Client busy(served, 2);
  REQUIRE(quiet.Ask(kHung));
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> asked{0};
  std::thread noise([&] {
    while (!stop.load() && busy.Ask(kHung)) asked.fetch_add(1);
  });
  CHECK(Soon([&] { return quiet.Dozes() && asked.load() > 0; }));
  CHECK(quiet.Ask(kHung));
  stop.store(true);
  noise.join();
}

TEST_CASE("Reactor hears of tasks by the word of a session, while sessions of one tenant and of several come and go") {
  Served served({});
  std::atomic<uint32_t> ran{0};
  const auto run = [&] {
    const uint32_t before = ran.load();
    served.reactor->Run([&] { ran.fetch_add(1); });
    return Soon([&] { return ran.load() != before; });
  };
  const auto close = [&](uint64_t id) {
    std::atomic<bool> drained{false};
    served.reactor->Close(SessionId{id}, [&] { drained.store(true); });
    return Soon([&] { return drained.load(); });
  };
  Client first(served, 1, "a");
  for (uint64_t id = 2; id < 40; ++id) {
    INFO("session " << id);
    REQUIRE(first.Ask(kHung));
    REQUIRE(Soon([&] { return first.Sleeps(); }));
    REQUIRE(run());
    Client other(served, id, id % 3 == 0 ? "b" : "a");
    REQUIRE(other.Ask(kHung));
    REQUIRE(Soon([&] { return first.Sleeps() && other.Sleeps(); }));
    REQUIRE(run());
    REQUIRE(first.Ask(kHung));
    REQUIRE(close(id));  // also of the session that the reactor sleeps on
    REQUIRE(run());
  }
  REQUIRE(close(1));
  REQUIRE(run());
}

TEST_CASE("Reactor hears sessions that it has left to their doorbells, while tasks wake it by the word of another") {
  Served served({.words = 2});  // one session's, and the inbox's
  std::vector<std::unique_ptr<Client>> clients;
  for (uint64_t id = 1; id <= 3; ++id) clients.push_back(std::make_unique<Client>(served, id));
  std::atomic<bool> stop{false};
  std::thread tasks([&] {
    while (!stop.load()) {
      served.reactor->Run([] {});
      std::this_thread::yield();
    }
  });
  std::mt19937 random(1);
  bool heard = true;
  for (int i = 0; i < 20000 && heard; ++i) heard = clients[random() % clients.size()]->Ask(kHung);
  CHECK(heard);
  stop.store(true);
  tasks.join();
}

TEST_CASE("Reactor keeps nobody waiting beyond the next task when a client undoes its wakings") {
  Served served({});
  Client client(served, 1);
  REQUIRE(client.Ask(kHung));
  std::atomic<bool> stop{false};
  std::thread scribbler([&] {
    while (!stop.load()) client.Scribble();
  });
  std::atomic<uint32_t> ran{0};
  for (uint32_t i = 1; i <= 2000; ++i) {
    served.reactor->Run([&] { ran.fetch_add(1); });
    for (int patience = 0; ran.load() < i && patience < 1000; ++patience) std::this_thread::yield();
    if (ran.load() == i) continue;
    REQUIRE(Soon([&] {  // the next tasks
      served.reactor->Run([] {});
      return ran.load() == i;
    }));
  }
  stop.store(true);
  scribbler.join();
}

TEST_CASE("Reactor tells how long requests waited in their ring, and believes no client that says nonsense") {
  Served served({});
  const int64_t before = MonotonicNanos();
  Client client(served, 1);
  const auto waits = [&] {
    LatencyHistogram found;
    std::atomic<uint32_t> answered{0};
    served.reactor->Run([&] {
      found = served.reactor->latencies().waits[static_cast<size_t>(Queue::kRing)];
      answered.store(1);
      shm::FutexWakeAll(&answered);
    });
    while (answered.load() == 0) shm::FutexWait(&answered, 0, INT64_MAX);
    return found;
  };
  const int64_t nonsense = GENERATE_COPY(int64_t{0}, int64_t{1}, int64_t{-1}, INT64_MIN, before);
  REQUIRE(client.Ask(kHung, nonsense));
  CHECK(waits().count() == 0);
  REQUIRE(client.Ask(kHung, MonotonicNanos()));
  const LatencyHistogram one = waits();
  CHECK(one.count() == 1);
  CHECK(one.sum_nanos() < uint64_t{10'000'000'000});
  // It dawdles between the call and the ring. Once in a while the reactor loses its core between its look at the clock and its look
  // at the ring, and takes the wait for shorter.
  uint64_t longest = 0;
  for (int attempt = 0; attempt < 100 && longest < 2'900'000; ++attempt) {
    const uint64_t sum = waits().sum_nanos();
    const int64_t asked = MonotonicNanos();
    while (MonotonicNanos() - asked < 3'000'000) {}
    REQUIRE(client.Ask(kHung, asked));
    longest = std::max(longest, waits().sum_nanos() - sum);
  }
  CHECK(longest >= 2'900'000);
  const LatencyHistogram all = waits();
  REQUIRE(client.Ask(kHung, INT64_MAX));  // the future: a wait of nothing
  CHECK(waits().count() == all.count() + 1);
  CHECK(waits().sum_nanos() == all.sum_nanos());
}

TEST_CASE("Reactor runs every task of every thread") {
  Served served({});
  std::atomic<uint32_t> ran{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        served.reactor->Run([&] { ran.fetch_add(1); });
        if (i % 50 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::atomic<uint32_t> done{0};
  served.reactor->Run([&] {
    done.store(1);
    shm::FutexWakeAll(&done);
  });
  while (done.load() == 0) shm::FutexWait(&done, 0, INT64_MAX);
  CHECK(ran.load() == 2000);
}

}  // namespace
}  // namespace kvist::session

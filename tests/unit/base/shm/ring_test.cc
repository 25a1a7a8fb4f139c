#include "storage/base/shm/ring.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <catch2/catch.hpp>

#include <algorithm>
#include <cstring>
#include <deque>
#include <random>
#include <thread>
#include <vector>

#include "storage/base/clock.h"
#include "storage/base/shm/futex.h"

namespace shm = kvist::shm;

namespace {

struct Ends {
  shm::SessionMemory memory = std::move(*shm::SessionMemory::Create()).memory;
  kvist::UniqueFd bell{::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
  shm::RingProducer producer{&memory, bell.get()};
  shm::RingConsumer consumer{&memory};

  bool Rang() {
    uint64_t count = 0;
    return ::read(bell.get(), &count, sizeof count) == sizeof count;
  }
};

shm::Entry EntryOf(uint32_t keys, uint32_t pages) {
  shm::Entry entry{};
  entry.opcode = shm::Opcode::kLookup;
  entry.keys = keys;
  entry.pages = pages;
  return entry;
}

}  // namespace

TEST_CASE("RingProducer and RingConsumer carry entries and arguments in order, over many turns of ring and arena") {
  Ends ends;
  const auto seed = std::random_device()();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  // What was submitted and not consumed, with the byte that fills its arguments
  std::deque<std::pair<shm::Entry, std::byte>> model;
  uint64_t submitted = 0, full = 0;
  for (int step = 0; step < 60'000; ++step) {
    if (random() % 2 == 0 || step % 5000 < 1500) {
      shm::Entry entry = EntryOf(random() % 5 == 0 ? random() % 4097 : random() % 20,
                                 random() % 7 == 0 ? random() % 200'000 : random() % 100);
      entry.sequence = static_cast<uint32_t>(submitted);
      const uint64_t size = uint64_t{entry.keys} * 32 + uint64_t{entry.pages} * 4;
      const auto room = ends.producer.Reserve(size, &entry);
      if (!room.has_value()) {
        REQUIRE(!model.empty());  // an empty ring takes the largest request
        ++full;
        continue;
      }
      REQUIRE(room->size() == size);
      const auto fill = static_cast<std::byte>(random());
      std::memset(room->data(), static_cast<int>(fill), size);
      ends.producer.Submit(entry);
      model.emplace_back(entry, fill);
      ++submitted;
    } else if (!model.empty()) {
      shm::Entry entry;
      REQUIRE(ends.consumer.Next(&entry));
      const auto& [wanted, fill] = model.front();
      REQUIRE(entry.sequence == wanted.sequence);
      const uint64_t size = uint64_t{entry.keys} * 32 + uint64_t{entry.pages} * 4;
      const std::byte* arguments = ends.consumer.Arguments(entry.arena, size);
      REQUIRE(arguments != nullptr);
      bool whole = true;
      for (uint64_t i = 0; i < size; ++i) whole = whole && arguments[i] == fill;
      REQUIRE(whole);
      ends.consumer.Consumed();
      model.pop_front();
    } else {
      shm::Entry entry;
      REQUIRE(!ends.consumer.Next(&entry));
    }
  }
  CHECK(submitted > 3 * shm::kEntries);
  CHECK(full > 0);
}

TEST_CASE("RingProducer uses the same lines of the arena again when the consumer keeps up") {
  Ends ends;
  for (int i = 0; i < 3000; ++i) {
    shm::Entry entry = EntryOf(32, 0);
    REQUIRE(ends.producer.Reserve(1024, &entry).has_value());
    CHECK(entry.arena % shm::kArenaBytes.value <= kvist::MiB(1).value);
    ends.producer.Submit(entry);
    REQUIRE(ends.consumer.Next(&entry));
    ends.consumer.Consumed();
  }
  // What is as large as the arena fits whenever nothing is in use.
  shm::Entry entry = EntryOf(0, static_cast<uint32_t>(shm::kArenaBytes.value / 4));
  CHECK(ends.producer.Reserve(shm::kArenaBytes.value, &entry).has_value());
}

TEST_CASE("RingProducer has room for as much as the arena holds, wherever what is left of the earlier entries lies") {
  Ends ends;
  const auto submit = [&](uint32_t keys) {
    shm::Entry entry = EntryOf(keys, 0);
    if (!ends.producer.Reserve(keys * 32, &entry).has_value()) return false;
    ends.producer.Submit(entry);
    return true;
  };
  // A consumer that is always one entry behind: what it has left lies a little further on each time.
  REQUIRE(submit(16));
  for (int turn = 0; turn < 1000; ++turn) {
    REQUIRE(submit(16));
    shm::Entry taken;
    REQUIRE(ends.consumer.Next(&taken));
    ends.consumer.Consumed();
    if (turn % 100 != 99) continue;
    REQUIRE(submit(16));
    for (int i = 0; i < 5; ++i) REQUIRE(submit(4096));  // 640 KiB, of 4 MiB of which 1 KiB is in use
    for (int i = 0; i < 6; ++i) {
      REQUIRE(ends.consumer.Next(&taken));
      ends.consumer.Consumed();
    }
  }
}

TEST_CASE("RingConsumer takes entries by their turn only, and no arguments outside the arena") {
  Ends ends;
  shm::Entry entry;
  for (const uint32_t turn : {0u, 2u, shm::kEntries + 1, UINT32_MAX}) {
    ends.memory.ring()[0].turn = turn;
    CHECK(!ends.consumer.Next(&entry));
  }
  ends.memory.ring()[0].turn = 1;
  CHECK(ends.consumer.Next(&entry));
  CHECK(ends.consumer.Arguments(0, shm::kArenaBytes.value) != nullptr);
  CHECK(ends.consumer.Arguments(0, shm::kArenaBytes.value + 1) == nullptr);
  CHECK(ends.consumer.Arguments(shm::kArenaBytes.value - 1, 2) == nullptr);
  CHECK(ends.consumer.Arguments(5, UINT64_MAX) == nullptr);
  CHECK(ends.consumer.Arguments(UINT64_MAX, UINT64_MAX) == nullptr);
}

TEST_CASE("RingProducer wakes the consumer only when it sleeps, and in the way that it chose") {
  Ends ends;
  const auto submit = [&] {
    shm::Entry entry = EntryOf(1, 0);
    REQUIRE(ends.producer.Reserve(32, &entry).has_value());
    ends.producer.Submit(entry);
  };
  ends.consumer.Awake();
  submit();
  CHECK(!ends.Rang());
  CHECK(!ends.consumer.Sleep(shm::Asleep::kOnDoorbell));  // something is there: it must not sleep
  ends.consumer.Awake();
  shm::Entry entry;
  REQUIRE(ends.consumer.Next(&entry));
  ends.consumer.Consumed();
  CHECK(ends.consumer.Sleep(shm::Asleep::kOnDoorbell));
  submit();
  CHECK(ends.Rang());
  submit();
  CHECK(!ends.Rang());  // once is enough
  for (int i = 0; i < 2; ++i) {
    REQUIRE(ends.consumer.Next(&entry));
    ends.consumer.Consumed();
  }
  CHECK(ends.consumer.Sleep(shm::Asleep::kOnWord));
  CHECK(ends.consumer.word().word->load() == ends.consumer.word().expected);
  submit();
  CHECK(!ends.Rang());
  CHECK(ends.consumer.word().word->load() != ends.consumer.word().expected);
}

TEST_CASE("A consumer is woken from its own process by its word, but goes on being rung where it is left to its doorbell") {
  Ends ends;
  REQUIRE(ends.consumer.Sleep(shm::Asleep::kOnWord));
  std::thread waker([&] { shm::RingConsumer::WakeFromWord(ends.memory.header()); });
  shm::FutexWait(ends.consumer.word().word, ends.consumer.word().expected, INT64_MAX);
  waker.join();
  CHECK(ends.memory.header()->asleep.load() == static_cast<uint32_t>(shm::Asleep::kNo));
  REQUIRE(ends.consumer.Sleep(shm::Asleep::kOnDoorbell));
  shm::RingConsumer::WakeFromWord(ends.memory.header());
  shm::Entry entry = EntryOf(0, 0);
  REQUIRE(ends.producer.Reserve(0, &entry).has_value());
  ends.producer.Submit(entry);
  CHECK(ends.Rang());
}

TEST_CASE("RingProducer leaves what has time to the next that wakes") {
  Ends ends;
  shm::Entry entry = EntryOf(0, 0);
  REQUIRE(ends.consumer.Sleep(shm::Asleep::kOnDoorbell));
  for (int i = 0; i < 3; ++i) {
    REQUIRE(ends.producer.Reserve(0, &entry).has_value());
    ends.producer.Leave(entry);
  }
  CHECK(!ends.Rang());
  SECTION("a request") {
    REQUIRE(ends.producer.Reserve(0, &entry).has_value());
    ends.producer.Submit(entry);
  }
  SECTION("a word") { ends.producer.Wake(); }
  CHECK(ends.Rang());
  ends.producer.Wake();
  CHECK(!ends.Rang());  // once is enough
  int heard = 0;
  for (; ends.consumer.Next(&entry); ++heard) ends.consumer.Consumed();
  CHECK(heard >= 3);
}

TEST_CASE("No wake-up is lost between a producer and a consumer that sleeps whenever it can") {
  const shm::Asleep how = GENERATE(shm::Asleep::kOnWord, shm::Asleep::kOnDoorbell);
  Ends ends;
  constexpr uint32_t kEntries = 20'000;
  std::thread producer([&] {
    for (uint32_t i = 0; i < kEntries;) {
      shm::Entry entry = EntryOf(1, 0);
      entry.sequence = i;
      if (!ends.producer.Reserve(32, &entry).has_value()) continue;
      ends.producer.Submit(entry);
      ++i;
      if (i % 64 == 0) std::this_thread::yield();
    }
  });
  const std::atomic<uint32_t> silent{0};
  uint32_t next = 0;
  bool lost = false;
  while (next < kEntries && !lost) {
    shm::Entry entry;
    while (ends.consumer.Next(&entry)) {
      REQUIRE(entry.sequence == next);
      ends.consumer.Consumed();
      ++next;
    }
    if (next < kEntries && ends.consumer.Sleep(how)) {
      constexpr int kLostMs = 20'000;
      if (how == shm::Asleep::kOnWord) {
        const int64_t deadline = kvist::MonotonicNanos() + int64_t{kLostMs} * 1'000'000;
        const shm::FutexWord words[] = {ends.consumer.word(), {&silent, 0}};
        shm::FutexWaitAny(std::span(words).first(std::min<size_t>(2, shm::FutexWordsMax())), deadline);
        lost = kvist::MonotonicNanos() >= deadline;
      } else {
        pollfd bell{ends.bell.get(), POLLIN, 0};
        lost = ::poll(&bell, 1, kLostMs) == 0;
        ends.Rang();
      }
    }
    ends.consumer.Awake();
  }
  CHECK(!lost);
  producer.join();
  CHECK(next == kEntries);
}

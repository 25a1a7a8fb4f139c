// Row 35 of the fault matrix: clients that go on writing into what they share with kvistd after they have submitted it: entries, page
// ids, keys, cells, the pages themselves, while kvistd reads, checks and copies. They may spoil what is theirs; nobody else notices.
#include <catch2/catch.hpp>

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/campaign.h"
#include "tests/support/child_process.h"
#include "tests/support/ctl.h"
#include "tests/support/daemon_process.h"
#include "tests/support/fake_engine.h"
#include "tests/support/raw_client.h"
#include "tests/support/temp_dir.h"
#include "tests/support/working_engine.h"

namespace session = kvist::session::v1;
namespace shm = kvist::shm;
using kvist::MonotonicNanos;
using kvist::UniqueFd;
using kvist::test::AtRest;
using kvist::test::BecomeUser;
using kvist::test::Campaign;
using kvist::test::ChildProcess;
using kvist::test::DaemonProcess;
using kvist::test::Eventually;
using kvist::test::FakeEngine;
using kvist::test::FdsFallTo;
using kvist::test::RawClient;
using kvist::test::StatusOf;
using kvist::test::TempDir;
using kvist::test::UntilItGoesOn;
using kvist::test::WorkingEngine;

namespace {

constexpr uid_t kNobody = 65534;
// Chunks as large as the honest engine's, so that both take slots of the same slabs.
constexpr uint32_t kPages = 64, kLayers = 3, kPagesPerChunk = 4, kChunks = 64;
constexpr uint64_t kPageBytes = 8192, kMemoryBytes = kPages * kLayers * kPageBytes;

struct Mischief {
  uint64_t sessions = 0, ended_by_kvistd = 0, requests = 0, answered = 0, writes = 0;
  uint64_t toggles = 0, toggled_taken = 0, toggled_refused = 0;  // how kvistd found what was being toggled meanwhile
};

session::ClientFrame Hello() {
  session::ClientFrame frame = RawClient::GoodHello();
  session::Hello& hello = *frame.mutable_hello();
  session::Space& space = *hello.mutable_space();
  space.set_chunk_tokens(kPagesPerChunk * 16);
  space.mutable_groups(0)->set_layers(kLayers);
  space.mutable_groups(0)->set_segment_bytes(kPageBytes);
  session::KvMemory& memory = *hello.mutable_memory();
  memory.clear_layers();
  for (uint64_t layer = 0; layer < kLayers; ++layer) memory.add_layers()->set_offset(layer * kPages * kPageBytes);
  memory.mutable_groups(0)->set_pages(kPages);
  memory.mutable_groups(0)->set_page_stride(kPageBytes);
  return frame;
}

// Where in the arena the arguments lie, of every request.
constexpr uint64_t kIdsAt = kChunks * sizeof(kvist_key),
                   kArgumentsEnd = kIdsAt + kChunks * kPagesPerChunk * sizeof(uint32_t);

// What of the shared memory a session's second thread writes to.
enum Target : uint32_t {
  kArena = 1,
  kPageBytesOfOwn = 2,
  kEntries = 4,
  kCells = 8,
  kHeader = 16,
  kToggle = 32,  // turns a number of the request that kvistd reads now bad and good again, as fast as can be
};

// Words of one region, as the scribbler sees them. Relaxed atomics: its own process may be watched by ThreadSanitizer, too.
struct Words {
  uint64_t* data;
  size_t count;
  void Scribble(std::mt19937_64& random) const {
    std::atomic_ref<uint64_t> word(data[random() % count]);
    const uint64_t old = word.load(std::memory_order_relaxed);
    switch (random() % 4) {
      case 0: word.store(random(), std::memory_order_relaxed); break;
      case 1: word.store(old ^ (uint64_t{1} << random() % 64), std::memory_order_relaxed); break;
      case 2:
        word.store(random() % (2 * kPages) << 32 | random() % (2 * kPages), std::memory_order_relaxed);
        break;  // page ids
      default: word.store(old + 1, std::memory_order_relaxed);
    }
  }
};

// Turns one page id, or one field of the entry, bad and good again: whoever looks twice finds it good and then bad. Each time it stays
// so for some nanoseconds, as long as lie between two looks; returns how often it was bad.
uint64_t Toggle(shm::Entry* entry, uint32_t* ids, std::mt19937_64& random) {
  constexpr uint32_t kBad[] = {kPages, 0x00ff'ffff, 0x7fff'ffff, UINT32_MAX};
  constexpr uint64_t kTimes = 16;
  uint32_t* const fields[] = {&entry->pages, &entry->keys, &entry->first_chunk, &entry->chunks, &entry->layer.first_layer};
  const bool id = random() % 8 != 0;
  const std::atomic_ref<uint32_t> number(id ? ids[random() % (kChunks * kPagesPerChunk)]
                                            : *fields[random() % std::size(fields)]);
  const uint32_t good = number.load(std::memory_order_relaxed);
  const uint32_t bad = kBad[random() % std::size(kBad)];
  const uint64_t looks = random() % 256;  // each of them about as long as one of kvistd's
  for (uint64_t time = 0; time < kTimes; ++time) {
    number.store(bad, std::memory_order_relaxed);
    for (uint64_t i = 0; i < looks; ++i) (void)number.load(std::memory_order_relaxed);
    number.store(id ? good % kPages : good, std::memory_order_relaxed);
    for (uint64_t i = 0; i < looks; ++i) (void)number.load(std::memory_order_relaxed);
  }
  return kTimes;
}

// One session of the malicious client: requests that are right when they are submitted, and a thread that doesn't leave them so.
void Misbehave(const std::string& socket, const std::vector<kvist_key>& keys, uint32_t targets, int64_t until, uint64_t seed,
               Mischief* done) {
  const UniqueFd memfd(::memfd_create("scribbler", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(::ftruncate(memfd.get(), kMemoryBytes) == 0);
  if (seed % 4 != 0) REQUIRE(::fcntl(memfd.get(), F_ADD_SEALS, F_SEAL_SHRINK) == 0);  // else kvistd reads it by preadv
  void* pages = ::mmap(nullptr, kMemoryBytes, PROT_READ | PROT_WRITE, MAP_SHARED, memfd.get(), 0);
  REQUIRE(pages != MAP_FAILED);
  RawClient client(socket);
  client.Open(Hello(), memfd.get());
  ++done->sessions;
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> writes{0}, toggles{0}, submitting{0};
  auto* const ids = reinterpret_cast<uint32_t*>(client.memory.arena() + kIdsAt);
  std::thread scribbler([&] {
    std::mt19937_64 random(seed);
    std::vector<Words> words;
    const auto add = [&](uint32_t target, void* data, size_t bytes) {
      if ((targets & target) != 0) words.push_back({static_cast<uint64_t*>(data), bytes / 8});
    };
    add(kArena, client.memory.arena(), kArgumentsEnd);
    add(kPageBytesOfOwn, pages, kMemoryBytes);
    add(kEntries, client.memory.ring(), shm::kEntries * sizeof(shm::Entry));
    add(kCells, client.memory.cell(0), shm::kCells * sizeof(shm::Cell));
    add(kHeader, client.memory.header(), 256);
    while (!stop) {
      shm::Entry* const entry = &client.memory.ring()[submitting % shm::kEntries];
      if ((targets & kToggle) != 0) {
        toggles += Toggle(entry, ids, random);
        continue;
      }
      for (int i = 0; i < 64; ++i) words[random() % words.size()].Scribble(random);
      writes += 64;
    }
  });
  std::mt19937_64 random(~seed);
  uint64_t lease = 0;
  uint32_t sequence = 0, leased = 0;
  const int64_t deadline = MonotonicNanos() + 10'000'000'000;
  for (uint32_t turn = 0; MonotonicNanos() < until; ++turn) {
    const uint32_t cell = turn % shm::kCells;
    shm::Entry entry{};
    entry.cell = cell;
    entry.sequence = ++sequence;
    entry.deadline_nanos = deadline;
    switch (random() % 8) {
      case 0:
        entry.opcode = shm::Opcode::kLookup;
        entry.keys = kChunks;
        entry.lease_nanos = 1'000'000'000;
        break;
      case 1:
      case 2:
      case 3:
        entry.opcode = shm::Opcode::kLoad;
        entry.lease = lease;
        entry.chunks = leased;
        entry.pages = leased * kPagesPerChunk;
        entry.arena = kIdsAt;
        break;
      case 4:
        entry.opcode = random() % 2 == 0 ? shm::Opcode::kRelease : shm::Opcode::kCancel;
        entry.lease = lease;
        break;
      default:
        entry.opcode = shm::Opcode::kStore;
        entry.keys = 1 + random() % kChunks;
        entry.arena = kIdsAt - entry.keys * sizeof(kvist_key);
        entry.pages = entry.keys * kPagesPerChunk;
    }
    // The scribbler writes there at the same time: that is the point.
    std::byte* const arguments = client.memory.arena() + entry.arena;
    std::memcpy(arguments, keys.data(), entry.keys * sizeof(kvist_key));
    for (uint32_t i = 0; i < entry.pages; ++i)
      std::atomic_ref<uint32_t>(ids[i]).store(static_cast<uint32_t>(random() % kPages), std::memory_order_relaxed);
    submitting = turn;
    client.Submit(entry);
    ++done->requests;
    // As long as an answer takes at most; with cells and entries spoilt it may never be seen. Asleep: the scribbler needs the core.
    const int64_t patience = MonotonicNanos() + 5'000'000;
    const bool answered_in_cell = entry.opcode != shm::Opcode::kRelease && entry.opcode != shm::Opcode::kCancel;
    shm::Cell* const answer = client.memory.cell(cell);
    answer->waiters.store(1);
    while (answered_in_cell && MonotonicNanos() < patience) {
      const uint64_t progress = answer->progress.load();
      if (shm::PhaseOf(progress) != shm::Phase::kEnded) {
        shm::FutexWait(reinterpret_cast<std::atomic<uint32_t>*>(&answer->progress), static_cast<uint32_t>(progress),
                       patience);
        continue;
      }
      if (entry.opcode == shm::Opcode::kLookup) {
        lease = answer->lease;
        leased = std::min(answer->copied, kChunks);
      }
      ++done->answered;
      if ((targets & kToggle) != 0 && entry.pages > 0) {
        const auto code = static_cast<absl::StatusCode>(answer->status);
        done->toggled_taken += code == absl::StatusCode::kOk;
        done->toggled_refused += code == absl::StatusCode::kInvalidArgument;
      }
      break;
    }
    pollfd hung_up{client.socket(), POLLIN, 0};
    if (::poll(&hung_up, 1, 0) != 0) {
      ++done->ended_by_kvistd;
      break;
    }
  }
  stop = true;
  scribbler.join();
  done->writes += writes;
  done->toggles += toggles;
  ::munmap(pages, kMemoryBytes);
}

// A process that does so for some seconds, session after session.
class MaliciousProcess {
 public:
  MaliciousProcess(const std::string& dir, uid_t user, std::chrono::milliseconds time, uint64_t seed) {
    int report[2];
    REQUIRE(::pipe2(report, O_CLOEXEC) == 0);
    report_ = UniqueFd(report[0]);
    const UniqueFd say(report[1]);
    process_.emplace([&] {
      if (user != ::geteuid()) {
        BecomeUser(dir, user, user);
      } else if (::chdir(dir.c_str()) != 0) {
        return 1;
      }
      kvist::Chain chain(FakeEngine::kChunkTokens);  // keys that the honest engine uses, too
      chain.Append(std::vector<uint32_t>(size_t{kChunks} * FakeEngine::kChunkTokens));
      const std::vector<kvist_key> keys(chain.keys().begin(), chain.keys().end());
      const int64_t end = MonotonicNanos() + std::chrono::nanoseconds(time).count();
      // Toggling more often than any other: a double fetch is as wide as a few nanoseconds.
      const uint32_t targets[] = {kToggle, kArena,
                                  kToggle, kArena | kPageBytesOfOwn,
                                  kToggle, kPageBytesOfOwn | kEntries,
                                  kToggle, kCells | kArena,
                                  kToggle, kHeader | kArena,
                                  kToggle, kArena | kPageBytesOfOwn | kEntries | kCells | kHeader};
      Mischief done;
      while (MonotonicNanos() < end) {
        ++seed;
        Misbehave("engine.sock", keys, targets[seed % std::size(targets)], MonotonicNanos() + 100'000'000, seed, &done);
      }
      return ::write(say.get(), &done, sizeof done) == sizeof done ? 0 : 3;
    });
  }

  // Waits for its end; nothing when it has failed, as it does when kvistd is gone.
  std::optional<Mischief> Done(std::chrono::seconds within) {
    pollfd readable{report_.get(), POLLIN, 0};
    REQUIRE(::poll(&readable, 1, static_cast<int>(within.count()) * 1000) == 1);
    Mischief done;
    if (::read(report_.get(), &done, sizeof done) != sizeof done) return std::nullopt;
    return done;
  }

 private:
  std::optional<ChildProcess> process_;
  UniqueFd report_;
};

}  // namespace

TEST_CASE("Row 35: clients that write into shared memory after they submitted hurt themselves only") {
  const std::chrono::milliseconds time = std::chrono::seconds(Campaign("KVIST_SCRIBBLE_SECONDS", 6, 60));
  const uint64_t seed = std::random_device()();
  INFO("seed " << seed);
  TempDir dir;
  // Less than the honest engine's prompts: slots go from one to the other all the time.
  DaemonProcess daemon(dir.path(), {"pool.bytes=24MiB", "log.level=error", "session.socket_mode=0666"});
  WorkingEngine honest(daemon.socket(), "honest");
  REQUIRE(honest.status().message == "");
  REQUIRE(UntilItGoesOn([&] { return honest.hits(); }, std::chrono::seconds(20)) >= 0);
  const uint64_t before = honest.hits();
  const size_t fds = daemon.OpenFds();
  Mischief all;
  {
    // One of another tenant, where the test may change its user; then one of the same tenant in another space. One by one: each needs
    // a core while kvistd runs on another.
    std::vector<uid_t> users{::geteuid()};
    if (::geteuid() == 0) users.push_back(kNobody);
    for (const uid_t user : users) {
      MaliciousProcess client(dir.path(), user, time / static_cast<int>(users.size()), seed + user);
      const auto done = client.Done(std::chrono::seconds(60) + std::chrono::ceil<std::chrono::seconds>(time));
      REQUIRE(!daemon.Ended().has_value());
      REQUIRE(done.has_value());
      all.sessions += done->sessions;
      all.ended_by_kvistd += done->ended_by_kvistd;
      all.requests += done->requests;
      all.answered += done->answered;
      all.writes += done->writes;
      all.toggles += done->toggles;
      all.toggled_taken += done->toggled_taken;
      all.toggled_refused += done->toggled_refused;
    }
  }
  CHECK(UntilItGoesOn([&] { return honest.hits(); }, std::chrono::seconds(20)) >= 0);
  honest.Finish();
  std::printf(
      "row 35: %lu sessions of %s (%lu ended by kvistd) submitted %lu requests, %lu answered, and wrote %lu times into "
      "shared "
      "memory beside them; the engine beside them was served %lu prompts, longest call %.0f ms, wrong chunks %lu\n",
      all.sessions, ::geteuid() == 0 ? "its own tenant and of another" : "its own tenant only (another takes root)",
      all.ended_by_kvistd, all.requests, all.answered, all.writes, honest.hits() - before, honest.longest_us() / 1000,
      honest.wrong());
  std::printf(
      "row 35: numbers of the request being read turned bad and good again %lu times; of the loads and stores read "
      "meanwhile %lu were taken and %lu refused\n",
      all.toggles, all.toggled_taken, all.toggled_refused);
  CHECK(honest.wrong() == 0);
  CHECK(all.answered > 0);
  // Both: kvistd has looked while a number was good, and while it was bad.
  CHECK(all.toggles > 0);
  CHECK(all.toggled_taken > 0);
  CHECK(all.toggled_refused > 0);
  CHECK(FdsFallTo(daemon, fds));
  CHECK(Eventually([&] { return AtRest(StatusOf(daemon)); }));
  CHECK(daemon.Terminate() == 0);
}

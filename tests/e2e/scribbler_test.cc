// Row 35 of the fault matrix: clients that go on writing into what they share with kvistd after they have submitted it: entries, page
// ids, keys, cells, the pages themselves, while kvistd reads, checks and copies. They may spoil what is theirs; nobody else notices.
#include <catch2/catch.hpp>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/campaign.h"
#include "tests/support/ctl.h"
#include "tests/support/daemon_process.h"
#include "tests/support/fake_engine.h"
#include "tests/support/raw_client.h"
#include "tests/support/working_engine.h"

namespace session = kvist::session::v1;
namespace shm = kvist::shm;
using kvist::MonotonicNanos;
using kvist::UniqueFd;
using kvist::test::Campaign;
using kvist::test::Ctl;
using kvist::test::DaemonProcess;
using kvist::test::Eventually;
using kvist::test::FakeEngine;
using kvist::test::RawClient;
using kvist::test::TempDir;
using kvist::test::UntilItGoesOn;
using kvist::test::WorkingEngine;

namespace {

constexpr uid_t kNobody = 65534;
// Chunks as large as the honest engine's, so that both take slots of the same slabs.
constexpr uint32_t kPages = 64, kLayers = 3, kPagesPerChunk = 4, kChunks = 4;
constexpr uint64_t kPageBytes = 8192, kMemoryBytes = kPages * kLayers * kPageBytes;

struct Mischief {
  uint64_t sessions = 0, ended_by_kvistd = 0, requests = 0, answered = 0, writes = 0;
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

// What of the shared memory a session's second thread writes to.
enum Target : uint32_t { kArena = 1, kPageBytesOfOwn = 2, kEntries = 4, kCells = 8, kHeader = 16 };

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
  std::atomic<uint64_t> writes{0};
  std::thread scribbler([&] {
    std::mt19937_64 random(seed);
    std::vector<Words> words;
    const auto add = [&](uint32_t target, void* data, size_t bytes) {
      if ((targets & target) != 0) words.push_back({static_cast<uint64_t*>(data), bytes / 8});
    };
    add(kArena, client.memory.arena(), 4096);  // where the arguments below lie
    add(kPageBytesOfOwn, pages, kMemoryBytes);
    add(kEntries, client.memory.ring(), shm::kEntries * sizeof(shm::Entry));
    add(kCells, client.memory.cell(0), shm::kCells * sizeof(shm::Cell));
    add(kHeader, client.memory.header(), 256);
    while (!stop) {
      for (int i = 0; i < 64; ++i) words[random() % words.size()].Scribble(random);
      writes += 64;
    }
  });
  std::mt19937_64 random(~seed);
  uint64_t lease = 0;
  uint32_t sequence = 0;
  const int64_t deadline = MonotonicNanos() + 10'000'000'000;
  for (uint32_t turn = 0; MonotonicNanos() < until; ++turn) {
    const uint32_t cell = turn % shm::kCells;
    shm::Entry entry{};
    entry.cell = cell;
    entry.sequence = ++sequence;
    entry.deadline_nanos = deadline;
    std::byte* arguments = client.memory.arena();
    uint32_t ids[kChunks * kPagesPerChunk];
    for (uint32_t& id : ids) id = static_cast<uint32_t>(random() % kPages);
    switch (random() % 4) {
      case 0:
        entry.opcode = shm::Opcode::kLookup;
        entry.keys = kChunks;
        entry.lease_nanos = 1'000'000'000;
        break;
      case 1:
        entry.opcode = shm::Opcode::kLoad;
        entry.lease = lease;
        entry.chunks = kChunks;
        entry.pages = std::size(ids);
        break;
      case 2: entry.opcode = random() % 2 == 0 ? shm::Opcode::kRelease : shm::Opcode::kCancel; break;
      default:
        entry.opcode = shm::Opcode::kStore;
        entry.keys = kChunks;
        entry.pages = std::size(ids);
    }
    // Not atomic, and raced by the scribbler: that is the point; no sanitizer looks at a fork's shared memory through these.
    const size_t first = 8 * (random() % 4) * kChunks;
    if (entry.keys > 0) std::memcpy(arguments, keys.data() + first % (keys.size() - kChunks), kChunks * sizeof(kvist_key));
    if (entry.pages > 0) std::memcpy(arguments + entry.keys * sizeof(kvist_key), ids, sizeof ids);
    client.memory.cell(cell)->progress.store(shm::PackProgress(sequence, shm::Phase::kPending, 0));
    client.Submit(entry);
    ++done->requests;
    // As long as an answer takes at most; with cells and entries spoilt it may never be seen.
    const int64_t patience = MonotonicNanos() + 5'000'000;
    while (MonotonicNanos() < patience) {
      if (entry.opcode == shm::Opcode::kRelease || entry.opcode == shm::Opcode::kCancel) break;
      if (shm::PhaseOf(client.memory.cell(cell)->progress.load()) != shm::Phase::kEnded) continue;
      if (entry.opcode == shm::Opcode::kLookup) lease = client.memory.cell(cell)->lease;
      ++done->answered;
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
  ::munmap(pages, kMemoryBytes);
}

// A process that does so for some seconds, session after session.
class MaliciousProcess {
 public:
  MaliciousProcess(const std::string& dir, uid_t user, std::chrono::seconds time, uint64_t seed) {
    int report[2];
    REQUIRE(::pipe2(report, O_CLOEXEC) == 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      Mischief done;
      try {
        // A path from here: another user may not be let into "/".
        if (::chdir(dir.c_str()) != 0 || (user != ::geteuid() && ::setresuid(user, user, user) != 0)) ::_exit(1);
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        kvist::Chain chain(FakeEngine::kChunkTokens);  // keys that the honest engine uses, too
        chain.Append(std::vector<uint32_t>(size_t{64} * FakeEngine::kChunkTokens));
        const std::vector<kvist_key> keys(chain.keys().begin(), chain.keys().end());
        const int64_t end = MonotonicNanos() + std::chrono::nanoseconds(time).count();
        const uint32_t targets[] = {
            kArena,          kArena | kPageBytesOfOwn, kPageBytesOfOwn | kEntries,
            kCells | kArena, kHeader | kArena,         kArena | kPageBytesOfOwn | kEntries | kCells | kHeader};
        while (MonotonicNanos() < end) {
          ++seed;
          Misbehave("engine.sock", keys, targets[seed % std::size(targets)], MonotonicNanos() + 100'000'000, seed, &done);
        }
      } catch (...) { ::_exit(2); }
      ::_exit(::write(report[1], &done, sizeof done) == sizeof done ? 0 : 3);
    }
    ::close(report[1]);
    report_ = UniqueFd(report[0]);
  }
  ~MaliciousProcess() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  MaliciousProcess(const MaliciousProcess&) = delete;
  MaliciousProcess& operator=(const MaliciousProcess&) = delete;

  // Waits for its end.
  Mischief Done(std::chrono::seconds within) {
    pollfd readable{report_.get(), POLLIN, 0};
    REQUIRE(::poll(&readable, 1, static_cast<int>(within.count()) * 1000) == 1);
    Mischief done;
    REQUIRE(::read(report_.get(), &done, sizeof done) == sizeof done);  // else it has failed
    return done;
  }

 private:
  pid_t pid_ = -1;
  UniqueFd report_;
};

}  // namespace

TEST_CASE("Row 35: clients that write into shared memory after they submitted hurt themselves only") {
  const auto time = std::chrono::seconds(Campaign("KVIST_SCRIBBLE_SECONDS", 5));
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
    // One of another tenant, where the test may change its user; and one of the same tenant in another space.
    std::vector<std::unique_ptr<MaliciousProcess>> clients;
    if (::geteuid() == 0) clients.push_back(std::make_unique<MaliciousProcess>(dir.path(), kNobody, time, seed));
    clients.push_back(std::make_unique<MaliciousProcess>(dir.path(), ::geteuid(), time, seed / 2));
    for (const auto& client : clients) {
      const Mischief done = client->Done(time + std::chrono::seconds(60));
      all.sessions += done.sessions;
      all.ended_by_kvistd += done.ended_by_kvistd;
      all.requests += done.requests;
      all.answered += done.answered;
      all.writes += done.writes;
    }
  }
  CHECK(!daemon.Ended().has_value());
  CHECK(UntilItGoesOn([&] { return honest.hits(); }, std::chrono::seconds(20)) >= 0);
  honest.Finish();
  std::printf(
      "row 35: %lu sessions (%lu ended by kvistd) submitted %lu requests, %lu answered, and wrote %lu times into shared "
      "memory beside "
      "them; the engine beside them was served %lu prompts, longest call %.0f ms, wrong chunks %lu\n",
      all.sessions, all.ended_by_kvistd, all.requests, all.answered, all.writes, honest.hits() - before,
      honest.longest_us() / 1000, honest.wrong());
  CHECK(honest.wrong() == 0);
  CHECK(all.answered > 0);
  CHECK(Eventually([&] { return daemon.OpenFds() <= fds; }));
  CHECK(Eventually([&] {
    const auto status = Ctl(daemon, {"status"});
    return status["ops"] == 0 && status["leases"] == 0 && status["filling"] == 0;
  }));
  CHECK(daemon.Terminate() == 0);
}

// A process that works on a store until it kills itself before a step, or to its end.
//
// usage: store_victim FOLDER LOG STEP NTH FIRST COUNT
//   LOG    what its owner knows, a line each: "w N" when chunk N is durable, "f N" before it is freed, "C" before a clear of all and "c"
//          when that is done
//   writes the chunks FIRST .. FIRST + COUNT - 1, and clears now and then; exits with 0, or 1 when the store says what it must not
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/unit/ssd/store_victim.h"

namespace kvist::ssd::test {
namespace {

[[noreturn]] void Die() {
  ::kill(::getpid(), SIGKILL);
  for (;;) ::pause();
}

int Work(char** argv) {
  const int log = ::open(argv[2], O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  KVIST_CHECK(log >= 0);
  const auto say = [log](const std::string& line) {
    KVIST_CHECK(::write(log, line.data(), line.size()) == static_cast<ssize_t>(line.size()));
  };
  const std::string step = argv[3];
  std::atomic<long> left{std::atol(argv[4])};
  const uint64_t first = std::strtoull(argv[5], nullptr, 10), count = std::strtoull(argv[6], nullptr, 10);

  StoreOptions options = VictimOptions(argv[1]);
  options.before_step = [&](std::string_view at) {
    if (at == step && --left == 0) Die();
  };
  StoreWorld world({.shards = 2});
  world.on_written = [&](const ChunkId& id) { say(absl::StrCat("w ", StoreWorld::NumberOf(id), "\n")); };
  world.on_freed = [&](const ChunkId& id) { say(absl::StrCat("f ", StoreWorld::NumberOf(id), "\n")); };
  world.Open(std::move(options));
  world.store->OpenSpace(VictimSpace(), "a space");
  if (first % 2 == 0) world.store->Start();  // beside the writes
  if (first % 2 == 1) KVIST_CHECK(world.StartNow().status.ok());
  std::vector<uint64_t> tickets;
  for (uint64_t n = first; n < first + count; ++n) {
    tickets.push_back(world.Begin(0, n));
    if (n % 5 == 0) world.store->Flush();
    if (tickets.size() < 8) continue;
    world.store->Flush();
    for (const uint64_t ticket : tickets) {
      const absl::Status status = world.WaitFor(ticket);
      if (!status.ok() && !absl::IsResourceExhausted(status)) return 1;
    }
    tickets.clear();
    if (n % 64 < 8) {
      say("C\n");
      if (!world.ClearNow(std::nullopt).ok()) return 1;
      say("c\n");
    }
  }
  world.store->Flush();
  for (const uint64_t ticket : tickets) world.WaitFor(ticket).IgnoreError();
  world.Close();
  return 0;
}

}  // namespace
}  // namespace kvist::ssd::test

int main(int argc, char** argv) { return argc == 7 ? kvist::ssd::test::Work(argv) : 2; }

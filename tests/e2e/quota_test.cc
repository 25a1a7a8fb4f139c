// Two users share a kvistd: what one can do to the other's cache, and what an operator can do about it (promise 6).
#include <catch2/catch.hpp>

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/child_process.h"
#include "tests/support/daemon_process.h"
#include "tests/support/fake_engine.h"
#include "tests/support/temp_dir.h"

using kvist::test::BecomeUser;
using kvist::test::BinDir;
using kvist::test::ChildProcess;
using kvist::test::DaemonProcess;
using kvist::test::FakeEngine;
using kvist::test::RunProgram;
using kvist::test::TempDir;

namespace {

constexpr uid_t kFlooder = 54402;
constexpr const char* kFlooderTenant = "uid:54402";
constexpr uint32_t kChunksPerPrompt = 16;  // as many as a FakeEngine has pages for
constexpr size_t kMiB = 1 << 20;

// kvistctl's exit status, and what it says: JSON of what it prints, or the text of its error.
std::pair<int, nlohmann::json> Ctl(const DaemonProcess& daemon, const std::string& command) {
  std::string out;
  const std::string line = BinDir() + "/kvistctl --socket " + daemon.admin_socket() + " -o json " + command + " 2>&1";
  const int status = RunProgram({"/bin/sh", "-c", line}, &out);
  return {status, status == 0 ? nlohmann::json::parse(out) : nlohmann::json(out)};
}

nlohmann::json QuotaOf(const DaemonProcess& daemon, const std::string& tenant) {
  const nlohmann::json listed = Ctl(daemon, "quota list").second;
  for (const nlohmann::json& row : listed["quotas"]) {
    if (row["tenant"] == tenant) return row;
  }
  return nullptr;
}

// Prompts [first, first + count) that share nothing.
bool StorePrompts(FakeEngine& engine, uint32_t first, uint32_t count) {
  for (uint32_t p = first; p < first + count; ++p) {
    if (engine.StoreAll(engine.Keys(p * 1000, kChunksPerPrompt)).status != KVIST_OK) return false;
  }
  return true;
}

uint32_t Kept(FakeEngine& engine, uint32_t first, uint32_t count) {
  uint32_t chunks = 0;
  for (uint32_t p = first; p < first + count; ++p)
    chunks += engine.scheduler().Lookup(engine.Keys(p * 1000, kChunksPerPrompt), 0).chunks;
  return chunks;
}

// An engine of another user, in a process of its own: for each byte that it is sent it stores 125 prompts that nobody has seen, and
// says so.
class Flooder {
 public:
  explicit Flooder(const std::string& dir) {
    REQUIRE(::pipe2(order_, O_CLOEXEC) == 0);
    REQUIRE(::pipe2(done_, O_CLOEXEC) == 0);
    process_.emplace([&] { return Live(dir); });
  }
  ~Flooder() {
    process_->Kill();
    for (const int fd : {order_[0], order_[1], done_[0], done_[1]}) ::close(fd);
  }
  Flooder(const Flooder&) = delete;
  Flooder& operator=(const Flooder&) = delete;

  // Returns when it has; false when it couldn't.
  bool Flood() const {
    char byte = 0;
    if (::write(order_[1], &byte, 1) != 1) return false;
    pollfd said{done_[0], POLLIN, 0};
    return ::poll(&said, 1, 60'000) == 1 && ::read(done_[0], &byte, 1) == 1 && byte == 'y';
  }

 private:
  int Live(const std::string& dir) const {
    BecomeUser(dir, kFlooder, kFlooder);
    FakeEngine engine(FakeEngine::On("engine.sock"));
    char byte = 0;
    for (uint32_t first = 0; ::read(order_[0], &byte, 1) == 1; first += 125) {
      byte = engine.status.ok() && StorePrompts(engine, first, 125) ? 'y' : 'n';
      if (::write(done_[1], &byte, 1) != 1) return 91;
    }
    return 0;
  }

  int order_[2], done_[2];
  std::optional<ChildProcess> process_;
};

}  // namespace

TEST_CASE("A flood evicts its own chunks only while its tenant has a quota, set, unset and reloaded under load") {
  if (::getuid() != 0) {
    WARN("skipped: only root can start processes of other users");
    return;
  }
  TempDir dir;
  REQUIRE(::chmod(dir.path().c_str(), 0711) == 0);
  const std::string file = dir.path() + "/kvistd.toml";
  std::ofstream(file) << "[tenants]\n0 = \"blue\"\n";
  DaemonProcess daemon(dir.path(), {"pool.bytes=16MiB", "pool.slab_bytes=1MiB", "session.socket_mode=0666"}, file);
  const Flooder flooder(dir.path());  // forked before this process has threads
  FakeEngine blue(FakeEngine::On(daemon.socket()));
  REQUIRE(blue.status.ok());

  // More than half of the pool, so that without quotas blue would have to give way.
  constexpr uint32_t kPrompts = 25;
  REQUIRE(StorePrompts(blue, 0, kPrompts));
  REQUIRE(Kept(blue, 0, kPrompts) == kPrompts * kChunksPerPrompt);
  CHECK(QuotaOf(daemon, "blue")["used_bytes"] > 8 * kMiB);

  const auto [set, quota] = Ctl(daemon, std::string("quota set ") + kFlooderTenant + " 4MiB");
  REQUIRE(set == 0);
  CHECK(quota["origin"] == "runtime");
  CHECK(quota["note"] == "");
  REQUIRE(flooder.Flood());
  nlohmann::json flood = QuotaOf(daemon, kFlooderTenant);
  CHECK(flood["bytes"] == 4 * kMiB);
  CHECK(flood["used_bytes"] <= 4 * kMiB);
  CHECK(flood["used_bytes"] > 3 * kMiB);
  CHECK(flood["evictions"] > 1000);
  CHECK(Kept(blue, 0, kPrompts) == kPrompts * kChunksPerPrompt);
  CHECK(QuotaOf(daemon, "blue")["evictions"] == 0);

  // Lowered: it goes down to it with its next stores.
  REQUIRE(Ctl(daemon, std::string("quota set ") + kFlooderTenant + " 1MiB").first == 0);
  REQUIRE(flooder.Flood());
  CHECK(QuotaOf(daemon, kFlooderTenant)["used_bytes"] <= 1 * kMiB);
  CHECK(Kept(blue, 0, kPrompts) == kPrompts * kChunksPerPrompt);

  // The configuration's comes back with a reload, also where that means none; then a flood takes what it can.
  std::ofstream(file) << "[tenants]\n0 = \"blue\"\n[quotas]\n\"" << kFlooderTenant << "\" = \"2MiB\"\n";
  const std::string key = std::string("quotas.\"") + kFlooderTenant + "\"";
  CHECK(Ctl(daemon, "reload").second == nlohmann::json{{"in_force", {key}}, {"needs_restart", nlohmann::json::array()}});
  CHECK(QuotaOf(daemon, kFlooderTenant)["bytes"] == 2 * kMiB);
  CHECK(QuotaOf(daemon, kFlooderTenant)["origin"] == "configuration");
  REQUIRE(flooder.Flood());
  CHECK(QuotaOf(daemon, kFlooderTenant)["used_bytes"] <= 2 * kMiB);
  REQUIRE(Ctl(daemon, "quota set blue 1GiB").second["note"] == "more than the pool, 16MiB: limits nothing");
  CHECK(Kept(blue, 0, kPrompts) == kPrompts * kChunksPerPrompt);
  std::ofstream(file) << "[tenants]\n0 = \"blue\"\n";
  CHECK(Ctl(daemon, "reload").first == 0);
  CHECK(QuotaOf(daemon, kFlooderTenant)["bytes"] == 0);
  CHECK(QuotaOf(daemon, "blue")["bytes"] == 0);
  REQUIRE(flooder.Flood());
  CHECK(Kept(blue, 0, kPrompts) < kPrompts * kChunksPerPrompt);
  CHECK(QuotaOf(daemon, "blue")["evictions"] > 0);
  CHECK(daemon.Terminate() == 0);
}

TEST_CASE("An operator hears at once of a quota that nobody would be held to, or that holds no chunk") {
  TempDir dir;
  const std::string own = std::to_string(::getuid()), tenant = "uid:" + own;
  DaemonProcess daemon(dir.path(), {"pool.bytes=16MiB", "pool.slab_bytes=1MiB"});
  FakeEngine engine(FakeEngine::On(daemon.socket()));
  REQUIRE(engine.status.ok());

  const auto [unknown, why] = Ctl(daemon, "quota set bleu 4MiB");
  CHECK(unknown == 1);
  CHECK_THAT(why.get<std::string>(),
             Catch::Contains("no engine can be of tenant \"bleu\"; allowed: one that [tenants] gives to a uid"));
  const auto [small, allowed] = Ctl(daemon, "quota set " + tenant + " 4095");
  CHECK(small == 1);
  CHECK_THAT(allowed.get<std::string>(),
             Catch::Contains("a quota of 4095B; allowed: bytes, ") && Catch::Contains("from 4KiB"));
  const auto [set, quota] = Ctl(daemon, "quota set " + tenant + " 4KiB");
  CHECK(set == 0);
  CHECK(quota["note"] == "less than one chunk of fake-model, 28KiB: it can't store");
  const kvist_result refused = engine.StoreAll(engine.Keys(1, 4));
  CHECK(refused.chunks_copied == 0);
  CHECK(Ctl(daemon, "quota unset " + tenant).second["bytes"] == 0);
  CHECK(engine.StoreAll(engine.Keys(1, 4)).chunks_copied == 4);
  CHECK(daemon.Terminate() == 0);
}

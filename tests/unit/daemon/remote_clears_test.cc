// Clears of a store that nodes share: what was cleared is found by no node any more, whoever sets its number when.
#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "daemon/remote_generations.h"
#include "daemon/remote_tier.h"
#include "daemon/task_thread.h"
#include "storage/base/check.h"
#include "storage/base/clock.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/remote/asked.h"

namespace kvist::daemon {
namespace {

using test::TempDir;

// What lies in the store that nodes share.
struct Shared {
  absl::Mutex mutex;
  std::map<std::string, std::vector<std::byte>> objects ABSL_GUARDED_BY(mutex);
  std::atomic<int> puts{0};
  std::atomic<bool> away{false};

  void Damage() {
    const absl::MutexLock lock(&mutex);
    for (auto& [name, bytes] : objects) bytes.back() ^= std::byte{1};
  }
};

// A node's way to it.
class SharedStore final : public remote::RemoteStore {
 public:
  // `before` is called before each batch, on the store's thread.
  using Before = std::function<void(remote::Kind kind)>;
  explicit SharedStore(Shared* shared, Before before = {}) : shared_(*shared), before_(std::move(before)) {
    thread_.Start({});
  }

  absl::Status Submit(remote::Batch batch, remote::Done done) override {
    thread_.Post([this, batch = std::move(batch), done = std::move(done)] {
      if (before_) before_(batch.kind);
      std::vector<remote::Outcome> outcomes;
      for (const remote::Operation& operation : batch.operations) outcomes.push_back(Do(batch.kind, operation));
      done(std::move(outcomes));
    });
    return absl::OkStatus();
  }
  remote::Load load() const override { return {}; }

 private:
  remote::Outcome Do(remote::Kind kind, const remote::Operation& operation) {
    const absl::MutexLock lock(&shared_.mutex);
    remote::Outcome outcome;
    if (shared_.away) {
      outcome.status = absl::UnavailableError("it is away");
    } else if (kind == remote::Kind::kPut) {
      std::vector<std::byte>& object = shared_.objects[operation.name];
      object.assign(operation.head.begin(), operation.head.end());
      object.insert(object.end(), operation.body.begin(), operation.body.end());
      ++shared_.puts;
    } else if (kind == remote::Kind::kRemove) {
      shared_.objects.erase(operation.name);
    } else if (const auto found = shared_.objects.find(operation.name); found != shared_.objects.end()) {
      outcome.found = remote::Found::kYes;
      if (kind == remote::Kind::kExists) return outcome;
      outcome.head = Bytes{operation.head_into.size()};
      outcome.body = Bytes{found->second.size() - outcome.head.value};
      std::memcpy(operation.head_into.data(), found->second.data(), outcome.head.value);
      std::memcpy(operation.body_into.data(), found->second.data() + outcome.head.value, outcome.body.value);
    }
    return outcome;
  }

  Shared& shared_;
  const Before before_;
  TaskThread thread_;
};

// What a tier has said.
class Heard final : public session::LowerTier::Ear {
 public:
  void Say(session::LowerTier::Event event) override {
    const absl::MutexLock lock(&mutex_);
    cleared_ += std::holds_alternative<core::RemoteCleared>(event) ? 1 : 0;
    kept_ += std::holds_alternative<core::ClearKept>(event) ? 1 : 0;
    if (const auto* said = std::get_if<core::RemoteReachable>(&event)) reachable_ = said->reachable;
  }
  bool Tell(session::LowerTier::Event event) override {
    Say(std::move(event));
    return true;
  }
  std::optional<SpaceId> FindSpace(const SpaceDigest&) override { return std::nullopt; }

  int cleared() {
    const absl::MutexLock lock(&mutex_);
    return cleared_;
  }
  int kept() {
    const absl::MutexLock lock(&mutex_);
    return kept_;
  }
  bool reachable() {
    const absl::MutexLock lock(&mutex_);
    return reachable_;
  }

 private:
  absl::Mutex mutex_;
  int cleared_ ABSL_GUARDED_BY(mutex_) = 0;
  int kept_ ABSL_GUARDED_BY(mutex_) = 0;
  bool reachable_ ABSL_GUARDED_BY(mutex_) = false;
};

bool Soon(const std::function<bool()>& holds, absl::Duration within = absl::Seconds(20)) {
  const absl::Time until = MonotonicNow() + within;
  while (!holds()) {
    if (MonotonicNow() > until) return false;
    absl::SleepFor(absl::Milliseconds(2));
  }
  return true;
}

// The number of the last clear of all, as a node's file has it.
uint64_t Kept(const std::string& file) {
  const absl::StatusOr<RemoteGenerations> kept = RemoteGenerations::Open(file);
  KVIST_CHECK(kept.ok());
  return kept->Number(std::nullopt);
}
void Keep(const std::string& file, uint64_t number) {
  std::ofstream(file) << "kvist remote generations 1\nall " << number << "\nend\n";
}

// And as the store has it.
uint64_t Stored(Shared* shared) {
  remote::SealedStore store(std::make_unique<SharedStore>(shared), {});
  std::array<std::byte, sizeof(uint64_t)> body{};
  const remote::SealedStore::Get get{{.space = {}, .key = {}, .group = GroupId{UINT16_MAX}, .shard = {}}, 0, body};
  const remote::Answer<remote::SealedStore::Got> answer;
  KVIST_CHECK(store.Submit({&get, 1}, remote::In(absl::Seconds(20)), answer.Done()).ok());
  const remote::SealedStore::Got got = answer.Wait().front();
  return got.verdict == remote::Verdict::kGood ? got.said.epoch : 0;
}

struct OneNode {
  OneNode(Shared* shared, const std::string& generations, SharedStore::Before before = {}) {
    RemoteTier::Options options;
    options.name = "shared";
    options.generations = generations;
    auto opened = RemoteTier::Open(std::move(options), std::make_unique<SharedStore>(shared, std::move(before)));
    REQUIRE(opened.ok());
    tier = *std::move(opened);
    tier->SpeakTo(&heard);
    tier->Start();
    REQUIRE(Soon([&] { return heard.reachable(); }));
  }
  void Clear() { tier->Clear(nullptr, {core::JobId{1}, std::nullopt}); }

  Heard heard;
  std::unique_ptr<RemoteTier> tier;
};

constexpr uint64_t kFarAhead = 9'000'000'000'000'000;  // of microseconds: the year 2255

}  // namespace

TEST_CASE("RemoteTier learns a later clear when it starts, and puts no number over it") {
  const TempDir dir;
  Shared shared;
  Keep(dir / "new", 6);
  {
    const OneNode there(&shared, dir / "new");
    REQUIRE(Soon([&] { return Stored(&shared) == 6; }));
  }
  Keep(dir / "old", 5);
  const int puts = shared.puts;
  OneNode away(&shared, dir / "old");
  CHECK(Soon([&] { return Kept(dir / "old") == 6; }));
  CHECK(away.heard.cleared() == 1);
  CHECK(shared.puts == puts);
}

TEST_CASE("RemoteTier clears also what a node stored whose clock is ahead") {
  const TempDir dir;
  Shared shared;
  Keep(dir / "ahead", kFarAhead);
  const OneNode ahead(&shared, dir / "ahead");
  REQUIRE(Soon([&] { return Stored(&shared) == kFarAhead; }));
  OneNode node(&shared, dir / "node");
  node.Clear();
  CHECK(Soon([&] { return Stored(&shared) == kFarAhead + 1; }));
  CHECK(Soon([&] { return Kept(dir / "node") == kFarAhead + 1; }));
  CHECK(node.heard.cleared() == 1);  // what it has written meanwhile is of no generation any more
}

TEST_CASE("RemoteTier puts a clear, and no number that it knew, over what is no marker") {
  const TempDir dir;
  Shared shared;
  Keep(dir / "node", 5);
  std::optional<OneNode> node(std::in_place, &shared, dir / "node");
  REQUIRE(Soon([&] { return Stored(&shared) == 5; }));
  node.reset();
  shared.Damage();
  std::atomic<int> reads = 0, early_puts = 0;
  std::atomic<bool> cleared = false;
  node.emplace(&shared, dir / "node", [&](remote::Kind kind) {
    reads += kind == remote::Kind::kGet ? 1 : 0;
    early_puts += kind == remote::Kind::kPut && !cleared ? 1 : 0;
  });
  REQUIRE(Soon([&] { return reads > 0; }));
  cleared = true;
  node->Clear();
  CHECK(Soon([&] { return Stored(&shared) > 5; }));
  CHECK(early_puts == 0);
}

TEST_CASE("RemoteTier settles on the larger of two numbers that are put at the same time") {
  const TempDir dir;
  Shared shared;
  std::atomic<bool> b_has_put = false;
  OneNode b(&shared, dir / "b", [&](remote::Kind kind) {
    // What b reads after its put it reads after a's.
    if (b_has_put && kind == remote::Kind::kGet) KVIST_CHECK(Soon([&] { return shared.puts >= 2; }));
    b_has_put = b_has_put || kind == remote::Kind::kPut;
  });
  std::atomic<bool> a_puts = false;
  OneNode a(&shared, dir / "a", [&](remote::Kind kind) {
    if (kind != remote::Kind::kPut || a_puts.exchange(true)) return;
    b.Clear();  // later, so its number is larger, and it is put before a's
    KVIST_CHECK(Soon([&] { return shared.puts == 1; }));
  });
  a.Clear();
  REQUIRE(Soon([&] { return shared.puts >= 2; }));
  CHECK(Soon([&] { return Stored(&shared) == Kept(dir / "b"); }));
  CHECK(Kept(dir / "b") > 0);
}

TEST_CASE("RemoteTier says that a clear is kept when its file has it, or the store") {
  const TempDir dir;
  const std::string file = dir / "gone/generations";
  Shared shared;
  OneNode node(&shared, file);
  shared.away = true;
  node.Clear();
  node.Clear();
  CHECK(!Soon([&] { return node.heard.kept() > 0; }, absl::Seconds(1)));
  const bool by_the_file = GENERATE(true, false);
  if (by_the_file) {
    std::filesystem::create_directory(dir / "gone");
    CHECK(Soon([&] { return node.heard.kept() == 2; }));
    CHECK(Kept(file) > 0);
  } else {
    shared.away = false;
    CHECK(Soon([&] { return node.heard.kept() == 2; }));
    CHECK(Stored(&shared) > 0);
  }
}

}  // namespace kvist::daemon

// Encoding anew what lies in a remote store, beside a clear of it: what was forgotten is never written back.
#include <catch2/catch.hpp>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "daemon/remote_recoding.h"
#include "daemon/shard_codec.h"
#include "storage/base/clock.h"

namespace kvist::daemon {
namespace {

// A store whose batches are done when the test says so.
class HeldStore final : public remote::RemoteStore {
 public:
  absl::Status Submit(remote::Batch batch, remote::Done done) override {
    held.emplace_back(std::move(batch), std::move(done));
    return absl::OkStatus();
  }
  remote::Load load() const override { return {}; }

  // Does the oldest, and says of what kind it was.
  remote::Kind DoNext() {
    REQUIRE(!held.empty());
    auto [batch, done] = std::move(held.front());
    held.pop_front();
    std::vector<remote::Outcome> outcomes;
    for (const remote::Operation& operation : batch.operations) outcomes.push_back(Do(batch.kind, operation));
    done(std::move(outcomes));
    return batch.kind;
  }

  std::deque<std::pair<remote::Batch, remote::Done>> held;
  std::map<std::string, std::vector<std::byte>> objects;

 private:
  remote::Outcome Do(remote::Kind kind, const remote::Operation& operation) {
    remote::Outcome outcome;
    if (kind == remote::Kind::kPut) {
      std::vector<std::byte>& object = objects[operation.name];
      object.assign(operation.head.begin(), operation.head.end());
      object.insert(object.end(), operation.body.begin(), operation.body.end());
    } else if (kind == remote::Kind::kRemove) {
      objects.erase(operation.name);
    } else if (const auto found = objects.find(operation.name); found != objects.end()) {
      outcome.found = remote::Found::kYes;
      const size_t head = operation.head_into.size();
      std::memcpy(operation.head_into.data(), found->second.data(), head);
      std::memcpy(operation.body_into.data(), found->second.data() + head, found->second.size() - head);
      outcome.head = Bytes{head};
      outcome.body = Bytes{found->second.size() - head};
    }
    return outcome;
  }
};

ChunkKey KeyNumber(uint8_t n) {
  ChunkKey key;
  key.bytes[0] = n;
  return key;
}

// Two chunks of zeros in a store, and one that encodes them.
struct Bench {
  Bench() : held(new HeldStore), store(std::unique_ptr<remote::RemoteStore>(held), {}) {
    shape.channels = 4096;
    const std::vector<std::byte> payload(4096);
    for (uint8_t n = 1; n <= 2; ++n) {
      const remote::SealedStore::Put put{{{}, KeyNumber(n), {}, {}}, {0, LabelOf(std::nullopt)}, payload};
      REQUIRE(store.Submit({&put, 1}, MonotonicNow() + absl::Minutes(1), [](const auto&) {}).ok());
      held->DoNext();
    }
    recoding = std::make_shared<RemoteRecoding>(
        &store,
        RemoteRecoding::Prompt{{}, {shape}, {1}, {KeyNumber(1), KeyNumber(2)}, codec::Method::kLossless, absl::Minutes(1)},
        [this](std::function<void()> task) { tasks.push_back(std::move(task)); },
        [this](const RemoteRecoding::Tally& now) { tally = now; });
    recoding->Start();
  }
  void Run() {
    while (!tasks.empty()) {
      const std::function<void()> task = std::move(tasks.front());
      tasks.pop_front();
      task();
    }
  }
  void Finish() {
    for (int i = 0; i < 100 && !tally.ended; ++i) {
      Run();
      if (!held->held.empty()) held->DoNext();
      Run();
    }
    REQUIRE(tally.ended);
  }

  HeldStore* held;
  remote::SealedStore store;
  codec::Shape shape;
  std::deque<std::function<void()>> tasks;
  RemoteRecoding::Tally tally;
  std::shared_ptr<RemoteRecoding> recoding;
};

}  // namespace

TEST_CASE("RemoteRecoding encodes what is there, and says what came of it") {
  Bench bench;
  bench.Finish();
  CHECK(bench.tally.status.ok());
  CHECK(bench.tally.chunks == 2);
  CHECK(bench.tally.before == Bytes{2 * 4096});
  CHECK(bench.tally.after < bench.tally.before);
}

TEST_CASE("RemoteRecoding writes nothing back that was forgotten meanwhile") {
  Bench bench;
  REQUIRE(bench.held->DoNext() == remote::Kind::kGet);
  const bool while_it_writes = GENERATE(false, true);
  if (while_it_writes) bench.Run();  // the put is on its way
  bool removed = false;
  bench.recoding->Leave({KeyNumber(1), KeyNumber(2)}, [&] {
    removed = true;
    bench.held->objects.clear();
  });
  CHECK(removed != while_it_writes);
  bench.Finish();
  CHECK(removed);
  CHECK(bench.held->objects.empty());
}

}  // namespace kvist::daemon

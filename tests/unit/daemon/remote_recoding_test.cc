// Encoding anew what lies in a remote store, beside a clear of it, behind one that was stopped, and while the store fails.
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

  void FailNext(const absl::Status& status) {
    REQUIRE(!held.empty());
    auto [batch, done] = std::move(held.front());
    held.pop_front();
    remote::Outcome outcome;
    outcome.status = status;
    done(std::vector<remote::Outcome>(batch.operations.size(), outcome));
  }
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

// Two chunks in a store, of ones and twos that a lossy method doesn't keep quite, and what encodes them.
struct Bench {
  explicit Bench(absl::Duration outlasts = absl::Minutes(1))
      : held(new HeldStore), store(std::unique_ptr<remote::RemoteStore>(held), {}), patience(outlasts) {
    shape = {.element = codec::Element::kBf16, .segments = 2, .keys = 1, .tokens = 16, .channels = 64};
    std::vector<std::byte> payload(shape.bytes().value);
    for (size_t i = 0; i < payload.size(); i += 2) {
      const uint16_t bits = i % 6 == 0 ? 0x3f80 : 0x4000 + i % 5;
      std::memcpy(&payload[i], &bits, sizeof bits);
    }
    for (uint8_t n = 1; n <= 2; ++n) {
      const remote::SealedStore::Put put{{{}, KeyNumber(n), {}, {}}, {0, LabelOf(std::nullopt)}, payload};
      REQUIRE(store.Submit({&put, 1}, MonotonicNow() + absl::Minutes(1), [](const auto&) {}).ok());
      held->DoNext();
    }
  }
  std::shared_ptr<RemoteRecoding> Make(std::optional<codec::Method> method) {
    return std::make_shared<RemoteRecoding>(
        &store,
        RemoteRecoding::Prompt{.name = {},
                               .shapes = {shape},
                               .shards = {1},
                               .keys = {KeyNumber(1), KeyNumber(2)},
                               .method = method,
                               .read_for = absl::Minutes(1),
                               .write_for = absl::Minutes(1),
                               .patience = patience},
        [this](std::function<void()> task) { tasks.push_back(std::move(task)); },
        [this](std::function<void()> task) { later.push_back(std::move(task)); },
        [this](const RemoteRecoding::Tally& now) { tally = now; });
  }
  std::shared_ptr<RemoteRecoding> Begin(std::optional<codec::Method> method) {
    std::shared_ptr<RemoteRecoding> made = Make(method);
    made->Start({});
    return made;
  }
  size_t BytesOfAll() const {
    size_t bytes = 0;
    for (const auto& [name, object] : held->objects) bytes += object.size();
    return bytes;
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
      for (; !later.empty(); later.pop_front()) tasks.push_back(later.front());
      Run();
      if (!held->held.empty()) held->DoNext();
      Run();
    }
    REQUIRE(tally.ended);
  }

  HeldStore* held;
  remote::SealedStore store;
  absl::Duration patience;
  codec::Shape shape;
  std::deque<std::function<void()>> tasks, later;
  RemoteRecoding::Tally tally;
};

}  // namespace

TEST_CASE("RemoteRecoding encodes what is there, and says what came of it") {
  Bench bench;
  const bool lossy = GENERATE(false, true);
  bench.Begin(lossy ? codec::Method::kInt8 : codec::Method::kLossless);
  bench.Finish();
  CHECK(bench.tally.status.ok());
  CHECK(bench.tally.chunks == 2);
  CHECK(bench.tally.before == bench.shape.bytes() * 2);
  CHECK(bench.tally.after < bench.tally.before);
  CHECK((bench.tally.loss.relative > 0) == lossy);
  CHECK((bench.tally.loss.attention > 0) == lossy);
  CHECK(bench.tally.loss.relative < 0.05);
  CHECK(bench.tally.loss.attention < 0.05);
}

TEST_CASE("RemoteRecoding begins behind what one that was stopped still writes, so that what it does lasts") {
  Bench bench;
  const size_t raw = bench.BytesOfAll();
  const std::shared_ptr<RemoteRecoding> first = bench.Begin(codec::Method::kInt8);
  REQUIRE(bench.held->DoNext() == remote::Kind::kGet);
  const bool while_it_writes = GENERATE(false, true);
  if (while_it_writes) bench.Run();  // the put is on its way
  first->Stop();
  bench.Make(std::nullopt)->Start({first});
  CHECK(bench.held->held.size() == 1);  // nothing beside that put
  for (int i = 0; i < 20; ++i) {
    bench.Run();
    if (!bench.held->held.empty()) bench.held->DoNext();
  }
  CHECK(bench.tally.status.ok());
  CHECK(bench.tally.chunks + bench.tally.already == 2);
  CHECK(bench.BytesOfAll() == raw);
}

TEST_CASE("RemoteRecoding outlasts a store that fails for a while, and says why it waits; not one that fails on") {
  const bool for_long = GENERATE(false, true);
  Bench bench(for_long ? absl::ZeroDuration() : absl::Minutes(1));
  bench.Begin(codec::Method::kLossless);
  const bool of_a_write = GENERATE(false, true);
  if (of_a_write) {
    bench.held->DoNext();
    bench.Run();
  }
  bench.held->FailNext(GENERATE(absl::UnavailableError("away"), absl::DeadlineExceededError("late")));
  bench.Run();
  CHECK(bench.tally.ended == for_long);
  CHECK_FALSE(bench.tally.status.ok());
  if (!for_long) bench.Finish();
  CHECK(bench.tally.status.ok() != for_long);
  CHECK(bench.tally.chunks == (for_long ? 0 : 2));
}

TEST_CASE("RemoteRecoding ends at once when it is stopped, or when the store refuses for good") {
  Bench bench;
  const std::shared_ptr<RemoteRecoding> recoding = bench.Begin(codec::Method::kLossless);
  const bool stopped = GENERATE(false, true);
  if (stopped) recoding->Stop();
  bench.held->FailNext(stopped ? absl::UnavailableError("away") : absl::PermissionDeniedError("403"));
  bench.Run();
  CHECK(bench.tally.ended);
  CHECK(bench.later.empty());
}

TEST_CASE("RemoteRecoding writes nothing back that was forgotten meanwhile") {
  Bench bench;
  const std::shared_ptr<RemoteRecoding> recoding = bench.Begin(codec::Method::kLossless);
  REQUIRE(bench.held->DoNext() == remote::Kind::kGet);
  const bool while_it_writes = GENERATE(false, true);
  if (while_it_writes) bench.Run();  // the put is on its way
  bool removed = false;
  recoding->Leave({KeyNumber(1), KeyNumber(2)}, [&] {
    removed = true;
    bench.held->objects.clear();
  });
  CHECK(removed != while_it_writes);
  bench.Finish();
  CHECK(removed);
  CHECK(bench.held->objects.empty());
}

}  // namespace kvist::daemon

#include "storage/remote/directory_store.h"

#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "storage/remote/object_file.h"
#include "storage/remote/sealed_store.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/remote/asked.h"

namespace kvist::remote {
namespace {

namespace fs = std::filesystem;

// Steps of a file system that hangs when it is told to, until it is told to go on. A condition variable of the standard library: ThreadSanitizer
// knows all of it.
class Hanging {
 public:
  std::function<void(std::string_view)> Hook() {
    return [state = state_](std::string_view step) {
      std::unique_lock lock(state->mutex);
      if (state->step.empty() || step != state->step) return;
      ++state->hanging;
      state->changed.notify_all();
      state->changed.wait(lock, [&] { return state->step.empty(); });
      --state->hanging;
      state->changed.notify_all();
    };
  }
  void Hang(const std::string& step) {
    const std::lock_guard lock(state_->mutex);
    state_->step = step;
  }
  void GoOn() {
    std::unique_lock lock(state_->mutex);
    state_->step.clear();
    state_->changed.notify_all();
    state_->changed.wait(lock, [&] { return state_->hanging == 0; });
  }
  bool Hangs(int threads) const {
    const std::lock_guard lock(state_->mutex);
    return state_->hanging >= threads;
  }
  void WaitForHanging(int threads) {
    std::unique_lock lock(state_->mutex);
    REQUIRE(state_->changed.wait_for(lock, std::chrono::seconds(20), [&] { return state_->hanging >= threads; }));
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::string step;
    int hanging = 0;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

struct Shared {
  explicit Shared(uint32_t threads = 3, absl::Duration leave_after = absl::Seconds(20)) {
    options.directory = folder.path();
    options.threads = threads;
    options.piece = KiB(4);
    options.before_step = hanging.Hook();
    options.leave_after = leave_after;
    store = *DirectoryStore::Create(options);
  }
  std::string PathOf(const std::string& name) const { return ObjectFiles(folder.path(), nullptr).PathOf(name); }
  size_t Files() const {
    size_t files = 0;
    for (const auto& entry : fs::recursive_directory_iterator(folder.path())) files += entry.is_regular_file();
    return files;
  }
  test::TempDir folder;
  Hanging hanging;
  DirectoryOptions options;
  std::unique_ptr<DirectoryStore> store;
};

TEST_CASE("DirectoryStore gives back what was put, of any length, on another node") {
  Shared shared;
  const auto other = *DirectoryStore::Create(shared.options);
  const auto head = Pattern(8, 9);
  for (const size_t size : {size_t{0}, size_t{1}, size_t{4096}, size_t{100'000}, size_t{50}}) {
    const auto body = Pattern(size, size);
    REQUIRE(Ask(shared.store.get(), Kind::kPut, {PutOf("object", head, body)})[0].status.ok());
    std::vector<std::byte> read_head(8);
    std::vector<std::byte> read(size + 10);
    const Outcome outcome = Ask(other.get(), Kind::kGet, {GetOf("object", read_head, read)})[0];
    REQUIRE(outcome.found == Found::kYes);
    CHECK((outcome.head.value == 8 && outcome.body.value == size));
    read.resize(size);
    CHECK((read_head == head && read == body));
    if (size > 0) {
      read.resize(size - 1);
      CHECK(Ask(other.get(), Kind::kGet, {GetOf("object", read_head, read)})[0].found == Found::kTooLong);
    }
  }
  CHECK(shared.Files() == 1);
  CHECK(Ask(other.get(), Kind::kExists, {Named("object"), Named("other")})[0].found == Found::kYes);
  CHECK(Ask(other.get(), Kind::kExists, {Named("object"), Named("other")})[1].found == Found::kNo);
  for (const Outcome& outcome : Ask(other.get(), Kind::kRemove, {Named("object"), Named("other")}))
    CHECK(outcome.status.ok());
  CHECK(shared.Files() == 0);
  CHECK(shared.store->load().bytes == 0);
}

TEST_CASE("DirectoryStore answers questions before it moves what waits longer") {
  Shared shared(1);
  RemoteStore* const store = shared.store.get();
  const auto body = Pattern(1 << 20, 1);
  std::vector<Answer<Outcome>> puts(50);
  for (size_t i = 0; i < puts.size(); ++i) {
    const Batch batch{Kind::kPut, {PutOf(absl::StrCat("object-", i), {}, body)}, In(absl::Seconds(60))};
    REQUIRE(store->Submit(batch, puts[i].Done()).ok());
  }
  CHECK(Ask(store, Kind::kExists, {Named("object-49")})[0].found == Found::kNo);
  CHECK(!puts.back().there());
  for (const Answer<Outcome>& put : puts) CHECK(put.Wait()[0].status.ok());
}

TEST_CASE("DirectoryStore takes links, pipes and folders for nothing of ours, and damaged files for misses") {
  Shared shared;
  const auto body = Pattern(10'000, 1);
  auto owned = DirectoryStore::Create(shared.options);
  SealedStore sealed(*std::move(owned), {SecretOf(1), false});
  const ObjectSealer sealer({SecretOf(1), false});
  const Identity identity = IdentityOf(1);
  const std::string path = shared.PathOf(sealer.NameOf(identity));
  const auto put = [&] {
    Answer<absl::Status> answer;
    const SealedStore::Put one{identity, {}, body};
    REQUIRE(sealed.Submit(std::span(&one, 1), In(absl::Seconds(20)), answer.Done()).ok());
    REQUIRE(answer.Wait()[0].ok());
  };
  std::vector<std::byte> room(body.size());
  const auto get = [&] {
    Answer<SealedStore::Got> answer;
    const SealedStore::Get one{identity, 0, room};
    REQUIRE(sealed.Submit(std::span(&one, 1), In(absl::Seconds(20)), answer.Done()).ok());
    REQUIRE(answer.Wait()[0].status.ok());
    return answer.Wait()[0].verdict;
  };
  put();
  CHECK(get() == Verdict::kGood);
  CHECK(room == body);
  for (const size_t size : {size_t{0}, size_t{1}, size_t{191}, size_t{192}, size_t{10'191}}) {
    put();
    fs::resize_file(path, size);
    CHECK(get() == Verdict::kTruncated);
  }
  put();
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(5000);
    file.write("\x01\xff\x03", 3);
  }
  CHECK(get() == Verdict::kCorrupt);
  const std::string kept = shared.folder / "kept";
  fs::rename(path, kept);
  CHECK(get() == Verdict::kMissing);
  fs::create_symlink(kept, path);
  CHECK(get() == Verdict::kNoObject);
  fs::remove(path);
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  CHECK(get() == Verdict::kNoObject);
  fs::remove(path);
  fs::create_directory(path);
  CHECK(get() == Verdict::kNoObject);
}

TEST_CASE("DirectoryStore keeps deadlines when the file system hangs, and touches nothing after them") {
  const std::string step = GENERATE(as<std::string>(), "open", "read", "write", "sync", "rename", "remove");
  INFO(step);
  Shared shared;
  auto body = Pattern(20'000, 1);
  const auto whole = body;
  REQUIRE(Ask(shared.store.get(), Kind::kPut, {PutOf("object", {}, body)})[0].status.ok());
  shared.hanging.Hang(step);
  std::vector<std::byte> room(body.size());
  const Kind kind = step == "read" || step == "open" ? Kind::kGet : step == "remove" ? Kind::kRemove : Kind::kPut;
  Operation operation = Named("other");
  if (kind == Kind::kGet) operation = GetOf("object", {}, room);
  if (kind == Kind::kPut) operation = PutOf("other", {}, body);
  // More than there are threads; and as many as it takes where some are over before a thread has come so far.
  for (int i = 0; i < 5 || (i < 100 && !shared.hanging.Hangs(3)); ++i) {
    const absl::Time start = MonotonicNow();
    CHECK(absl::IsDeadlineExceeded(Ask(shared.store.get(), kind, {operation}, absl::Milliseconds(50))[0].status));
    CHECK(MonotonicNow() - start < absl::Seconds(2));
  }
  shared.hanging.WaitForHanging(3);
  CHECK(shared.store->load().bytes == 0);
  const bool removed = kind == Kind::kPut && GENERATE(true, false);
  if (removed) Ask(shared.store.get(), Kind::kRemove, {Named("other")}, absl::Milliseconds(50));
  std::fill(room.begin(), room.end(), std::byte{7});
  std::fill(body.begin(), body.end(), std::byte{8});
  shared.hanging.GoOn();
  std::vector<std::byte> read(whole.size());
  REQUIRE(Ask(shared.store.get(), Kind::kGet, {GetOf("object", {}, read)})[0].found == Found::kYes);
  CHECK(read == whole);
  shared.store = nullptr;
  // A put that was given up leaves nothing behind; it is there whole when it was about to be, unless its name was removed since.
  const bool may_be_there = !removed && (step == "sync" || step == "rename");
  CHECK((may_be_there || !fs::exists(shared.PathOf("other"))));
  if (fs::exists(shared.PathOf("other"))) CHECK(fs::file_size(shared.PathOf("other")) == whole.size());
  CHECK(room == std::vector<std::byte>(room.size(), std::byte{7}));
  CHECK(shared.Files() <= 2);
}

TEST_CASE("DirectoryStore ends while the file system hangs, and leaves its threads to themselves") {
  Shared shared(2, absl::Milliseconds(300));
  const auto body = Pattern(20'000, 1);
  shared.hanging.Hang("write");
  std::vector<Answer<Outcome>> answers(6);
  for (const auto& answer : answers)
    REQUIRE(shared.store->Submit({Kind::kPut, {PutOf("object", {}, body)}, In(absl::Seconds(60))}, answer.Done()).ok());
  shared.hanging.WaitForHanging(2);
  const absl::Time start = MonotonicNow();
  shared.store = nullptr;
  CHECK(MonotonicNow() - start < absl::Seconds(2));
  for (const auto& answer : answers) CHECK(absl::IsCancelled(answer.Wait()[0].status));
  shared.hanging.GoOn();
}

TEST_CASE("DirectoryStore refuses what is submitted while it is destroyed") {
  Shared shared(2, absl::Milliseconds(300));
  const auto body = Pattern(100, 1);
  REQUIRE(Ask(shared.store.get(), Kind::kPut, {PutOf("object", {}, body)})[0].status.ok());
  shared.hanging.Hang("open");
  DestroyWhileSubmitting(std::move(shared.store), Named("object"), 20);
  shared.hanging.GoOn();
}

TEST_CASE("DirectoryStore refuses what is beyond its limits, and says what a directory doesn't do") {
  Shared shared;
  shared.options.limits = {1, KiB(1)};
  const auto small = *DirectoryStore::Create(shared.options);
  const auto body = Pattern(1025, 1);
  CHECK(absl::IsResourceExhausted(
      small->Submit({Kind::kPut, {PutOf("a", {}, body)}, In(absl::Seconds(1))}, [](const auto&) {})));
  shared.options.limits = {};
  shared.options.directory = shared.folder / "missing";
  const auto missing = *DirectoryStore::Create(shared.options);
  CHECK(!Ask(missing.get(), Kind::kPut, {PutOf("a", {}, body)})[0].status.ok());
  CHECK(Ask(missing.get(), Kind::kExists, {Named("a")})[0].found == Found::kNo);
  shared.options.directory = "relative";
  CHECK(absl::IsInvalidArgument(DirectoryStore::Create(shared.options).status()));
}

}  // namespace
}  // namespace kvist::remote

#include "daemon/session/closer.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <condition_variable>
#include <future>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/slow_to_close.h"

namespace kvist::session {
namespace {

using Clock = std::chrono::steady_clock;

// What has been closed, by its user.
class Closed {
 public:
  std::function<void()> Note(uid_t of) {
    return [this, of] {
      const std::lock_guard lock(mutex_);
      of_.insert(of);
      changed_.notify_all();
    };
  }
  bool Await(uid_t of, std::chrono::milliseconds within) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, within, [&] { return of_.contains(of); });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<uid_t> of_;
};

std::vector<UniqueFd> One(UniqueFd fd) {
  std::vector<UniqueFd> fds;
  fds.push_back(std::move(fd));
  return fds;
}
UniqueFd Quick() { return UniqueFd(::dup(2)); }

TEST_CASE("Closer has nobody wait for another user's close, and the destructor for none that hangs") {
  constexpr int kLinger = 20;
  Closed closed;
  const auto began = Clock::now();
  {
    test::SlowToClose slow(kLinger), slower(kLinger);
    Closer closer;
    closer.Close(1, One(std::move(slow.socket)), closed.Note(1));
    closer.Close(2, One(std::move(slower.socket)), closed.Note(2));
    closer.Close(1, One(Quick()), closed.Note(10));
    for (uid_t of = 3; of < 9; ++of) closer.Close(of, One(Quick()), closed.Note(of));
    for (uid_t of = 3; of < 9; ++of) CHECK(closed.Await(of, std::chrono::seconds(5)));
    CHECK(!closed.Await(1, std::chrono::milliseconds(1)));
    CHECK(!closed.Await(2, std::chrono::milliseconds(1)));
    CHECK(!closed.Await(10, std::chrono::milliseconds(1)));  // its user's turn hasn't come
  }
  CHECK(Clock::now() - began < std::chrono::seconds(kLinger / 2));
}

TEST_CASE("Closer goes on with a user's others when what hung is closed") {
  Closed closed;
  test::SlowToClose slow(1);
  Closer closer;
  closer.Close(1, One(std::move(slow.socket)), closed.Note(1));
  closer.Close(1, One(Quick()), closed.Note(10));
  CHECK(closed.Await(10, std::chrono::seconds(20)));
  CHECK(closed.Await(1, std::chrono::milliseconds(1)));
}

// Memory that notes which thread frees it.
class Noting {
 public:
  explicit Noting(std::promise<std::thread::id>* freed_by) : freed_by_(freed_by) {}
  ~Noting() { freed_by_->set_value(std::this_thread::get_id()); }

 private:
  std::promise<std::thread::id>* freed_by_;
};

TEST_CASE("Closer frees memory on a thread of its own, behind no descriptor that hangs, and where it is let go of later") {
  constexpr int kLinger = 20;
  std::promise<std::thread::id> first, last;
  std::shared_ptr<Noting> kept;
  {
    test::SlowToClose slow(kLinger);
    Closer closer;
    closer.Close(1, One(std::move(slow.socket)));
    std::shared_ptr<Noting> memory = closer.FreedApart(1, std::make_shared<Noting>(&first));
    std::future<std::thread::id> freed_by = first.get_future();
    std::shared_ptr<const Noting> also = memory;
    memory.reset();
    CHECK(freed_by.wait_for(std::chrono::milliseconds(1)) == std::future_status::timeout);
    kept = closer.FreedApart(1, std::make_shared<Noting>(&last));
    also.reset();
    REQUIRE(freed_by.wait_for(std::chrono::seconds(kLinger / 2)) == std::future_status::ready);
    CHECK(freed_by.get() != std::this_thread::get_id());
  }
  kept.reset();
  CHECK(last.get_future().get() == std::this_thread::get_id());
}

}  // namespace
}  // namespace kvist::session

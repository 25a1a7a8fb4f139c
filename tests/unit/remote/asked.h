#ifndef KVIST_TESTS_UNIT_REMOTE_ASKED_H_
#define KVIST_TESTS_UNIT_REMOTE_ASKED_H_

#include <atomic>
#include <catch2/catch.hpp>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "storage/base/check.h"
#include "storage/base/clock.h"
#include "storage/remote/remote_store.h"
#include "storage/remote/sealed_store.h"

// Asking stores and waiting for what comes of it.
namespace kvist::remote {

// What was answered, some time.
template <class T>
class Answer {
 public:
  std::function<void(std::vector<T>)> Done() const {
    return [state = state_](std::vector<T> outcomes) {
      state->outcomes = std::move(outcomes);
      state->there.Notify();
    };
  }
  bool there() const { return state_->there.HasBeenNotified(); }
  bool Has(absl::Duration within) const { return state_->there.WaitForNotificationWithTimeout(within); }
  // Stops the process when it takes half a minute. Any thread may wait: Catch isn't asked.
  std::vector<T> Wait() const {
    KVIST_CHECK(state_->there.WaitForNotificationWithTimeout(absl::Seconds(30)));
    return state_->outcomes;
  }

 private:
  struct State {
    absl::Notification there;
    std::vector<T> outcomes;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

inline absl::Time In(absl::Duration time) { return MonotonicNow() + time; }

inline std::vector<Outcome> Ask(RemoteStore* store, Kind kind, std::vector<Operation> operations,
                                absl::Duration time = absl::Seconds(20)) {
  Answer<Outcome> answer;
  REQUIRE(store->Submit({kind, std::move(operations), In(time)}, answer.Done()).ok());
  return answer.Wait();
}

// Destroys a store with so many batches on their way, each of which submits once more when it ends, and those again: all that are accepted
// end, and the others are refused as not to be had.
inline void DestroyWhileSubmitting(std::unique_ptr<RemoteStore> store, const Operation& operation, int batches) {
  struct State {
    std::atomic<int> accepted = 0;
    std::atomic<int> ended = 0;
    std::atomic<int> refused = 0;
    std::function<void()> submit;
  } state;
  state.submit = [&state, operation, asked = store.get()] {
    const absl::Status status =
        asked->Submit({Kind::kGet, {operation}, In(absl::Seconds(60))}, [&state](const auto& outcomes) {
          KVIST_CHECK(absl::IsCancelled(outcomes[0].status));
          ++state.ended;
          state.submit();
        });
    KVIST_CHECK(status.ok() || absl::IsUnavailable(status));
    ++(status.ok() ? state.accepted : state.refused);
  };
  for (int i = 0; i < batches; ++i) state.submit();
  CHECK(state.accepted == batches);
  store = nullptr;
  CHECK(state.ended == state.accepted);
  CHECK(state.refused == batches);
}

inline std::vector<std::byte> Pattern(size_t size, uint64_t seed) {
  std::vector<std::byte> bytes(size);
  uint64_t x = seed * 2 + 1;
  for (std::byte& byte : bytes) {
    x = x * 6364136223846793005u + 1442695040888963407u;
    byte = static_cast<std::byte>(x >> 56);
  }
  return bytes;
}

inline Operation PutOf(std::string name, std::span<const std::byte> head, std::span<const std::byte> body) {
  Operation operation;
  operation.name = std::move(name);
  operation.head = head;
  operation.body = body;
  return operation;
}
inline Operation GetOf(std::string name, std::span<std::byte> head, std::span<std::byte> body) {
  Operation operation;
  operation.name = std::move(name);
  operation.head_into = head;
  operation.body_into = body;
  return operation;
}
inline Operation Named(std::string name, Bytes body_max = {}) {
  Operation operation;
  operation.name = std::move(name);
  operation.body_max = body_max;
  return operation;
}

inline Identity IdentityOf(uint8_t n) {
  Identity identity;
  identity.space.bytes.fill(0x11);
  identity.key.bytes.fill(n);
  identity.group = {2};
  identity.shard = {3};
  return identity;
}
inline Secret SecretOf(uint8_t n) {
  Secret secret;
  secret.fill(n);
  return secret;
}

}  // namespace kvist::remote

#endif  // KVIST_TESTS_UNIT_REMOTE_ASKED_H_

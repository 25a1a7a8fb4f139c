#ifndef KVIST_TESTS_BENCH_PING_PONG_H_
#define KVIST_TESTS_BENCH_PING_PONG_H_

#include <sys/types.h>

#include <atomic>
#include <cstdint>

namespace kvist::bench {

// The limit of a round trip: two processes that hand each other a number, and nothing else. Its own futex calls and words, so that nothing
// of the product is in it.
//
//   word ping: round, written by Round; word pong: the same, written by the answering process. Each on its own cache line, in memory that
//              both share.
//   spinning:  a side that has spun in vain for 50 us raises its `asleep` and sleeps; the other wakes it only then (store, then load of the
//              flag, on both sides in seq_cst order: one of them sees the other's).
// Threads: the one that made it, which must live as long (the kernel kills the answering process when it dies).
class PingPong {
 public:
  enum class Wait { kSleep, kSpinThenSleep };
  // Of time, for the answering process: the kernel's own, or short ones as kvistd's reactor asks for (daemon/session/short_slice.h).
  enum class Slices { kOrdinary, kShort };
  // The answering process runs on `cpu` only.
  PingPong(int cpu, Wait wait, Slices slices);
  ~PingPong();
  PingPong(const PingPong&) = delete;
  PingPong& operator=(const PingPong&) = delete;

  void Round();

 private:
  struct alignas(64) Side {
    std::atomic<uint32_t> word{0};
    std::atomic<uint32_t> asleep{0};  // who waits for the word
  };
  struct Shared {
    Side ping, pong;
    std::atomic<bool> stop{false};
  };
  void Publish(Side& side, uint32_t round) const;
  // Until the word is no longer `seen`.
  void Await(Side& side, uint32_t seen) const;
  void Answer(int cpu, Slices slices);

  const Wait wait_;
  Shared* shared_;
  pid_t pid_;
};

}  // namespace kvist::bench

#endif  // KVIST_TESTS_BENCH_PING_PONG_H_

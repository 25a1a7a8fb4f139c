#ifndef KVIST_TESTS_BENCH_PING_PONG_H_
#define KVIST_TESTS_BENCH_PING_PONG_H_

#include <atomic>
#include <cstdint>
#include <thread>

namespace kvist::bench {

// The limit of a round trip: two threads that hand each other a number, and nothing else. Its own futex calls and words, so that nothing
// of the product is in it; not PRIVATE futexes, as between two processes.
//
//   word ping: round, written by Round; word pong: the same, written by the answering thread. Each on its own cache line.
//   spinning:  a side that has spun in vain for 50 us raises its `asleep` and sleeps; the other wakes it only then (store, then load of the
//              flag, on both sides in seq_cst order: one of them sees the other's).
// Threads: one calls Round; the answering one is this object's.
class PingPong {
 public:
  enum class Wait { kSleep, kSpinThenSleep };
  // The answering thread runs on `cpu` only.
  PingPong(int cpu, Wait wait);
  ~PingPong();
  PingPong(const PingPong&) = delete;
  PingPong& operator=(const PingPong&) = delete;

  void Round();

 private:
  struct alignas(64) Side {
    std::atomic<uint32_t> word{0};
    std::atomic<uint32_t> asleep{0};  // who waits for the word
  };
  void Publish(Side& side, uint32_t round) const;
  // Until the word is no longer `seen`.
  void Await(Side& side, uint32_t seen) const;
  void Answer(int cpu);

  const Wait wait_;
  Side ping_, pong_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace kvist::bench

#endif  // KVIST_TESTS_BENCH_PING_PONG_H_

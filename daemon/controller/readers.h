#ifndef KVIST_DAEMON_CONTROLLER_READERS_H_
#define KVIST_DAEMON_CONTROLLER_READERS_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <list>

#include "absl/base/thread_annotations.h"
#include "daemon/controller/holder_table.h"
#include "storage/base/mutex.h"

namespace kvist::controller {

// Who may be reading tables, so that one that was replaced is freed when nobody can be reading it any more.
//
//   A reader notes the time when it begins and none when it ends. A table is retired after it was replaced, and the time goes on. Whoever has
//   noted a later time, or notes one afterwards, has the new table. So it is freed when nobody reads since then or longer.
//
// Threads: any. A reader never waits; what is retired waits for as long as the longest reading takes.
class Readers {
 public:
  // One that reads now and then; one thread at a time.
  class Reader {
   public:
    explicit Reader(Readers* readers);
    ~Reader();
    Reader(const Reader&) = delete;
    Reader& operator=(const Reader&) = delete;

    void Begin() {
      // All in the one order of seq_cst: either Collect sees this note, or the reader sees what was there before Collect looked.
      place_->since.store(readers_.time_.load(std::memory_order_seq_cst), std::memory_order_seq_cst);
    }
    void End() { place_->since.store(kNotReading, std::memory_order_release); }

   private:
    friend class Readers;
    struct alignas(64) Place {
      std::atomic<uint64_t> since = kNotReading;
    };
    Readers& readers_;
    std::list<Place>::iterator place_;
  };

  // Nobody reads any more.
  ~Readers();

  // The table has been replaced (seq_cst), and is to be freed; its bytes when it is: see Collect.
  void Retire(HolderTable table);
  // For what isn't a table: a time, and the time since when somebody has been reading. What was given up at a time before that, nobody reads.
  uint64_t Mark() { return time_.fetch_add(1, std::memory_order_seq_cst); }
  uint64_t Oldest();
  // Frees what can be. Returns the bytes.
  uint64_t Collect();

 private:
  static constexpr uint64_t kNotReading = UINT64_MAX;
  struct Retired {
    uint64_t time;
    HolderTable table;
  };

  std::atomic<uint64_t> time_ = 0;
  Mutex mutex_;
  std::list<Reader::Place> places_ ABSL_GUARDED_BY(mutex_);
  std::deque<Retired> retired_ ABSL_GUARDED_BY(mutex_);  // in the order of time
};

// From here to the end of the block.
class Reading {
 public:
  explicit Reading(Readers::Reader* reader) : reader_(*reader) { reader_.Begin(); }
  ~Reading() { reader_.End(); }
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;

 private:
  Readers::Reader& reader_;
};

}  // namespace kvist::controller

#endif  // KVIST_DAEMON_CONTROLLER_READERS_H_

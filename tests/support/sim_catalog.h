#ifndef KVIST_TESTS_SUPPORT_SIM_CATALOG_H_
#define KVIST_TESTS_SUPPORT_SIM_CATALOG_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "storage/ssd/catalog.h"

namespace kvist::test {

// The catalog in memory, for simulations: nothing happens until the test has it happen, and a crash takes what wasn't durable yet.
//
// Threads: one; `done` and sinks are called by Step() and LoadStep() only. Deterministic.
class SimCatalog : public ssd::Catalog {
 public:
  using Rows = std::map<std::string, std::string>;  // keys and values as catalog_rows.h draws them; without meta

  struct Options {
    size_t waiting_max = 64;  // commits; more: ResourceExhausted
    size_t group_max = 8;     // commits that one step makes durable
    size_t load_rows = 16;    // rows that one step of a load hands over
    // As a broken one would.
    bool says_too_early = false;
    bool forgets_erasures = false;
    bool forgets_settled = false;
  };
  SimCatalog() : SimCatalog(Options{}) {}
  explicit SimCatalog(Options options) : options_(options) {}

  // A store's, for one life: it ends cleanly with that, unless there has been a crash. Borrows this.
  std::unique_ptr<ssd::Catalog> Open();

  const ssd::OpenReport& report() const override { return report_; }
  ssd::CatalogStats stats() const override { return {.commits = commits_, .waiting = waiting_.size()}; }
  absl::Status Commit(ssd::CatalogBatch batch, Done done) override;
  absl::Status Load(ssd::RowSink* sink) override;
  void EndUnclean() override { ends_unclean_ = true; }
  void StartOver(std::string why, Done done) override;

  // What waits becomes durable, a group of it, and `done` is told. False: nothing waits.
  bool Step();
  // Goes on with the load. False: none runs.
  bool LoadStep();

  // The process dies. Of what waited the first `kept` batches had reached the disk all the same; nobody is told. A load ends untold, too.
  void Crash(size_t kept);

  // The disk's faults, for the next steps: each group fails with this until it is OK again. What isn't ResourceExhausted stays until
  // StartOver, as the contract says. `applied`: what fails is found by the next life all the same, unless a later group has succeeded; never
  // by this one.
  void Fail(absl::Status status, bool applied);

  // Damage, between lives.
  void Lose();               // found empty, with a rebuild pending
  void Age(size_t commits);  // an older copy: the last so many commits are undone
  // The log's last records are lost: the last commits are undone, so many at most, whose content records on the disk tell as well.
  size_t LoseTail(size_t commits);
  void Spoil(const std::string& key);  // the row doesn't parse any more
  // The next load that comes so far ends with this behind so many rows.
  void FailLoad(absl::Status status, uint64_t rows) { load_fails_.emplace(std::move(status), rows); }

  // What a restart would find.
  const Rows& durable() const { return durable_; }
  bool rebuild_pending() const { return rebuild_pending_; }
  uint64_t rebuilds() const { return rebuilds_; }  // that are finished there
  size_t waiting() const { return waiting_.size(); }
  uint64_t commits() const { return history_.size(); }

 private:
  class Opened;
  struct Asked {
    ssd::CatalogBatch batch;
    bool start_over = false;
    Done done;
  };
  void Apply(const Asked& asked, bool failed = false);
  void TakeBackWhatFailed();

  const Options options_;
  std::deque<Asked> waiting_;
  std::vector<Done> said_;  // too early
  Rows durable_;
  Rows seen_;  // of it by this life: all but what has failed
  bool seen_pending_ = true;
  uint64_t seen_settled_ = 0;
  bool differs_ = false;  // what is seen from what is durable
  uint64_t rebuilds_ = 0;
  bool rebuild_pending_ = true;
  uint64_t settled_ = 0;
  // What was durable before each of the last commits.
  struct Before {
    Rows rows;
    bool rebuild_pending = true;
    uint64_t settled = 0;
    bool records_tell_it = false;  // what that commit did
  };
  std::deque<Before> history_;
  absl::Status failing_, broken_;
  ssd::OpenReport report_;
  bool open_ = false;
  bool ended_clean_ = true;
  bool ends_unclean_ = false;
  uint64_t commits_ = 0;
  bool failing_applies_ = false;

  ssd::RowSink* sink_ = nullptr;
  Rows snapshot_;
  std::string loaded_to_;  // the last key
  ssd::LoadReport load_;
  std::optional<std::pair<absl::Status, uint64_t>> load_fails_;
};

}  // namespace kvist::test

#endif  // KVIST_TESTS_SUPPORT_SIM_CATALOG_H_

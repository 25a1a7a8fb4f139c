#ifndef KVIST_TESTS_BENCH_REPORT_H_
#define KVIST_TESTS_BENCH_REPORT_H_

#include <optional>
#include <string>
#include <vector>

namespace kvist::bench {

enum class Better { kHigher, kLower };

// One figure beside what it is held against, in the same unit.
struct Case {
  std::string name;
  double value = 0;
  std::string unit;
  double limit = 0;  // measured in the same run, or the asked figure when the goal is no ratio
  Better better = Better::kHigher;
  std::optional<double> goal;  // asked for of value / limit; none: only told

  double ratio() const { return value / limit; }
  bool misses() const { return goal.has_value() && (better == Better::kHigher ? ratio() < *goal : ratio() > *goal); }
};

// What one subcommand found.
struct Report {
  std::string benchmark;
  std::vector<Case> cases;
  std::string notes = {};  // for people, above the table

  // One object: {"benchmark","machine","cases":[{"case","value","unit","limit","ratio","better","goal"}]}; a case without goal has null.
  std::string Json() const;
  // For people; MISSED marks what misses its goal.
  std::string Table() const;
};

// Processor, cores and memory of this machine, in a line.
std::string MachineName();

}  // namespace kvist::bench

#endif  // KVIST_TESTS_BENCH_REPORT_H_

#include "tests/bench/report.h"

#include <sys/sysinfo.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace kvist::bench {
namespace {

const char* NameOf(Better better) { return better == Better::kHigher ? "higher" : "lower"; }

// Four digits that count, and no exponent.
std::string Figure(double value) {
  const double size = value < 0 ? -value : value;
  return absl::StrFormat("%.*f", size >= 1000 ? 0 : size >= 100 ? 1 : size >= 10 ? 2 : size >= 0.1 ? 3 : 5, value);
}

}  // namespace

std::string MachineName() {
  std::string cpu = "unknown processor";
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("model name")) {
      cpu = line.substr(line.find(':') + 2);
      break;
    }
  }
  struct sysinfo memory {};
  sysinfo(&memory);
  const uint64_t gib = (uint64_t{memory.totalram} * memory.mem_unit + (uint64_t{1} << 29)) >> 30;
  return absl::StrCat(cpu, ", ", get_nprocs(), " cores, ", gib, " GiB");
}

std::string Report::Json() const {
  nlohmann::ordered_json out;
  out["benchmark"] = benchmark;
  out["machine"] = MachineName();
  out["cases"] = nlohmann::ordered_json::array();
  for (const Case& c : cases) {
    nlohmann::ordered_json row;
    row["case"] = c.name;
    row["value"] = c.value;
    row["unit"] = c.unit;
    row["limit"] = c.limit;
    row["ratio"] = c.ratio();
    row["better"] = NameOf(c.better);
    row["goal"] = c.goal.has_value() ? nlohmann::ordered_json(*c.goal) : nlohmann::ordered_json(nullptr);
    out["cases"].push_back(std::move(row));
  }
  return out.dump();
}

std::string Report::Table() const {
  size_t width = 4;
  for (const Case& c : cases) width = std::max(width, c.name.size());
  std::string out = absl::StrCat("kvist-bench ", benchmark, ", ", MachineName(), "\n\n", notes, notes.empty() ? "" : "\n");
  absl::StrAppendFormat(&out, "%-*s %12s %12s  %-9s %9s  %s\n", static_cast<int>(width), "case", "value", "limit", "unit",
                        "ratio", "goal");
  for (const Case& c : cases) {
    absl::StrAppendFormat(&out, "%-*s %12s %12s  %-9s %9.3f  ", static_cast<int>(width), c.name, Figure(c.value),
                          Figure(c.limit), c.unit, c.ratio());
    if (c.goal.has_value()) {
      absl::StrAppend(&out, c.better == Better::kHigher ? ">= " : "<= ", *c.goal, c.misses() ? "   MISSED" : "");
    } else {
      absl::StrAppend(&out, "-");
    }
    absl::StrAppend(&out, "\n");
  }
  return out;
}

}  // namespace kvist::bench

#include "examples/replay/report.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace kvist::replay {
namespace {

std::string HookRow(const char* hook, const HookTimes& times) {
  const std::string rate =
      times.bytes() > 0 ? absl::StrFormat("%8.2f", times.gigabytes_per_second()) : absl::StrFormat("%8s", "-");
  return absl::StrFormat("%-8s %10s %10.1f %10.1f %s\n", hook, Grouped(times.calls()), times.Percentile(0.5),
                         times.Percentile(0.99), rate);
}

std::string Size(uint64_t bytes) {
  return bytes % (1 << 20) == 0 ? absl::StrCat(bytes >> 20, " MiB") : absl::StrCat(bytes >> 10, " KiB");
}

}  // namespace

std::string Grouped(uint64_t number) {
  const std::string digits = absl::StrCat(number);
  std::string grouped;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) grouped += ',';
    grouped += digits[i];
  }
  return grouped;
}

std::string Table(const Setting& setting, const Outcome& outcome) {
  std::string table;
  absl::StrAppend(&table, "trace     ", setting.trace_path, ": ", Grouped(outcome.requests), " requests, ",
                  Grouped(outcome.blocks), " blocks (", Grouped(outcome.full_blocks), " full, ",
                  Grouped(setting.unique_full_blocks), " of them unique), ", Size(setting.block_bytes), " each\n");
  absl::StrAppend(&table, "daemon    ", setting.daemon, "\n");
  absl::StrAppendFormat(&table, "hits      %s blocks, %.2f %% of all\n", Grouped(outcome.hit_blocks),
                        100 * outcome.hit_ratio());
  absl::StrAppend(&table, "stored    ", Grouped(outcome.stored_blocks), " blocks; ", Grouped(outcome.refused_blocks),
                  " refused for want of room, ", Grouped(outcome.skipped_blocks), " there already\n");
  absl::StrAppend(&table, "checked   ", Grouped(outcome.load.bytes()), " loaded bytes, ", Grouped(outcome.wrong_bytes),
                  " wrong; ", Grouped(outcome.failed_hooks), " failed hooks\n");
  absl::StrAppendFormat(&table, "time      %.2f s\n\n", setting.seconds);
  absl::StrAppendFormat(&table, "%-8s %10s %10s %10s %8s\n", "hook", "calls", "p50 us", "p99 us", "GB/s");
  absl::StrAppend(&table, HookRow("lookup", outcome.lookup), HookRow("load", outcome.load), HookRow("store", outcome.store),
                  HookRow("release", outcome.release));
  return table;
}

std::string Json(const Outcome& outcome) {
  nlohmann::ordered_json object;
  object["requests"] = outcome.requests;
  object["blocks"] = outcome.blocks;
  object["hit_blocks"] = outcome.hit_blocks;
  object["hit_ratio"] = outcome.hit_ratio();
  object["stored_blocks"] = outcome.stored_blocks;
  object["wrong_bytes"] = outcome.wrong_bytes;
  object["load_gbps"] = outcome.load.gigabytes_per_second();
  object["store_gbps"] = outcome.store.gigabytes_per_second();
  object["lookup_p50_us"] = outcome.lookup.Percentile(0.5);
  object["lookup_p99_us"] = outcome.lookup.Percentile(0.99);
  return object.dump() + "\n";
}

}  // namespace kvist::replay

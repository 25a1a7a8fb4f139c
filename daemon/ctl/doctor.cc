#include "daemon/ctl/doctor.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "daemon/ctl/table.h"
#include "daemon/ctl/wrap.h"

namespace kvist::ctl {
namespace {

using Level = Finding::Level;

const char* NameOf(Level level) {
  switch (level) {
    case Level::kOk: return "ok";
    case Level::kWarn: return "warn";
    case Level::kFail: return "fail";
  }
  return "";
}

const char* ColourOf(Level level) {
  switch (level) {
    case Level::kOk: return "\033[32m";
    case Level::kWarn: return "\033[33m";
    case Level::kFail: return "\033[1;31m";
  }
  return "";
}

size_t Count(const Diagnosis& diagnosis, Level level) {
  return static_cast<size_t>(std::count_if(diagnosis.findings.begin(), diagnosis.findings.end(),
                                           [level](const auto& named) { return named.second.level == level; }));
}

}  // namespace

bool Diagnosis::failed() const { return Count(*this, Level::kFail) > 0; }

Diagnosis Diagnose(const Patient& patient) {
  Diagnosis diagnosis;
  for (const Check& check : Checks()) diagnosis.findings.emplace_back(check.name, check.look(patient));
  return diagnosis;
}

std::string ToTable(const Diagnosis& diagnosis, bool colours, size_t columns) {
  size_t width = 0;
  for (const auto& [name, finding] : diagnosis.findings) width = std::max(width, name.size());
  const std::string indent(width + 8, ' ');
  std::string text;
  for (const auto& [name, finding] : diagnosis.findings) {
    const absl::string_view level = NameOf(finding.level);
    const std::string line =
        absl::StrFormat("%-4s  %-*s  %s", level, static_cast<int>(width), name, Printable(finding.text));
    const std::string wrapped = Wrap(line, columns, indent.size(), indent.size());
    absl::StrAppend(&text, colours ? ColourOf(finding.level) : "", level, colours ? "\033[0m" : "",
                    wrapped.substr(level.size()), "\n");
    // A command is for copying: it is left in one piece.
    if (!finding.mend.empty()) absl::StrAppend(&text, indent, "$ ", Printable(finding.mend), "\n");
  }
  return absl::StrCat(text, "\n", Count(diagnosis, Level::kOk), " ok, ", Count(diagnosis, Level::kWarn), " warn, ",
                      Count(diagnosis, Level::kFail), " fail\n");
}

std::string ToJson(const Diagnosis& diagnosis) {
  nlohmann::ordered_json json = {{"ok", Count(diagnosis, Level::kOk)},
                                 {"warn", Count(diagnosis, Level::kWarn)},
                                 {"fail", Count(diagnosis, Level::kFail)},
                                 {"findings", nlohmann::json::array()}};
  for (const auto& [name, finding] : diagnosis.findings) {
    json["findings"].push_back(
        {{"check", name}, {"level", NameOf(finding.level)}, {"text", finding.text}, {"mend", finding.mend}});
  }
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace kvist::ctl

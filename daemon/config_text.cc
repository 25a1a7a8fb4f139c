#include "daemon/config_text.h"

#include <toml++/toml.h>

#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "daemon/config_keys.h"

namespace kvist::daemon {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kLine = 118;  // of a comment, as in the rest of the project

// A value of the table's, from TOML to JSON; null for "".
Json ToJson(const std::string& value) {
  if (value.empty()) return nullptr;
  std::ostringstream json;
  json << toml::json_formatter(toml::parse("value = " + value));
  return Json::parse(json.str())["value"];
}

std::string Commented(absl::string_view text) {
  std::string comment, line = "#";
  for (const absl::string_view word : absl::StrSplit(text, ' ')) {
    if (line.size() + 1 + word.size() > kLine) absl::StrAppend(&comment, std::exchange(line, "#"), "\n");
    absl::StrAppend(&line, " ", word);
  }
  return absl::StrCat(comment, line, "\n");
}

std::string LiveWords(bool live) { return live ? "A reload puts it in force." : "A change needs a restart."; }

// `before_key` gives what stands above a key.
template <class BeforeKey>
std::string Print(const Options& options, BeforeKey before_key) {
  std::string text;
  absl::string_view section;
  for (const ConfigKey& key : ConfigKeys()) {
    if (key.section != section) absl::StrAppend(&text, section.empty() ? "" : "\n", "[", key.section, "]\n");
    section = key.section;
    absl::StrAppend(&text, before_key(key), key.name, " = ", key.print(options), "\n");
  }
  return text;
}

std::string Dump(const Json& json) { return json.dump(2) + "\n"; }

}  // namespace

std::string PrintConfig(const Options& options) {
  std::string text = Print(options, [](const ConfigKey&) { return ""; });
  for (const ConfigMap& map : ConfigMaps()) {
    absl::StrAppend(&text, "\n[", map.section, "]\n");
    for (const auto& [key, value] : map.print(options)) absl::StrAppend(&text, TomlKey(key), " = ", value, "\n");
  }
  return text;
}

std::string PrintConfigJson(const Options& options) {
  Json json = Json::object();
  for (const ConfigKey& key : ConfigKeys())
    json[std::string(key.section)][std::string(key.name)] = ToJson(key.print(options));
  for (const ConfigMap& map : ConfigMaps()) {
    Json& entries = json[std::string(map.section)] = Json::object();
    for (const auto& [key, value] : map.print(options)) entries[key] = ToJson(value);
  }
  return Dump(json);
}

std::string PrintDefaults() {
  std::string text = Print(Options(), [](const ConfigKey& key) {
    return absl::StrCat(Commented(absl::StrCat(key.about, " ", LiveWords(key.live))),
                        Commented(absl::StrCat("Allowed: ", key.allowed)));
  });
  for (const ConfigMap& map : ConfigMaps()) {
    absl::StrAppend(&text, "\n[", map.section, "]\n", Commented(absl::StrCat(map.about, " ", LiveWords(map.live))),
                    Commented(absl::StrCat("Allowed: ", map.key_allowed, " = ", map.value_allowed)));
  }
  return text;
}

std::string PrintDefaultsJson() {
  Json json = Json::object();
  for (const ConfigKey& key : ConfigKeys()) {
    json[std::string(key.section)][std::string(key.name)] = {{"default", ToJson(key.print(Options()))},
                                                             {"about", key.about},
                                                             {"allowed", key.allowed},
                                                             {"needs_restart", !key.live}};
  }
  for (const ConfigMap& map : ConfigMaps()) {
    json[std::string(map.section)][std::string(map.key_noun)] = {
        {"default", nullptr},
        {"about", map.about},
        {"allowed", absl::StrCat(map.key_allowed, " = ", map.value_allowed)},
        {"needs_restart", !map.live}};
  }
  return Dump(json);
}

std::vector<ConfigDifference> Differences(const Options& options, const Options& before) {
  std::vector<ConfigDifference> differences;
  for (const ConfigKey& key : ConfigKeys()) {
    const std::string value = key.print(options), was = key.print(before);
    if (value != was) differences.push_back({FullName(key), value, was, key.live});
  }
  for (const ConfigMap& map : ConfigMaps()) {
    std::map<std::string, std::pair<std::string, std::string>> entries;
    for (auto& [key, value] : map.print(options)) entries[key].first = value;
    for (auto& [key, value] : map.print(before)) entries[key].second = value;
    for (const auto& [key, values] : entries) {
      if (values.first != values.second) differences.push_back({FullName(map, key), values.first, values.second, map.live});
    }
  }
  return differences;
}

std::string PrintDifferences(const std::vector<ConfigDifference>& differences) {
  std::string text;
  for (const ConfigDifference& d : differences) {
    absl::StrAppend(&text, d.name, " = ", d.value, "  # default: ", d.before.empty() ? "none" : d.before, "\n");
  }
  return text;
}

std::string PrintDifferencesJson(const std::vector<ConfigDifference>& differences) {
  Json json = Json::array();
  for (const ConfigDifference& d : differences)
    json.push_back({{"key", d.name}, {"value", ToJson(d.value)}, {"default", ToJson(d.before)}});
  return Dump(json);
}

}  // namespace kvist::daemon

#include "daemon/config.h"

#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "daemon/config_keys.h"
#include "daemon/config_machine.h"
#include "daemon/config_rules.h"
#include "storage/base/did_you_mean.h"
#include "storage/base/status.h"

namespace kvist::daemon {
namespace {

constexpr size_t kFileBytesMax = 1 << 20;  // a configuration of 20 keys and some thousand tenants is far smaller

std::string FileName(absl::string_view name) { return name.empty() ? "config" : std::string(name); }

std::vector<absl::string_view> SectionNames() {
  std::vector<absl::string_view> names;
  for (const ConfigKey& key : ConfigKeys()) {
    if (names.empty() || names.back() != key.section) names.push_back(key.section);
  }
  for (const ConfigMap& map : ConfigMaps()) names.push_back(map.section);
  return names;
}

std::vector<absl::string_view> KeyNames(absl::string_view section) {
  std::vector<absl::string_view> names;
  for (const ConfigKey& key : ConfigKeys()) {
    if (key.section == section) names.push_back(key.name);
  }
  return names;
}

const ConfigKey* FindKey(absl::string_view section, absl::string_view name) {
  for (const ConfigKey& key : ConfigKeys()) {
    if (key.section == section && key.name == name) return &key;
  }
  return nullptr;
}

const ConfigMap* FindMap(absl::string_view section) {
  for (const ConfigMap& map : ConfigMaps()) {
    if (map.section == section) return &map;
  }
  return nullptr;
}

ConfigValue ToValue(const toml::node& node) {
  if (const auto* text = node.as_string()) return {text->get(), absl::StrCat("the string ", Quoted(text->get()))};
  if (const auto* number = node.as_integer()) return {number->get(), absl::StrCat("the integer ", number->get())};
  if (const auto* number = node.as_floating_point()) return {number->get(), absl::StrCat("the number ", number->get())};
  if (const auto* flag = node.as_boolean()) return {flag->get(), flag->get() ? "the boolean true" : "the boolean false"};
  if (const auto* array = node.as_array()) {
    std::vector<int64_t> numbers;
    for (const toml::node& element : *array) {
      const auto* number = element.as_integer();
      if (number == nullptr) return {{}, "an array that holds more than integers"};
      numbers.push_back(number->get());
    }
    std::string found = absl::StrCat("the array [", absl::StrJoin(numbers, ", "), "]");
    return {std::move(numbers), std::move(found)};
  }
  return {{}, node.is_table() ? "a table" : "a date or time"};
}

// Puts keys into Options, one by one, and remembers where each one stood, and every error.
class Reader {
 public:
  void TakeFile(const toml::table& file, absl::string_view name) {
    for (auto&& [section, node] : file) {
      const std::string section_name(section.str());
      const std::string at = Place(name, section.source());
      if (!IsSection(section_name)) {
        Note(node.is_table() ? UnknownSection(at, section_name)
                             : Refuse(at, section_name, "a key outside of any section",
                                      absl::StrCat("keys under one of ", SectionList())));
        continue;
      }
      const toml::table* keys = node.as_table();
      if (keys == nullptr) {
        Note(Refuse(at, absl::StrCat("[", section_name, "]"), ToValue(node).found,
                    absl::StrCat("a section, [", section_name, "]")));
        continue;
      }
      for (auto&& [key, value] : *keys) {
        const std::string key_at = Place(name, key.source());
        const std::string value_at = value.source().begin ? Place(name, value.source()) : key_at;
        Note(Take(section_name, std::string(key.str()), ToValue(value), {.key = key_at, .value = value_at}));
      }
    }
  }

  void TakeOverride(absl::string_view text) {
    const size_t equals = text.find('=');
    const size_t dot = text.substr(0, equals).find('.');
    if (equals == absl::string_view::npos || dot == absl::string_view::npos) {
      Note(absl::InvalidArgumentError(absl::StrCat(kOverride, ": ", Quoted(text), "; allowed: section.key=value")));
      return;
    }
    const std::string section(text.substr(0, dot));
    const std::string key(text.substr(dot + 1, equals - dot - 1));
    const std::string raw(text.substr(equals + 1));
    Note(Take(section, key, OverrideValue(section, key, raw), {.key = kOverride, .value = kOverride}));
  }

  void Note(const absl::Status& error) {
    if (!error.ok()) errors_.push_back(absl::StrReplaceAll(error.message(), {{"\n", " "}}));
  }

  absl::StatusOr<Options> Finish(const std::optional<Machine>& machine) {
    if (!errors_.empty()) return absl::InvalidArgumentError(absl::StrJoin(errors_, "\n"));
    if (const std::optional<ConfigProblem> problem = FindContradiction(options_))
      return absl::InvalidArgumentError(Placed(*problem));
    KVIST_RETURN_IF_ERROR(options_.Validate());
    if (machine.has_value()) {
      for (const ConfigProblem& lack : FindLacks(options_, *machine)) errors_.push_back(Placed(lack));
    }
    if (!errors_.empty()) return absl::InvalidArgumentError(absl::StrJoin(errors_, "\n"));
    return std::move(options_);
  }

  static std::string Place(absl::string_view name, const toml::source_region& source) {
    return absl::StrCat(name, ":", source.begin.line, ":", source.begin.column);
  }

 private:
  static constexpr char kOverride[] = "--set";

  struct Places {
    std::string key;
    std::string value;
  };

  std::string Placed(const ConfigProblem& problem) const {
    const auto place = places_.find({std::string(problem.section), std::string(problem.name)});
    return absl::StrCat(place == places_.end() ? "" : place->second + ": ", problem.section, ".", problem.name, ": ",
                        problem.text);
  }

  static bool IsSection(absl::string_view name) {
    const std::vector<absl::string_view> names = SectionNames();
    return std::find(names.begin(), names.end(), name) != names.end();
  }
  static std::string SectionList() { return absl::StrJoin(SectionNames(), ", "); }

  static absl::Status Refuse(absl::string_view place, absl::string_view what, absl::string_view found,
                             absl::string_view allowed) {
    return absl::InvalidArgumentError(absl::StrCat(place, ": ", what, ": ", found, "; allowed: ", allowed));
  }
  static absl::Status UnknownSection(absl::string_view place, absl::string_view section) {
    return Refuse(place, absl::StrCat("[", section, "]"),
                  absl::StrCat("unknown section", DidYouMean(section, SectionNames())), SectionList());
  }
  static absl::Status UnknownKey(absl::string_view place, absl::string_view section, absl::string_view name) {
    std::string hint = DidYouMean(name, KeyNames(section));
    for (const ConfigKey& key : ConfigKeys()) {
      if (hint.empty() && key.name == name) hint = absl::StrCat(" (did you mean ", key.section, ".", name, "?)");
    }
    return Refuse(place, absl::StrCat(section, ".", name), absl::StrCat("unknown key", hint),
                  absl::StrJoin(KeyNames(section), ", "));
  }

  absl::Status Take(const std::string& section, const std::string& name, const ConfigValue& value, const Places& at) {
    if (!IsSection(section)) return UnknownSection(at.key, section);
    places_[{section, name}] = at.value;
    if (const ConfigMap* map = FindMap(section)) return TakeEntry(*map, name, value, at);
    const ConfigKey* key = FindKey(section, name);
    if (key == nullptr) return UnknownKey(at.key, section, name);
    if (!key->assign(value, &options_) || !key->holds(options_)) {
      return Refuse(at.value, absl::StrCat(section, ".", name), value.found, key->allowed);
    }
    return absl::OkStatus();
  }

  absl::Status TakeEntry(const ConfigMap& map, const std::string& key, const ConfigValue& value, const Places& at) {
    const std::string what = absl::StrCat(map.section, ".", key);
    if (!map.key_holds(key)) return Refuse(at.key, what, absl::StrCat("the key ", Quoted(key)), map.key_allowed);
    if (!map.assign(key, value, &options_)) return Refuse(at.value, what, value.found, map.value_allowed);
    return absl::OkStatus();
  }

  // What stands behind the = of an override: TOML, or else the characters as they are; so, too, where a string is wanted and no
  // quotes are there (a group's number, a tenant named "true").
  static ConfigValue OverrideValue(absl::string_view section, absl::string_view name, const std::string& raw) {
    const ConfigKey* key = FindKey(section, name);
    const ConfigMap* map = FindMap(section);
    const bool wants_text = (map != nullptr && map->is_text) || (key != nullptr && key->is_text);
    ConfigValue text{raw, absl::StrCat("the string ", Quoted(raw))};
    try {
      const toml::table parsed = toml::parse(absl::StrCat("value = ", raw));
      const toml::node* node = parsed.get("value");
      if (parsed.size() != 1 || node == nullptr || (wants_text && !node->is_string())) return text;
      return ToValue(*node);
    } catch (const std::exception&) { return text; }
  }

  Options options_;
  std::vector<std::string> errors_;
  std::map<std::pair<std::string, std::string>, std::string> places_;
};

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "re"), &std::fclose);
  if (file == nullptr) return ErrnoStatus(absl::StrCat("can't open the configuration ", path), errno);
  std::string text(kFileBytesMax + 1, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file.get()));
  if (std::ferror(file.get()) != 0) return ErrnoStatus(absl::StrCat("can't read the configuration ", path), errno);
  if (text.size() > kFileBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": longer than ", kFileBytesMax, " bytes: is it a kvistd configuration?"));
  }
  return text;
}

void TakeText(absl::string_view text, const std::string& name, Reader* reader) {
  try {
    reader->TakeFile(toml::parse(std::string(text), name), name);
  } catch (const toml::parse_error& error) {
    reader->Note(absl::InvalidArgumentError(
        absl::StrCat(Reader::Place(name, error.source()), ": ", std::string(error.description()))));
  } catch (const std::exception& error) { reader->Note(absl::InvalidArgumentError(absl::StrCat(name, ": ", error.what()))); }
}

}  // namespace

absl::StatusOr<Options> ParseConfig(absl::string_view text, absl::string_view name,
                                    const std::vector<std::string>& overrides, const std::optional<Machine>& machine) {
  Reader reader;
  TakeText(text, FileName(name), &reader);
  for (const std::string& override : overrides) reader.TakeOverride(override);
  return reader.Finish(machine);
}

absl::StatusOr<Options> LoadConfig(const ConfigSources& sources, const std::optional<Machine>& machine) {
  std::string text;
  if (!sources.file.empty()) { KVIST_ASSIGN_OR_RETURN(text, ReadFile(sources.file)); }
  return ParseConfig(text, sources.file, sources.overrides, machine);
}

std::vector<std::string> ErrorLines(const absl::Status& error) { return absl::StrSplit(error.message(), '\n'); }

}  // namespace kvist::daemon

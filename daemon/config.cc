#include "daemon/config.h"

#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
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

// Where something stands: in words, and what comes before what; the command line behind every file.
struct Place {
  std::string words;
  uint32_t line = UINT32_MAX, column = 0;
};

Place PlaceIn(absl::string_view file, const toml::source_region& source) {
  return {absl::StrCat(file, ":", source.begin.line, ":", source.begin.column), source.begin.line, source.begin.column};
}

// Puts keys into Options, one by one, and remembers where each one stood, and every error.
class Reader {
 public:
  void TakeFile(const toml::table& file, absl::string_view name) {
    for (auto&& [section, node] : file) {
      const std::string section_name(section.str());
      const Place at = PlaceIn(name, section.source());
      if (!IsSection(section_name)) {
        RefuseAll();
        node.is_table()
            ? UnknownSection(at, section_name)
            : Refuse(at, section_name, "a key outside of any section", absl::StrCat("keys under one of ", SectionList()));
        continue;
      }
      const toml::table* keys = node.as_table();
      if (keys == nullptr) {
        refused_.insert(section_name);
        Refuse(at, absl::StrCat("[", section_name, "]"), ToValue(node).found,
               absl::StrCat("a section, [", section_name, "]"));
        continue;
      }
      for (auto&& [key, value] : *keys) {
        const Place key_at = PlaceIn(name, key.source());
        const Place value_at = value.source().begin ? PlaceIn(name, value.source()) : key_at;
        Take(section_name, std::string(key.str()), ToValue(value), {.key = key_at, .value = value_at});
      }
    }
  }

  void TakeOverride(absl::string_view text) {
    const size_t equals = text.find('=');
    const size_t dot = text.substr(0, equals).find('.');
    if (equals == absl::string_view::npos || dot == absl::string_view::npos) {
      Note({kOverride}, absl::StrCat(Quoted(text), "; allowed: section.key=value"));
      return;
    }
    const std::string section(text.substr(0, dot));
    const std::string key(text.substr(dot + 1, equals - dot - 1));
    const std::string raw(text.substr(equals + 1));
    Take(section, key, OverrideValue(section, key, raw), {.key = {kOverride}, .value = {kOverride}});
  }

  // Nothing can be said of a file that isn't TOML but where.
  void IsNotToml(const Place& at, absl::string_view why) {
    is_toml_ = false;
    Note(at, why);
  }

  absl::StatusOr<LoadedConfig> Finish(const ConfigUse& use) {
    LoadedConfig loaded{options_, options_};
    if (errors_.empty() && use.fill) NoteWhole(use.fill(&loaded.options));
    if (is_toml_) {
      // A key that couldn't be read is as if it were left out: what others say about it is no error of theirs.
      for (const ConfigProblem& problem : FindContradictions(loaded.options)) {
        if (std::none_of(problem.others.begin(), problem.others.end(), [this](auto other) { return IsRefused(other); }))
          NoteProblem(problem);
      }
      if (use.machine.has_value()) {
        for (const ConfigProblem& lack : FindLacks(loaded.options, *use.machine)) NoteProblem(lack);
      }
    }
    if (errors_.empty()) NoteWhole(loaded.options.Validate());
    if (errors_.empty()) return loaded;
    std::stable_sort(errors_.begin(), errors_.end(), [](const Error& a, const Error& b) {
      return std::pair(a.line, a.column) < std::pair(b.line, b.column);
    });
    return absl::InvalidArgumentError(
        absl::StrJoin(errors_, "\n", [](std::string* out, const Error& error) { absl::StrAppend(out, error.text); }));
  }

 private:
  static constexpr char kOverride[] = "--set";

  struct Places {
    Place key;
    Place value;
  };
  struct Error {
    uint32_t line, column;
    std::string text;  // one line
  };

  void Note(const Place& at, absl::string_view text) {
    const std::string whole = at.words.empty() ? std::string(text) : absl::StrCat(at.words, ": ", text);
    errors_.push_back({at.line, at.column, absl::StrReplaceAll(whole, {{"\n", " "}})});
  }
  void NoteWhole(const absl::Status& error) {
    if (!error.ok()) Note({}, error.message());
  }
  // At its key, or at the first of the others where that is left out.
  void NoteProblem(const ConfigProblem& problem) {
    auto place = places_.find(absl::StrCat(problem.section, ".", problem.name));
    for (const absl::string_view other : problem.others) {
      if (place == places_.end()) place = places_.find(std::string(other));
    }
    Note(place == places_.end() ? Place{} : place->second,
         absl::StrCat(problem.section, ".", problem.name, ": ", problem.text));
  }
  // Whether something of a key, or of its section, couldn't be read.
  bool IsRefused(absl::string_view key) const {
    return refused_.contains(key) || refused_.contains(key.substr(0, key.find('.')));
  }

  static bool IsSection(absl::string_view name) {
    const std::vector<absl::string_view> names = SectionNames();
    return std::find(names.begin(), names.end(), name) != names.end();
  }
  static std::string SectionList() { return absl::StrJoin(SectionNames(), ", "); }

  // Whichever section was meant.
  void RefuseAll() {
    for (const absl::string_view section : SectionNames()) refused_.emplace(section);
  }
  void Refuse(const Place& at, absl::string_view what, absl::string_view found, absl::string_view allowed) {
    Note(at, absl::StrCat(what, ": ", found, "; allowed: ", allowed));
  }
  void UnknownSection(const Place& at, absl::string_view section) {
    Refuse(at, absl::StrCat("[", WithoutSecrets(section), "]"),
           absl::StrCat("unknown section", DidYouMean(section, SectionNames())), SectionList());
  }
  void UnknownKey(const Place& at, absl::string_view section, absl::string_view name) {
    std::string hint = DidYouMean(name, KeyNames(section));
    for (const ConfigKey& key : ConfigKeys()) {
      if (hint.empty() && key.name == name) hint = absl::StrCat(" (did you mean ", key.section, ".", name, "?)");
    }
    Refuse(at, WithoutSecrets(absl::StrCat(section, ".", name)), absl::StrCat("unknown key", hint),
           absl::StrJoin(KeyNames(section), ", "));
  }

  void Take(const std::string& section, const std::string& name, const ConfigValue& value, const Places& at) {
    if (!IsSection(section)) {
      RefuseAll();
      return UnknownSection(at.key, section);
    }
    places_[absl::StrCat(section, ".", name)] = at.value;
    if (const ConfigMap* map = FindMap(section)) return TakeEntry(*map, name, value, at);
    const ConfigKey* key = FindKey(section, name);
    if (key == nullptr) {
      refused_.insert(section);  // whichever was meant
      return UnknownKey(at.key, section, name);
    }
    Options next = options_;
    if (key->assign(value, &next) && key->holds(next)) {
      options_ = std::move(next);
      return;
    }
    refused_.insert(FullName(*key));
    Refuse(at.value, FullName(*key), value.found, key->allowed);
  }

  void TakeEntry(const ConfigMap& map, const std::string& key, const ConfigValue& value, const Places& at) {
    const std::string what = absl::StrCat(map.section, ".", key);
    const bool key_holds = map.key_holds(key);
    if (key_holds && map.assign(key, value, &options_)) return;
    refused_.insert(std::string(map.section));
    if (key_holds) return Refuse(at.value, what, value.found, map.value_allowed);
    Refuse(at.key, what, absl::StrCat("the key ", Quoted(key)), map.key_allowed);
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
  bool is_toml_ = true;
  std::vector<Error> errors_;
  std::map<std::string, Place> places_;         // by full names
  std::set<std::string, std::less<>> refused_;  // keys, and sections, of which something couldn't be read
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
    reader->IsNotToml(PlaceIn(name, error.source()), std::string(error.description()));
  } catch (const std::exception& error) { reader->IsNotToml({name, 0, 0}, error.what()); }
}

absl::StatusOr<LoadedConfig> Read(absl::string_view text, absl::string_view name, const std::vector<std::string>& overrides,
                                  const ConfigUse& use) {
  Reader reader;
  TakeText(text, FileName(name), &reader);
  for (const std::string& override : overrides) reader.TakeOverride(override);
  return reader.Finish(use);
}

}  // namespace

absl::StatusOr<Options> ParseConfig(absl::string_view text, absl::string_view name,
                                    const std::vector<std::string>& overrides, const std::optional<Machine>& machine) {
  KVIST_ASSIGN_OR_RETURN(LoadedConfig loaded, Read(text, name, overrides, {.machine = machine, .fill = nullptr}));
  return std::move(loaded.written);
}

absl::StatusOr<LoadedConfig> LoadConfig(const ConfigSources& sources, const ConfigUse& use) {
  std::string text;
  if (!sources.file.empty()) { KVIST_ASSIGN_OR_RETURN(text, ReadFile(sources.file)); }
  return Read(text, sources.file, sources.overrides, use);
}

std::vector<std::string> ErrorLines(const absl::Status& error) { return absl::StrSplit(error.message(), '\n'); }

}  // namespace kvist::daemon

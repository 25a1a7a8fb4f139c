#include "daemon/controller_options.h"

#include <toml++/toml.h>

#include <algorithm>
#include <exception>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/config.h"
#include "daemon/config_keys.h"
#include "daemon/controller/node_name.h"
#include "storage/base/kept_file.h"
#include "storage/base/runtime_dir.h"
#include "storage/base/status.h"

namespace kvist::daemon {
namespace {

constexpr size_t kFileMax = 1 << 20;
constexpr char kControllerSocketName[] = "controller.sock";
constexpr absl::string_view kSections[] = {"controller", "tls", "roles", "log", "nodes"};

std::string InQuotes(absl::string_view text) { return absl::StrCat("\"", absl::CHexEscape(text), "\""); }

class ControllerReader {
 public:
  void TakeFile(const toml::table& file, const std::string& name) {
    for (auto&& [section, keys] : file) {
      const std::string of(section.str());
      if (!keys.is_table() || std::find(std::begin(kSections), std::end(kSections), of) == std::end(kSections)) {
        Note(Place(name, section.source()), of, "unknown",
             absl::StrCat("the sections [", absl::StrJoin(kSections, "], ["), "]"));
        continue;
      }
      for (auto&& [key, value] : *keys.as_table()) {
        const std::string at = Place(name, key.source());
        const auto* text = value.as_string();
        if (text == nullptr) {
          Note(at, absl::StrCat(of, ".", std::string(key.str())), "no string", "a string");
        } else if (of == "nodes") {
          TakeNode(at, std::string(key.str()), text->get());
        } else if (of == "roles") {
          TakeRole(at, std::string(key.str()), text->get());
        } else {
          TakeKey(at, of, std::string(key.str()), text->get());
        }
      }
    }
  }

  void TakeNode(const std::string& at, const std::string& name, const std::string& address) {
    const std::optional<endpoint::Address> parsed = endpoint::ParseAddress(address);
    if (!controller::IsNodeName(name)) {
      Note(at, absl::StrCat("nodes.", absl::CHexEscape(name)), "the name", controller::kNodeNameAllowed);
    } else if (!parsed.has_value()) {
      Note(at, absl::StrCat("nodes.", name), InQuotes(address), endpoint::kAddressAllowed);
    } else {
      nodes_[name] = *parsed;
    }
  }

  void NoteText(const std::string& error) { errors_.push_back(error); }

  void Note(const std::string& at, const std::string& what, const std::string& found, absl::string_view allowed) {
    errors_.push_back(absl::StrCat(at, ": ", what, ": ", found, "; allowed: ", allowed));
  }

  absl::StatusOr<ControllerOptions> Finish() {
    if (nodes_.empty() && errors_.empty()) errors_.push_back("nodes: there are none; name them under [nodes], or by --node");
    const bool complete = options_.tls.complete();
    if (!options_.listen.empty() && !complete) {
      errors_.push_back(absl::StrCat("controller.listen: ", InQuotes(options_.listen), "; allowed: \"\", as long as ",
                                     endpoint::Missing(options_.tls),
                                     " aren't there: over TCP it serves by TLS only, to other machines and to its own"));
    }
    for (const auto& [name, address] : nodes_) {
      if (address.is_tls() && !complete) {
        errors_.push_back(
            absl::StrCat("nodes.", name, ": ", address.text(), " takes ", endpoint::Missing(options_.tls), ", too"));
      }
    }
    if (!errors_.empty()) return absl::InvalidArgumentError(absl::StrJoin(errors_, "\n"));
    for (const auto& [name, address] : nodes_) options_.nodes.push_back({name, address});
    if (options_.socket.empty()) options_.socket = absl::StrCat(DefaultRuntimeDir(), "/", kControllerSocketName);
    return std::move(options_);
  }

  static std::string Place(const std::string& name, const toml::source_region& source) {
    return absl::StrCat(name, ":", source.begin.line, ":", source.begin.column);
  }

 private:
  // Keys that kvistd has, too, are read, and explained, by their rows there.
  void TakeKey(const std::string& at, const std::string& section, const std::string& name, const std::string& text) {
    const std::string row_of = section == "controller" ? "admin" : section;
    const auto row = std::find_if(ConfigKeys().begin(), ConfigKeys().end(),
                                  [&](const ConfigKey& key) { return key.section == row_of && key.name == name; });
    const std::string full = absl::StrCat(section, ".", name);
    if (row == ConfigKeys().end()) {
      std::vector<absl::string_view> known;
      for (const ConfigKey& key : ConfigKeys())
        if (key.section == row_of) known.push_back(key.name);
      return Note(at, full, "unknown", absl::StrJoin(known, ", "));
    }
    Options of_kvistd;
    of_kvistd.log = options_.log;
    of_kvistd.admin = {options_.socket, options_.socket_mode, options_.socket_group, options_.listen};
    of_kvistd.tls = {options_.tls.certificate, options_.tls.key, options_.tls.ca};
    if (!row->assign({text, InQuotes(text)}, &of_kvistd) || !row->holds(of_kvistd))
      return Note(at, full, InQuotes(text), row->allowed);
    options_.log = of_kvistd.log;
    options_.socket = of_kvistd.admin.socket;
    options_.socket_mode = of_kvistd.admin.socket_mode;
    options_.socket_group = of_kvistd.admin.socket_group;
    options_.listen = of_kvistd.admin.listen;
    options_.tls = {of_kvistd.tls.certificate_file, of_kvistd.tls.key_file, of_kvistd.tls.ca_file};
  }

  void TakeRole(const std::string& at, const std::string& client, const std::string& role) {
    const auto row =
        std::find_if(ConfigMaps().begin(), ConfigMaps().end(), [](const ConfigMap& map) { return map.section == "roles"; });
    Options of_kvistd;
    if (!row->key_holds(client)) {
      Note(at, absl::StrCat(row->section, ".", Quoted(client)), "the client", row->key_allowed);
    } else if (!row->assign(client, {role, InQuotes(role)}, &of_kvistd)) {
      Note(at, FullName(*row, client), InQuotes(role), row->value_allowed);
    } else {
      options_.roles.merge(of_kvistd.roles);
    }
  }

  ControllerOptions options_;
  std::map<std::string, endpoint::Address> nodes_;
  std::vector<std::string> errors_;
};

}  // namespace

absl::StatusOr<ControllerOptions> ParseControllerOptions(absl::string_view text, const std::string& name,
                                                         const std::vector<std::string>& nodes) {
  ControllerReader reader;
  try {
    reader.TakeFile(toml::parse(std::string(text), name), name);
  } catch (const toml::parse_error& error) {
    reader.NoteText(absl::StrCat(ControllerReader::Place(name, error.source()), ": ", std::string(error.description())));
  } catch (const std::exception& error) { reader.NoteText(absl::StrCat(name, ": ", error.what())); }
  for (const std::string& node : nodes) {
    const size_t equals = node.find('=');
    if (equals == std::string::npos) {
      reader.Note("--node", InQuotes(node), "no \"=\"", "NAME=ADDRESS, such as node-a=unix:/run/kvist/admin.sock");
    } else {
      reader.TakeNode("--node", node.substr(0, equals), node.substr(equals + 1));
    }
  }
  return reader.Finish();
}

absl::StatusOr<ControllerOptions> LoadControllerOptions(const std::string& file, const std::vector<std::string>& nodes) {
  std::string text;
  if (!file.empty()) {
    absl::StatusOr<std::string> read = ReadKeptFile(file, kFileMax);
    if (!read.ok())
      return absl::Status(read.status().code(),
                          absl::StrCat("can't read the configuration ", file, ": ", read.status().message()));
    text = *std::move(read);
  }
  return ParseControllerOptions(text, file, nodes);
}

}  // namespace kvist::daemon

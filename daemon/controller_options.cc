#include "daemon/controller_options.h"

#include <sys/un.h>
#include <toml++/toml.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <fstream>
#include <iterator>
#include <map>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "daemon/config.h"
#include "daemon/config_keys.h"
#include "daemon/controller/node_name.h"
#include "storage/base/runtime_dir.h"
#include "storage/base/status.h"

namespace kvist::daemon {
namespace {

constexpr char kControllerSocketName[] = "controller.sock";
constexpr size_t kUnixPathMax = sizeof(sockaddr_un::sun_path) - 1;
constexpr char kAddressAllowed[] =
    "unix:PATH, the absolute path of a kvistd's admin socket (nodes are not reached by TCP yet: it comes with mTLS)";

std::string InQuotes(absl::string_view text) { return absl::StrCat("\"", absl::CHexEscape(text), "\""); }

// The path of an address, or "".
std::string PathOf(absl::string_view address) {
  if (!absl::ConsumePrefix(&address, "unix:") || !absl::StartsWith(address, "/") || address.size() > kUnixPathMax) return "";
  return std::string(address);
}

class ControllerReader {
 public:
  void TakeFile(const toml::table& file, const std::string& name) {
    for (auto&& [section, keys] : file) {
      const std::string of(section.str());
      if (!keys.is_table() || (of != "controller" && of != "log" && of != "nodes")) {
        Note(Place(name, section.source()), of, "unknown", "the sections [controller], [log], [nodes]");
        continue;
      }
      for (auto&& [key, value] : *keys.as_table()) {
        const std::string at = Place(name, key.source());
        const auto* text = value.as_string();
        if (text == nullptr) {
          Note(at, absl::StrCat(of, ".", std::string(key.str())), "no string", "a string");
        } else if (of == "nodes") {
          TakeNode(at, std::string(key.str()), text->get());
        } else {
          TakeKey(at, of, std::string(key.str()), text->get());
        }
      }
    }
  }

  void TakeNode(const std::string& at, const std::string& name, const std::string& address) {
    const std::string path = PathOf(address);
    if (!controller::IsNodeName(name)) {
      Note(at, absl::StrCat("nodes.", absl::CHexEscape(name)), "the name", controller::kNodeNameAllowed);
    } else if (path.empty()) {
      Note(at, absl::StrCat("nodes.", name), InQuotes(address), kAddressAllowed);
    } else {
      nodes_[name] = path;
    }
  }

  void NoteText(const std::string& error) { errors_.push_back(error); }

  void Note(const std::string& at, const std::string& what, const std::string& found, absl::string_view allowed) {
    errors_.push_back(absl::StrCat(at, ": ", what, ": ", found, "; allowed: ", allowed));
  }

  absl::StatusOr<ControllerOptions> Finish() {
    if (nodes_.empty() && errors_.empty()) errors_.push_back("nodes: there are none; name them under [nodes], or by --node");
    if (!errors_.empty()) return absl::InvalidArgumentError(absl::StrJoin(errors_, "\n"));
    for (const auto& [name, path] : nodes_) options_.nodes.push_back({name, path});
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
      return Note(at, full, "unknown", section == "log" ? "level, format" : "socket, socket_mode, socket_group");
    }
    Options of_kvistd;
    of_kvistd.log = options_.log;
    of_kvistd.admin = {options_.socket, options_.socket_mode, options_.socket_group};
    if (!row->assign({text, InQuotes(text)}, &of_kvistd) || !row->holds(of_kvistd))
      return Note(at, full, InQuotes(text), row->allowed);
    options_.log = of_kvistd.log;
    options_.socket = of_kvistd.admin.socket;
    options_.socket_mode = of_kvistd.admin.socket_mode;
    options_.socket_group = of_kvistd.admin.socket_group;
  }

  ControllerOptions options_;
  std::map<std::string, std::string> nodes_;
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
    std::ifstream in(file);
    if (!in) return ErrnoStatus(absl::StrCat("can't read the configuration ", file), errno);
    text.assign(std::istreambuf_iterator<char>(in), {});
  }
  return ParseControllerOptions(text, file, nodes);
}

}  // namespace kvist::daemon

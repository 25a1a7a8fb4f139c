#include "daemon/ctl/completion.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "daemon/ctl/option_tree.h"
#include "storage/base/check.h"

namespace kvist::ctl {
namespace {

// Also of several, PATH[:PATH..].
bool IsPath(const OptionFacts& option) { return absl::StartsWith(option.value, "PATH") || option.value == "FILE"; }

// Names of options and commands, and values of positionals: all that may stand next.
std::vector<std::string> Words(const CommandFacts& command) {
  std::vector<std::string> words;
  for (const CommandFacts& next : command.commands) words.push_back(next.name);
  for (const OptionFacts& option : command.options) {
    const std::vector<std::string>& add = option.positional ? option.choices : option.names;
    words.insert(words.end(), add.begin(), add.end());
  }
  return words;
}

// Calls `each(words, command, above)` for every command below this one, whatever its depth: the words that name it ("pins add"), and the
// commands that it stands behind, the program first.
template <class Each>
void ForEachCommand(const CommandFacts& from, const std::string& words, std::vector<const CommandFacts*> above,
                    const Each& each) {
  above.push_back(&from);
  for (const CommandFacts& command : from.commands) {
    const std::string named = absl::StrCat(words, words.empty() ? "" : " ", command.name);
    each(named, command, above);
    ForEachCommand(command, named, above, each);
  }
}

// The options that may stand behind a command: its own, and those of all that it stands behind.
std::vector<OptionFacts> OptionsOf(const CommandFacts& command, const std::vector<const CommandFacts*>& above) {
  std::vector<OptionFacts> options = command.options;
  for (auto outer = above.rbegin(); outer != above.rend(); ++outer) {
    for (const OptionFacts& option : (*outer)->options) {
      const bool known = std::any_of(options.begin(), options.end(), [&](const auto& o) { return o.names == option.names; });
      if (!option.positional && !known) options.push_back(option);
    }
  }
  return options;
}

// Every option with a value, of the program and of all its commands.
std::vector<OptionFacts> Valued(const CommandFacts& program) {
  std::vector<OptionFacts> valued;
  const auto add = [&](const CommandFacts& command) {
    for (const OptionFacts& option : command.options) {
      const bool known = std::any_of(valued.begin(), valued.end(), [&](const auto& o) { return o.names == option.names; });
      if (option.takes_value && !option.positional && !known) valued.push_back(option);
    }
  };
  add(program);
  ForEachCommand(program, "", {}, [&](const std::string&, const CommandFacts& command, const auto&) { add(command); });
  return valued;
}

// One pass over the words so far follows them into the tree: what has been found is `command`, "pins add", and where a word leads is one
// line of each case.
std::string Bash(const CommandFacts& program) {
  std::string steps, skips, values, words;
  for (const CommandFacts& command : program.commands)
    absl::StrAppend(&steps, "      \":", command.name, "\") command='", command.name, "' ;;\n");
  for (const OptionFacts& option : Valued(program)) {
    const std::string pattern = absl::StrJoin(option.names, "|");
    absl::StrAppend(&skips, skips.empty() ? "" : "|", pattern);
    const std::string reply =
        !option.choices.empty()
            ? absl::StrCat("COMPREPLY=($(compgen -W '", absl::StrJoin(option.choices, " "), "' -- \"$cur\"))")
        : IsPath(option) ? "compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- \"$cur\")"
                         : "COMPREPLY=()";
    absl::StrAppend(&values, "    ", pattern, ") ", reply, "; return ;;\n");
  }
  ForEachCommand(program, "", {}, [&](const std::string& named, const CommandFacts& command, const auto& above) {
    std::vector<std::string> all = Words(command);
    for (const OptionFacts& option : OptionsOf(command, above)) {
      const bool known = option.positional || std::find(all.begin(), all.end(), option.names[0]) != all.end();
      if (!known) all.insert(all.end(), option.names.begin(), option.names.end());
    }
    absl::StrAppend(&words, "    '", named, "') words='", absl::StrJoin(all, " "), "' ;;\n");
    for (const CommandFacts& inner : command.commands)
      absl::StrAppend(&steps, "      \"", named, ":", inner.name, "\") command='", named, " ", inner.name, "' ;;\n");
  });
  const std::string& p = program.name;
  std::string script =
      absl::StrCat("# bash completion of ", p, ", made by `", p, " completion bash`\n_", p, "() {\n",
                   "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} command= words i\n",
                   "  for ((i = 1; i < COMP_CWORD; i++)); do\n");
  if (!skips.empty())
    absl::StrAppend(&script, "    case ${COMP_WORDS[i]} in\n      ", skips, ") ((i++)); continue ;;\n    esac\n");
  if (!steps.empty()) absl::StrAppend(&script, "    case $command:${COMP_WORDS[i]} in\n", steps, "    esac\n");
  absl::StrAppend(&script, "  done\n  case $prev in\n", values, "  esac\n  case $command in\n", words, "    *) words='",
                  absl::StrJoin(Words(program), " "),
                  "' ;;\n  esac\n  COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n}\n", "complete -F _", p, " ", p, "\n");
  return script;
}

// Of those that stand behind a command.
std::string CommandNames(const CommandFacts& command) {
  return absl::StrJoin(command.commands, " ",
                       [](std::string* out, const CommandFacts& inner) { absl::StrAppend(out, inner.name); });
}

// For single quotes in zsh's _arguments, where brackets and colons mean something.
std::string ZshText(const std::string& text) {
  return absl::StrReplaceAll(text, {{"'", "'\\''"}, {"[", "\\["}, {"]", "\\]"}, {":", "\\:"}});
}

std::string ZshArguments(const std::vector<OptionFacts>& options, const std::string& indent) {
  std::string lines;
  for (const OptionFacts& option : options) {
    const std::string action = !option.choices.empty() ? absl::StrCat("(", absl::StrJoin(option.choices, " "), ")")
                               : IsPath(option)        ? "_files"
                                                       : " ";
    if (option.positional) {
      absl::StrAppend(&lines, indent, "'1:", ZshText(option.names[0]), ":", action, "' \\\n");
      continue;
    }
    const std::string value = option.takes_value ? absl::StrCat(":", ZshText(option.value), ":", action) : "";
    for (const std::string& name : option.names)
      absl::StrAppend(&lines, indent, "'", name, "[", ZshText(option.description), "]", value, "' \\\n");
  }
  return lines;
}

// The branches of a `case` for the commands behind `from`, each with its own options and those above it.
std::string ZshBranches(const CommandFacts& from, std::vector<const CommandFacts*> above, const std::string& indent) {
  above.push_back(&from);
  std::string script;
  for (const CommandFacts& command : from.commands) {
    absl::StrAppend(&script, indent, command.name, ") _arguments ", command.commands.empty() ? "" : "-C ", "\\\n");
    const std::string deeper = indent + "  ";
    if (!command.commands.empty())
      absl::StrAppend(&script, deeper, "'1:command:(", CommandNames(command), ")' \\\n", deeper,
                      "'*::argument:->inner' \\\n");
    absl::StrAppend(&script, ZshArguments(OptionsOf(command, above), deeper), deeper);
    if (!command.commands.empty()) {
      absl::StrAppend(&script, "&& return\n", deeper, "[[ $state == inner ]] && case $words[1] in\n",
                      ZshBranches(command, above, deeper + "  "), deeper, "esac\n", deeper);
    }
    absl::StrAppend(&script, ";;\n");
  }
  return script;
}

std::string Zsh(const CommandFacts& program) {
  const std::string& p = program.name;
  std::string script = absl::StrCat("#compdef ", p, "\n# zsh completion, made by `", p, " completion zsh`\n_", p, "() {\n",
                                    "  local state line\n  local -a commands\n  commands=(\n");
  for (const CommandFacts& command : program.commands)
    absl::StrAppend(&script, "    '", command.name, ":", ZshText(command.description), "'\n");
  absl::StrAppend(&script, "  )\n  _arguments -C \\\n", ZshArguments(program.options, "    "),
                  "    '1:command:->command' \\\n    '*::argument:->argument'\n  case $state in\n",
                  "    command) _describe command commands ;;\n    argument)\n      case $words[1] in\n",
                  ZshBranches(program, {}, "        "), "      esac ;;\n  esac\n}\n_", p, " \"$@\"\n");
  return script;
}

std::string FishText(const std::string& text) { return absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"'", "\\'"}}); }

std::string FishOptions(const std::vector<OptionFacts>& options, const std::string& start) {
  std::string lines;
  for (const OptionFacts& option : options) {
    if (option.positional) {
      absl::StrAppend(&lines, start, " -a '", absl::StrJoin(option.choices, " "), "'\n");
      continue;
    }
    absl::StrAppend(&lines, start);
    for (const std::string& name : option.names)
      absl::StrAppend(&lines, name[1] == '-' ? " -l " : " -s ", name.substr(name[1] == '-' ? 2 : 1));
    if (option.takes_value) absl::StrAppend(&lines, IsPath(option) ? " -r -F" : " -x");
    if (!option.choices.empty()) absl::StrAppend(&lines, " -a '", absl::StrJoin(option.choices, " "), "'");
    absl::StrAppend(&lines, " -d '", FishText(option.description), "'\n");
  }
  return lines;
}

std::string Fish(const CommandFacts& program) {
  const std::string start = absl::StrCat("complete -c ", program.name);
  std::string script = absl::StrCat("# fish completion, made by `", program.name, " completion fish`\n", start, " -f\n");
  for (const CommandFacts& command : program.commands) {
    absl::StrAppend(&script, start, " -n __fish_use_subcommand -a ", command.name, " -d '", FishText(command.description),
                    "'\n");
  }
  absl::StrAppend(&script, FishOptions(program.options, start));
  ForEachCommand(program, "", {}, [&](const std::string&, const CommandFacts& command, const auto& above) {
    // All that it stands behind has been typed, the program apart, and none of what stands behind it.
    std::string seen;
    const auto add = [&](const std::string& names, bool so) {
      absl::StrAppend(&seen, seen.empty() ? "" : "; and ", so ? "" : "not ", "__fish_seen_subcommand_from ", names);
    };
    for (size_t i = 1; i < above.size(); ++i) add(above[i]->name, true);
    add(command.name, true);
    absl::StrAppend(&script, FishOptions(command.options, absl::StrCat(start, " -n '", seen, "'")));
    if (command.commands.empty()) return;
    add(CommandNames(command), false);
    absl::StrAppend(&script, start, " -n '", seen, "' -a '", CommandNames(command), "'\n");
  });
  return script;
}

}  // namespace

std::string Completion(const CLI::App& app, absl::string_view shell) {
  const CommandFacts program = FactsOf(app);
  if (shell == "bash") return Bash(program);
  if (shell == "zsh") return Zsh(program);
  KVIST_CHECK(shell == "fish");
  return Fish(program);
}

}  // namespace kvist::ctl

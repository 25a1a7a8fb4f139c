#include "daemon/ctl/completion.h"

#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "daemon/ctl/option_tree.h"
#include "storage/base/check.h"

namespace kvist::ctl {
namespace {

bool IsPath(const OptionFacts& option) { return option.value == "PATH" || option.value == "FILE"; }

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

// Every option with a value, of the program and of its commands.
std::vector<OptionFacts> Valued(const CommandFacts& program) {
  std::vector<OptionFacts> valued;
  const auto add = [&](const CommandFacts& command) {
    for (const OptionFacts& option : command.options) {
      if (option.takes_value && !option.positional) valued.push_back(option);
    }
  };
  add(program);
  for (const CommandFacts& command : program.commands) add(command);
  return valued;
}

std::string Bash(const CommandFacts& program) {
  std::string names, skips, values, words;
  for (const CommandFacts& command : program.commands) absl::StrAppend(&names, names.empty() ? "" : "|", command.name);
  for (const OptionFacts& option : Valued(program)) {
    const std::string pattern = absl::StrJoin(option.names, "|");
    absl::StrAppend(&skips, skips.empty() ? "" : "|", pattern);
    const std::string reply = !option.choices.empty() ? absl::StrCat("COMPREPLY=($(compgen -W '",
                                                                     absl::StrJoin(option.choices, " "), "' -- \"$cur\"))")
                              : IsPath(option) ? "compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen -f -- \"$cur\"))"
                                               : "COMPREPLY=()";
    absl::StrAppend(&values, "    ", pattern, ") ", reply, "; return ;;\n");
  }
  for (const CommandFacts& command : program.commands) {
    std::vector<std::string> all = Words(command);
    for (const OptionFacts& option : program.options) all.insert(all.end(), option.names.begin(), option.names.end());
    absl::StrAppend(&words, "    ", command.name, ") words='", absl::StrJoin(all, " "), "' ;;\n");
  }
  const std::string& p = program.name;
  std::string script =
      absl::StrCat("# bash completion of ", p, ", made by `", p, " completion bash`\n_", p, "() {\n",
                   "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} command= words i\n",
                   "  for ((i = 1; i < COMP_CWORD; i++)); do\n    case ${COMP_WORDS[i]} in\n");
  if (!skips.empty()) absl::StrAppend(&script, "      ", skips, ") ((i++)) ;;\n");
  if (!names.empty()) absl::StrAppend(&script, "      ", names, ") command=${COMP_WORDS[i]}; break ;;\n");
  absl::StrAppend(&script, "    esac\n  done\n  case $prev in\n", values, "  esac\n  case $command in\n", words,
                  "    *) words='", absl::StrJoin(Words(program), " "),
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

std::string Zsh(const CommandFacts& program) {
  const std::string& p = program.name;
  std::string script = absl::StrCat("#compdef ", p, "\n# zsh completion, made by `", p, " completion zsh`\n_", p, "() {\n",
                                    "  local state line\n  local -a commands\n  commands=(\n");
  for (const CommandFacts& command : program.commands)
    absl::StrAppend(&script, "    '", command.name, ":", ZshText(command.description), "'\n");
  absl::StrAppend(&script, "  )\n  _arguments -C \\\n", ZshArguments(program.options, "    "),
                  "    '1:command:->command' \\\n    '*::argument:->argument'\n  case $state in\n",
                  "    command) _describe command commands ;;\n    argument)\n      case $words[1] in\n");
  for (const CommandFacts& command : program.commands) {
    const std::string inner =
        command.commands.empty() ? "" : absl::StrCat("          '1:command:(", CommandNames(command), ")' \\\n");
    absl::StrAppend(&script, "        ", command.name, ") _arguments \\\n", inner,
                    ZshArguments(command.options, "          "), ZshArguments(program.options, "          "),
                    "          ;;\n");
  }
  absl::StrAppend(&script, "      esac ;;\n  esac\n}\n_", p, " \"$@\"\n");
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
  for (const CommandFacts& command : program.commands) {
    const std::string behind = absl::StrCat(start, " -n '__fish_seen_subcommand_from ", command.name, "'");
    if (!command.commands.empty()) absl::StrAppend(&script, behind, " -a '", CommandNames(command), "'\n");
    absl::StrAppend(&script, FishOptions(command.options, behind));
  }
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

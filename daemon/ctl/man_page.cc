#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "daemon/ctl/completion.h"
#include "daemon/ctl/option_tree.h"

namespace kvist::ctl {
namespace {

// `text` as roff shows it, whatever it begins with.
std::string Roff(const std::string& text) {
  std::string shown = absl::StrReplaceAll(text, {{"\\", "\\e"}, {"-", "\\-"}});
  if (!shown.empty() && (shown[0] == '.' || shown[0] == '\'')) shown.insert(0, "\\&");
  return shown;
}

std::string Synopsis(const OptionFacts& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.names) names.push_back(absl::StrCat("\\fB", Roff(name), "\\fR"));
  std::string text = absl::StrJoin(names, ", ");
  if (option.takes_value && !option.positional) absl::StrAppend(&text, " \\fI", Roff(option.value), "\\fR");
  if (!option.choices.empty()) absl::StrAppend(&text, " (", Roff(absl::StrJoin(option.choices, ", ")), ")");
  return text;
}

std::string Options(const std::vector<OptionFacts>& options) {
  std::string text;
  for (const OptionFacts& option : options)
    absl::StrAppend(&text, ".TP\n", Synopsis(option), "\n", Roff(option.description), "\n");
  return text;
}

// Each command, and after it those that stand behind it, by all their words.
std::string Commands(const std::vector<CommandFacts>& commands, const std::string& before = "") {
  std::string text;
  for (const CommandFacts& command : commands) {
    absl::StrAppend(&text, ".SS ", Roff(before + command.name), "\n", Roff(command.description), "\n",
                    Options(command.options), Commands(command.commands, absl::StrCat(before, command.name, " ")));
  }
  return text;
}

std::string Footer(const std::string& footer) {
  constexpr absl::string_view kExit = "exit status: ";
  std::string text, notes;
  for (const absl::string_view line : absl::StrSplit(footer, '\n', absl::SkipWhitespace())) {
    if (!absl::StartsWith(line, kExit)) {
      absl::StrAppend(&notes, Roff(std::string(line)), "\n.br\n");
      continue;
    }
    absl::StrAppend(&text, ".SH EXIT STATUS\n");
    for (const absl::string_view one : absl::StrSplit(line.substr(kExit.size()), "; ")) {
      const size_t blank = one.find(' ');
      absl::StrAppend(&text, ".TP\n.B ", one.substr(0, blank), "\n",
                      Roff(std::string(blank == absl::string_view::npos ? one : one.substr(blank + 1))), "\n");
    }
  }
  if (!notes.empty()) absl::StrAppend(&text, ".SH NOTES\n", notes);
  return text;
}

}  // namespace

std::string ManPage(const CLI::App& app, int section) {
  const CommandFacts program = FactsOf(app);
  std::string text =
      absl::StrCat(".TH ", absl::AsciiStrToUpper(program.name), " ", section, " \"\" \"kvist ", KVIST_VERSION,
                   "\"\n.SH NAME\n", program.name, " \\- ", Roff(program.description), "\n.SH SYNOPSIS\n.B ", program.name,
                   "\n[\\fIoptions\\fR]", program.commands.empty() ? "" : " \\fIcommand\\fR [\\fIoptions\\fR]", "\n");
  if (!program.commands.empty()) { absl::StrAppend(&text, ".SH COMMANDS\n", Commands(program.commands)); }
  absl::StrAppend(&text, ".SH OPTIONS\n", Options(program.options), Footer(app.get_footer()));
  return absl::StrCat(text, ".SH SEE ALSO\n", section == 8 ? ".BR kvistctl (1)\n" : ".BR kvistd (8)\n");
}

}  // namespace kvist::ctl

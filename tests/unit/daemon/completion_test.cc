#include "daemon/ctl/completion.h"

#include <stdio.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "daemon/ctl/commands.h"
#include "tests/support/temp_dir.h"

namespace kvist::ctl {
namespace {

using Catch::Contains;

std::string Kvistctl(std::vector<std::string> arguments) {
  std::ostringstream out, err;
  const Terminal terminal{.out = out, .err = err, .ask = nullptr};
  INFO(err.str());
  REQUIRE(Run(arguments, terminal) == kOk);
  return out.str();
}

std::string OutputOf(const std::string& command) {
  FILE* pipe = ::popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string out;
  char buffer[4096];
  for (size_t n = 0; (n = ::fread(buffer, 1, sizeof buffer, pipe)) > 0;) out.append(buffer, n);
  CHECK(::pclose(pipe) == 0);
  return out;
}

// What bash offers when these words have been typed, the last of them being completed.
std::vector<std::string> BashOffers(const std::vector<std::string>& words) {
  test::TempDir dir;
  std::ofstream(dir / "completion") << Kvistctl({"completion", "bash"});
  std::string line = absl::StrCat("source ", dir / "completion", "; COMP_WORDS=(");
  for (const std::string& word : words) absl::StrAppend(&line, "'", word, "' ");
  absl::StrAppend(&line, "); COMP_CWORD=", words.size() - 1, "; _kvistctl; printf \"%s\\n\" \"${COMPREPLY[@]}\"");
  std::ofstream(dir / "script") << line << "\n";
  std::vector<std::string> offers = absl::StrSplit(OutputOf(absl::StrCat("bash ", dir / "script")), '\n', absl::SkipEmpty());
  std::sort(offers.begin(), offers.end());
  return offers;
}

// The commands that --help lists: another way through the same tree.
std::vector<std::string> Commands() {
  const std::string help = Kvistctl({"--help"});
  std::vector<std::string> commands;
  std::istringstream lines(help.substr(help.find("Subcommands:")));
  std::string line;
  std::getline(lines, line);
  while (std::getline(lines, line) && line.rfind("  ", 0) == 0) {
    if (line[2] != ' ') commands.push_back(line.substr(2, line.find(' ', 2) - 2));
  }
  std::sort(commands.begin(), commands.end());
  return commands;
}

TEST_CASE("bash completion offers every command, and only these where a word has begun") {
  const std::vector<std::string> commands = Commands();
  REQUIRE(commands.size() >= 7);
  const std::vector<std::string> offers = BashOffers({"kvistctl", ""});
  for (const std::string& command : commands) {
    INFO(command);
    CHECK(std::count(offers.begin(), offers.end(), command) == 1);
  }
  CHECK(BashOffers({"kvistctl", "st"}) == std::vector<std::string>{"status"});
  CHECK(BashOffers({"kvistctl", "--socket", "/x", "cl"}) == std::vector<std::string>{"clear"});
}

TEST_CASE("bash completion offers a command's options, and an option's values") {
  CHECK(BashOffers({"kvistctl", "clear", "--s"}) == std::vector<std::string>{"--salt", "--socket", "--space"});
  CHECK(BashOffers({"kvistctl", "status", "--sp"}).empty());
  CHECK(BashOffers({"kvistctl", "status", "-o", ""}) == std::vector<std::string>{"json", "table"});
  CHECK(BashOffers({"kvistctl", "-o", "json", "top", "--on"}) == std::vector<std::string>{"--once"});
  CHECK(BashOffers({"kvistctl", "completion", "f"}) == std::vector<std::string>{"fish"});
  CHECK(BashOffers({"kvistctl", "--timeout", ""}).empty());
}

TEST_CASE("bash completion follows commands into commands") {
  CHECK(BashOffers({"kvistctl", "pins", "a"}) == std::vector<std::string>{"add"});
  CHECK(BashOffers({"kvistctl", "pins", "add", "--ow"}) == std::vector<std::string>{"--owner"});
  CHECK(BashOffers({"kvistctl", "pins", "add", "--fo"}) == std::vector<std::string>{"--for"});
  CHECK(BashOffers({"kvistctl", "pins", "add", "--owner", "me", "--so"}) == std::vector<std::string>{"--socket"});
  const std::vector<std::string> behind = BashOffers({"kvistctl", "-o", "json", "pins", "add", ""});
  for (const char* wrong : {"add", "list", "remove"}) CHECK(std::count(behind.begin(), behind.end(), wrong) == 0);
  CHECK(std::count(behind.begin(), behind.end(), "--owner") == 1);
  CHECK(BashOffers({"kvistctl", "pins", "list", "--ow"}).empty());
  CHECK(BashOffers({"kvistctl", "pins", "--owner", ""}).empty());  // any name
  // A word that is a command elsewhere is none behind another.
  CHECK(BashOffers({"kvistctl", "quota", "set", "top", "--on"}).empty());
}

TEST_CASE("bash completion offers files for paths, also where several may be given") {
  test::TempDir dir;
  std::ofstream(dir / "here") << "x";
  CHECK(BashOffers({"kvistctl", "fsck", "--path", dir / "he"}) == std::vector<std::string>{dir / "here"});
  CHECK(BashOffers({"kvistctl", "--socket", dir / "he"}) == std::vector<std::string>{dir / "here"});
}

TEST_CASE("zsh and fish know the options of commands behind commands") {
  const std::string zsh = Kvistctl({"completion", "zsh"}), fish = Kvistctl({"completion", "fish"});
  const size_t pins = zsh.find("\n        pins) _arguments -C \\\n");
  REQUIRE(pins != std::string::npos);
  const size_t add = zsh.find("\n            add) _arguments \\\n", pins);
  REQUIRE(add != std::string::npos);
  CHECK(zsh.find("'--owner[", add) < zsh.find(";;\n", add));
  CHECK(zsh.find("'--path[", 0) != std::string::npos);
  CHECK_THAT(fish,
             Contains("complete -c kvistctl -n '__fish_seen_subcommand_from pins; and __fish_seen_subcommand_from add' -l "
                      "owner "));
  CHECK_THAT(fish, Contains("complete -c kvistctl -n '__fish_seen_subcommand_from fsck' -l path -r -F "));
}

TEST_CASE("The manual page and all completions know every command") {
  const std::string man = Kvistctl({"man"});
  const std::string zsh = Kvistctl({"completion", "zsh"}), fish = Kvistctl({"completion", "fish"});
  for (const std::string& command : Commands()) {
    INFO(command);
    CHECK_THAT(man, Contains(absl::StrCat(".SS ", absl::StrReplaceAll(command, {{"-", "\\-"}}), "\n")));
    CHECK_THAT(zsh, Contains(absl::StrCat("'", command, ":")));
    CHECK_THAT(fish, Contains(absl::StrCat("-a ", command, " ")));
  }
  for (const char* inner :
       {"jobs list", "jobs cancel", "jobs watch", "quota list", "quota set", "quota unset", "pins list", "pins remove"}) {
    INFO(inner);
    CHECK_THAT(man, Contains(absl::StrCat(".SS ", inner, "\n")));
  }
  CHECK(BashOffers({"kvistctl", "jobs", "c"}) == std::vector<std::string>{"cancel"});
  CHECK_THAT(zsh, Contains("jobs) _arguments -C \\\n          '1:command:(list cancel watch)' \\\n"));
  CHECK_THAT(
      fish,
      Contains("complete -c kvistctl -n '__fish_seen_subcommand_from quota; and not __fish_seen_subcommand_from list set "
               "unset' -a 'list set unset'\n"));
  CHECK_THAT(man, Catch::StartsWith(".TH KVISTCTL 1 "));
  CHECK_THAT(man, Contains(".SH EXIT STATUS\n.TP\n.B 0\ndone"));
  CHECK_THAT(man, Contains("\\fB\\-o\\fR, \\fB\\-\\-output\\fR \\fIFORMAT\\fR (json, table)") ||
                      Contains("\\fB\\-o\\fR, \\fB\\-\\-output\\fR \\fIFORMAT\\fR (table, json)"));
}

TEST_CASE("ManPage lets no text of an option be a request of roff") {
  bool given = false;
  CLI::App app("Does it.", "thing");
  app.add_flag("--first", given, ".so /etc/passwd \\n");
  CHECK_THAT(ManPage(app, 8), Contains("\n\\&.so /etc/passwd \\en\n"));
}

}  // namespace
}  // namespace kvist::ctl

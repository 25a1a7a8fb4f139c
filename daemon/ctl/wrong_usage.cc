#include "daemon/ctl/wrong_usage.h"

#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "storage/base/did_you_mean.h"

namespace kvist::ctl {

std::string WrongUsage(const CLI::App* app, const CLI::Error& error) {
  std::string said = app->get_name();
  const CLI::App* at = app;  // whose command is missing
  while (!at->get_subcommands().empty()) {
    at = at->get_subcommands().front();
    absl::StrAppend(&said, " ", at->get_name());
  }
  std::vector<absl::string_view> commands;
  for (const CLI::App* command : at->get_subcommands([](const CLI::App*) { return true; }))
    commands.push_back(command->get_name());
  const std::vector<std::string> words = app->remaining(/*recurse=*/true);
  const auto kind = static_cast<CLI::ExitCodes>(error.get_exit_code());  // an ExtrasError's name is that of the program
  const bool none_given = kind == CLI::ExitCodes::RequiredError && at->get_require_subcommand_min() > 0;
  const bool word = !words.empty() && !absl::StartsWith(words[0], "-");
  if (!(none_given || kind == CLI::ExitCodes::ExtrasError) || (word && commands.empty()))
    return CLI::FailureMessage::simple(app, error);
  if (words.empty()) {
    absl::StrAppend(&said, ": a command is missing");
  } else if (!word) {
    absl::StrAppend(&said, ": ", words[0], ": no such option");
  } else {
    absl::StrAppend(&said, ": ", words[0], ": no such command", DidYouMean(words[0], commands));
  }
  if (words.empty() || word) absl::StrAppend(&said, "; there are: ", absl::StrJoin(commands, ", "));
  return absl::StrCat(said, "\nRun with --help for more information.\n");
}

}  // namespace kvist::ctl

#ifndef KVIST_DAEMON_CTL_OPTION_TREE_H_
#define KVIST_DAEMON_CTL_OPTION_TREE_H_

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace kvist::ctl {

// One option of a CLI::App, as completion and manual pages want it.
struct OptionFacts {
  std::vector<std::string> names;  // with their dashes, short ones first; a positional's only name has none
  bool positional = false;
  bool takes_value = false;
  std::string value;                 // what it is called: PATH, DURATION
  std::vector<std::string> choices;  // all values, when they are few
  std::string description;
};

// A program or one of its commands.
struct CommandFacts {
  std::string name;
  std::string description;
  std::vector<OptionFacts> options;
  std::vector<CommandFacts> commands;
};

inline OptionFacts FactsOf(const CLI::Option& option) {
  OptionFacts facts;
  for (const std::string& name : option.get_snames()) facts.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) facts.names.push_back("--" + name);
  facts.positional = facts.names.empty();
  if (facts.positional) facts.names.push_back(option.get_name());
  facts.takes_value = option.get_items_expected_max() > 0;
  facts.description = option.get_description();
  // CLI11 says "FORMAT:{json,table}" of an option that must be one of these.
  facts.value = option.get_type_name();
  const size_t open = facts.value.find(":{");
  if (open != std::string::npos) {
    const std::string inside = facts.value.substr(open + 2, facts.value.rfind('}') - open - 2);
    facts.choices = absl::StrSplit(inside, ',');
    facts.value.erase(open);
  }
  return facts;
}

inline CommandFacts FactsOf(const CLI::App& app) {
  CommandFacts facts{app.get_name(), app.get_description(), {}, {}};
  for (const CLI::Option* option : app.get_options()) facts.options.push_back(FactsOf(*option));
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    facts.commands.push_back(FactsOf(*command));
  return facts;
}

}  // namespace kvist::ctl

#endif  // KVIST_DAEMON_CTL_OPTION_TREE_H_

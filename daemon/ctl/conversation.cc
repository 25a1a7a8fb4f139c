#include "daemon/ctl/conversation.h"

#include <cstdlib>
#include <ostream>

#include "daemon/ctl/human.h"
#include "daemon/ctl/prompt_file.h"
#include "daemon/ctl/table.h"

namespace kvist::ctl {

bool Conversation::Confirmed(const std::string& question) const {
  if (arguments_.yes) return true;
  const std::optional<std::string> answer = terminal_.ask(question);
  if (answer == "y" || answer == "Y" || answer == "yes") return true;
  terminal_.err << (answer ? "kvistctl: nothing was cleared\n"
                           : "kvistctl: clear: nobody can be asked here; add --yes to clear without a question\n");
  return false;
}

std::string Conversation::InTier() const { return arguments_.tier.empty() ? "" : absl::StrCat(" in ", arguments_.tier); }

std::string Conversation::WhatItCosts() const {
  return arguments_.tier.empty() ? "Engines will compute them again." : "What lies nowhere else engines will compute again.";
}

std::string Conversation::HowCleared() const {
  return arguments_.tier.empty() ? "cleared, with what hangs on it"
                                 : absl::StrCat("cleared as far as it is in ", arguments_.tier);
}

absl::StatusOr<node::v1::Prompt> Conversation::ReadPrompt() const {
  absl::StatusOr<node::v1::Prompt> prompt =
      arguments_.keys.empty() ? ReadTokens(arguments_.tokens) : ReadKeys(arguments_.keys);
  if (!prompt.ok()) {
    terminal_.err << "kvistctl: " << (arguments_.keys.empty() ? "--tokens: " : "--keys: ") << prompt.status().message()
                  << "\n";
    return prompt;
  }
  prompt->set_salt(arguments_.salt);
  prompt->set_lora(arguments_.lora);
  return prompt;
}

std::string Conversation::Late(absl::Duration time) const {
  return absl::StrCat(arguments_.target.program, " at ", arguments_.target.text(), " didn't answer within ",
                      HumanDuration(Timeout(time)));
}

ExitCode Conversation::Fail(const absl::Status& why, absl::Duration time, absl::string_view note_when_late) const {
  const std::string whom = arguments_.target.program + " at " + arguments_.target.text();
  if (absl::IsDeadlineExceeded(why)) {
    terminal_.err << "kvistctl: " << Late(time) << note_when_late << "; --timeout gives it longer\n";
    return kUnavailable;
  }
  if (absl::IsUnavailable(why)) {
    terminal_.err << "kvistctl: " << whom << (arguments_.target.address.is_tls() ? " isn't reached: " : " went away: ")
                  << PrintableLines(why.message()) << "\n";
    return kUnavailable;
  }
  terminal_.err << "kvistctl: " << PrintableLines(why.message()) << "\n";
  return kRefused;
}

ExitCode Conversation::NotReached(const absl::Status& why) const {
  terminal_.err << "kvistctl: " << PrintableLines(why.message()) << "\n";
  return absl::IsInvalidArgument(why) ? kUsage : kUnavailable;  // the files for TLS
}

bool Conversation::HasScreen() const {
  const char* kind = std::getenv("TERM");
  return terminal_.size && terminal_.size().has_value() && (kind == nullptr || std::string(kind) != "dumb");
}

bool Conversation::HasColours() const {
  const char* none = std::getenv("NO_COLOR");
  return HasScreen() && (none == nullptr || none[0] == '\0');
}

size_t Conversation::Columns() const {
  const std::optional<Terminal::Size> size = terminal_.size ? terminal_.size() : std::nullopt;
  return size.has_value() ? size->columns : SIZE_MAX;
}

}  // namespace kvist::ctl

#ifndef KVIST_DAEMON_CTL_CONVERSATION_H_
#define KVIST_DAEMON_CTL_CONVERSATION_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/ctl/arguments.h"
#include "daemon/ctl/commands.h"
#include "daemon/ctl/render.h"

namespace kvist::ctl {

// What all commands have in common, whomever they ask: the user's confirmation, prompts from files, replies and errors on the terminal.
class Conversation {
 public:
  // Borrows both.
  Conversation(const Arguments& arguments, const Terminal& terminal) : arguments_(arguments), terminal_(terminal) {}

 protected:
  // Whether the user wants it, who has said so or is asked; else says why nothing is done.
  bool Confirmed(const std::string& question) const;
  // Of a clear's question and its dry run: where, what comes of it, how.
  std::string InTier() const;
  std::string WhatItCosts() const;
  std::string HowCleared() const;
  // The prompt that the arguments name; else says why there is none, and it is wrong usage.
  absl::StatusOr<node::v1::Prompt> ReadPrompt() const;
  // Prints the reply, or says what is wrong. `time`: within which an answer was waited for, when the user didn't say.
  template <class Reply>
  ExitCode Print(const absl::StatusOr<Reply>& reply, absl::Duration time, absl::string_view note_when_late = "") const {
    if (!reply.ok()) return Fail(reply.status(), time, note_when_late);
    terminal_.out << (json() ? ToJson(*reply) : ToTable(*reply, Columns()));
    return kOk;
  }
  // Of a call that has failed.
  ExitCode Fail(const absl::Status& why, absl::Duration time, absl::string_view note_when_late = "") const;
  // That the daemon was late.
  std::string Late(absl::Duration time) const;
  // Of a target that can't be had.
  ExitCode NotReached(const absl::Status& why) const;

  // Whether the terminal, if there is one, moves its cursor, and whether its user wants colours: https://no-color.org.
  bool HasScreen() const;
  bool HasColours() const;

  bool json() const { return arguments_.output == "json"; }
  // How wide a table may be: as the terminal, if there is one.
  size_t Columns() const;
  absl::Duration Timeout(absl::Duration without_one) const { return arguments_.timeout.value_or(without_one); }

  const Arguments& arguments_;
  const Terminal& terminal_;
};

}  // namespace kvist::ctl

#endif  // KVIST_DAEMON_CTL_CONVERSATION_H_

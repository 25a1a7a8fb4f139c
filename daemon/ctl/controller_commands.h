#ifndef KVIST_DAEMON_CTL_CONTROLLER_COMMANDS_H_
#define KVIST_DAEMON_CTL_CONTROLLER_COMMANDS_H_

#include <string>

#include "daemon/ctl/controller_client.h"
#include "daemon/ctl/conversation.h"
#include "proto/controller.pb.h"

namespace kvist::ctl {

// kvistctl's commands by way of a controller: of the node that is named, or of all of them. Each says what every node has done; a change that
// some node has refused, or hasn't answered, is kRefused, also when others have made it.
class ControllerSession : private Conversation {
 public:
  using Conversation::Conversation;

  ExitCode Nodes();
  ExitCode QueryIp();
  ExitCode Lookup();
  ExitCode Clear();
  ExitCode Move();
  ExitCode Prefetch();
  ExitCode Compress();
  ExitCode Decompress();
  ExitCode ListJobs();
  ExitCode CancelJob();
  ExitCode WatchJob();
  ExitCode ListPins();
  ExitCode AddPin();
  ExitCode RemovePin();

 private:
  template <class Ask>
  ExitCode WithController(Ask ask);
  // A request about the prompt that the arguments name.
  template <class Request, class Ask>
  ExitCode WithPrompt(Ask ask);
  // Asks, and prints the answer.
  template <class Request>
  ExitCode Question(const Request& request);
  // Asks for jobs, waits for them one after the other, and prints how they ended. Or, for a dry run, says what is there of the prompt, which
  // would be `what`.
  template <class Request>
  ExitCode Change(const Request& request, const std::string& what);
  // Watches the job that has the id of `job` until it has ended, and puts it there; else says why not. `each`: -o json has a line for each step.
  ExitCode Watch(ControllerClient& controller, bool each, controller::v1::Job* job);
};

}  // namespace kvist::ctl

#endif  // KVIST_DAEMON_CTL_CONTROLLER_COMMANDS_H_

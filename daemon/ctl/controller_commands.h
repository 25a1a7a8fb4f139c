#ifndef KVIST_DAEMON_CTL_CONTROLLER_COMMANDS_H_
#define KVIST_DAEMON_CTL_CONTROLLER_COMMANDS_H_

#include <string>

#include "daemon/ctl/controller_client.h"
#include "daemon/ctl/conversation.h"
#include "proto/controller.pb.h"

namespace kvist::ctl {

// kvistctl's commands by way of a controller: of the node that is named, or of all of them. Each says what every node has done, and names on
// stderr those that haven't, with their reasons; no node hides what the others have done.
//   A question is kOk when a node has answered it; else kRefused when one has refused it, and kUnavailable when all are silent.
//   A change is kRefused when some node has refused it, hasn't answered or hasn't come to its end, also when others have made it; else
//   kUnavailable when a job goes on that isn't waited for any more.
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
  // The same of a change of one node that has no job.
  template <class Request>
  ExitCode ChangeAtOnce(const Request& request);
  // Asks for jobs, waits for all of them, and prints how they ended. Or, for a dry run, says what is there of the prompt, which would be `what`.
  template <class Request>
  ExitCode Change(const Request& request, const std::string& what);
  // Waits until all the jobs have ended, or have had their time, and puts how into `jobs`: each as it was last seen, and in `nodes` of whose
  // jobs something is wrong, and what.
  ExitCode WatchAll(ControllerClient& controller, controller::v1::JobsReply* jobs);
  // Watches the job that has the id of `job` until it has ended, and puts it there; else says why not.
  ExitCode Watch(ControllerClient& controller, controller::v1::Job* job);
  // Names on stderr those whose outcome isn't fine, each in a line.
  template <class Reply, class IsFine>
  void NameOthers(const Reply& reply, IsFine is_fine) const;
  // Of a call that has failed: in the words of the node, and with `of_node`, if a node has failed it and not the controller.
  ExitCode FailAt(const absl::Status& why, absl::Duration time, ExitCode of_node,
                  absl::string_view note_when_late = "") const;
};

}  // namespace kvist::ctl

#endif  // KVIST_DAEMON_CTL_CONTROLLER_COMMANDS_H_

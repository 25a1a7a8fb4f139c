#ifndef KVIST_DAEMON_CTL_NODE_COMMANDS_H_
#define KVIST_DAEMON_CTL_NODE_COMMANDS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/ctl/conversation.h"
#include "daemon/ctl/node_client.h"
#include "proto/node.pb.h"
#include "storage/base/units.h"

namespace kvist::ctl {

// kvistctl's commands that one kvistd does, or that look after its machine. Each does what the arguments say, prints what came of it, and returns
// the exit code.
class NodeSession : private Conversation {
 public:
  using Conversation::Conversation;

  ExitCode Status();
  ExitCode Ssd();
  ExitCode Sessions();
  ExitCode Reload();
  ExitCode Top();
  ExitCode Doctor();
  ExitCode Fsck();
  ExitCode Lookup();
  ExitCode Clear();  // of a prompt, when the arguments name one
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
  ExitCode ListQuotas();
  ExitCode SetQuota();
  ExitCode UnsetQuota();

 private:
  // What -o json prints while a job goes on, besides the job at its end.
  enum class Each { kNothing, kJsonLine };

  template <class Ask>
  ExitCode WithPrompt(Ask ask);
  template <class Ask>
  ExitCode WithNode(Ask ask);
  // Says what is there of a prompt, which would be `what`.
  ExitCode DryRun(node::v1::Prompt prompt, const std::string& what);
  ExitCode ClearSpaces();
  ExitCode ClearPrompt();
  ExitCode Recode(bool compress);
  ExitCode SetQuotaTo(Bytes bytes);  // none: it ends
  // Waits for a job to end, and shows meanwhile how far it is. `at_end`: what it was then goes there, and isn't printed.
  ExitCode Watch(NodeClient& node, uint64_t id, Each each, node::v1::Job* at_end = nullptr);
  // Waits for the jobs on a prompt, one after the other, as they run.
  ExitCode WatchAll(NodeClient& node, absl::StatusOr<node::v1::PromptJobsReply> jobs);
};

}  // namespace kvist::ctl

#endif  // KVIST_DAEMON_CTL_NODE_COMMANDS_H_

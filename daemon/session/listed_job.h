#ifndef KVIST_DAEMON_SESSION_LISTED_JOB_H_
#define KVIST_DAEMON_SESSION_LISTED_JOB_H_

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "daemon/core/events.h"
#include "daemon/core/jobs.h"
#include "daemon/core/space_spec.h"
#include "storage/base/ids.h"

namespace kvist::session {

// What an operator has asked for in a job, owned, so that a later daemon can ask for it again when this one ends before the job does.
struct AskedJob {
  // Without id, request, space and keys: they are the job's, and below.
  std::variant<core::ClearAsked, core::PromptClearAsked, core::TierClearAsked, core::MoveAsked, core::RecodeAsked> event =
      {};
  std::vector<ChunkKey> keys = {};  // of a job on a prompt
  uint8_t tiers = 0;                // that there were below the slots, a bit each: a clear of all is one of these
  std::string space = {};           // its SpaceSpec::description, for nobody may have opened it by then; "": of all spaces
};

// A job, and while it runs what was asked for.
struct ListedJob {
  core::Job job = {};
  std::shared_ptr<const AskedJob> asked = nullptr;
};

}  // namespace kvist::session

#endif  // KVIST_DAEMON_SESSION_LISTED_JOB_H_

#ifndef KVIST_DAEMON_CTL_DOCTOR_H_
#define KVIST_DAEMON_CTL_DOCTOR_H_

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/node.pb.h"

namespace kvist::ctl {

// What one check found.
struct Finding {
  enum class Level {
    kOk,
    kWarn,
    kFail
  };  // kWarn: slower or less than could be; kFail: an engine or an operator is not served
  Level level = Level::kOk;
  std::string text;
  std::string mend;  // the command that mends it; empty when nothing has to be
};

// What the checks look at. They only read.
struct Patient {
  std::string root;          // before /proc and /sys; "" but in tests
  std::string admin_socket;  // where a kvistd would be asked
  std::string engine_socket;
  std::string state_dir;
  pid_t pid = 0;  // of the kvistd that listens at the admin socket; 0: of none, or it isn't seen from here
  std::optional<node::v1::StatusReply> status;  // of the kvistd that answered there
  absl::Status why_no_status;                   // else; as NodeClient says
};

struct Check {
  const char* name;
  Finding (*look)(const Patient& patient);
};
// Every check, in the order in which one would look: the machine first, the daemon last.
const std::vector<Check>& Checks();

struct Diagnosis {
  std::vector<std::pair<std::string, Finding>> findings;  // by the check's name
  bool failed() const;
};
Diagnosis Diagnose(const Patient& patient);

std::string ToTable(const Diagnosis& diagnosis, bool colours, size_t columns = SIZE_MAX);
std::string ToJson(const Diagnosis& diagnosis);

}  // namespace kvist::ctl

#endif  // KVIST_DAEMON_CTL_DOCTOR_H_

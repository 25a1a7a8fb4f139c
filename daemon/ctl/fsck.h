#ifndef KVIST_DAEMON_CTL_FSCK_H_
#define KVIST_DAEMON_CTL_FSCK_H_

#include <string>
#include <vector>

#include "daemon/ctl/commands.h"
#include "storage/ssd/fsck.h"

namespace kvist::ctl {

struct FsckArguments {
  std::vector<std::string> directories;  // as the daemon's ssd.path has them
  bool repair = false;
  bool json = false;
};

// `kvistctl fsck`: reads an SSD tier through that no daemon has open, and says what it found. kOk: it is sound, or is now; kRefused: it
// isn't; kUnavailable: it can't be read, or a daemon uses it.
ExitCode RunFsck(const FsckArguments& arguments, const Terminal& terminal);

std::string ToTable(const ssd::FsckReport& report, size_t columns = SIZE_MAX);
std::string ToJson(const ssd::FsckReport& report);

}  // namespace kvist::ctl

#endif  // KVIST_DAEMON_CTL_FSCK_H_

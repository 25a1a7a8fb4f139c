#ifndef KVIST_DAEMON_FILE_KEEPER_H_
#define KVIST_DAEMON_FILE_KEEPER_H_

#include <functional>
#include <map>
#include <string>

#include "storage/base/unique_fd.h"

namespace kvist::daemon {

// Who keeps files for the next kvistd (service_notify.h).
struct FileKeeper {
  std::map<std::string, UniqueFd> kept;                         // of the last one, by name
  std::function<void(const std::string& name, int file)> keep;  // the caller may close its descriptor then
  std::function<void(const std::string& name)> drop;
};

}  // namespace kvist::daemon

#endif  // KVIST_DAEMON_FILE_KEEPER_H_

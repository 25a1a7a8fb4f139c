#ifndef KVIST_STORAGE_BASE_STATE_DIR_H_
#define KVIST_STORAGE_BASE_STATE_DIR_H_

#include <pwd.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace kvist {

// Where the system's daemon keeps its state by default.
inline constexpr char kSystemStateDir[] = "/var/lib/kvist";

// Where a daemon that this user starts keeps its state by default: /var/lib/kvist for root, $XDG_STATE_HOME/kvist or ~/.local/state/kvist
// for others; "" for a user without a home.
inline std::string DefaultStateDir() {
  const uid_t uid = geteuid();
  if (uid == 0) return kSystemStateDir;
  const char* state = std::getenv("XDG_STATE_HOME");
  if (state != nullptr && state[0] == '/') return std::string(state) + "/kvist";
  const char* home = std::getenv("HOME");
  if (home == nullptr || home[0] != '/') {
    const passwd* user = getpwuid(uid);
    home = user == nullptr ? nullptr : user->pw_dir;
  }
  return home == nullptr || home[0] != '/' ? "" : std::string(home) + "/.local/state/kvist";
}

}  // namespace kvist

#endif  // KVIST_STORAGE_BASE_STATE_DIR_H_

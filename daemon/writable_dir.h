#ifndef KVIST_DAEMON_WRITABLE_DIR_H_
#define KVIST_DAEMON_WRITABLE_DIR_H_

#include <string>

namespace kvist::daemon {

// Why this process can't make files in the directory `path`, or, where it isn't there, make it and all that lack above it; "" when it can.
// Makes nothing: it goes by the modes of the deepest directory that is there.
std::string WhyNoDirectory(const std::string& path);

// That deepest one; `path` itself, when it is there.
std::string DeepestThere(std::string path);

// The directory that something lies in: "/" of "/a".
std::string DirectoryOf(const std::string& path);

}  // namespace kvist::daemon

#endif  // KVIST_DAEMON_WRITABLE_DIR_H_

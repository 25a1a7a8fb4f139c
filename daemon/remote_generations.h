#ifndef KVIST_DAEMON_REMOTE_GENERATIONS_H_
#define KVIST_DAEMON_REMOTE_GENERATIONS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/base/ids.h"

namespace kvist::daemon {

// Which generation of a space's objects counts in a remote store. A clear begins the next one, whose objects have other names: so what was
// cleared is never found again, whoever still writes it, and although nobody can remove it all at once. The store knows the generations as well
// (RemoteTier), so that other nodes hear of them; this is what the node has seen, in a file, and it never falls.
//
// Threads: one at a time.
class RemoteGenerations {
 public:
  // The highest clear of all spaces, and of one.
  struct Generation {
    uint64_t all = 0;
    uint64_t space = 0;
    bool operator==(const Generation&) const = default;
  };

  // Reads `path`, which needn't be there yet. Errors: DataLoss  it isn't what was written there; those of open and read.
  static absl::StatusOr<RemoteGenerations> Open(const std::string& path);
  // Kept nowhere; for tests.
  RemoteGenerations() = default;

  Generation Of(const SpaceDigest& space) const;
  // How the space is called in its generation: its digest in the first.
  static SpaceDigest NameIn(const SpaceDigest& space, Generation generation);
  // The number of a space, or of all of them (nothing); and raises it, never lowers it. True: it was raised.
  uint64_t Number(const std::optional<SpaceDigest>& space) const;
  bool Raise(const std::optional<SpaceDigest>& space, uint64_t number);

  // All spaces that were cleared by themselves; nothing: for a clear of all.
  std::vector<std::optional<SpaceDigest>> Cleared() const;

  // What the file is to hold.
  std::string Text() const;

 private:
  uint64_t all_ = 0;
  std::map<SpaceDigest, uint64_t> spaces_;  // that were cleared by themselves
};

}  // namespace kvist::daemon

#endif  // KVIST_DAEMON_REMOTE_GENERATIONS_H_

#ifndef KVIST_STORAGE_REMOTE_DIRECTORY_STORE_H_
#define KVIST_STORAGE_REMOTE_DIRECTORY_STORE_H_

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "absl/status/statusor.h"
#include "storage/remote/remote_store.h"

namespace kvist::remote {

struct DirectoryOptions {
  std::string directory;  // absolute; on all nodes the same one, mounted anywhere. Made by who mounts it
  // Calls of the file system at a time, at most, and one more for questions alone. More: more in flight, and more that can hang with it.
  uint32_t threads = 4;
  Bytes piece = KiB(256);  // is read or written by one call, through a buffer of each thread; what the core's cache holds
  // At the end, threads that hang are waited for so long, then left to themselves
  absl::Duration leave_after = absl::Seconds(1);
  Limits limits;

  // Tests only: object_file.h.
  std::function<void(std::string_view step)> before_step;

  absl::Status Validate() const;  // names the field
};

// Objects in a directory that nodes share (NFS, 3FS, any); object_file.h draws how they lie there.
//
// A call of a hung file system returns when it likes, if ever, and nobody can interrupt it. So the threads read and write buffers of their own,
//   and copy from and to spans under a lock that giving up takes, too: after that they touch none. A deadline costs its operation, and the
//   thread until its call returns; when all hang, what waits is ended by its deadlines.
// Threads: Submit from any; `done` on one of its own: a worker, or the one that knows the time.
class DirectoryStore final : public RemoteStore {
 public:
  // Errors: InvalidArgument, of the options. Whether the directory is there isn't asked: that may hang.
  static absl::StatusOr<std::unique_ptr<DirectoryStore>> Create(const DirectoryOptions& options);
  ~DirectoryStore() override;

  absl::Status Submit(Batch batch, Done done) override;
  Load load() const override;

 private:
  struct Op;
  class Work;  // shared with the threads, which may outlive this

  explicit DirectoryStore(const DirectoryOptions& options);

  const absl::Duration leave_after_;
  const std::shared_ptr<Work> work_;
  std::thread timekeeper_;
};

}  // namespace kvist::remote

#endif  // KVIST_STORAGE_REMOTE_DIRECTORY_STORE_H_

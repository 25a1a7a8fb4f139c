#ifndef KVIST_STORAGE_REMOTE_OBJECT_FILE_H_
#define KVIST_STORAGE_REMOTE_OBJECT_FILE_H_

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "storage/base/unique_fd.h"
#include "storage/remote/remote_store.h"

// Objects as files of a directory that nodes share: one object a file, head and body one behind the other.
//
//   DIRECTORY/3f/a0/NAME             two hexadecimal digits of the name's XXH3 a level: 65,536 folders
//   DIRECTORY/3f/a0/.NAME.0123..ef   one that is being written; it becomes NAME by rename, when all of it is synced
//
// Any of this may take for ever when the file system does. Errors: Unavailable (EIO, ESTALE ..), ResourceExhausted (no room, or quota), and what the
// errno says otherwise; this file is where they are converted.
namespace kvist::remote {

class ObjectFiles {
 public:
  // `before_step`: tests only, called before each step that may hang, by its name: "open", "read", "write", "sync", "rename", "remove".
  ObjectFiles(std::string directory, std::function<void(std::string_view step)> before_step)
      : directory_(std::move(directory)), before_step_(std::move(before_step)) {}

  std::string PathOf(const std::string& name) const;

  // A file to read, never a link, a pipe or a device. `found` kYes, kNo, or kNotOurs.
  struct Opened {
    Found found = Found::kNo;
    UniqueFd file;
    uint64_t bytes = 0;
  };
  absl::StatusOr<Opened> Open(const std::string& name) const;
  // Less than asked for at the file's end only.
  absl::StatusOr<size_t> Read(const UniqueFd& file, uint64_t at, std::span<std::byte> into) const;

  // A file that is being written. It goes away with this object unless it was published.
  class Draft {
   public:
    Draft(Draft&&) = default;
    Draft& operator=(Draft&&) = delete;
    ~Draft();
    absl::Status Append(std::span<const std::byte> bytes);
    absl::Status Publish();  // synced, then renamed: there or not, never half

   private:
    friend class ObjectFiles;
    Draft(const ObjectFiles* files, UniqueFd file, std::string path, std::string target)
        : files_(files), file_(std::move(file)), path_(std::move(path)), target_(std::move(target)) {}
    const ObjectFiles* files_;
    UniqueFd file_;
    std::string path_;
    std::string target_;
  };
  absl::StatusOr<Draft> Create(const std::string& name) const;

  absl::Status Remove(const std::string& name) const;  // also of what isn't there

 private:
  void Before(std::string_view step) const {
    if (before_step_ != nullptr) before_step_(step);
  }
  const std::string directory_;
  const std::function<void(std::string_view)> before_step_;
};

}  // namespace kvist::remote

#endif  // KVIST_STORAGE_REMOTE_OBJECT_FILE_H_

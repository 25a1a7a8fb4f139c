#ifndef KVIST_DAEMON_JOB_FILE_H_
#define KVIST_DAEMON_JOB_FILE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/core/jobs.h"
#include "daemon/session/listed_job.h"

namespace kvist::daemon {

// The jobs of a kvistd as they lie in its state directory: those that run, with what was asked for, and those that ended last, so that who asks
// again under a request's name gets the same job of the next kvistd, too. What a job has made durable doesn't depend on it.
//
// Layout: lines of words; the first line names the version, the last says that none is missing. Bytes are in hex, and "-" for none:
//   next NUMBER                                                                                      of the next job
//   job ID KIND STATE RESUMED SPACE TIER UNKEPT DONE TOTAL CHUNKS BYTES ALREADY LEFT AFTER ERROR REQUEST TROUBLE [WHAT]   as in core::Job
//   asked DESCRIPTION FROM TO KEEP_SOURCE METHOD KEY..                                                of the job before, which runs
// Chunk keys of prompts are in it, so it is its user's alone; tokens never are.
struct JobFile {
  std::vector<session::ListedJob> jobs;  // those that ended, then those that run, in the order in which the core lists them
  core::JobId last;                      // of all that were ever asked for

  std::string Text() const;
  // Errors: DataLoss  it isn't what Text makes. What it returns the core takes: kinds fit what was asked for, and nothing is more than it may be.
  static absl::StatusOr<JobFile> FromText(const std::string& text);
  // Reads `path`, which needn't be there yet. Errors: as FromText; those of open and read.
  static absl::StatusOr<JobFile> Read(const std::string& path);
  // The same, but a file that can't be used is set aside, said in the log, and costs its jobs: never the start.
  static JobFile Take(const std::string& path);
};

}  // namespace kvist::daemon

#endif  // KVIST_DAEMON_JOB_FILE_H_

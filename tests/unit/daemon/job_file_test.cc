#include "daemon/job_file.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "daemon/core/core.h"
#include "daemon/job_keeper.h"
#include "storage/base/clock.h"
#include "tests/support/temp_dir.h"

namespace kvist::daemon {
namespace {

using core::Job;
using core::JobId;
using core::JobKind;
using core::JobState;
using core::Tier;
using session::AskedJob;
using session::ListedJob;

SpaceDigest Space() {
  SpaceDigest space;
  space.bytes.fill(0xab);
  return space;
}

std::vector<ChunkKey> Keys(size_t count) {
  std::vector<ChunkKey> keys(count);
  for (size_t k = 0; k < count; ++k) keys[k].bytes = {static_cast<uint8_t>(k), static_cast<uint8_t>(k >> 8), 0x10};
  return keys;
}

template <class Event>
ListedJob Running(uint64_t id, JobKind kind, Event event, size_t keys = 0, std::optional<Tier> tier = {}) {
  Job job{
      .id = JobId{id}, .request = "name\n of " + std::to_string(id), .what = UINT64_MAX - id, .kind = kind, .tier = tier};
  const bool of_all = keys == 0 && id % 2 == 0;
  if (!of_all) job.digest = Space();
  return {job, std::make_shared<const AskedJob>(
                   AskedJob{event, Keys(keys), /*tiers=*/6, of_all ? "" : std::string("of\0the space", 12)})};
}

// One of each kind.
JobFile All() {
  JobFile file;
  file.last = JobId{90};
  Job done{.id = JobId{3}, .kind = JobKind::kCompress, .state = JobState::kDone, .digest = Space(), .resumed = true};
  done.done = done.total = 12;
  done.chunks = 7;
  done.bytes = Bytes{1000};
  done.already = 3;
  done.left = 2;
  done.bytes_after = Bytes{400};
  done.loss = {0.1, 0.2};
  done.trouble = "the store\nwent away";
  file.jobs.push_back({done});
  file.jobs.push_back({{.id = JobId{1}, .state = JobState::kCancelled, .unkept = 6}});
  file.jobs.push_back(Running(10, JobKind::kClear, core::ClearAsked{}));
  file.jobs.push_back(Running(11, JobKind::kClear, core::ClearAsked{}));
  file.jobs.push_back(Running(12, JobKind::kClear, core::TierClearAsked{.job = {}, .tier = Tier::kSsd}, 0, Tier::kSsd));
  file.jobs.push_back(
      Running(13, JobKind::kClearPrompt, core::TierClearAsked{.job = {}, .tier = Tier::kRemote}, 2, Tier::kRemote));
  file.jobs.push_back(Running(15, JobKind::kClearPrompt, core::PromptClearAsked{}, 3));
  file.jobs.push_back(Running(17, JobKind::kMove,
                              core::MoveAsked{.job = {}, .space = {}, .keys = {}, .from = Tier::kDram, .to = Tier::kRemote},
                              core::Core::kKeysMax));
  core::MoveAsked prefetch{.job = {}, .kind = JobKind::kPrefetch, .space = {}, .keys = {}};
  prefetch.keep_source = true;
  file.jobs.push_back(Running(19, JobKind::kPrefetch, prefetch, 1));
  core::RecodeAsked recode{.job = {}, .space = {}, .keys = {}};
  recode.method = 5;
  file.jobs.push_back(Running(21, JobKind::kCompress, recode, 1));
  recode.kind = JobKind::kDecompress;
  recode.method = 0;
  file.jobs.push_back(Running(23, JobKind::kDecompress, recode, 1));
  recode.tier = Tier::kSsd;
  file.jobs.push_back(Running(24, JobKind::kDecompress, recode, 1));
  recode.kind = JobKind::kCompress;
  recode.method = 1;
  file.jobs.push_back(Running(25, JobKind::kCompress, recode, 1));
  return file;
}

bool Refused(const std::string& text) { return absl::IsDataLoss(JobFile::FromText(text).status()); }

TEST_CASE("JobFile reads what it wrote, of every kind of job") {
  const JobFile file = All();
  const std::string text = file.Text();
  INFO(text.substr(0, 2000));
  const absl::StatusOr<JobFile> read = JobFile::FromText(text);
  REQUIRE(read.ok());
  CHECK(read->Text() == text);
  CHECK(read->last == file.last);
  REQUIRE(read->jobs.size() == file.jobs.size());
  const Job& done = read->jobs[0].job;
  CHECK((done.trouble == "the store\nwent away" && done.loss == core::Loss{0.1, 0.2} && done.resumed));
  for (size_t j = 0; j < file.jobs.size(); ++j) {
    const ListedJob &was = file.jobs[j], &is = read->jobs[j];
    CHECK(is.job.id == was.job.id);
    CHECK(is.job.request == was.job.request);
    CHECK(is.job.what == was.job.what);
    CHECK(is.job.kind == was.job.kind);
    CHECK(is.job.state == was.job.state);
    CHECK(is.job.digest == was.job.digest);
    CHECK(is.job.tier == was.job.tier);
    REQUIRE((is.asked == nullptr) == (was.asked == nullptr));
    if (was.asked == nullptr) continue;
    CHECK(is.asked->event.index() == was.asked->event.index());
    CHECK(is.asked->keys == was.asked->keys);
    CHECK(is.asked->space == was.asked->space);
  }
  const auto& move = std::get<core::MoveAsked>(read->jobs[7].asked->event);
  CHECK((move.from == Tier::kDram && move.to == Tier::kRemote && !move.keep_source));
  CHECK(std::get<core::MoveAsked>(read->jobs[8].asked->event).keep_source);
  const auto& recode = std::get<core::RecodeAsked>(read->jobs[9].asked->event);
  CHECK((recode.method == 5 && recode.tier == Tier::kRemote));
  for (const size_t on_disk : {11, 12})
    CHECK(std::get<core::RecodeAsked>(read->jobs[on_disk].asked->event).tier == Tier::kSsd);
  CHECK(JobFile::FromText(JobFile().Text()).ok());
}

TEST_CASE("JobFile takes nothing that is torn: no beginning of what was written is whole") {
  JobFile file = All();
  file.jobs.erase(file.jobs.begin() + 7);  // the long one
  const std::string text = file.Text();
  REQUIRE(JobFile::FromText(text).ok());
  for (size_t length = 0; length < text.size(); ++length) {
    if (!Refused(text.substr(0, length))) FAIL("the first " << length << " bytes of\n" << text);
  }
  CHECK(Refused(text + "end\n"));
  CHECK(Refused(text + std::string(1, '\0')));
}

TEST_CASE("JobFile takes nothing that the core wouldn't") {
  const std::string space(64, 'a'), key(64, 'b');
  const auto of = [&](const std::string& jobs, int next = 100) {
    return "kvist jobs 1\nnext " + std::to_string(next) + "\n" + jobs + "end\n";
  };
  const auto job = [&](const std::string& kind, const std::string& tier, const std::string& asked, int id = 1) {
    return absl::StrCat("job ", id, " ", kind, " running 0 ", space, " ", tier, " 0 0 0 0 0 0 0 0 0 - -\nasked 6f66 ", asked,
                        "\n");
  };
  const std::string move = job("move", "-", "ssd dram 0 0 2 " + key);
  for (const char* of_later : {"", " 5", " 5 6", " 0 6"})
    REQUIRE(JobFile::FromText(absl::StrReplaceAll(of(move), {{" - -\n", absl::StrCat(" - -", of_later, "\n")}})).ok());
  const std::pair<const char*, std::string> wrongs[] = {
      {"a version to come", absl::StrReplaceAll(of(move), {{"jobs 1", "jobs 2"}})},
      {"a number that is given again", of(move, 1)},
      {"no next number", of(move, 0)},
      {"two of one number", of(move + move)},
      {"a job without number", of(job("move", "-", "ssd dram 0 0 2 " + key, 0))},
      {"a move to where it comes from", of(job("move", "-", "ssd ssd 0 0 2 " + key))},
      {"a move to no tier", of(job("move", "-", "ssd tape 0 0 2 " + key))},
      {"a move from nowhere", of(job("move", "-", "- dram 0 0 2 " + key))},
      {"a move of nothing", of(job("move", "-", "ssd dram 0 0 2"))},
      {"a move in one tier", of(job("move", "ssd", "ssd dram 0 0 2 " + key))},
      {"a prefetch that takes its source away", of(job("prefetch", "-", "ssd dram 0 0 2 " + key))},
      {"a prefetch to disk", of(job("prefetch", "-", "remote ssd 1 0 2 " + key))},
      {"a clear of a prompt without keys", of(job("clear-prompt", "-", "- - 0 0 2"))},
      {"a clear with keys", of(job("clear", "-", "- - 0 0 2 " + key))},
      {"a clear with a method", of(job("clear", "-", "- - 0 1 2"))},
      {"a tier below that isn't", of(absl::StrReplaceAll(move, {{"0 0 2", "0 0 8"}}))},
      {"an unknown kind", of(job("copy", "-", "- - 0 0 2"))},
      {"an unknown method", of(job("compress", "-", "- - 0 77 2 " + key))},
      {"no method", of(job("compress", "-", "- - 0 0 2 " + key))},
      {"half a key", of(job("move", "-", "ssd dram 0 0 2 " + key.substr(0, 32)))},
      {"a key of no hex", of(job("move", "-", "ssd dram 0 0 2 " + std::string(64, 'x')))},
      {"an empty key", of(job("move", "-", "ssd dram 0 0 -"))},
      {"one that runs and nothing asked for", of(move.substr(0, move.find('\n') + 1))},
      {"something asked for and no job", of(move.substr(move.find('\n') + 1))},
      {"a prompt of no space", absl::StrReplaceAll(of(move), {{space, "-"}})},
      {"a space without description", absl::StrReplaceAll(of(move), {{"asked 6f66", "asked -"}})},
      {"a negative count", absl::StrReplaceAll(of(move), {{"0 0 0 0 0 0 0 0 0 - -", "0 0 -1 0 0 0 0 0 0 - -"}})},
      {"a name without number", absl::StrReplaceAll(of(move), {{" - -\n", " - - 0\n"}})},
      {"no loss, said", absl::StrReplaceAll(of(move), {{" - -\n", " - - 5 0\n"}})},
      {"more than there is", absl::StrReplaceAll(of(move), {{" - -\n", " - - 5 6 7\n"}})},
      {"a tier's bit that isn't", absl::StrReplaceAll(of(move), {{" - 0 0 0 0", " - 8 0 0 0"}})},
      {"two spaces", absl::StrReplaceAll(of(move), {{"ssd dram", "ssd  dram"}})}};
  for (const auto& [what, text] : wrongs) {
    INFO(what);
    CHECK(Refused(text));
  }
  std::string many, ended, keys;
  for (int i = 1; i <= 65; ++i) {
    many += job("move", "-", "ssd dram 0 0 2 " + key, i);
    ended += absl::StrCat("job ", i, " clear done 0 - - 0 0 0 0 0 0 0 0 0 - -\n");
  }
  CHECK(Refused(of(many)));
  CHECK(Refused(of(ended)));
  CHECK(Refused(of(move + absl::StrReplaceAll(ended.substr(0, ended.find('\n') + 1), {{"job 1 ", "job 2 "}}))));
  for (uint32_t k = 0; k <= core::Core::kKeysMax; ++k) keys += " " + key;
  CHECK(Refused(of(job("move", "-", "ssd dram 0 0 2" + keys))));
}

TEST_CASE("JobFile that was changed anywhere is refused, or is what it would write itself") {
  JobFile file = All();
  file.jobs.erase(file.jobs.begin() + 7);  // the long one
  const std::string text = file.Text();
  const uint32_t seed = std::random_device()();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  const auto any = [&random](size_t below) { return random() % below; };
  const std::string bytes("0123456789abcdef -\n\0joprst", 26);
  uint32_t taken = 0;
  for (int i = 0; i < 5000; ++i) {
    std::string changed = text;
    for (size_t changes = 1 + any(3); changes > 0; --changes) {
      const size_t at = any(changed.size());
      switch (any(4)) {
        case 0: changed[at] = bytes[any(bytes.size())]; break;
        case 1: changed.erase(at, 1 + any(70)); break;
        case 2: changed.insert(at, 1, bytes[any(bytes.size())]); break;
        default: changed.insert(at, changed.substr(any(changed.size()), any(100))); break;
      }
    }
    const absl::StatusOr<JobFile> read = JobFile::FromText(changed);
    if (!read.ok()) continue;
    ++taken;
    if (read->Text() != changed) FAIL("seed " << seed << ":\n" << changed);
  }
  CHECK(taken > 0);
}

TEST_CASE("JobFile that can't be used is set aside, and one that isn't there is empty") {
  const test::TempDir dir;
  CHECK(JobFile::Take(dir / "jobs").jobs.empty());
  CHECK_FALSE(std::filesystem::exists(dir / "jobs.unusable"));
  std::ofstream(dir / "jobs") << "kvist jobs 1\nnext 5\n";
  CHECK(JobFile::Take(dir / "jobs").last == JobId{});
  CHECK_FALSE(std::filesystem::exists(dir / "jobs"));
  CHECK(std::filesystem::exists(dir / "jobs.unusable"));
  std::filesystem::create_directory(dir / "jobs");
  CHECK(JobFile::Take(dir / "jobs").jobs.empty());
}

TEST_CASE("JobKeeper's file is the last that was said, its user's alone, and there when it has settled") {
  const test::TempDir dir;
  const auto soon = [] { return MonotonicNow() + absl::Seconds(20); };
  {
    JobKeeper keeper(dir / "jobs");
    CHECK(keeper.Settle(soon()));
    for (uint64_t last = 1; last <= 50; ++last) keeper.Keep({{}, JobId{last}});
    CHECK(keeper.Settle(soon()));
    CHECK(JobFile::Take(dir / "jobs").last == JobId{50});
    struct stat found {};
    REQUIRE(stat((dir / "jobs").c_str(), &found) == 0);
    CHECK((found.st_mode & 07777) == 0600);
    keeper.Keep(All());
  }
  CHECK(JobFile::Take(dir / "jobs").Text() == All().Text());  // the end waits for the last
}

TEST_CASE("JobKeeper tries again what it couldn't write") {
  const test::TempDir dir;
  const auto is_there = [&] {
    const absl::Time until = MonotonicNow() + absl::Seconds(20);
    while (!std::filesystem::exists(dir / "gone/jobs") && MonotonicNow() < until) absl::SleepFor(absl::Milliseconds(1));
    return std::filesystem::exists(dir / "gone/jobs");
  };
  const bool in_the_end = GENERATE(false, true);
  {
    JobKeeper keeper(dir / "gone/jobs", in_the_end ? absl::Hours(1) : absl::Milliseconds(1));
    keeper.Keep({{}, JobId{1}});
    REQUIRE_FALSE(keeper.Settle(MonotonicNow() + absl::Seconds(20)));
    std::filesystem::create_directory(dir / "gone");
    if (!in_the_end) CHECK(is_there());
  }
  CHECK(JobFile::Take(dir / "gone/jobs").last == JobId{1});
}

TEST_CASE("JobKeeper says that it couldn't, and goes on") {
  const test::TempDir dir;
  JobKeeper keeper(dir / "gone/jobs");
  keeper.Keep({{}, JobId{1}});
  CHECK_FALSE(keeper.Settle(MonotonicNow() + absl::Seconds(20)));
  std::filesystem::create_directory(dir / "gone");
  keeper.Keep({{}, JobId{2}});
  CHECK(keeper.Settle(MonotonicNow() + absl::Seconds(20)));
  CHECK(JobFile::Take(dir / "gone/jobs").last == JobId{2});
}

}  // namespace
}  // namespace kvist::daemon

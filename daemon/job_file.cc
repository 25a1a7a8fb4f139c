#include "daemon/job_file.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <system_error>
#include <utility>
#include <variant>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "daemon/core/core.h"
#include "storage/base/check.h"
#include "storage/base/kept_file.h"
#include "storage/base/status.h"
#include "storage/codec/method.h"

namespace kvist::daemon {
namespace {

using core::Job;
using core::JobKind;
using core::JobState;
using core::Tier;
using session::AskedJob;
using session::ListedJob;

constexpr absl::string_view kVersionLine = "kvist jobs 1";
constexpr absl::string_view kNothing = "-";
constexpr size_t kJobFileMax = 64 << 20;
constexpr size_t kTextMax = 4096;  // of a request's name, and of why a job has ended

// By the values of their enums.
constexpr absl::string_view kKindNames[] = {"clear", "clear-prompt", "move", "prefetch", "compress", "decompress"};
constexpr absl::string_view kStateNames[] = {"running", "done", "cancelled"};
constexpr absl::string_view kTierNames[] = {"dram", "ssd", "remote"};
static_assert(std::size(kTierNames) == core::kTiers);

std::string InHex(absl::string_view bytes) { return bytes.empty() ? std::string(kNothing) : absl::BytesToHexString(bytes); }
template <class Digest>
std::string DigestInHex(const Digest& digest) {
  return InHex({reinterpret_cast<const char*>(digest.bytes.data()), digest.bytes.size()});
}
absl::string_view NameOf(const std::optional<Tier>& tier) {
  return tier.has_value() ? kTierNames[static_cast<size_t>(*tier)] : kNothing;
}

// The words of a line, taken one after the other. What isn't there or isn't as it should be makes all of it bad, and is empty.
class Words {
 public:
  explicit Words(absl::string_view line) : words_(absl::StrSplit(line, ' ')) {}

  bool good() const { return good_; }
  bool ended() const { return next_ == words_.size(); }

  absl::string_view Word() {
    if (!ended()) return words_[next_++];
    good_ = false;
    return kNothing;
  }
  uint64_t Number(uint64_t most = UINT64_MAX) {
    uint64_t number = 0;
    const absl::string_view word = Word();
    if (absl::SimpleAtoi(word, &number) && number <= most && absl::StrCat(number) == word) return number;
    good_ = false;
    return 0;
  }
  template <class Enum, size_t kCount>
  std::optional<Enum> Named(const absl::string_view (&names)[kCount]) {
    const absl::string_view word = Word();
    const auto found = std::find(std::begin(names), std::end(names), word);
    if (found != std::end(names)) return static_cast<Enum>(found - std::begin(names));
    if (word != kNothing) good_ = false;
    return std::nullopt;
  }
  std::string Bytes(size_t most) {
    const absl::string_view word = Word();
    if (word == kNothing) return "";
    // Whatever it makes of what is no hex comes out other than it went in.
    std::string bytes = word.size() <= 2 * most ? absl::HexStringToBytes(word) : "";
    if (!bytes.empty() && absl::BytesToHexString(bytes) == word) return bytes;
    good_ = false;
    return "";
  }
  template <class Digest>
  std::optional<Digest> DigestOf() {
    Digest digest;
    const std::string bytes = Bytes(digest.bytes.size());
    if (bytes.empty()) return std::nullopt;
    good_ = good_ && bytes.size() == digest.bytes.size();
    if (good_) std::memcpy(digest.bytes.data(), bytes.data(), bytes.size());
    return digest;
  }

 private:
  std::vector<absl::string_view> words_;
  size_t next_ = 0;
  bool good_ = true;
};

std::string LineOf(const Job& job) {
  std::string line = absl::StrCat("job ", job.id.value, " ", kKindNames[static_cast<size_t>(job.kind)], " ",
                                  kStateNames[static_cast<size_t>(job.state)], " ", job.resumed ? 1 : 0, " ");
  absl::StrAppend(&line, job.digest.has_value() ? DigestInHex(*job.digest) : std::string(kNothing), " ", NameOf(job.tier),
                  " ", job.unkept, " ", job.done, " ", job.total);
  absl::StrAppend(&line, " ", job.chunks, " ", job.bytes.value, " ", job.already, " ", job.left, " ", job.bytes_after.value,
                  " ", std::bit_cast<uint64_t>(job.loss.relative));
  absl::StrAppend(&line, " ", InHex(job.request), " ", InHex(absl::string_view(job.trouble).substr(0, kTextMax)));
  // What kvistds before it didn't write, and only when there is something to say.
  const auto attention = std::bit_cast<uint64_t>(job.loss.attention);
  if (job.what != 0 || attention != 0) absl::StrAppend(&line, " ", job.what);
  if (attention != 0) absl::StrAppend(&line, " ", attention);
  line += "\n";
  return line;
}

std::optional<Job> JobOf(absl::string_view line) {
  Words words(line);
  if (words.Word() != "job") return std::nullopt;
  Job job;
  uint64_t attention = 0;
  job.id = core::JobId{words.Number()};
  const auto kind = words.Named<JobKind>(kKindNames);
  const auto state = words.Named<JobState>(kStateNames);
  job.resumed = words.Number(1) == 1;
  job.digest = words.DigestOf<SpaceDigest>();
  job.tier = words.Named<Tier>(kTierNames);
  job.unkept = static_cast<uint8_t>(words.Number((1 << core::kTiers) - 1));
  for (uint64_t* const count :
       {&job.done, &job.total, &job.chunks, &job.bytes.value, &job.already, &job.left, &job.bytes_after.value})
    *count = words.Number();
  job.loss.relative = std::bit_cast<double>(words.Number());
  job.request = words.Bytes(kTextMax);
  job.trouble = words.Bytes(kTextMax);
  uint64_t* const of_later[] = {&job.what, &attention};
  uint64_t last = 1;
  for (uint64_t* const number : of_later) {
    if (!words.ended()) last = *number = words.Number();
  }
  if (last == 0) return std::nullopt;
  job.loss.attention = std::bit_cast<double>(attention);
  if (!words.good() || !words.ended() || !kind.has_value() || !state.has_value()) return std::nullopt;
  job.kind = *kind;
  job.state = *state;
  return job;
}

std::string LineOf(const AskedJob& asked) {
  const auto* const move = std::get_if<core::MoveAsked>(&asked.event);
  const auto* const recode = std::get_if<core::RecodeAsked>(&asked.event);
  std::optional<Tier> from, to;
  if (move != nullptr) {
    from = move->from;
    to = move->to;
  }
  // Of what encodes: where. Before there were two it said nothing of the remote store.
  if (recode != nullptr && recode->tier != Tier::kRemote) from = recode->tier;
  std::string line = absl::StrCat("asked ", InHex(asked.space), " ", NameOf(from), " ", NameOf(to), " ",
                                  move != nullptr && move->keep_source ? 1 : 0, " ", recode != nullptr ? recode->method : 0,
                                  " ", asked.tiers);
  for (const ChunkKey& key : asked.keys) absl::StrAppend(&line, " ", DigestInHex(key));
  return line + "\n";
}

bool IsMethod(uint64_t method) {
  return std::any_of(std::begin(codec::kMethods), std::end(codec::kMethods),
                     [method](codec::Method known) { return static_cast<uint64_t>(known) == method; });
}

// What was asked for in `job`. Nothing: no such thing can be asked for.
std::shared_ptr<const AskedJob> AskedOf(absl::string_view line, const Job& job) {
  Words words(line);
  if (words.Word() != "asked") return nullptr;
  AskedJob asked;
  asked.space = words.Bytes(kJobFileMax);
  const auto from = words.Named<Tier>(kTierNames), to = words.Named<Tier>(kTierNames);
  const bool keep = words.Number(1) == 1;
  const uint64_t method = words.Number(UINT8_MAX);
  asked.tiers = static_cast<uint8_t>(words.Number((1 << core::kTiers) - 1));
  while (words.good() && !words.ended()) {
    const std::optional<ChunkKey> key = words.DigestOf<ChunkKey>();
    if (!key.has_value() || asked.keys.size() == core::Core::kKeysMax) return nullptr;
    asked.keys.push_back(*key);
  }
  if (!words.good()) return nullptr;
  const bool of_prompt = job.kind != JobKind::kClear;
  // All that is of a prompt is of a space, and all but a clear of one tier in all tiers.
  if (asked.keys.empty() == of_prompt || asked.space.empty() == job.digest.has_value()) return nullptr;
  if (of_prompt && !job.digest.has_value()) return nullptr;
  const bool moves = job.kind == JobKind::kMove || job.kind == JobKind::kPrefetch;
  const bool encodes = job.kind == JobKind::kCompress || job.kind == JobKind::kDecompress;
  if ((moves != from.has_value() && !encodes) || moves != to.has_value() || (keep && !moves) ||
      (job.tier.has_value() && (moves || method != 0)))
    return nullptr;
  switch (job.kind) {
    case JobKind::kClear:
    case JobKind::kClearPrompt:
      if (method != 0) return nullptr;
      if (job.tier.has_value()) {
        asked.event = core::TierClearAsked{.job = {}, .tier = *job.tier};
      } else if (of_prompt) {
        asked.event = core::PromptClearAsked{};
      } else {
        asked.event = core::ClearAsked{};
      }
      break;
    case JobKind::kMove:
    case JobKind::kPrefetch:
      if (from == to || method != 0 || (job.kind == JobKind::kPrefetch && (to != Tier::kDram || !keep))) return nullptr;
      asked.event = core::MoveAsked{
          .job = {}, .kind = job.kind, .space = {}, .keys = {}, .from = *from, .to = *to, .keep_source = keep};
      break;
    case JobKind::kCompress:
    case JobKind::kDecompress:
      if (job.tier.has_value() || (job.kind == JobKind::kCompress ? !IsMethod(method) : method != 0)) return nullptr;
      if (from.has_value() && from != Tier::kSsd) return nullptr;
      asked.event = core::RecodeAsked{.job = {},
                                      .kind = job.kind,
                                      .tier = from.value_or(Tier::kRemote),
                                      .space = {},
                                      .keys = {},
                                      .method = static_cast<uint8_t>(method)};
      break;
  }
  return std::make_shared<const AskedJob>(std::move(asked));
}

}  // namespace

std::string JobFile::Text() const {
  std::string text = absl::StrCat(kVersionLine, "\nnext ", last.value + 1, "\n");
  for (const ListedJob& listed : jobs) {
    text += LineOf(listed.job);
    KVIST_CHECK((listed.asked != nullptr) == (listed.job.state == JobState::kRunning));
    if (listed.asked != nullptr) text += LineOf(*listed.asked);
  }
  return text + "end\n";
}

absl::StatusOr<JobFile> JobFile::FromText(const std::string& text) {
  const auto broken = [] { return absl::DataLossError("it isn't what kvistd wrote there"); };
  if (text.size() > kJobFileMax) return broken();
  const std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  // The last line says that none is missing.
  if (lines.size() < 4 || lines.front() != kVersionLine || !lines.back().empty() || lines[lines.size() - 2] != "end")
    return broken();
  JobFile file;
  Words next(lines[1]);
  if (next.Word() != "next") return broken();
  file.last = core::JobId{next.Number(INT64_MAX) - 1};
  if (!next.good() || !next.ended() || file.last.value == UINT64_MAX) return broken();
  size_t running = 0;
  const std::span<const absl::string_view> of_jobs = std::span(lines).subspan(2, lines.size() - 4);
  for (size_t i = 0; i < of_jobs.size(); ++i) {
    const std::optional<Job> job = JobOf(of_jobs[i]);
    if (!job.has_value() || job->id.value == 0 || job->id.value > file.last.value) return broken();
    for (const ListedJob& other : file.jobs) {
      if (other.job.id == job->id) return broken();
    }
    ListedJob listed{*job};
    if (job->state == JobState::kRunning) {
      listed.asked = i + 1 < of_jobs.size() ? AskedOf(of_jobs[++i], *job) : nullptr;
      if (listed.asked == nullptr || ++running > core::Jobs::kRunningMax) return broken();
    } else if (running > 0) {
      return broken();
    }
    file.jobs.push_back(std::move(listed));
    if (file.jobs.size() - running > core::Jobs::kEndedKept) return broken();
  }
  return file;
}

absl::StatusOr<JobFile> JobFile::Read(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadKeptFile(path, kJobFileMax);
  if (absl::IsNotFound(text.status())) return JobFile();
  KVIST_RETURN_IF_ERROR(text.status());
  return FromText(*text);
}

JobFile JobFile::Take(const std::string& path) {
  absl::StatusOr<JobFile> file = Read(path);
  if (file.ok()) return *std::move(file);
  const std::string aside = path + ".unusable";
  std::error_code error;
  std::filesystem::rename(path, aside, error);
  spdlog::warn("jobs that ran when kvistd ended last don't go on: {}: {}; {}", path, std::string(file.status().message()),
               error ? absl::StrCat("it couldn't be moved aside: ", error.message()) : "it lies at " + aside + " now");
  return {};
}

}  // namespace kvist::daemon

#include "examples/replay/trace.h"

#include <sys/stat.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace kvist::replay {
namespace {

kvist_stop_reason StopReasonOf(const std::string& word) {
  if (word == "end_turn") return KVIST_STOP_STOP;
  if (word == "tool_use") return KVIST_STOP_TOOL_CALL;
  if (word == "max_tokens") return KVIST_STOP_LENGTH;
  return KVIST_STOP_UNKNOWN;
}

// A longer line is no request: a million tokens are 2,000 ids.
constexpr size_t kLineBytesMax = size_t{64} << 20;

// Lines of a file that may be compressed.
class LineReader {
 public:
  explicit LineReader(const std::string& path) : file_(gzopen(path.c_str(), "rb")) {
    if (file_ != nullptr) gzbuffer(file_, kPiece);
  }
  ~LineReader() {
    if (file_ != nullptr) gzclose(file_);
  }
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  bool is_open() const { return file_ != nullptr; }

  // False at the end of the file, at a line that none should be, and when the file is damaged: see Wrong.
  bool Next(std::string* line) {
    line->clear();
    while (true) {
      if (rest_.empty() && !Fill()) return !line->empty() && !Wrong().has_value();
      const absl::string_view piece = rest_.substr(0, rest_.find('\n'));
      if (absl::StrContains(piece, '\0')) {
        wrong_ = "there is a NUL byte in the line: is this a trace?";
        return false;
      }
      if (line->size() + piece.size() > kLineBytesMax) {
        wrong_ = absl::StrCat("the line is longer than ", kLineBytesMax >> 20, " MiB");
        return false;
      }
      line->append(piece.data(), piece.size());
      const bool whole = piece.size() < rest_.size();
      rest_.remove_prefix(piece.size() + (whole ? 1 : 0));
      if (whole) return true;
    }
  }

  // What is wrong with the next line or with the file so far, if anything.
  std::optional<std::string> Wrong() {
    if (wrong_.has_value()) return wrong_;
    int error = Z_OK;
    const char* message = gzerror(file_, &error);
    if (error == Z_OK || error == Z_STREAM_END) return std::nullopt;
    if (error == Z_ERRNO) return std::strerror(errno);
    if (error == Z_BUF_ERROR) return "the compressed file ends too early";
    return absl::StrCat("the compressed file is damaged (", message, ")");
  }

 private:
  static constexpr unsigned kPiece = 1u << 18;

  bool Fill() {
    buffer_.resize(kPiece);
    const int got = gzread(file_, buffer_.data(), kPiece);
    rest_ = absl::string_view(buffer_.data(), static_cast<size_t>(std::max(got, 0)));
    return got > 0;
  }

  gzFile file_;
  std::string buffer_;
  absl::string_view rest_;  // of the buffer: not yet given out
  std::optional<std::string> wrong_;
};

// A whole number that 64 bits hold, or what is wrong with it. `what` names it, with a verb: "\"input_length\" is".
absl::StatusOr<uint64_t> WholeNumber(const nlohmann::json& value, absl::string_view what) {
  if (value.is_number_unsigned()) return value.get<uint64_t>();
  const std::string found = value.is_number() ? value.dump() : absl::StrCat("no number: ", value.type_name());
  // Of a whole number that is too large only a floating-point one is left.
  const bool too_large = value.is_number_float() && value.get<double>() >= 0x1p64;
  return absl::InvalidArgumentError(absl::StrCat(
      what, " ", found,
      too_large ? ", too large; allowed: at most 18446744073709551615" : "; allowed: a whole number from 0 on"));
}

// A request from its line, or what is wrong with it.
absl::StatusOr<Request> ParseRequest(const std::string& line) {
  const nlohmann::json object = nlohmann::json::parse(line, /*callback=*/nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return absl::InvalidArgumentError("not a JSON object");
  const auto timestamp = object.find("timestamp");
  const auto input_length = object.find("input_length");
  const auto hash_ids = object.find("hash_ids");
  if (timestamp == object.end() || !timestamp->is_number())
    return absl::InvalidArgumentError("\"timestamp\" must be a number (ms)");
  if (input_length == object.end()) return absl::InvalidArgumentError("\"input_length\" (tokens) is missing");
  if (hash_ids == object.end() || !hash_ids->is_array())
    return absl::InvalidArgumentError("\"hash_ids\" must be a list of ids");
  Request request;
  request.timestamp_ms = timestamp->get<double>();
  if (!(request.timestamp_ms >= 0 && request.timestamp_ms <= kTimestampMaxMs)) {
    return absl::InvalidArgumentError(absl::StrCat("\"timestamp\" is ", timestamp->dump(), ", allowed are 0 to ",
                                                   static_cast<int64_t>(kTimestampMaxMs), " ms"));
  }
  if (const auto stop = object.find("stop"); stop != object.end() && stop->is_string())
    request.stop = StopReasonOf(stop->get<std::string>());
  request.hash_ids.reserve(hash_ids->size());
  for (const nlohmann::json& id : *hash_ids) {
    const absl::StatusOr<uint64_t> number = WholeNumber(id, "an id of \"hash_ids\" is");
    if (!number.ok()) return number.status();
    request.hash_ids.push_back(*number);
  }
  const absl::StatusOr<uint64_t> tokens = WholeNumber(*input_length, "\"input_length\" (tokens) is");
  if (!tokens.ok()) return tokens.status();
  request.tokens = *tokens;
  if (const auto answer = object.find("output_length"); answer != object.end() && answer->is_number_unsigned())
    request.answer_tokens = answer->get<uint64_t>();
  // Block i is full if (i + 1) * 512 <= input_length.
  request.full_blocks = std::min<uint64_t>(request.hash_ids.size(), request.tokens / kBlockTokens);
  return request;
}

}  // namespace

absl::StatusOr<Trace> ReadTrace(const std::string& path, uint64_t limit) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return absl::NotFoundError(absl::StrCat(path, ": ", std::strerror(errno)));
  if (S_ISDIR(info.st_mode)) return absl::NotFoundError(absl::StrCat(path, ": a directory, not a trace"));
  LineReader reader(path);
  if (!reader.is_open()) return absl::NotFoundError(absl::StrCat(path, ": ", std::strerror(errno)));

  Trace trace;
  absl::flat_hash_set<uint64_t> unique;
  std::string line;
  uint64_t number = 0;
  const auto wrong = [&](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(path, ":", number, ": ", what));
  };
  while (trace.requests.size() < limit && reader.Next(&line)) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    absl::StatusOr<Request> request = ParseRequest(line);
    if (!request.ok()) return wrong(request.status().message());
    const auto full_end = request->hash_ids.begin() + static_cast<std::ptrdiff_t>(request->full_blocks);
    unique.insert(request->hash_ids.begin(), full_end);
    trace.blocks += request->hash_ids.size();
    trace.full_blocks += request->full_blocks;
    trace.full_blocks_max = std::max(trace.full_blocks_max, request->full_blocks);
    trace.requests.push_back(*std::move(request));
  }
  if (trace.requests.size() < limit) {
    ++number;
    if (const std::optional<std::string> found = reader.Wrong(); found.has_value()) return wrong(*found);
    if (trace.requests.empty()) return wrong("there is no request in this file");
  }
  trace.unique_full_blocks = unique.size();
  return trace;
}

}  // namespace kvist::replay

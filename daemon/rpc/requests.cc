#include "daemon/rpc/requests.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "storage/base/status.h"

namespace kvist::rpc {
namespace {

constexpr size_t kShownMax = 64;
constexpr size_t kOwnerMax = 255;  // as of an engine's instance
constexpr double kPinSecondsMin = 0.001;
constexpr double kPinSecondsMax = 31536000;  // a year

std::string Shown(const std::string& text) { return absl::StrCat("\"", absl::CHexEscape(text.substr(0, kShownMax)), "\""); }

absl::StatusOr<Tier> ReadTier(const char* field, const std::string& name) {
  if (name == "dram") return Tier::kDram;
  if (name == "ssd") return Tier::kSsd;
  if (absl::StartsWith(name, "remote:")) return Tier::kRemote;
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", Shown(name), " is no tier; allowed: dram, ssd, remote:NAME"));
}

absl::Status CheckNode(const std::string& node) {
  if (node.empty()) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat("node: ", Shown(node), ": this kvistd moves prompts between its own tiers only; leave it out"));
}

}  // namespace

absl::StatusOr<SpaceFilter> ReadFilter(const node::v1::SpaceFilter& filter) {
  constexpr size_t kDigits = 64;
  const std::string& digest = filter.digest();
  if (digest.size() > kDigits || !std::all_of(digest.begin(), digest.end(), absl::ascii_isxdigit)) {
    return absl::InvalidArgumentError(absl::StrCat("space.digest: \"", digest.substr(0, kDigits),
                                                   "\"; allowed: up to 64 hex digits, the beginning of a digest"));
  }
  return SpaceFilter{absl::AsciiStrToLower(digest), filter.model(), filter.tenant()};
}

absl::StatusOr<Prompt> ReadPrompt(const node::v1::Prompt& prompt) {
  if (prompt.tokens().empty() == prompt.keys().empty()) {
    return absl::InvalidArgumentError(prompt.tokens().empty() ? "prompt: it has neither tokens nor keys"
                                                              : "prompt: it has tokens and keys; allowed: one of them");
  }
  if (!prompt.keys().empty() && (!prompt.salt().empty() || !prompt.lora().empty()))
    return absl::InvalidArgumentError("prompt.keys: salt and lora are in them already; allowed: without both");
  if (prompt.salt().size() > Prompt::kNameMax || prompt.lora().size() > Prompt::kNameMax)
    return absl::InvalidArgumentError(absl::StrCat("prompt.salt, prompt.lora: at most ", Prompt::kNameMax, " bytes each"));
  if (static_cast<size_t>(prompt.keys_size()) > Prompt::kChunksMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("prompt.keys: ", prompt.keys_size(), " keys; allowed: at most ", Prompt::kChunksMax));
  }
  Prompt read{{prompt.tokens().begin(), prompt.tokens().end()}, prompt.salt(), prompt.lora(), {}};
  for (int i = 0; i < prompt.keys_size(); ++i) {
    ChunkKey key;
    if (prompt.keys(i).size() != sizeof key.bytes)
      return absl::InvalidArgumentError(
          absl::StrCat("prompt.keys[", i, "]: ", prompt.keys(i).size(), " bytes; a key has ", sizeof key.bytes));
    std::memcpy(key.bytes.data(), prompt.keys(i).data(), sizeof key.bytes);
    read.keys.push_back(key);
  }
  return read;
}

absl::StatusOr<PinWish> ReadPinWish(const node::v1::AddPinRequest& request) {
  if (request.owner().size() > kOwnerMax)
    return absl::InvalidArgumentError(absl::StrCat("owner: at most ", kOwnerMax, " bytes"));
  const double seconds = request.seconds();
  if (seconds != 0 && !(seconds >= kPinSecondsMin && seconds <= kPinSecondsMax)) {
    return absl::InvalidArgumentError(absl::StrCat("seconds: ", seconds, "; allowed: 0 (until it is removed), or ",
                                                   kPinSecondsMin, " to ", kPinSecondsMax));
  }
  PinWish wish{request.owner().empty() ? "operator" : request.owner()};
  if (seconds > 0) wish.lasts = absl::Seconds(seconds);
  return wish;
}

absl::StatusOr<MoveWish> ReadMove(const node::v1::MoveRequest& request) {
  KVIST_RETURN_IF_ERROR(CheckNode(request.node()));
  MoveWish wish;
  wish.keep_source = request.keep_source();
  KVIST_ASSIGN_OR_RETURN(wish.from, ReadTier("from", request.from()));
  KVIST_ASSIGN_OR_RETURN(wish.to, ReadTier("to", request.to()));
  if (request.from() == request.to())
    return absl::InvalidArgumentError(absl::StrCat("to: ", Shown(request.to()), " is where it comes from"));
  if (wish.from == Tier::kRemote && wish.to == Tier::kRemote) {
    return absl::UnimplementedError(absl::StrCat("to: ", Shown(request.to()),
                                                 ": from one remote tier to another nothing is moved; ",
                                                 "move it to dram or ssd first"));
  }
  if (wish.from == Tier::kRemote) wish.remote = request.from();
  if (wish.to == Tier::kRemote) wish.remote = request.to();
  return wish;
}

absl::StatusOr<MoveWish> ReadPrefetch(const node::v1::PrefetchRequest& request) {
  KVIST_RETURN_IF_ERROR(CheckNode(request.node()));
  MoveWish wish;
  wish.keep_source = true;
  wish.prefetch = true;
  KVIST_ASSIGN_OR_RETURN(wish.from, ReadTier("from", request.from().empty() ? "ssd" : request.from()));
  if (wish.from == wish.to) return absl::InvalidArgumentError("from: dram is where a prefetch goes to");
  if (wish.from == Tier::kRemote) wish.remote = request.from();
  return wish;
}

}  // namespace kvist::rpc

#include "daemon/controller/checks.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "daemon/controller/node_name.h"
#include "daemon/rpc/requests.h"
#include "storage/base/status.h"

namespace kvist::controller {
namespace {

constexpr size_t kWordMax = 255;  // as of an engine's model and tenant
constexpr char kRemote[] = "remote:";

std::string QuotedWord(absl::string_view word) {
  constexpr size_t kShown = 64;
  return absl::StrCat("\"", absl::CHexEscape(word.substr(0, kShown)), "\"");
}

}  // namespace

absl::Status CheckFilter(const node::v1::SpaceFilter& space) {
  for (const auto& [field, word] : {std::pair("space.model", &space.model()), std::pair("space.tenant", &space.tenant())}) {
    if (word->size() > kWordMax)
      return absl::InvalidArgumentError(absl::StrCat(field, ": ", word->size(), " bytes; allowed: at most ", kWordMax));
  }
  return rpc::ReadFilter(space).status();
}

absl::Status CheckPrompt(const node::v1::SpaceFilter& space, const node::v1::Prompt& prompt) {
  KVIST_RETURN_IF_ERROR(CheckFilter(space));
  if (const size_t bytes = prompt.ByteSizeLong(); bytes > kPromptBytesMax && prompt.tokens_size() > 0) {
    return absl::InvalidArgumentError(absl::StrCat("prompt.tokens: ", prompt.tokens_size(), " tokens, ", bytes,
                                                   " bytes as a message; allowed: at most ", kPromptBytesMax,
                                                   " bytes, a million tokens or more"));
  }
  return rpc::ReadPrompt(prompt).status();
}

absl::Status CheckRequestName(const std::string& request) {
  if (request.size() <= kRequestNameMax) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("request: ", request.size(), " bytes; allowed: at most ", kRequestNameMax));
}

absl::Status CheckTier(absl::string_view field, const std::string& tier) {
  if (tier == "dram" || tier == "ssd") return absl::OkStatus();
  if (absl::StartsWith(tier, kRemote) && tier.size() > sizeof kRemote - 1 && tier.size() <= kWordMax)
    return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": ", QuotedWord(tier), " is no tier; allowed: dram, ssd, remote:NAME"));
}

absl::StatusOr<NumberAtNode> ReadId(absl::string_view field, const std::string& id) {
  NumberAtNode read;
  const size_t slash = id.rfind('/');
  // Digits only: SimpleAtoi takes signs and blanks, too.
  const bool digits = slash != std::string::npos && slash + 1 < id.size() &&
                      id.find_first_not_of("0123456789", slash + 1) == std::string::npos;
  if (digits) read.node = id.substr(0, slash);
  if (!IsNodeName(read.node) || !absl::SimpleAtoi(id.substr(slash + 1), &read.number)) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": ", QuotedWord(id), "; allowed: NODE/NUMBER, such as node-a/17"));
  }
  return read;
}

std::string MakeId(const std::string& node, uint64_t number) { return absl::StrCat(node, "/", number); }

}  // namespace kvist::controller

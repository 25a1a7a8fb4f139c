#include "daemon/rpc/prompt.h"

#include <algorithm>
#include <span>

#include "absl/strings/match.h"
#include "storage/base/chunk_key.h"

namespace kvist::rpc {

bool SpaceFilter::Fits(const std::string& of_digest, const std::string& of_model, const std::string& of_tenant) const {
  return absl::StartsWith(of_digest, digest) && (model.empty() || model == of_model) &&
         (tenant.empty() || tenant == of_tenant);
}

std::vector<ChunkKey> Prompt::KeysOf(uint32_t chunk_tokens) const {
  if (!keys.empty()) return keys;
  KeyChain chain(Tokens{chunk_tokens}, {.lora = lora, .salt = salt});
  const size_t looked_at = std::min<size_t>(tokens.size(), uint64_t{chunk_tokens} * kChunksMax);
  chain.Append(std::span(tokens).first(looked_at));
  return {chain.keys().begin(), chain.keys().end()};
}

}  // namespace kvist::rpc

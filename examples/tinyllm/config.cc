#include "examples/tinyllm/config.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "examples/tinyllm/vector.h"

namespace tinyllm {

absl::Status ModelConfig::Validate() const {
  if (layers < 1) return absl::InvalidArgumentError("layers: at least 1");
  for (const auto& [name, value] : {std::pair{"model_dim", model_dim}, {"head_dim", head_dim}, {"ffn_dim", ffn_dim}}) {
    if (value < 16 || value % 16 != 0)
      return absl::InvalidArgumentError(absl::StrCat(name, " is ", value, ": must be a multiple of 16"));
  }
  if (kv_heads < 1 || heads < kv_heads || heads % kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat("heads is ", heads, ": must be a multiple of kv_heads, ", kv_heads));
  }
  if (group() > kPanelColumns) {
    return absl::InvalidArgumentError(absl::StrCat("heads / kv_heads is ", group(), ": at most ", kPanelColumns));
  }
  if (context_max < 1) return absl::InvalidArgumentError("context_max: at least 1");
  return absl::OkStatus();
}

std::string ModelConfig::Revision() const {
  return absl::StrCat("seed", seed, "-l", layers, "-d", model_dim, "-h", heads, "-k", kv_heads, "-w", head_dim, "-f",
                      ffn_dim);
}

}  // namespace tinyllm

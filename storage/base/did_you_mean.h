#ifndef KVIST_STORAGE_BASE_DID_YOU_MEAN_H_
#define KVIST_STORAGE_BASE_DID_YOU_MEAN_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace kvist {

// " (did you mean WORD?)" for the candidate that a slip of the finger would make of `word`; "" when none is near.
std::string DidYouMean(absl::string_view word, const std::vector<absl::string_view>& candidates);

}  // namespace kvist

#endif  // KVIST_STORAGE_BASE_DID_YOU_MEAN_H_

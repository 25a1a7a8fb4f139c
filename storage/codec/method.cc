#include "storage/codec/method.h"

#include "absl/strings/str_cat.h"

namespace kvist::codec {
namespace {

constexpr uint32_t kGroupMax = 65536;
constexpr uint32_t kOutliersMax = 4096;  // one in 16: behind that int8 is smaller

bool HasGroups(Method method) { return method == Method::kInt8 || method == Method::kInt4 || method == Method::kFp8; }

absl::Status CheckRange(absl::string_view field, uint32_t value, bool has, uint32_t min, uint32_t max) {
  if (!has && value != 0) return absl::InvalidArgumentError(absl::StrCat("parameters.", field, ": the method has none"));
  if (has && (value < min || value > max))
    return absl::InvalidArgumentError(absl::StrCat("parameters.", field, " is ", value, ", must be ", min, " to ", max));
  return absl::OkStatus();
}

}  // namespace

absl::string_view NameOf(Method method) {
  switch (method) {
    case Method::kLossless: return "lossless";
    case Method::kInt8: return "int8";
    case Method::kInt4: return "int4";
    case Method::kFp8: return "fp8";
    case Method::kStrongest: return "strongest";
  }
  return "";
}

std::optional<Method> MethodNamed(absl::string_view name) {
  for (const Method method : kMethods) {
    if (NameOf(method) == name) return method;
  }
  return std::nullopt;
}

Parameters Parameters::Of(Method method) {
  switch (method) {
    case Method::kLossless: return {};
    case Method::kInt8:
    case Method::kFp8: return {.group = 128};
    case Method::kInt4: return {.group = 32, .outliers = 32};
    case Method::kStrongest: return {.anchor = 64, .key_error = {500, 550, 600}, .other_error = {750, 800, 850}};
  }
  return {};
}

absl::Status Parameters::Validate(Method method) const {
  if (NameOf(method).empty()) return absl::InvalidArgumentError("method is none that is known");
  const bool strongest = method == Method::kStrongest;
  absl::Status status = CheckRange("group", group, HasGroups(method), 8, kGroupMax);
  if (status.ok()) status = CheckRange("outliers", outliers, method == Method::kInt4, 0, kOutliersMax);
  if (status.ok()) status = CheckRange("anchor", anchor, strongest, 1, 65536);
  for (size_t third = 0; third < key_error.size(); ++third) {
    if (status.ok()) status = CheckRange("key_error", key_error[third], strongest, 1, 10000);
    if (status.ok()) status = CheckRange("other_error", other_error[third], strongest, 1, 10000);
  }
  return status;
}

}  // namespace kvist::codec

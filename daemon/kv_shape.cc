#include "daemon/kv_shape.h"

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace kvist::daemon {
namespace {

codec::Element ElementOf(const std::string& kv_dtype) {
  const std::string lower = absl::AsciiStrToLower(kv_dtype);
  const absl::string_view name = absl::StripPrefix(lower, "torch.");
  if (name == "bf16" || name == "bfloat16") return codec::Element::kBf16;
  if (name == "fp16" || name == "f16" || name == "float16" || name == "half") return codec::Element::kFp16;
  return codec::Element::kOpaque;
}

}  // namespace

codec::Shape ShapeOf(const session::GroupForm& form) {
  codec::Shape shape;
  shape.layers = form.layers;
  shape.segments = form.segments;
  shape.element = ElementOf(form.kv_dtype);
  const uint64_t of_token = form.page_tokens == 0 ? 0 : form.segment_bytes.value / form.page_tokens;
  if (shape.element != codec::Element::kOpaque && of_token % 2 == 0 &&
      of_token * form.page_tokens == form.segment_bytes.value) {
    shape.keys = form.segments == 2 ? 1 : 0;
    shape.tokens = form.pages * form.page_tokens;
    shape.channels = static_cast<uint32_t>(of_token / 2);
    return shape;
  }
  shape.element = codec::Element::kOpaque;
  shape.tokens = form.pages;
  shape.channels = static_cast<uint32_t>(form.segment_bytes.value);
  return shape;
}

std::vector<codec::Shape> ShapesOf(const core::SpaceSpec& space) {
  std::vector<codec::Shape> shapes;
  const absl::StatusOr<std::vector<session::GroupForm>> forms = session::FormsOf(space.description);
  for (size_t g = 0; g < space.groups.size(); ++g) {
    const core::GroupSpec& group = space.groups[g];
    codec::Shape shape;
    if (forms.ok() && g < forms->size()) shape = ShapeOf((*forms)[g]);
    if (!shape.Validate().ok() || shape.bytes() != group.payload()) {
      shape = codec::Shape{};
      shape.layers = group.layers;
      shape.channels = static_cast<uint32_t>(group.layer_bytes.value);
    }
    shapes.push_back(shape);
  }
  return shapes;
}

absl::Status MayEncode(const core::SpaceSpec& space, codec::Method method) {
  for (const codec::Shape& shape : ShapesOf(space)) {
    if (codec::IsLossy(method) && shape.element == codec::Element::kOpaque) {
      return absl::InvalidArgumentError(absl::StrCat("method: ", codec::NameOf(method),
                                                     " takes KV of bf16 or fp16, and that of ", space.model,
                                                     " is something else; lossless takes any"));
    }
  }
  return absl::OkStatus();
}

}  // namespace kvist::daemon

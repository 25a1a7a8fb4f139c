#include "storage/codec/codec.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "storage/base/status.h"
#include "storage/base/xxh3.h"
#include "storage/codec/format.h"
#include "storage/codec/kernels.h"
#include "storage/codec/matrix_coder.h"

namespace kvist::codec {
namespace {

static_assert(kDescribed.value == sizeof(Header));

// Of opaque bytes there are no kernels, and none are needed.
const Kernels* KernelsOf(const Shape& shape) {
  return shape.element == Element::kOpaque ? nullptr : &KernelsFor(shape.element);
}

absl::Status Validate(Method method, const Parameters& parameters, const Shape& shape) {
  KVIST_RETURN_IF_ERROR(shape.Validate());
  KVIST_RETURN_IF_ERROR(parameters.Validate(method));
  if (IsLossy(method) && shape.element == Element::kOpaque)
    return absl::InvalidArgumentError(
        absl::StrCat("method ", NameOf(method), " needs bf16 or fp16 values; opaque bytes can only be encoded lossless"));
  return absl::OkStatus();
}

bool AllFinite(const Shape& shape, std::span<const std::byte> payload) {
  const Kernels& kernels = KernelsFor(shape.element);
  const uint16_t infinity = shape.element == Element::kBf16 ? Bf16::kInfinity : Fp16::kInfinity;
  return kernels.max_magnitude(ValuesAt(payload.data()), payload.size() / sizeof(uint16_t)) < infinity;
}

Header MakeHeader(Method method, const Parameters& parameters, const Shape& shape) {
  Header header{};
  header.magic = kMagic;
  header.version = kFormatVersion;
  header.method = method;
  header.element = shape.element;
  header.pages = shape.pages;
  header.layers = shape.layers;
  header.segments = shape.segments;
  header.keys = shape.keys;
  header.tiles = shape.tiles;
  header.tokens = shape.tokens;
  header.channels = shape.channels;
  header.group = parameters.group;
  header.outliers = parameters.outliers;
  header.anchor = parameters.anchor;
  std::copy(parameters.key_error.begin(), parameters.key_error.end(), header.key_error);
  std::copy(parameters.other_error.begin(), parameters.other_error.end(), header.other_error);
  header.decoded = shape.bytes().value;
  return header;
}

Description DescriptionOf(const Header& header) {
  Description found;
  found.method = header.method;
  found.parameters = {.group = header.group,
                      .outliers = header.outliers,
                      .anchor = header.anchor,
                      .key_error = std::to_array(header.key_error),
                      .other_error = std::to_array(header.other_error)};
  found.shape = {.element = header.element,
                 .pages = header.pages,
                 .layers = header.layers,
                 .segments = header.segments,
                 .keys = header.keys,
                 .tiles = header.tiles,
                 .tokens = header.tokens,
                 .channels = header.channels};
  found.encoded = Bytes{header.encoded};
  return found;
}

// Of what Validate accepts.
uint64_t BoundOf(Method method, const Parameters& parameters, const Shape& shape) {
  const size_t lossless = MatrixCoder::Bound(Method::kLossless, shape, Parameters{});
  const size_t asked = MatrixCoder::Bound(method, shape, parameters);
  return PartsAt(shape.matrices()) + shape.matrices() * std::max(lossless, asked);
}

absl::StatusOr<Header> ReadHeader(std::span<const std::byte> encoded) {
  Header header{};
  if (encoded.size() < sizeof header) return absl::DataLossError("encoded shard: shorter than a header");
  std::memcpy(&header, encoded.data(), sizeof header);
  if (header.magic != kMagic) return absl::DataLossError("encoded shard: no header");
  if (header.version != kFormatVersion)
    return absl::FailedPreconditionError(
        absl::StrCat("encoded shard: format version ", header.version, ", this is ", kFormatVersion));
  if (header.checksum != XXH3_64bits(&header, offsetof(Header, checksum)))
    return absl::DataLossError("encoded shard: the header is damaged");
  if (std::ranges::find(kMethods, header.method) == std::end(kMethods))
    return absl::FailedPreconditionError(
        absl::StrCat("encoded shard: method ", static_cast<int>(header.method), ", which this version doesn't know"));
  const Description found = DescriptionOf(header);
  if (const absl::Status status = Validate(found.method, found.parameters, found.shape); !status.ok())
    return absl::DataLossError(absl::StrCat("encoded shard: ", status.message()));
  if (header.reserved != 0 || header.decoded != found.shape.bytes().value ||
      header.encoded < PartsAt(found.shape.matrices()) ||
      header.encoded > BoundOf(found.method, found.parameters, found.shape))
    return absl::DataLossError("encoded shard: the header contradicts itself");
  return header;
}

}  // namespace

absl::StatusOr<Bytes> EncodedBound(Method method, const Parameters& parameters, const Shape& shape) {
  KVIST_RETURN_IF_ERROR(Validate(method, parameters, shape));
  return Bytes{BoundOf(method, parameters, shape)};
}

absl::StatusOr<Encoded> Encode(Method method, const Parameters& parameters, const Shape& shape,
                               std::span<const std::byte> payload, std::span<std::byte> out) {
  KVIST_RETURN_IF_ERROR(Validate(method, parameters, shape));
  if (payload.size() != shape.bytes().value)
    return absl::InvalidArgumentError(
        absl::StrCat("payload has ", payload.size(), " bytes, the shape ", shape.bytes().value));
  if (const uint64_t bound = BoundOf(method, parameters, shape); out.size() < bound)
    return absl::InvalidArgumentError(absl::StrCat("out has ", out.size(), " bytes, EncodedBound asks for ", bound));
  if (IsLossy(method) && !AllFinite(shape, payload))
    return Encode(Method::kLossless, Parameters::Of(Method::kLossless), shape, payload, out);

  const std::unique_ptr<MatrixCoder> coder = MatrixCoder::Create(method, shape, parameters, KernelsOf(shape));
  std::vector<PartEntry> directory(shape.matrices());
  auto* const begin = reinterpret_cast<uint8_t*>(out.data());
  uint8_t* at = begin + PartsAt(shape.matrices());
  for (uint64_t matrix = 0; matrix < directory.size(); ++matrix) {
    const size_t bytes = coder->Encode(matrix, payload, at);
    directory[matrix] = {XXH3_64bits_withSeed(at, bytes, matrix), static_cast<uint32_t>(bytes), 0};
    at += bytes;
  }
  Header header = MakeHeader(method, parameters, shape);
  header.encoded = static_cast<uint64_t>(at - begin);
  header.directory = XXH3_64bits(directory.data(), directory.size() * sizeof(PartEntry));
  header.checksum = XXH3_64bits(&header, offsetof(Header, checksum));
  std::memcpy(begin, &header, sizeof header);
  std::memcpy(begin + sizeof header, directory.data(), directory.size() * sizeof(PartEntry));
  return Encoded{method, Bytes{header.encoded}};
}

absl::StatusOr<Description> Describe(std::span<const std::byte> encoded) {
  KVIST_ASSIGN_OR_RETURN(const Header header, ReadHeader(encoded));
  return DescriptionOf(header);
}

absl::Status Decode(std::span<const std::byte> encoded, const Shape& shape, std::span<std::byte> out) {
  KVIST_RETURN_IF_ERROR(shape.Validate());
  if (out.size() != shape.bytes().value)
    return absl::InvalidArgumentError(absl::StrCat("out has ", out.size(), " bytes, the shape ", shape.bytes().value));
  KVIST_ASSIGN_OR_RETURN(const Header header, ReadHeader(encoded));
  const Description found = DescriptionOf(header);
  if (found.shape != shape) return absl::DataLossError("encoded shard: of another shape than was asked for");
  if (header.encoded != encoded.size())
    return absl::DataLossError(
        absl::StrCat("encoded shard: ", encoded.size(), " bytes are here, its header says ", header.encoded));

  // From here on lengths are those of `shape`, which the caller has.
  const uint64_t matrices = shape.matrices();
  const std::span<const std::byte> entries = encoded.subspan(sizeof header, matrices * sizeof(PartEntry));
  if (header.directory != XXH3_64bits(entries.data(), entries.size()))
    return absl::DataLossError("encoded shard: the directory is damaged");
  const std::unique_ptr<MatrixCoder> coder = MatrixCoder::Create(found.method, shape, found.parameters, KernelsOf(shape));
  std::span<const std::byte> rest = encoded.subspan(PartsAt(matrices));
  for (uint64_t matrix = 0; matrix < matrices; ++matrix) {
    PartEntry entry{};
    std::memcpy(&entry, entries.data() + matrix * sizeof entry, sizeof entry);
    if (entry.bytes > rest.size() || entry.reserved != 0)
      return absl::DataLossError("encoded shard: the directory contradicts itself");
    const std::span<const uint8_t> part(reinterpret_cast<const uint8_t*>(rest.data()), entry.bytes);
    rest = rest.subspan(entry.bytes);
    if (entry.checksum != XXH3_64bits_withSeed(part.data(), part.size(), matrix))
      return absl::DataLossError(absl::StrCat("encoded shard: the part of matrix ", matrix, " is damaged"));
    if (!coder->Decode(matrix, part, out.data() + matrix * shape.matrix_bytes().value))
      return absl::DataLossError(absl::StrCat("encoded shard: the part of matrix ", matrix, " is none"));
  }
  if (!rest.empty()) return absl::DataLossError("encoded shard: the directory contradicts itself");
  return absl::OkStatus();
}

}  // namespace kvist::codec

// What codecs take off a shard, what of its values they lose, and how long they take. Ratio and error depend on the values: of those made here
// (kv_values.h) all is measured, of a file's, beside them, all but speeds is asked for.
#include "storage/codec/codec.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "storage/base/status.h"
#include "storage/codec/attention.h"
#include "storage/codec/distortion.h"
#include "tests/bench/kv_values.h"
#include "tests/bench/plane_split.h"
#include "tests/bench/slices.h"
#include "tests/bench/subcommands.h"

namespace kvist::bench {
namespace {

constexpr KvSizes kShardSizes{16, 256, 8, 128};  // 16 MiB
constexpr KvSizes kQuickShardSizes{3, 64, 2, 128};
constexpr uint32_t kQueries = 4;  // for each layer and head
constexpr int kTimed = 14;  // pairs that share the time: encode and decode of each method, and of both limits of lossless

struct AskedOfMethod {
  codec::Method method;
  std::optional<double> ratio, encode, decode;  // of 1 that is asked for; speeds beside their limit
};
constexpr AskedOfMethod kAskedOfMethods[] = {
    {codec::Method::kLossless, 1.42, 0.9, 0.9}, {codec::Method::kInt8, 1.98, 0.1, 0.6},   {codec::Method::kFp8, {}, {}, {}},
    {codec::Method::kInt4, 3.5, {}, {}},        {codec::Method::kStrongest, 4.0, {}, {}},
};

struct Lost {
  codec::Distortion distortion;
  double attention = 0;
};

// One method on one shard.
class Trial {
 public:
  Trial(codec::Method method, const KvValues& values)
      : method_(method),
        parameters_(codec::Parameters::Of(method)),
        values_(values),
        encoded_(codec::EncodedBound(method, parameters_, values.shape)->value),
        decoded_(values.payload.size()) {}

  // GB of values a second.
  absl::StatusOr<double> Encode() {
    const double start = Now();
    KVIST_ASSIGN_OR_RETURN(const codec::Encoded made,
                           codec::Encode(method_, parameters_, values_.shape, values_.payload, encoded_));
    const double seconds = Now() - start;
    bytes_ = made.bytes.value;
    if (made.method != method_)
      return absl::FailedPreconditionError("values that aren't finite: lossy methods can't be measured on them");
    return Rate(seconds);
  }
  absl::StatusOr<double> Decode() {
    const double start = Now();
    KVIST_RETURN_IF_ERROR(codec::Decode(std::span(encoded_).first(bytes_), values_.shape, decoded_));
    return Rate(Now() - start);
  }
  absl::StatusOr<double> Copy() {
    const double start = Now();
    std::memcpy(decoded_.data(), values_.payload.data(), decoded_.size());
    asm volatile("" : : "r"(decoded_.data()) : "memory");
    return Rate(Now() - start);
  }
  double Ratio() const { return static_cast<double>(values_.payload.size()) / static_cast<double>(bytes_); }
  bool IsSame() const { return decoded_ == values_.payload; }
  Lost WhatIsLost() const {
    const codec::AttentionProbe all{.head_channels = values_.head_dim, .queries = kQueries};
    return {codec::Measure(values_.shape, values_.payload, decoded_),
            *codec::AttentionError(values_.shape, values_.payload, decoded_, all)};
  }

 private:
  double Rate(double seconds) const { return static_cast<double>(values_.payload.size()) / seconds * 1e-9; }

  const codec::Method method_;
  const codec::Parameters parameters_;
  const KvValues& values_;
  std::vector<std::byte> encoded_, decoded_;
  size_t bytes_ = 0;
};

Case Compared(std::string name, const Pair& pair, std::optional<double> goal) {
  return {std::move(name), pair.product, "GB/s", pair.limit, Better::kHigher, goal};
}

absl::StatusOr<Pair> Median(absl::Duration time, const Slice& product, const Slice& limit) {
  KVIST_ASSIGN_OR_RETURN(std::vector<Pair> pairs, Alternate(time, product, limit));
  return MedianByRatio(std::move(pairs));
}

struct MethodRow {
  std::string name;
  double ratio = 0, encode = 0, decode = 0;  // beside memcpy
  Lost lost;
};

// Lossless beside planes and zstd-1. What is asked for is beside the faster way to do that: a matrix at a time, as lossless does, and the low
// plane as it is where it hardly shrinks. The other, the whole shard at once and both planes compressed, is what it was measured by first.
absl::Status MeasurePlanes(const AskedOfMethod& asked, const KvValues& values, absl::Duration time, Trial* trial,
                           Report* report) {
  const size_t payload_bytes = values.payload.size();
  const double gigabytes = static_cast<double>(payload_bytes) * 1e-9;
  for (const bool whole : {false, true}) {
    std::vector<std::byte> joined(payload_bytes);
    PlaneSplit planes({.payload_bytes = payload_bytes,
                       .block_bytes = whole ? payload_bytes : static_cast<size_t>(values.shape.matrix_bytes().value),
                       .samples_low = !whole});
    const Slice split = [&]() -> absl::StatusOr<double> {
      const double start = Now();
      planes.Encode(values.payload);
      return gigabytes / (Now() - start);
    };
    const Slice join = [&]() -> absl::StatusOr<double> {
      const double start = Now();
      if (!planes.Decode(joined)) return absl::InternalError("planes that were split don't join");
      return gigabytes / (Now() - start);
    };
    const double ratio = static_cast<double>(payload_bytes) / static_cast<double>(planes.Encode(values.payload));
    KVIST_RETURN_IF_ERROR(join().status());
    if (joined != values.payload) return absl::InternalError("planes that were split join to something else");
    const std::string beside = absl::StrCat(" beside planes + zstd-1", whole ? ", whole shard" : "");
    report->cases.push_back({absl::StrCat("lossless ratio", beside), trial->Ratio(), "x", ratio, Better::kHigher, {}});
    KVIST_ASSIGN_OR_RETURN(const Pair encoding, Median(
                                                    time, [&] { return trial->Encode(); }, split));
    report->cases.push_back(
        Compared(absl::StrCat("lossless encode", beside), encoding, whole ? std::nullopt : asked.encode));
    KVIST_ASSIGN_OR_RETURN(const Pair decoding, Median(
                                                    time, [&] { return trial->Decode(); }, join));
    report->cases.push_back(
        Compared(absl::StrCat("lossless decode", beside), decoding, whole ? std::nullopt : asked.decode));
  }
  return absl::OkStatus();
}

absl::StatusOr<MethodRow> MeasureMethod(const AskedOfMethod& asked, const KvValues& values, absl::Duration time,
                                        Report* report) {
  Trial trial(asked.method, values);
  const std::string name(codec::NameOf(asked.method));
  const Slice encode = [&] { return trial.Encode(); };
  const Slice decode = [&] { return trial.Decode(); };
  const Slice copy = [&] { return trial.Copy(); };

  // Memory that nobody has touched costs what isn't measured here. No copy comes before: what is compared has to come from decoding.
  KVIST_RETURN_IF_ERROR(trial.Encode().status());
  KVIST_RETURN_IF_ERROR(trial.Decode().status());
  MethodRow row{name, trial.Ratio(), 0, 0, trial.WhatIsLost()};
  report->cases.push_back({absl::StrCat(name, " ratio"), row.ratio, "x", asked.ratio.value_or(1), Better::kHigher,
                           asked.ratio.has_value() ? std::optional<double>(1) : std::nullopt});
  const bool lossless = asked.method == codec::Method::kLossless;
  if (lossless) {
    if (!trial.IsSame()) return absl::InternalError("lossless: what was decoded isn't what was encoded");
    KVIST_RETURN_IF_ERROR(MeasurePlanes(asked, values, time, &trial, report));
  }
  KVIST_ASSIGN_OR_RETURN(const Pair encoding, Median(time, encode, copy));
  report->cases.push_back(
      Compared(absl::StrCat(name, " encode beside memcpy"), encoding, lossless ? std::nullopt : asked.encode));
  // memcpy writes where decoding does: what it leaves there is decoded over.
  KVIST_ASSIGN_OR_RETURN(const Pair decoding, Median(time, decode, copy));
  report->cases.push_back(
      Compared(absl::StrCat(name, " decode beside memcpy"), decoding, lossless ? std::nullopt : asked.decode));
  row.encode = encoding.ratio();
  row.decode = decoding.ratio();
  return row;
}

std::string TableOf(const std::vector<MethodRow>& rows) {
  std::string out = absl::StrFormat("%-10s %7s %18s %18s %11s %12s %11s\n", "method", "ratio", "encode / memcpy",
                                    "decode / memcpy", "rel. error", "worst layer", "attention");
  for (const MethodRow& row : rows) {
    absl::StrAppendFormat(&out, "%-10s %7.3f %18.3f %18.3f %11.5f %12.5f %11.5f\n", row.name, row.ratio, row.encode,
                          row.decode, row.lost.distortion.relative, row.lost.distortion.worst_layer, row.lost.attention);
  }
  return out;
}

void AddErrors(const std::vector<MethodRow>& rows, Report* report) {
  const auto int4 = std::find_if(rows.begin(), rows.end(), [](const MethodRow& row) { return row.name == "int4"; });
  for (const MethodRow& row : rows) {
    if (row.name == "lossless") continue;
    const std::optional<double> goal = row.name == "strongest" ? std::optional<double>(1) : std::nullopt;
    const auto add = [&](const char* what, double value, double limit) {
      report->cases.push_back({absl::StrCat(row.name, what), value, "", limit, Better::kLower, goal});
    };
    add(" error beside int4", row.lost.distortion.relative, int4->lost.distortion.relative);
    add(" worst layer's error beside int4", row.lost.distortion.worst_layer, int4->lost.distortion.worst_layer);
    add(" attention error beside int4", row.lost.attention, int4->lost.attention);
  }
}

// All methods on one shard, their cases in `report`.
absl::Status MeasureAll(std::span<const AskedOfMethod> methods, const KvValues& values, absl::Duration time,
                        Report* report) {
  std::vector<MethodRow> rows;
  for (const AskedOfMethod& asked : methods) {
    KVIST_ASSIGN_OR_RETURN(MethodRow row, MeasureMethod(asked, values, time, report));
    rows.push_back(std::move(row));
  }
  AddErrors(rows, report);
  report->notes += TableOf(rows);
  return absl::OkStatus();
}

// Speeds are asked for of the values made here, and of real ones what the strongest method makes of them.
absl::Status MeasureFile(const Settings::Kv& kv, absl::Duration time, Report* report) {
  KVIST_ASSIGN_OR_RETURN(const KvValues values, ReadKvValues(kv.path, {kv.layers, kv.tokens, kv.heads, kv.head_dim}));
  if (values.shape.matrix_bytes().value % PlaneSplit::kUnit != 0)
    return absl::InvalidArgumentError(
        absl::StrCat("--kv: a layer's keys must have a multiple of ", PlaneSplit::kUnit, " bytes"));
  std::vector<AskedOfMethod> methods;
  for (const AskedOfMethod& asked : kAskedOfMethods) {
    const bool strongest = asked.method == codec::Method::kStrongest;
    methods.push_back({asked.method, strongest ? asked.ratio : std::nullopt, std::nullopt, std::nullopt});
  }
  Report of_file;
  KVIST_RETURN_IF_ERROR(MeasureAll(methods, values, time, &of_file));
  absl::StrAppend(&report->notes, "\n", kv.path, "\n", of_file.notes);
  for (Case& found : of_file.cases) {
    found.name = absl::StrCat("file: ", found.name);
    report->cases.push_back(std::move(found));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunCodec(const Settings& settings, Report* report) {
  const bool file = !settings.kv.path.empty();
  const absl::Duration time = settings.time / (file ? 2 * kTimed : kTimed);
  KVIST_RETURN_IF_ERROR(
      MeasureAll(kAskedOfMethods, MakeKvValues(settings.quick ? kQuickShardSizes : kShardSizes, 1), time, report));
  return file ? MeasureFile(settings.kv, time, report) : absl::OkStatus();
}

}  // namespace kvist::bench

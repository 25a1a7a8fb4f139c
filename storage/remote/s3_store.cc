#include "storage/remote/s3_store.h"

#include <curl/curl.h>

#include <algorithm>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "storage/base/check.h"
#include "storage/base/clock.h"
#include "storage/base/status.h"

namespace kvist::remote {
namespace {

template <class Byte>
std::array<std::span<Byte>, 2> RangeOf(std::span<Byte> head, std::span<Byte> body, uint64_t at, uint64_t bytes) {
  const auto head_at = std::min<uint64_t>(at, head.size());
  const auto head_bytes = std::min<uint64_t>(bytes, head.size() - head_at);
  const auto body_at = std::min<uint64_t>(body.size(), at + head_bytes - std::min<uint64_t>(at + head_bytes, head.size()));
  return {head.subspan(head_at, head_bytes),
          body.subspan(body_at, std::min<uint64_t>(bytes - head_bytes, body.size() - body_at))};
}

constexpr absl::Duration kAbortTimeMax = absl::Seconds(2);

void StartCurl() {
  static const CURLcode kStarted = curl_global_init(CURL_GLOBAL_ALL);
  KVIST_CHECK(kStarted == CURLE_OK);
}

}  // namespace

// A request of an operation.
struct S3Store::Part {
  std::shared_ptr<Op> op;
  std::unique_ptr<S3HttpRequest> request;
  uint32_t number = 0;
  uint32_t attempt = 1;
  absl::Duration time_max = absl::ZeroDuration();  // zero: as long as its operation
};

struct S3Store::Op {
  enum class Phase : uint8_t { kOnly, kCreating, kUploading, kCompleting };
  std::shared_ptr<RunningBatch> batch;
  Lane* lane = nullptr;
  size_t index = 0;
  Phase phase = Phase::kOnly;
  uint32_t left = 0;  // requests
  absl::Status status;
  std::string upload_id;
  std::vector<std::string> etags;
  std::string text;  // of the completing request, while that is on its way
  struct Range {
    bool there = false;
    bool too_long = false;
    uint64_t received = 0;
    uint64_t total = 0;
  };
  std::vector<Range> ranges;

  const Operation& operation() const { return batch->operation(index); }
  Kind kind() const { return batch->batch().kind; }
};

absl::StatusOr<std::unique_ptr<S3Store>> S3Store::Create(const S3Options& options) {
  KVIST_RETURN_IF_ERROR(options.Validate());
  KVIST_ASSIGN_OR_RETURN(S3Place place, PlaceOf(options));
  StartCurl();
  return absl::WrapUnique(new S3Store(options, std::move(place)));
}

S3Store::S3Store(const S3Options& options, S3Place place)
    : options_(options),
      place_(std::move(place)),
      in_flight_(options.limits),
      multi_(curl_multi_init()),
      bytes_{options.connections, {}, {}},
      questions_{options.question_connections, {}, {}} {
  KVIST_CHECK(multi_ != nullptr);
  curl_multi_setopt(multi_, CURLMOPT_MAXCONNECTS, static_cast<long>(options_.connections + options_.question_connections));
  thread_ = std::thread([this] { Run(); });
}

S3Store::~S3Store() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  curl_multi_wakeup(multi_);
  thread_.join();
  curl_multi_cleanup(multi_);
}

absl::Status S3Store::Submit(Batch batch, Done done) {
  KVIST_RETURN_IF_ERROR(ValidateNames(batch));
  KVIST_RETURN_IF_ERROR(in_flight_.Take(LoadOf(batch)));
  auto running = std::make_shared<RunningBatch>(std::move(batch), std::move(done), &in_flight_);
  bool stopping = false;
  {
    MutexLock lock(&mutex_);
    stopping = stopping_;  // then nobody looks any more
    if (!stopping) submitted_.push_back(running);
  }
  if (stopping) {
    running->Refuse();
    return BeingClosed();
  }
  curl_multi_wakeup(multi_);
  return absl::OkStatus();
}

void S3Store::Run() {
  while (TakeSubmitted()) {
    absl::Time now = MonotonicNow();
    EndLate(now);
    for (Lane* const lane : {&questions_, &bytes_}) Begin(lane, now);
    int running = 0;
    KVIST_CHECK(curl_multi_perform(multi_, &running) == CURLM_OK);
    TakeEnds(now);
    Announce();
    now = MonotonicNow();
    absl::Time wake = running_.empty() ? absl::InfiniteFuture() : running_.begin()->first;
    for (const Lane* const lane : {&questions_, &bytes_}) {
      if (!lane->waiting.empty() && lane->active.size() < lane->connections)
        wake = std::min(wake, lane->waiting.begin()->first);
    }
    const absl::Duration wait = std::clamp(wake - now, absl::ZeroDuration(), absl::Seconds(10));
    curl_multi_poll(multi_, nullptr, 0, static_cast<int>(absl::ToInt64Milliseconds(wait + absl::Microseconds(999))),
                    nullptr);
  }
  while (!running_.empty()) {
    const std::vector<std::shared_ptr<Op>> ops = running_.begin()->second.ops;
    for (const auto& op : ops) {
      if (op->batch->ended(op->index)) continue;
      Drop(op);
      End(op, {absl::CancelledError("the remote store is being closed")});
    }
  }
  for (Lane* const lane : {&questions_, &bytes_}) {
    while (!lane->active.empty()) Drop(lane->active.begin()->second->op);  // what tidies up for those that have ended
    lane->waiting.clear();
  }
  Announce();
}

bool S3Store::TakeSubmitted() {
  std::vector<std::shared_ptr<RunningBatch>> submitted;
  bool stopping = false;
  {
    MutexLock lock(&mutex_);
    submitted.swap(submitted_);
    stopping = stopping_;
  }
  for (const auto& batch : submitted) {
    Running running{batch, {}};
    Lane* const lane = IsQuestion(batch->batch()) ? &questions_ : &bytes_;
    for (size_t i = 0; i < batch->batch().operations.size(); ++i) {
      running.ops.push_back(std::make_shared<Op>());
      running.ops.back()->batch = batch;
      running.ops.back()->lane = lane;
      running.ops.back()->index = i;
    }
    const auto at = running_.emplace(batch->batch().deadline, std::move(running));
    if (stopping) continue;
    for (const auto& op : at->second.ops) Plan(op);
  }
  return !stopping;
}

void S3Store::EndLate(absl::Time now) {
  while (!running_.empty() && running_.begin()->first <= now) {
    const std::vector<std::shared_ptr<Op>> ops = running_.begin()->second.ops;
    for (const auto& op : ops) {
      if (op->batch->ended(op->index)) continue;
      Drop(op);
      End(op, {absl::DeadlineExceededError("s3 didn't answer in time")});
      Abort(op);
    }
  }
}

void S3Store::Ask(const std::shared_ptr<Op>& op, S3Request request, S3HttpRequest::Body body, S3HttpRequest::Into into,
                  uint32_t number) {
  auto part = std::make_shared<Part>();
  part->op = op;
  part->number = number;
  request.path = op->operation().name;
  part->request = std::make_unique<S3HttpRequest>(&options_, &place_, std::move(request), body, into);
  ++op->left;
  op->lane->waiting.emplace(absl::InfinitePast(), std::move(part));
}

void S3Store::Plan(const std::shared_ptr<Op>& op) {
  const Operation& operation = op->operation();
  const auto plain = [](const char* method) { return S3Request{method, "", "", {}, {}, ""}; };
  switch (op->kind()) {
    case Kind::kExists: return Ask(op, plain("HEAD"), {}, {}, 0);
    case Kind::kRemove: return Ask(op, plain("DELETE"), {}, {}, 0);
    case Kind::kPut: {
      if (operation.head.size() + operation.body.size() <= options_.part.value)
        return Ask(op, plain("PUT"), {operation.head, operation.body}, {}, 0);
      op->phase = Op::Phase::kCreating;
      S3Request create = plain("POST");
      create.query = {{"uploads", ""}};
      return Ask(op, std::move(create), {}, {}, 0);
    }
    case Kind::kGet: {
      const uint64_t room = operation.head_into.size() + operation.body_into.size();
      const auto count =
          static_cast<uint32_t>(std::max<uint64_t>(1, (room + options_.part.value - 1) / options_.part.value));
      op->ranges.resize(count);
      for (uint32_t i = 0; i < count; ++i) {
        const uint64_t at = i * options_.part.value;
        const uint64_t bytes = std::min(room - at, options_.part.value);
        S3Request get = plain("GET");
        // Of the last one a byte more: whether there is more than there is room for.
        get.headers["range"] = absl::StrCat("bytes=", at, "-", at + bytes - (i + 1 < count ? 1 : 0));
        Ask(op, std::move(get), {}, RangeOf(operation.head_into, operation.body_into, at, bytes), i);
      }
    }
  }
}

void S3Store::Begin(Lane* lane, absl::Time now) {
  while (lane->active.size() < lane->connections && !lane->waiting.empty() && lane->waiting.begin()->first <= now) {
    std::shared_ptr<Part> part = lane->waiting.begin()->second;
    lane->waiting.erase(lane->waiting.begin());
    void* const handle = part->request->Begin(part->time_max);
    KVIST_CHECK(curl_multi_add_handle(multi_, handle) == CURLM_OK);
    lane->active.emplace(handle, std::move(part));
  }
}

void S3Store::TakeEnds(absl::Time now) {
  int left = 0;
  while (const CURLMsg* message = curl_multi_info_read(multi_, &left)) {
    if (message->msg != CURLMSG_DONE) continue;
    const CURLcode code = message->data.result;
    CURL* const handle = message->easy_handle;
    auto ended = questions_.active.extract(handle);
    if (ended.empty()) ended = bytes_.active.extract(handle);
    KVIST_CHECK(!ended.empty());
    const std::shared_ptr<Part> part = std::move(ended.mapped());
    curl_multi_remove_handle(multi_, handle);
    const absl::Status status = part->request->too_long() ? absl::OkStatus() : part->request->StatusOf(code);
    if (absl::IsUnavailable(status) && part->attempt < options_.attempts && !part->op->batch->ended(part->op->index)) {
      const absl::Duration pause = std::min(options_.pause_min * (1 << (part->attempt - 1)), options_.pause_max);
      ++part->attempt;
      part->op->lane->waiting.emplace(now + pause, part);
      continue;
    }
    PartEnded(part.get(), status);
  }
}

void S3Store::PartEnded(Part* part, absl::Status status) {
  const std::shared_ptr<Op> op = part->op;
  --op->left;
  if (op->batch->ended(op->index)) return;
  const S3HttpRequest& request = *part->request;
  switch (op->kind()) {
    case Kind::kExists: {
      const Found found = status.ok() ? Found::kYes : Found::kNo;
      return End(op, {absl::IsNotFound(status) ? absl::OkStatus() : status, found});
    }
    case Kind::kRemove: return End(op, {absl::IsNotFound(status) ? absl::OkStatus() : status});
    case Kind::kGet: {
      Op::Range& range = op->ranges[part->number];
      // Behind the object's end nothing can be read: that says how long it is, no more.
      const bool behind = absl::IsOutOfRange(status);
      const bool all_of_it = status.ok() && part->number > 0 && !request.total().has_value();  // the range was overlooked
      range = {status.ok() && !all_of_it, request.too_long(), request.received(),
               request.total().value_or(request.received())};
      if (all_of_it) status = absl::FailedPreconditionError("s3: the server doesn't know ranges");
      if (!behind) op->status.Update(status);
      if (op->left == 0) GetEnded(op);
      return;
    }
    case Kind::kPut:
      op->status.Update(status);
      if (op->phase == Op::Phase::kUploading && status.ok()) op->etags[part->number] = request.etag();
      if (op->left == 0) PutEnded(op, *part);
  }
}

void S3Store::GetEnded(const std::shared_ptr<Op>& op) {
  if (!op->status.ok()) return End(op, {absl::IsNotFound(op->status) ? absl::OkStatus() : op->status, Found::kNo});
  const Operation& operation = op->operation();
  const uint64_t room = operation.head_into.size() + operation.body_into.size();
  Outcome outcome{absl::OkStatus(), Found::kYes};
  uint64_t total = 0;
  uint64_t received = 0;
  for (const Op::Range& range : op->ranges) {
    total = std::max(total, range.total);
    received += range.there ? range.received : 0;
    if (range.too_long) total = room + 1;
  }
  if (total > room) {
    outcome.found = Found::kTooLong;
  } else if (received != total) {
    outcome.found = Found::kInParts;  // it was another one while it was read
  } else {
    outcome.head = {std::min<uint64_t>(received, operation.head_into.size())};
    outcome.body = {received - outcome.head.value};
  }
  End(op, std::move(outcome));
}

void S3Store::PutEnded(const std::shared_ptr<Op>& op, const Part& last) {
  const Operation& operation = op->operation();
  const auto fail = [&] {
    const absl::Status status =
        absl::IsNotFound(op->status) ? absl::FailedPreconditionError(op->status.message()) : op->status;
    End(op, {status});
    Abort(op);
  };
  if (!op->status.ok()) return fail();
  switch (op->phase) {
    case Op::Phase::kOnly: return End(op, {absl::OkStatus()});
    case Op::Phase::kCreating: {
      op->upload_id = ElementOf(last.request->text(), "UploadId");
      if (op->upload_id.empty()) {
        op->status = absl::UnavailableError("s3: an upload was begun without a name");
        return fail();
      }
      op->phase = Op::Phase::kUploading;
      const uint64_t bytes = operation.head.size() + operation.body.size();
      const auto count = static_cast<uint32_t>((bytes + options_.part.value - 1) / options_.part.value);
      op->etags.resize(count);
      for (uint32_t i = 0; i < count; ++i) {
        const uint64_t at = i * options_.part.value;
        S3Request put{"PUT", "", "", {{"partNumber", absl::StrCat(i + 1)}, {"uploadId", op->upload_id}}, {}, ""};
        Ask(op, std::move(put), RangeOf(operation.head, operation.body, at, std::min(bytes - at, options_.part.value)), {},
            i);
      }
      return;
    }
    case Op::Phase::kUploading: {
      op->phase = Op::Phase::kCompleting;
      op->text = "<CompleteMultipartUpload>";
      for (size_t i = 0; i < op->etags.size(); ++i)
        absl::StrAppend(&op->text, "<Part><PartNumber>", i + 1, "</PartNumber><ETag>", op->etags[i], "</ETag></Part>");
      op->text += "</CompleteMultipartUpload>";
      S3Request complete{"POST", "", "", {{"uploadId", op->upload_id}}, {}, ""};
      return Ask(op, std::move(complete), {std::as_bytes(std::span(op->text)), {}}, {}, 0);
    }
    case Op::Phase::kCompleting:
      // S3 may begin with 200 and say later that it failed.
      if (absl::StrContains(last.request->text(), "CompleteMultipartUploadResult")) return End(op, {absl::OkStatus()});
      op->status = absl::UnavailableError("s3: an upload wasn't completed");
      return fail();
  }
}

void S3Store::End(const std::shared_ptr<Op>& op, Outcome outcome) {
  if (!op->batch->End(op->index, std::move(outcome))) return;
  const auto [begin, end] = running_.equal_range(op->batch->batch().deadline);
  const auto at = std::find_if(begin, end, [&op](const auto& one) { return one.second.batch == op->batch; });
  KVIST_CHECK(at != end);
  finished_.push_back(op->batch);
  running_.erase(at);
}

void S3Store::Drop(std::shared_ptr<Op> op) {
  auto& active = op->lane->active;
  for (auto at = active.begin(); at != active.end();) {
    if (at->second->op == op) {
      curl_multi_remove_handle(multi_, at->second->request->handle());
      at = active.erase(at);
    } else {
      ++at;
    }
  }
  auto& waiting = op->lane->waiting;
  for (auto at = waiting.begin(); at != waiting.end();) at = at->second->op == op ? waiting.erase(at) : std::next(at);
}

void S3Store::Abort(const std::shared_ptr<Op>& op) {
  if (op->upload_id.empty() || op->lane->waiting.size() > options_.limits.operations) return;
  auto part = std::make_shared<Part>();
  part->op = op;
  part->time_max = kAbortTimeMax;
  S3Request abort{"DELETE", "", op->operation().name, {{"uploadId", op->upload_id}}, {}, ""};
  part->request =
      std::make_unique<S3HttpRequest>(&options_, &place_, std::move(abort), S3HttpRequest::Body{}, S3HttpRequest::Into{});
  ++op->left;
  op->lane->waiting.emplace(absl::InfinitePast(), std::move(part));
}

void S3Store::Announce() {
  for (const auto& batch : std::exchange(finished_, {})) batch->Announce();
}

}  // namespace kvist::remote

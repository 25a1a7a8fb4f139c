#include "storage/remote/sealed_store.h"

#include <utility>

namespace kvist::remote {
namespace {

// What puts and gets keep until their end.
struct Sending {
  std::vector<ObjectHeader> headers;
  std::vector<std::vector<std::byte>> sealed;
};
struct Receiving {
  std::vector<SealedStore::Get> gets;
  std::vector<ObjectHeader> heads;
};

std::span<std::byte> BytesOf(ObjectHeader* header) { return std::as_writable_bytes(std::span(header, 1)); }

}  // namespace

absl::Status SealedStore::Submit(std::span<const Put> puts, absl::Time deadline, PutDone done) {
  auto sending = std::make_shared<Sending>();
  sending->headers.resize(puts.size());
  sending->sealed.resize(puts.size());
  Batch batch{Kind::kPut, {}, deadline};
  for (size_t i = 0; i < puts.size(); ++i) {
    std::vector<std::byte>& sealed = sending->sealed[i];
    if (sealer_.encrypts()) sealed.resize(puts[i].body.size());
    sending->headers[i] = sealer_.Seal(puts[i].identity, puts[i].said, puts[i].body, sealed);
    Operation operation;
    operation.name = sealer_.NameOf(puts[i].identity);
    operation.head = BytesOf(&sending->headers[i]);
    operation.body = sealer_.encrypts() ? std::span<const std::byte>(sealed) : puts[i].body;
    batch.operations.push_back(std::move(operation));
  }
  return store_->Submit(std::move(batch), [sending, done = std::move(done)](const std::vector<Outcome>& outcomes) {
    std::vector<absl::Status> statuses;
    for (const Outcome& outcome : outcomes) statuses.push_back(outcome.status);
    done(std::move(statuses));
  });
}

absl::Status SealedStore::Submit(std::span<const Get> gets, absl::Time deadline, GetDone done) {
  auto receiving = std::make_shared<Receiving>();
  receiving->gets.assign(gets.begin(), gets.end());
  receiving->heads.resize(gets.size());
  Batch batch{Kind::kGet, {}, deadline};
  for (size_t i = 0; i < gets.size(); ++i) {
    Operation operation;
    operation.name = sealer_.NameOf(gets[i].identity);
    operation.head_into = BytesOf(&receiving->heads[i]);
    operation.body_into = gets[i].into;
    batch.operations.push_back(std::move(operation));
  }
  return store_->Submit(std::move(batch), [this, receiving, done = std::move(done)](std::vector<Outcome> outcomes) {
    std::vector<Got> got(outcomes.size());
    for (size_t i = 0; i < outcomes.size(); ++i) {
      const Outcome& outcome = outcomes[i];
      got[i].status = outcome.status;
      if (!outcome.status.ok()) continue;
      switch (outcome.found) {
        case Found::kNo: got[i].verdict = Verdict::kMissing; break;
        case Found::kTooLong: got[i].verdict = Verdict::kTooLong; break;
        case Found::kInParts: got[i].verdict = Verdict::kTruncated; break;
        case Found::kNotOurs: got[i].verdict = Verdict::kNoObject; break;
        case Found::kYes: {
          const Get& get = receiving->gets[i];
          const auto head = BytesOf(&receiving->heads[i]).first(outcome.head.value);
          ObjectHeader header;
          got[i].verdict = sealer_.Open(get.identity, get.epoch_min, head, get.into.first(outcome.body.value), &header);
          if (got[i].verdict == Verdict::kGood) {
            got[i].bytes = {header.body_bytes};
            got[i].said = {header.epoch, header.label};
          }
        }
      }
      verdicts_[static_cast<size_t>(got[i].verdict)].fetch_add(1, std::memory_order_relaxed);  // a figure orders nothing
    }
    done(std::move(got));
  });
}

absl::Status SealedStore::Exists(std::span<const Identity> identities, absl::Time deadline, Done done) {
  Batch batch{Kind::kExists, {}, deadline};
  for (const Identity& identity : identities) batch.operations.emplace_back().name = sealer_.NameOf(identity);
  return store_->Submit(std::move(batch), std::move(done));
}

absl::Status SealedStore::Remove(std::span<const Identity> identities, Bytes body_max, absl::Time deadline, Done done) {
  Batch batch{Kind::kRemove, {}, deadline};
  for (const Identity& identity : identities) {
    Operation& operation = batch.operations.emplace_back();
    operation.name = sealer_.NameOf(identity);
    operation.body_max = body_max;
  }
  return store_->Submit(std::move(batch), std::move(done));
}

std::array<uint64_t, kVerdicts> SealedStore::verdicts() const {
  std::array<uint64_t, kVerdicts> verdicts{};
  for (uint32_t i = 0; i < kVerdicts; ++i) verdicts[i] = verdicts_[i].load(std::memory_order_relaxed);
  return verdicts;
}

}  // namespace kvist::remote

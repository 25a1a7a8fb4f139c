#include "storage/remote/redis_connection.h"

#include <openssl/rand.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "storage/base/check.h"
#include "storage/remote/redis_status.h"

namespace kvist::remote {
namespace {

constexpr size_t kVectorMax = 64;     // pieces for a call of the kernel
constexpr int kRoundsMax = 64;        // calls of the kernel before others have their turn
constexpr uint32_t kPartsMax = 8192;  // of one object, 16 GiB
constexpr uint32_t kPartsRatioMax =
    16;  // of one object to another under its name: encoded by all methods they differ by less
constexpr absl::Duration kUnledTo = absl::Hours(1);    // so long parts last that nothing leads to yet; far above any put
constexpr uint64_t kNodesTextMax = uint64_t{4} << 20;  // of CLUSTER NODES: 1,000 servers of many ranges have less
constexpr absl::Duration kRetryPause = absl::Milliseconds(100);

uint32_t PartsOf(uint64_t body, Bytes part) {
  return static_cast<uint32_t>(std::max<uint64_t>(1, (body + part.value - 1) / part.value));
}

template <class Byte>
std::span<Byte> PartOf(std::span<Byte> body, uint64_t part, Bytes part_bytes) {
  const uint64_t begin = std::min<uint64_t>(body.size(), part * part_bytes.value);
  return body.subspan(begin, std::min<uint64_t>(body.size() - begin, part_bytes.value));
}

void AppendWord(std::string* to, const std::string& word) { absl::StrAppend(to, "$", word.size(), "\r\n", word, "\r\n"); }

}  // namespace

RedisConnection::RedisConnection(const RedisOptions* options, const std::string& address,
                                 std::shared_ptr<const TlsContext> tls, std::function<void()> wake, Ended ended)
    : options_(options),
      tls_(std::move(tls)),
      address_(address),
      endpoint_(*Endpoint::Parse(address)),
      ended_(std::move(ended)),
      resolver_(endpoint_, std::move(wake)) {}

void RedisConnection::Begin(absl::Time now) {
  KVIST_CHECK(idle());
  state_ = State::kResolving;
  connect_until_ = now + options_->connect_timeout;
  stream_error_ = absl::OkStatus();
  has_answered_ = false;
  Turn(now);
}

std::string RedisConnection::Key(const std::string& name) const { return absl::StrCat(options_->prefix, "{", name, "}"); }

std::string RedisConnection::Key(const std::string& name, uint64_t tag, uint64_t part) const {
  return absl::StrCat(Key(name), ":", absl::Hex(tag, absl::kZeroPad16), ":", part);
}

void RedisConnection::Expect(std::shared_ptr<RedisOp> op, Awaits awaits, uint32_t part) {
  if (op != nullptr) ++op->replies_left;
  expected_.push_back({std::move(op), awaits, part});
}

void RedisConnection::SayAsking(const std::shared_ptr<RedisOp>& op) {
  if (op == nullptr || !op->asking) return;
  out_.push_back({op, "*1\r\n$6\r\nASKING\r\n"});
  Expect(op, Awaits::kAsking);
}

void RedisConnection::Say(std::shared_ptr<RedisOp> op, const std::vector<std::string>& words) {
  SayAsking(op);
  std::string text = absl::StrCat("*", words.size(), "\r\n");
  for (const std::string& word : words) AppendWord(&text, word);
  out_.push_back({std::move(op), std::move(text)});
}

void RedisConnection::SayStore(const std::shared_ptr<RedisOp>& op, uint32_t part) {
  SayAsking(op);
  const Operation& operation = op->operation();
  const auto bytes = PartOf(operation.body, part, options_->part);
  const bool lasts = options_->expire_after == absl::ZeroDuration();
  const bool expires = part > 0 || !lasts;
  const RedisPrefix prefix{kRedisMagic, static_cast<uint32_t>(options_->part.value), operation.body.size(), op->tag};
  const uint64_t length = part == 0 ? sizeof prefix + operation.head.size() + bytes.size() : bytes.size();
  std::string text = expires ? "*5\r\n" : "*3\r\n";
  AppendWord(&text, "SET");
  AppendWord(&text, part == 0 ? Key(operation.name) : Key(operation.name, op->tag, part));
  absl::StrAppend(&text, "$", length, "\r\n");
  if (part == 0) {
    text.append(reinterpret_cast<const char*>(&prefix), sizeof prefix);
    text.append(reinterpret_cast<const char*>(operation.head.data()), operation.head.size());
  }
  out_.push_back({op, std::move(text), bytes, false});
  std::string end = "\r\n";
  if (expires) {
    AppendWord(&end, "PX");
    AppendWord(&end, absl::StrCat(absl::ToInt64Milliseconds(lasts ? kUnledTo : options_->expire_after)));
  }
  out_.push_back({op, std::move(end)});
}

void RedisConnection::Issue(std::shared_ptr<RedisOp> op) {
  const Operation& operation = op->operation();
  outstanding_ += op->bytes;
  op->step = RedisOp::Step::kFirst;
  switch (op->kind()) {
    case Kind::kPut: {
      KVIST_CHECK(RAND_bytes(reinterpret_cast<unsigned char*>(&op->tag), sizeof op->tag) == 1);
      const uint32_t parts = PartsOf(operation.body.size(), options_->part);
      if (parts == 1) return PutFirst(op);
      op->step = RedisOp::Step::kParts;
      for (uint32_t part = 1; part < parts; ++part) {
        SayStore(op, part);
        Expect(op, Awaits::kStored);
      }
      return;
    }
    case Kind::kGet: Say(op, {"GET", Key(operation.name)}); return Expect(op, Awaits::kFirst);
    case Kind::kExists: Say(op, {"EXISTS", Key(operation.name)}); return Expect(op, Awaits::kCount);
    case Kind::kRemove:
      if (operation.body_max > options_->part) {
        Say(op, {"GETRANGE", Key(operation.name), "0", absl::StrCat(sizeof(RedisPrefix) - 1)});
        return Expect(op, Awaits::kPrefix);
      }
      return UnlinkAll(op);
  }
}

void RedisConnection::PutFirst(const std::shared_ptr<RedisOp>& op) {
  op->step = RedisOp::Step::kFirst;
  Say(op, {"GETRANGE", Key(op->operation().name), "0", absl::StrCat(sizeof(RedisPrefix) - 1)});
  Expect(op, Awaits::kPrefix);
  SayStore(op, 0);
  Expect(op, Awaits::kFirstStored);
  if (options_->expire_after > absl::ZeroDuration()) return;
  for (uint32_t part = 1; part < PartsOf(op->operation().body.size(), options_->part); ++part) {
    Say(op, {"PERSIST", Key(op->operation().name, op->tag, part)});
    Expect(op, Awaits::kPersisted);
  }
}

bool RedisConnection::NextStep(const std::shared_ptr<RedisOp>& op) {
  const Operation& operation = op->operation();
  const RedisOp::Step step = std::exchange(op->step, RedisOp::Step::kEnd);
  switch (op->kind()) {
    case Kind::kExists: return false;
    case Kind::kPut:
      if (step == RedisOp::Step::kParts && op->status.ok() && !op->given_up) {
        PutFirst(op);
        return true;
      }
      if (step == RedisOp::Step::kTakeBack) {
        if (PartsThere(*op) > 0 && op->prefix.tag == op->tag) UnlinkPut(*op);
        return false;
      }
      if (!op->is_there) {
        UnlinkParts(*op, op->tag, PartsOf(operation.body.size(), options_->part));
        return false;
      }
      // What lay there before goes. How much that was is the server's word.
      UnlinkParts(*op, op->prefix.tag,
                  std::min(PartsThere(*op), kPartsRatioMax * PartsOf(operation.body.size(), options_->part)));
      if (op->given_up && op->removed) {
        // Whoever has cleared that name since must not find it again; but somebody may have put it anew.
        op->step = RedisOp::Step::kTakeBack;
        op->first_bytes = 0;
        Say(op, {"GETRANGE", Key(operation.name), "0", absl::StrCat(sizeof(RedisPrefix) - 1)});
        Expect(op, Awaits::kPrefix);
        given_up_ += op->replies_left;
        linger_until_ = now_ + options_->linger;
        return true;
      }
      if (!op->status.ok()) UnlinkPut(*op);
      return false;
    case Kind::kGet: {
      const bool whole = op->status.ok() && op->is_there && !op->not_ours && !op->too_long;
      const uint32_t parts = PartsThere(*op);
      if (op->given_up || !whole || op->prefix.body_bytes > operation.body_into.size() || parts < 2 ||
          op->prefix.part_bytes != options_->part.value)
        return false;
      if (step == RedisOp::Step::kFirst) {
        op->step = RedisOp::Step::kParts;
        op->part_bytes.assign(parts, 0);
        for (uint32_t part = 1; part < parts; ++part) {
          Say(op, {"GET", Key(operation.name, op->prefix.tag, part)});
          Expect(op, Awaits::kPart, part);
        }
        return true;
      }
      if (!LacksParts(*op) || std::exchange(op->again, true)) return false;
      op->step = RedisOp::Step::kFirst;
      op->old_tag = op->prefix.tag;
      op->is_there = false;
      Say(op, {"GET", Key(operation.name)});
      Expect(op, Awaits::kFirst);
      return true;
    }
    case Kind::kRemove:
      if (step != RedisOp::Step::kFirst || !op->status.ok() || op->given_up) return false;
      UnlinkAll(op);
      return true;
  }
  return false;
}

void RedisConnection::UnlinkAll(const std::shared_ptr<RedisOp>& op) {
  op->step = RedisOp::Step::kEnd;
  const Operation& operation = op->operation();
  const uint32_t parts = std::min(PartsThere(*op), PartsOf(operation.body_max.value, options_->part));
  // One by one: of several keys a server whose slot moves would have to have all.
  for (uint32_t part = 0; part < std::max(parts, 1U); ++part) {
    Say(op, {"UNLINK", part == 0 ? Key(operation.name) : Key(operation.name, op->prefix.tag, part)});
    Expect(op, Awaits::kCount);
  }
}

uint32_t RedisConnection::PartsThere(const RedisOp& op) const {
  if (op.first_bytes < sizeof op.prefix || op.prefix.magic != kRedisMagic || op.prefix.part_bytes == 0) return 0;
  return static_cast<uint32_t>(std::min<uint64_t>(kPartsMax, PartsOf(op.prefix.body_bytes, Bytes{op.prefix.part_bytes})));
}

bool RedisConnection::LacksParts(const RedisOp& op) const {
  const auto body = op.operation().body_into.first(op.prefix.body_bytes);
  for (uint32_t part = 1; part < PartsOf(body.size(), options_->part); ++part) {
    if (op.part_bytes.size() <= part || op.part_bytes[part] != PartOf(body, part, options_->part).size()) return true;
  }
  return false;
}

void RedisConnection::AskNodes(NodesTold told, absl::Time now) {
  KVIST_CHECK(ready());
  if (asks_nodes()) return;
  nodes_told_ = std::move(told);
  nodes_until_ = now + options_->connect_timeout;
  Say(nullptr, {"CLUSTER", "NODES"});
  Expect(nullptr, Awaits::kNodes);
}

void RedisConnection::Removing(const std::set<std::string_view>& names) {
  for (const Expected& one : expected_) {
    if (one.op != nullptr && one.op->kind() == Kind::kPut && names.count(one.op->operation().name) > 0)
      one.op->removed = true;
  }
}

bool RedisConnection::Has(const RedisOp* op) const {
  return std::any_of(expected_.begin(), expected_.end(), [op](const Expected& one) { return one.op.get() == op; });
}

void RedisConnection::GiveUp(RedisOp* op, absl::Time now) {
  op->given_up = true;
  const auto is_of_op = [op](const auto& of) { return of.op.get() == op; };
  if (!expected_.empty() && expected_.front().op.get() == op)
    reader_.Skip();  // begun or not: who knows what a server answers
  if (!op->begun) {
    outstanding_ -= op->bytes;
    out_.erase(std::remove_if(out_.begin(), out_.end(), is_of_op), out_.end());
    expected_.erase(std::remove_if(expected_.begin(), expected_.end(), is_of_op), expected_.end());
    return;
  }
  given_up_ += op->replies_left;
  linger_until_ = std::min(linger_until_, now + options_->linger);
  if (std::any_of(out_.begin(), out_.end(),
                  [op](const Piece& piece) { return piece.op.get() == op && !piece.bytes.empty(); }))
    Close(absl::UnavailableError("the connection was ended in the middle of an object whose deadline had passed"), now);
}

void RedisConnection::Turn(absl::Time now) {
  if (idle()) return;
  now_ = now;
  again_ = false;
  if (const absl::Status status = Go(now); !status.ok()) {
    Close(status, now);
  } else if (state_ != State::kReady && now >= connect_until_) {
    Close(absl::UnavailableError(absl::StrCat("no connection to ", address_, " within ",
                                              absl::FormatDuration(options_->connect_timeout), " (connect_timeout)")),
          now);
  } else if (now >= linger_until_ || now >= nodes_until_) {
    Close(absl::UnavailableError(absl::StrCat(address_, " is too slow: it owes answers that nobody waits for any more")),
          now);
  }
}

absl::Status RedisConnection::Go(absl::Time now) {
  if (state_ == State::kResolving || state_ == State::kConnecting) {
    if (const absl::Status status = Connecting(now); !status.ok())
      return {status.code(), absl::StrCat(address_, ": ", status.message())};
  }
  if (state_ != State::kGreeting && state_ != State::kReady) return absl::OkStatus();
  if (absl::Status status = Send(); !status.ok()) return status;
  const absl::Status received = Receive();
  return stream_error_.ok() ? received : stream_error_;
}

absl::Status RedisConnection::Connecting(absl::Time) {
  if (state_ == State::kResolving) {
    auto address = resolver_.Resolve();
    if (!address.has_value()) return absl::OkStatus();
    if (!address->ok()) return address->status();
    const std::string& name = options_->tls.server_name.empty() ? endpoint_.host : options_->tls.server_name;
    auto stream = NetStream::Connect(**address, tls_, name);
    if (!stream.ok()) return stream.status();
    stream_ = *std::move(stream);
    state_ = State::kConnecting;
  }
  const auto progress = stream_->Establish();
  if (!progress.ok()) return progress.status();
  waits_ = progress->waits;
  if (waits_ == Progress::Waits::kNothing) Greet();
  return absl::OkStatus();
}

void RedisConnection::Greet() {
  state_ = State::kGreeting;
  if (!options_->password.empty()) {
    Say(nullptr, options_->user.empty() ? std::vector<std::string>{"AUTH", options_->password}
                                        : std::vector<std::string>{"AUTH", options_->user, options_->password});
    Expect(nullptr, Awaits::kGreeting);
  }
  if (options_->database != 0) {
    Say(nullptr, {"SELECT", absl::StrCat(options_->database)});
    Expect(nullptr, Awaits::kGreeting);
  }
  if (expected_.empty()) state_ = State::kReady;
}

absl::Status RedisConnection::Send() {
  for (int round = 0; round < kRoundsMax && !out_.empty(); ++round) {
    std::array<iovec, kVectorMax> vector;
    size_t n = 0;
    for (const Piece& piece : out_) {
      if (n + 2 > kVectorMax) break;
      const size_t text_sent = std::min(piece.sent, piece.text.size());
      if (text_sent < piece.text.size())
        vector[n++] = {const_cast<char*>(piece.text.data()) + text_sent, piece.text.size() - text_sent};
      const size_t bytes_sent = piece.sent - text_sent;
      if (bytes_sent < piece.bytes.size())
        vector[n++] = {const_cast<std::byte*>(piece.bytes.data()) + bytes_sent, piece.bytes.size() - bytes_sent};
    }
    const auto progress = stream_->Write(std::span(vector).first(n));
    if (!progress.ok()) return progress.status();
    for (size_t sent = progress->bytes; sent > 0;) {
      Piece& piece = out_.front();
      if (piece.op != nullptr) piece.op->begun = true;
      const size_t take = std::min(sent, piece.size() - piece.sent);
      piece.sent += take;
      sent -= take;
      if (piece.sent < piece.size()) continue;
      asked_ += piece.ends_command ? 1 : 0;
      out_.pop_front();
    }
    if (progress->waits == Progress::Waits::kNothing) continue;
    // TLS has sealed what it couldn't send, and sends that next, whatever it is given then.
    if (tls_ != nullptr && out_.front().op != nullptr) out_.front().op->begun = true;
    break;
  }
  return absl::OkStatus();
}

absl::Status RedisConnection::Receive() {
  for (int round = 0; round < kRoundsMax; ++round) {
    const auto progress = stream_->Read(reader_.Room());
    if (!progress.ok()) return progress.status();
    if (progress->waits != Progress::Waits::kNothing) return absl::OkStatus();
    if (absl::Status status = reader_.Filled(progress->bytes, this); !status.ok()) return status;
  }
  again_ = true;
  return absl::OkStatus();
}

bool RedisConnection::WasAsked(std::string_view reply) {
  if (asked_ > 0) return true;
  // Who knows whose answers the next ones are; and what is half sent is still read from its spans.
  const std::string_view code = reply.substr(0, reply.find(' '));
  stream_error_.Update(absl::UnavailableError(absl::StrCat(
      "the server answers what wasn't asked yet", code.empty() ? "" : ": ", absl::CEscape({code.data(), code.size()}))));
  return false;
}

Scatter RedisConnection::BulkBegins(uint64_t length) {
  if (!WasAsked({})) return {};
  if (expected_.empty()) return {};
  const Expected& expected = expected_.front();
  if (expected.awaits == Awaits::kNodes) {
    nodes_.resize(std::min<uint64_t>(length, kNodesTextMax));
    return length <= kNodesTextMax ? Scatter{std::as_writable_bytes(std::span(nodes_))} : Scatter{};
  }
  if (expected.op == nullptr) return {};
  RedisOp* const op = expected.op.get();
  if (expected.awaits == Awaits::kPrefix && length == sizeof op->prefix)
    return {std::as_writable_bytes(std::span(&op->prefix, 1))};
  if (op->given_up) return {};
  const Operation& operation = op->operation();
  if (expected.awaits != Awaits::kFirst && expected.awaits != Awaits::kPart) return {};
  const auto part = PartOf(operation.body_into, expected.part, options_->part);
  if (expected.awaits == Awaits::kPart) return length <= part.size() ? Scatter{part} : Scatter{};
  if (length > sizeof op->prefix + operation.head_into.size() + part.size()) return {};
  return {std::as_writable_bytes(std::span(&op->prefix, 1)), operation.head_into, part};
}

void RedisConnection::ReplyEnds(const ReplyReader::Reply& reply) {
  if (!WasAsked(reply.text)) return;
  --asked_;
  const Expected expected = std::move(expected_.front());
  expected_.pop_front();
  if (expected.op == nullptr) {
    if (expected.awaits == Awaits::kNodes) {
      nodes_until_ = absl::InfiniteFuture();
      const std::string nodes = std::exchange(nodes_, {});
      std::exchange(nodes_told_, nullptr)(reply.type == ReplyReader::Type::kBulk ? nodes : std::string());
    }
    if (expected.awaits != Awaits::kGreeting) return;
    // The code only: servers say words that they don't know again, and one of these is the password.
    if (reply.type == ReplyReader::Type::kError)
      stream_error_.Update(RedisStatus(std::string_view(reply.text).substr(0, reply.text.find(' '))));
    if (state_ == State::kGreeting && expected_.empty() && stream_error_.ok()) state_ = State::kReady;
    return;
  }
  has_answered_ = true;
  if (given_up_ > 0) linger_until_ = now_ + options_->linger;  // it is slow, and goes on
  RedisOp* const op = expected.op.get();
  --op->replies_left;
  if (op->given_up && --given_up_ == 0) linger_until_ = absl::InfiniteFuture();
  Heard(op, expected, reply);
  if (op->replies_left > 0) return;
  if (!op->redirect.has_value() && NextStep(expected.op)) return;
  outstanding_ -= op->bytes;  // until then the server still works at it
  if (!op->given_up) ended_(expected.op, OutcomeOf(*op));
}

void RedisConnection::UnlinkPut(const RedisOp& op) {
  Unlink({Key(op.operation().name)}, op.asking);
  UnlinkParts(op, op.tag, PartsOf(op.operation().body.size(), options_->part));
}

void RedisConnection::UnlinkParts(const RedisOp& op, uint64_t tag, uint32_t parts) {
  std::vector<std::string> keys;
  for (uint32_t part = 1; part < parts; ++part) keys.push_back(Key(op.operation().name, tag, part));
  Unlink(std::move(keys), op.asking);
}

void RedisConnection::Unlink(std::vector<std::string> keys, bool asking) {
  const auto say = [this](const std::vector<std::string>& words) {
    Say(nullptr, words);
    Expect(nullptr, Awaits::kNothing);
  };
  for (std::string& key : keys) {
    if (asking) say({"ASKING"});
    say({"UNLINK", std::move(key)});
  }
}

void RedisConnection::Heard(RedisOp* op, const Expected& expected, const ReplyReader::Reply& reply) {
  using Type = ReplyReader::Type;
  if (reply.type == Type::kError) {
    if (auto redirect = RedirectIn(reply.text, endpoint_.host); redirect.has_value()) {
      op->redirect = std::move(redirect);
      op->status.Update(RedisStatus(reply.text));
      return;
    }
    if (expected.awaits == Awaits::kPrefix) return;  // nothing of ours lies there
    if (op->kind() == Kind::kGet && IsWrongType(reply.text)) {
      op->not_ours = true;
    } else {
      op->status.Update(RedisStatus(reply.text));
    }
    return;
  }
  const auto unexpected = [op] { op->status.Update(absl::UnavailableError("redis: an answer to something else")); };
  switch (expected.awaits) {
    case Awaits::kFirst:
    case Awaits::kPart:
      if (reply.type == Type::kNil) return;
      if (reply.type != Type::kBulk) return unexpected();
      if (expected.awaits == Awaits::kPart) {
        op->part_bytes[expected.part] = reply.length;
        return;
      }
      op->is_there = true;
      op->first_bytes = reply.length;
      op->too_long = reply.length > sizeof op->prefix + op->operation().head_into.size() +
                                        PartOf(op->operation().body_into, 0, options_->part).size();
      return;
    case Awaits::kStored:
    case Awaits::kFirstStored:
      if (reply.type != Type::kText) return unexpected();
      op->is_there = op->is_there || expected.awaits == Awaits::kFirstStored;
      return;
    case Awaits::kPrefix:
      if (reply.type != Type::kBulk) return unexpected();
      op->first_bytes = reply.length;
      return;
    case Awaits::kPersisted:
      if (reply.type != Type::kInteger) return unexpected();
      if (reply.integer != 1) op->status.Update(absl::UnavailableError("redis: a part went while the others were written"));
      return;
    case Awaits::kCount:
      if (reply.type != Type::kInteger) return unexpected();
      op->is_there = op->is_there || reply.integer > 0;
      return;
    case Awaits::kAsking:
    case Awaits::kGreeting:
    case Awaits::kNodes:
    case Awaits::kNothing: return;
  }
}

Outcome RedisConnection::OutcomeOf(const RedisOp& op) const {
  Outcome outcome = OutcomeHere(op);
  // While its slot moves some of it may be at another server: then it isn't missing, and not damaged.
  if (op.kind() == Kind::kGet && outcome.status.ok() &&
      ((op.torn && outcome.found != Found::kYes) || (op.asking && outcome.found == Found::kInParts)))
    return {absl::UnavailableError("redis: its slot is on its way to another server")};
  return outcome;
}

Outcome RedisConnection::OutcomeHere(const RedisOp& op) const {
  Outcome outcome;
  outcome.status = op.status;
  if (!op.status.ok() || op.kind() == Kind::kPut || op.kind() == Kind::kRemove) return outcome;
  outcome.found = op.is_there ? Found::kYes : Found::kNo;
  if (op.kind() == Kind::kExists) return outcome;
  const Operation& operation = op.operation();
  const bool no_prefix = op.first_bytes < sizeof op.prefix || op.prefix.magic != kRedisMagic;
  if (op.not_ours || (op.is_there && !op.too_long && no_prefix)) {
    outcome.found = Found::kNotOurs;
  } else if (op.is_there && op.too_long) {
    outcome.found = Found::kTooLong;
  } else if (op.is_there) {
    const uint64_t behind = op.first_bytes - sizeof op.prefix;
    outcome.head = {std::min<uint64_t>(behind, operation.head_into.size())};
    outcome.body = {op.prefix.body_bytes};
    if (op.prefix.body_bytes > operation.body_into.size()) {
      outcome.found = Found::kTooLong;
      outcome.body = {0};
      return outcome;
    }
    const auto body = operation.body_into.first(op.prefix.body_bytes);
    const bool whole = op.prefix.part_bytes == options_->part.value &&
                       behind - outcome.head.value == PartOf(body, 0, options_->part).size() && !LacksParts(op);
    if (!whole && op.again && op.prefix.tag != op.old_tag)
      outcome.status = absl::UnavailableError("redis: it is put again and again");
    if (!whole) outcome.found = Found::kInParts;
  }
  return outcome;
}

void RedisConnection::Close(const absl::Status& error, absl::Time now) {
  if (idle()) return;
  // One that ends before it has answered anything would be made again and again.
  retry_at_ = has_answered_ ? now : now + kRetryPause;
  state_ = State::kIdle;
  error_ = error;
  stream_ = nullptr;
  reader_.Reset();
  nodes_told_ = nullptr;
  nodes_ = {};
  nodes_until_ = absl::InfiniteFuture();
  out_.clear();
  asked_ = 0;
  outstanding_ = {};
  given_up_ = 0;
  linger_until_ = absl::InfiniteFuture();
  again_ = false;
  const std::deque<Expected> expected = std::exchange(expected_, {});
  const std::shared_ptr<RedisOp>* last = nullptr;  // an operation's replies lie together
  for (const Expected& one : expected) {
    if (one.op == nullptr || one.op->given_up || (last != nullptr && *last == one.op)) continue;
    last = &one.op;
    if (one.op->begun) {
      ended_(one.op, {error});
    } else {
      one.op->replies_left = 0;
      unsent_.push_back(one.op);
    }
  }
}

pollfd RedisConnection::Poll() const {
  if (stream_ == nullptr) return {-1, 0, 0};
  short events = POLLIN;
  if (state_ == State::kConnecting)
    events = waits_ == Progress::Waits::kToRead ? POLLIN : POLLOUT;
  else if (!out_.empty())
    events |= POLLOUT;
  return {stream_->fd(), events, 0};
}

absl::Time RedisConnection::wake() const {
  if (idle()) return absl::InfiniteFuture();
  if (again_) return absl::InfinitePast();
  const absl::Time until = std::min(linger_until_, nodes_until_);
  return state_ == State::kReady ? until : std::min(connect_until_, until);
}

}  // namespace kvist::remote

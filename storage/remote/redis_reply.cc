#include "storage/remote/redis_reply.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "storage/base/check.h"

namespace kvist::remote {
namespace {

absl::Status NotRedis(std::string_view what) {
  return absl::UnavailableError(absl::StrCat("that is no reply of a Redis server: \"",
                                             absl::CEscape({what.data(), std::min<size_t>(what.size(), 60)}), "\""));
}

}  // namespace

uint64_t ReplyReader::ScatterRoom() const {
  uint64_t room = 0;
  for (const auto& part : scatter_) room += part.size();
  return room;
}

void ReplyReader::Scattered(size_t bytes) {
  bulk_left_ -= bytes;
  for (auto& part : scatter_) {
    const size_t n = std::min(bytes, part.size());
    part = part.subspan(n);
    bytes -= n;
  }
}

std::span<const iovec> ReplyReader::Room() {
  if (buffer_.empty()) buffer_.resize(kBuffer.value);
  size_t n = 0;
  if (in_bulk_) {
    uint64_t left = bulk_left_;
    for (const auto& part : scatter_) {
      const size_t size = std::min<uint64_t>(part.size(), left);
      if (size > 0) room_[n++] = {part.data(), size};
      left -= size;
    }
  }
  KVIST_CHECK(end_ < buffer_.size());
  room_[n++] = {buffer_.data() + end_, buffer_.size() - end_};
  return std::span(room_).first(n);
}

absl::Status ReplyReader::Filled(size_t bytes, Owner* owner) {
  // The scatter came first in the room; while it has any, nothing of the bulk is in the buffer.
  const size_t direct = in_bulk_ ? std::min<uint64_t>({bytes, ScatterRoom(), bulk_left_}) : 0;
  Scattered(direct);
  end_ += bytes - direct;
  while (true) {
    if (in_bulk_) {
      size_t take = std::min<uint64_t>(bulk_left_, end_ - begin_);
      const bool kept = ScatterRoom() > 0;
      while (take > 0) {
        size_t n = take;
        if (kept) {
          auto part = std::find_if(scatter_.begin(), scatter_.end(), [](const auto& p) { return !p.empty(); });
          n = std::min(take, part->size());
          std::memcpy(part->data(), buffer_.data() + begin_, n);
          Scattered(n);
        } else {
          bulk_left_ -= n;
        }
        begin_ += n;
        take -= n;
      }
      if (bulk_left_ > 0 || end_ - begin_ < 2) break;
      if (std::memcmp(buffer_.data() + begin_, "\r\n", 2) != 0) return NotRedis("a bulk that doesn't end");
      begin_ += 2;
      in_bulk_ = false;
      scatter_ = {};
      owner->ReplyEnds(reply_);
      continue;
    }
    const std::string_view unread(reinterpret_cast<const char*>(buffer_.data()) + begin_, end_ - begin_);
    const size_t line_end = unread.substr(0, kLineMax).find("\r\n");
    if (line_end == std::string_view::npos) {
      if (unread.size() >= kLineMax) return NotRedis(unread);
      break;
    }
    begin_ += line_end + 2;
    if (absl::Status status = Line(unread.substr(0, line_end), owner); !status.ok()) return status;
  }
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  return absl::OkStatus();
}

absl::Status ReplyReader::Line(std::string_view line, Owner* owner) {
  if (line.empty()) return NotRedis(line);
  const absl::string_view rest(line.data() + 1, line.size() - 1);
  reply_ = {};
  switch (line[0]) {
    case '+':
    case '-':
      reply_.type = line[0] == '+' ? Type::kText : Type::kError;
      reply_.text = std::string(rest);
      break;
    case ':':
      reply_.type = Type::kInteger;
      if (!absl::SimpleAtoi(rest, &reply_.integer)) return NotRedis(line);
      break;
    case '$':
      if (rest == "-1") break;
      if (!absl::SimpleAtoi(rest, &reply_.length) || reply_.length > kBulkMax) return NotRedis(line);
      reply_.type = Type::kBulk;
      in_bulk_ = true;
      bulk_left_ = reply_.length;
      scatter_ = owner->BulkBegins(reply_.length);
      KVIST_CHECK(ScatterRoom() == 0 || ScatterRoom() >= reply_.length);
      return absl::OkStatus();
    default: return NotRedis(line);
  }
  owner->ReplyEnds(reply_);
  return absl::OkStatus();
}

void ReplyReader::Reset() {
  begin_ = end_ = 0;
  in_bulk_ = false;
  bulk_left_ = 0;
  scatter_ = {};
}

}  // namespace kvist::remote

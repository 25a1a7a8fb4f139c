// What a store beyond the node sends: a Redis server's replies, and objects -> what they are taken for.
//
// Input: the first byte says what is made of the rest.
//   bit 0      a stream of replies, read in pieces of as many bytes as the second byte says; and the same as what CLUSTER NODES answers
//   otherwise  bit 1: encrypted; bit 2: the bytes are an object as they stand; else they change some of a good object's (offset, value), and
//              then it is cut off where the last byte but one says
// Holds: a reply is never longer than the buffer that it has, and nothing beyond is touched (AddressSanitizer); an object that was changed in
// any byte doesn't pass.
#include <algorithm>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "storage/base/check.h"
#include "storage/remote/net_address.h"
#include "storage/remote/redis_reply.h"
#include "storage/remote/redis_slots.h"
#include "storage/remote/redis_status.h"
#include "storage/remote/sealed_object.h"

namespace {

namespace remote = kvist::remote;

class Kept final : public remote::ReplyReader::Owner {
 public:
  remote::Scatter BulkBegins(uint64_t length) override {
    if (length > bytes_.size()) return {};
    return {std::span(bytes_).first(16), std::span(bytes_).subspan(16)};
  }
  void ReplyEnds(const remote::ReplyReader::Reply& reply) override {
    if (reply.type == remote::ReplyReader::Type::kError) KVIST_CHECK(!remote::RedisStatus(reply.text).ok());
    KVIST_CHECK(reply.text.size() <= 4096);
    if (const auto redirect = remote::RedirectIn(reply.text, "asked"); redirect.has_value()) {
      KVIST_CHECK(redirect->slot < remote::kRedisSlots && kvist::remote::Endpoint::Parse(redirect->address).ok());
    }
  }

 private:
  std::vector<std::byte> bytes_ = std::vector<std::byte>(100);
};

void ReadNodes(std::span<const uint8_t> text) {
  const std::string_view nodes(reinterpret_cast<const char*>(text.data()), text.size());
  for (const bool by_name : {false, true}) {
    for (const remote::RedisSlotRange& range : remote::SlotsIn(nodes, "asked", by_name)) {
      KVIST_CHECK(range.first <= range.last && range.last < remote::kRedisSlots);
      KVIST_CHECK(remote::Endpoint::Parse(range.address).ok());
    }
  }
}

void ReadStream(std::span<const uint8_t> stream) {
  if (stream.empty()) return;
  ReadNodes(stream);
  const size_t most = stream[0] + size_t{1};
  stream = stream.subspan(1);
  remote::ReplyReader reader;
  Kept kept;
  while (!stream.empty()) {
    size_t filled = 0;
    for (const iovec& room : reader.Room()) {
      const size_t n = std::min({most - filled, stream.size() - filled, room.iov_len});
      std::memcpy(room.iov_base, stream.data() + filled, n);
      filled += n;
    }
    stream = stream.subspan(filled);
    if (!reader.Filled(filled, &kept).ok()) return;
    if (most % 7 == 0) reader.Skip();
  }
}

void OpenObject(bool encrypt, bool as_it_stands, std::span<const uint8_t> input) {
  static const remote::ObjectSealer kSealers[] = {remote::ObjectSealer({{1}, false}), remote::ObjectSealer({{1}, true})};
  const remote::ObjectSealer& sealer = kSealers[encrypt ? 1 : 0];
  const std::vector<std::byte> body(64, std::byte{3});
  std::vector<std::byte> sealed(encrypt ? body.size() : 0);
  const remote::ObjectHeader header = sealer.Seal({}, {}, body, sealed);
  std::vector<std::byte> good(sizeof header + body.size());
  std::memcpy(good.data(), &header, sizeof header);
  std::memcpy(good.data() + sizeof header, encrypt ? sealed.data() : body.data(), body.size());
  std::vector<std::byte> object = good;
  if (as_it_stands) {
    const auto bytes = std::as_bytes(input);
    object.assign(bytes.begin(), bytes.end());
  } else {
    for (; input.size() >= 2; input = input.subspan(2)) object[input[0] % object.size()] = static_cast<std::byte>(input[1]);
    if (!input.empty()) object.resize(std::min<size_t>(object.size(), input[0] + size_t{1}));
  }
  const bool changed = object != good;
  const size_t head = std::min(object.size(), sizeof header);
  remote::ObjectHeader opened;
  const remote::Verdict verdict =
      sealer.Open({}, 0, std::span(object).first(head), std::span(object).subspan(head), &opened);
  KVIST_CHECK((verdict == remote::Verdict::kGood) == !changed);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::span<const uint8_t> rest(data + 1, size - 1);
  if ((data[0] & 1) != 0) {
    ReadStream(rest);
  } else {
    OpenObject((data[0] & 2) != 0, (data[0] & 4) != 0, rest);
  }
  return 0;
}

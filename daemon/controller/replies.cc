#include "daemon/controller/replies.h"

#include "absl/strings/escaping.h"
#include "daemon/controller/checks.h"
#include "storage/base/utf8.h"

namespace kvist::controller {
namespace {

constexpr size_t kMessageMax = 2048;  // as of an error of a call

}  // namespace

v1::Outcome ToOutcome(const std::string& node, const absl::Status& why) {
  v1::Outcome outcome;
  outcome.set_node(node);
  outcome.set_code(why.raw_code());
  const absl::string_view message = why.message().substr(0, kMessageMax);
  outcome.set_message(IsUtf8(message) ? std::string(message) : absl::CHexEscape(message));
  return outcome;
}

v1::Job ToJob(const std::string& node, const node::v1::Job& job) {
  v1::Job reply;
  reply.set_id(MakeId(node, job.id()));
  reply.set_node(node);
  reply.set_kind(job.kind());
  reply.set_space(job.space());
  reply.set_state(job.state());
  reply.set_done(job.done());
  reply.set_total(job.total());
  reply.set_chunks(job.chunks());
  reply.set_request(job.request());
  reply.set_bytes(job.bytes());
  reply.set_already_there(job.already_there());
  reply.set_not_moved(job.not_moved());
  reply.set_bytes_after(job.bytes_after());
  reply.set_relative_error(job.relative_error());
  reply.set_attention_error(job.attention_error());
  reply.set_trouble(job.trouble());
  reply.set_tier(job.tier());
  reply.set_resumed(job.resumed());
  reply.set_seconds(job.seconds());
  reply.set_bytes_per_second(job.bytes_per_second());
  reply.set_seconds_left(job.seconds_left());
  return reply;
}

v1::PinnedPrompt ToPin(const std::string& node, const node::v1::Pin& pin) {
  v1::PinnedPrompt reply;
  reply.set_id(MakeId(node, pin.id()));
  reply.set_node(node);
  reply.set_owner(pin.owner());
  reply.set_tenant(pin.tenant());
  reply.set_space(pin.space());
  reply.set_model(pin.model());
  reply.set_chunks(pin.chunks());
  reply.set_asked(pin.asked());
  reply.set_bytes(pin.bytes());
  reply.set_count(pin.count());
  reply.set_age_seconds(pin.age_seconds());
  reply.set_seconds_left(pin.seconds_left());
  return reply;
}

v1::LookupReply::InSpace ToInSpace(const std::string& node, const node::v1::LookupReply::InSpace& space) {
  v1::LookupReply::InSpace reply;
  reply.set_node(node);
  reply.set_digest(space.digest());
  reply.set_tenant(space.tenant());
  reply.set_model(space.model());
  reply.set_chunk_tokens(space.chunk_tokens());
  reply.set_key_scheme(space.key_scheme());
  reply.set_prompt_chunks(space.prompt_chunks());
  reply.set_chunks(space.chunks());
  reply.set_tokens(space.tokens());
  const auto in_tier = [&reply](const std::string& tier, uint64_t tokens) {
    if (tokens == 0) return;
    v1::LookupReply::InSpace::InTier& row = *reply.add_tiers();
    row.set_tier(tier);
    row.set_tokens(tokens);
  };
  in_tier("dram", space.dram_tokens());
  in_tier("ssd", space.ssd_tokens());
  in_tier(space.remote_tier(), space.remote_tokens());
  return reply;
}

v1::HealthReply::Node ToHealth(const std::string& node, const node::v1::StatusReply& status) {
  v1::HealthReply::Node reply;
  reply.set_node(node);
  reply.set_version(status.version());
  reply.set_uptime_seconds(status.uptime_seconds());
  reply.set_pool_capacity_bytes(status.pool().capacity_bytes());
  reply.set_pool_used_bytes(status.pool().used_bytes());
  *reply.mutable_ssd() = status.ssd();
  reply.set_sessions(status.sessions());
  return reply;
}

}  // namespace kvist::controller

// Replies of a controller: each row and each line begins with its node.
#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "daemon/ctl/human.h"
#include "daemon/ctl/job_progress.h"
#include "daemon/ctl/render.h"
#include "daemon/ctl/table.h"

namespace kvist::ctl {
namespace {

namespace api = controller::v1;

// Why some have not answered, or not done it, a line each.
template <class Reply>
std::string SilentOnes(const Reply& reply) {
  std::string text;
  for (const api::Outcome& outcome : reply.nodes()) {
    if (outcome.code() != 0) absl::StrAppend(&text, Printable(outcome.node()), ": ", Printable(outcome.message()), "\n");
  }
  return text;
}

// The number in NODE/NUMBER.
uint64_t NumberIn(const std::string& id) {
  uint64_t number = 0;
  return absl::SimpleAtoi(id.substr(id.rfind('/') + 1), &number) ? number : 0;
}

std::string ShareOf(const api::Job& job) {
  return HumanShare(job.total() == 0 && job.state() != "running" ? 1 : job.done(), std::max<uint64_t>(job.total(), 1));
}

std::string PinTable(const google::protobuf::RepeatedPtrField<api::PinnedPrompt>& pins, size_t columns) {
  Table table({{"PIN"},
               {"OWNER"},
               {"TENANT", Table::Align::kLeft, 2},
               {"MODEL", Table::Align::kLeft, 1},
               {"CHUNKS", kRight},
               {"ASKED", kRight},
               {"BYTES", kRight},
               {"COUNT", kRight},
               {"AGE", kRight},
               {.title = "LASTS", .align = kRight, .if_any = true}});
  for (const auto& pin : pins) {
    table.Add({pin.id(), pin.owner(), pin.tenant(), pin.model(), HumanCount(pin.chunks()), HumanCount(pin.asked()),
               HumanBytes({pin.bytes()}), HumanCount(pin.count()), HumanDuration(absl::Seconds(pin.age_seconds())),
               pin.seconds_left() > 0 ? HumanDuration(absl::Seconds(pin.seconds_left())) : ""});
  }
  return table.Render(columns);
}

}  // namespace

node::v1::Job AtItsNode(const controller::v1::Job& job) {
  node::v1::Job own;
  own.set_id(NumberIn(job.id()));
  own.set_kind(job.kind());
  own.set_space(job.space());
  own.set_state(job.state());
  own.set_done(job.done());
  own.set_total(job.total());
  own.set_chunks(job.chunks());
  own.set_request(job.request());
  own.set_bytes(job.bytes());
  own.set_already_there(job.already_there());
  own.set_not_moved(job.not_moved());
  own.set_bytes_after(job.bytes_after());
  own.set_relative_error(job.relative_error());
  own.set_attention_error(job.attention_error());
  own.set_trouble(job.trouble());
  own.set_tier(job.tier());
  own.set_resumed(job.resumed());
  own.set_seconds(job.seconds());
  own.set_bytes_per_second(job.bytes_per_second());
  own.set_seconds_left(job.seconds_left());
  return own;
}

std::string ToTable(const controller::v1::LookupReply& found, size_t columns) {
  Table table({{"NODE"},
               {"SPACE", Table::Align::kLeft, 3},
               {"TENANT", Table::Align::kLeft, 2},
               {"MODEL", Table::Align::kLeft, 1},
               {"ASKED", kRight},
               {"HIT", kRight},
               {"TOKENS", kRight},
               {"IN"}});
  for (const auto& space : found.spaces()) {
    const std::string tiers =
        absl::StrJoin(space.tiers(), ", ", [](std::string* out, const api::LookupReply::InSpace::InTier& tier) {
          absl::StrAppend(out, tier.tier(), " ", HumanCount(tier.tokens()));
        });
    table.Add({space.node(), space.digest().substr(0, 16), space.tenant(), space.model(), HumanCount(space.prompt_chunks()),
               HumanCount(space.chunks()), HumanCount(space.tokens()), tiers});
  }
  return (found.spaces().empty() ? "" : table.Render(columns)) + SilentOnes(found);
}

std::string ToTable(const controller::v1::QueryIpReply& found, size_t columns) {
  Table table({{"NODE"}, {"API"}, {"ADDRESSES"}});
  for (const auto& node : found.addresses())
    table.Add({node.node(), node.api().empty() ? "here" : node.api(), absl::StrJoin(node.ips(), ", ")});
  return table.Render(columns) + SilentOnes(found);
}

std::string ToTable(const controller::v1::Job& job, size_t columns) {
  return absl::StrCat(Printable(job.node()), ": ", ToTable(AtItsNode(job), columns));
}

std::string ToTable(const controller::v1::JobsReply& jobs, size_t columns) {
  std::string text;
  for (const auto& job : jobs.jobs()) absl::StrAppend(&text, ToTable(job, columns));
  for (const auto& outcome : jobs.nodes()) {
    const bool has_job = std::any_of(jobs.jobs().begin(), jobs.jobs().end(),
                                     [&](const api::Job& job) { return job.node() == outcome.node(); });
    if (outcome.code() == 0 && !has_job) absl::StrAppend(&text, Printable(outcome.node()), ": nothing to do\n");
  }
  return text + SilentOnes(jobs);
}

std::string ToTable(const controller::v1::ListJobsReply& jobs, size_t columns) {
  Table table(
      {{"JOB"}, {"KIND"}, {"SPACE"}, {"STATE"}, {"DONE", kRight}, {"CHUNKS", kRight}, {.title = "REQUEST", .if_any = true}});
  for (const auto& job : jobs.jobs()) {
    table.Add({job.id(), job.kind(), job.space().empty() ? "all" : job.space(), StateOf(AtItsNode(job)), ShareOf(job),
               HumanCount(job.chunks()), job.request()});
  }
  return (jobs.jobs().empty() ? "no jobs\n" : table.Render(columns)) + SilentOnes(jobs);
}

std::string ToTable(const controller::v1::PinReply& pinned, size_t columns) {
  return (pinned.pins().empty() ? "nothing was pinned\n" : PinTable(pinned.pins(), columns)) + SilentOnes(pinned);
}

std::string ToTable(const controller::v1::ListPinsReply& pins, size_t columns) {
  return (pins.pins().empty() ? "no pins\n" : PinTable(pins.pins(), columns)) + SilentOnes(pins);
}

std::string ToTable(const controller::v1::PinnedPrompt& pin, size_t) {
  return absl::StrCat(Printable(pin.node()), ": removed: ", HumanCount(pin.chunks()), " chunks of ", Printable(pin.owner()),
                      " (", Printable(pin.model()), "), ", HumanBytes({pin.bytes()}), ", may go now when room is needed\n");
}

}  // namespace kvist::ctl

#include "daemon/ctl/render.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "daemon/ctl/human.h"
#include "daemon/ctl/job_progress.h"
#include "daemon/ctl/table.h"
#include "daemon/ctl/wrap.h"
#include "storage/base/check.h"

namespace kvist::ctl {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using Json = nlohmann::ordered_json;

Json Object(const Message& message);

Json OneValue(const Message& message, const FieldDescriptor& field) {
  const google::protobuf::Reflection& at = *message.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_UINT64: return at.GetUInt64(message, &field);
    case FieldDescriptor::CPPTYPE_INT64: return at.GetInt64(message, &field);
    case FieldDescriptor::CPPTYPE_UINT32: return at.GetUInt32(message, &field);
    case FieldDescriptor::CPPTYPE_INT32: return at.GetInt32(message, &field);
    case FieldDescriptor::CPPTYPE_DOUBLE: return at.GetDouble(message, &field);
    case FieldDescriptor::CPPTYPE_BOOL: return at.GetBool(message, &field);
    case FieldDescriptor::CPPTYPE_STRING: return at.GetString(message, &field);
    case FieldDescriptor::CPPTYPE_MESSAGE: return Object(at.GetMessage(message, &field));
    default: break;
  }
  KVIST_CHECK(!"the proto has a field of a type that isn't printed yet");
  return nullptr;
}

Json Object(const Message& message) {
  Json object = Json::object();
  const google::protobuf::Descriptor& type = *message.GetDescriptor();
  const google::protobuf::Reflection& at = *message.GetReflection();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    if (!field.is_repeated()) {
      object[field.name()] = OneValue(message, field);
      continue;
    }
    const bool texts = field.cpp_type() == FieldDescriptor::CPPTYPE_STRING;
    KVIST_CHECK(texts || field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE);
    Json list = Json::array();
    for (int j = 0; j < at.FieldSize(message, &field); ++j) {
      list.push_back(texts ? Json(at.GetRepeatedString(message, &field, j))
                           : Object(at.GetRepeatedMessage(message, &field, j)));
    }
    object[field.name()] = std::move(list);
  }
  return object;
}

std::string Plural(uint64_t count, absl::string_view noun) {
  return absl::StrCat(HumanCount(count), " ", noun, count == 1 ? "" : "s");
}

// The tier on disk in short; nothing of a kvistd that says nothing of it.
std::string SsdPart(const node::v1::SsdTier& ssd, size_t columns) {
  if (ssd.state().empty()) return "";
  const std::string trouble = Printable(ssd.trouble());
  if (ssd.state() == "off") return Wrap(absl::StrCat("no SSD tier: ", trouble), columns, 2) + "\n\n";
  Table table({{"SSD"}, {"CAPACITY", kRight}, {"LIVE", kRight}, {"FULL", kRight}, {"CHUNKS ONLY THERE", kRight}});
  table.Add({ssd.state(), HumanBytes({ssd.capacity_bytes()}), HumanBytes({ssd.live_bytes()}),
             HumanShare(ssd.live_bytes(), ssd.capacity_bytes()), HumanCount(ssd.chunks())});
  std::string text = table.Render(columns);
  if (!trouble.empty()) absl::StrAppend(&text, Wrap(absl::StrCat("warning: the SSD tier: ", trouble), columns, 2), "\n");
  return text + "\n";
}

// The tier beyond the node; nothing where there is none.
std::string RemotePart(const node::v1::StatusReply& status, size_t columns) {
  if (!status.has_remote()) return "";
  const node::v1::RemoteTier& remote = status.remote();
  Table table({{"REMOTE"},
               {"STATE"},
               {"FOUND", kRight},
               {"READ", kRight},
               {"WRITTEN", kRight},
               {"WAITING", kRight, 1},
               {"STORE", Table::Align::kLeft, 2}});
  table.Add({Printable(remote.name()), remote.reachable() ? "reachable" : "away", HumanCount(remote.chunks_found()),
             HumanCount(remote.chunks_read()), HumanCount(remote.chunks_written()), HumanCount(remote.chunks_waiting()),
             Printable(remote.store())});
  std::string text = table.Render(columns);
  if (!remote.reachable())
    absl::StrAppend(&text,
                    Wrap(absl::StrCat("warning: ", Printable(remote.name()), ": ", Printable(remote.why_not())), columns, 2),
                    "\n");
  return text + "\n";
}

// The GPUs that are served; nothing where there are none.
std::string GpuPart(const node::v1::StatusReply& status, size_t columns) {
  if (status.gpus().empty()) return "";
  Table table({{"GPU"}, {"STATE"}, {"ENGINES' MEMORY", kRight}, {"POOL PINNED", kRight, 1}});
  std::string lost;
  for (const auto& gpu : status.gpus()) {
    table.Add({Printable(gpu.name()), gpu.lost().empty() ? "serving" : "lost", HumanBytes({gpu.imported_bytes()}),
               HumanShare(status.pool().pinned_bytes(), status.pool().capacity_bytes())});
    if (!gpu.lost().empty()) {
      absl::StrAppend(&lost,
                      Wrap(absl::StrCat("warning: ", Printable(gpu.name()), ": ", Printable(gpu.lost()),
                                        ": its engines go on without kvist until kvistd is started again"),
                           columns, 2),
                      "\n");
    }
  }
  return table.Render(columns) + lost + "\n";
}

}  // namespace

std::string ToTable(const node::v1::StatusReply& status, size_t columns) {
  const auto& pool = status.pool();
  std::string text = Wrap(absl::StrCat("kvistd ", Printable(status.version()), ", pid ", status.pid(), ", up ",
                                       HumanDuration(absl::Seconds(status.uptime_seconds())), ", serving engines on ",
                                       Printable(status.engine_socket())),
                          columns, 2);
  absl::StrAppend(&text, "\n\n");

  Table pool_table({{"POOL", kRight},
                    {"USED", kRight},
                    {"FULL", kRight},
                    {"SLOTS", kRight},
                    {"TOUCHED", kRight},
                    {"LOCKED", kRight},
                    {"PAGES", kRight, 3},
                    {"SLABS", kRight, 2},
                    {"REGIONS", kRight, 4},
                    {"INDEX", kRight, 1}});
  pool_table.Add({HumanBytes({pool.capacity_bytes()}), HumanBytes({pool.used_bytes()}),
                  HumanShare(pool.used_bytes(), pool.capacity_bytes()), HumanCount(pool.slots()),
                  HumanShare(pool.touched_bytes(), pool.capacity_bytes()), pool.locked() ? "yes" : "no",
                  HumanBytes({pool.page_bytes()}), HumanBytes({pool.slab_bytes()}), HumanCount(pool.regions()),
                  HumanBytes({status.index_bytes()})});
  absl::StrAppend(&text, pool_table.Render(columns), "\n", SsdPart(status.ssd(), columns), RemotePart(status, columns),
                  GpuPart(status, columns));

  Table now({{"INSTANCES", kRight},
             {"SESSIONS", kRight},
             {"LEASES", kRight},
             {"PINS", kRight},
             {"PRIVATE", kRight},
             {"COPIES", kRight},
             {"FILLING", kRight}});
  now.Add({HumanCount(status.instances()), HumanCount(status.sessions()), HumanCount(status.leases()),
           HumanCount(status.pins()), HumanBytes({status.pool().private_bytes()}), HumanCount(status.ops()),
           HumanCount(status.filling())});
  absl::StrAppend(&text, now.Render(columns), "\n");

  Table counts({{"LOOKUPS", kRight},
                {"CHUNKS ASKED", kRight},
                {"HIT", kRight},
                {"HIT RATE", kRight},
                {"STORED", kRight},
                {"LOADED", kRight},
                {"REFUSED", kRight},
                {"EVICTED", kRight}});
  counts.Add({HumanCount(status.lookups()), HumanCount(status.chunks_asked()), HumanCount(status.chunks_hit()),
              HumanShare(status.chunks_hit(), status.chunks_asked()), HumanCount(status.chunks_stored()),
              HumanCount(status.chunks_loaded()), HumanCount(status.chunks_refused()), HumanCount(status.evictions())});
  absl::StrAppend(&text, counts.Render(columns), "\n");

  if (status.spaces().empty()) return absl::StrCat(text, "no spaces: no engine has connected since the start\n");
  Table spaces({{"SPACE"},
                {"TENANT", Table::Align::kLeft, 2},
                {"MODEL"},
                {"CHUNKS", kRight},
                {"BYTES", kRight},
                {"OF POOL", kRight, 1}});
  for (const auto& space : status.spaces()) {
    spaces.Add({space.digest(), space.tenant(), space.model(), HumanCount(space.chunks()), HumanBytes({space.bytes()}),
                HumanShare(space.bytes(), pool.capacity_bytes())});
  }
  return absl::StrCat(text, spaces.Render(columns));
}

std::string ToTable(const node::v1::SessionsReply& sessions, size_t columns) {
  if (sessions.sessions().empty()) return "no sessions: no engine is connected\n";
  Table table({{"SESSION", kRight},
               {"INSTANCE"},
               {"ROLE"},
               {"RANK", kRight},
               {"TENANT", Table::Align::kLeft, 1},
               {"PID", kRight},
               {"UID", kRight, 4},
               {"SPACE", Table::Align::kLeft, 5},
               {"MODEL", Table::Align::kLeft, 2},
               {"AGE", kRight},
               {"COPIES", kRight, 3},
               {"REQUESTS", kRight}});
  for (const auto& session : sessions.sessions()) {
    table.Add({absl::StrCat(session.id()), session.instance(), session.role(), absl::StrCat(session.rank()),
               session.tenant(), absl::StrCat(session.pid()), absl::StrCat(session.uid()), session.space(), session.model(),
               HumanDuration(absl::Seconds(session.age_seconds())), HumanCount(session.ops()),
               HumanCount(session.requests())});
  }
  return table.Render(columns);
}

namespace {

// When the controller has heard last what the node's chunks are.
std::string ToldOf(const controller::v1::HealthReply::Node& node) {
  if (!node.has_followed()) return "-";  // it is asked
  const controller::v1::Followed& followed = node.followed();
  if (!followed.fresh()) return "no: " + Printable(followed.why_not());
  return HumanDuration(absl::Milliseconds(followed.as_of_ms())) + " ago";
}

}  // namespace

std::string ToTable(const controller::v1::HealthReply& health, size_t columns) {
  Table table({{"NODE"},
               {"VERSION", Table::Align::kLeft, 2},
               {"UP", kRight},
               {"POOL", kRight},
               {"USED", kRight},
               {"SSD"},
               {"SESSIONS", kRight},
               {"CHUNKS", kRight},
               {"TOLD"}});
  std::string silent;
  for (const auto& node : health.healthy()) {
    table.Add({node.node(), node.version(), HumanDuration(absl::Seconds(node.uptime_seconds())),
               HumanBytes(Bytes{node.pool_capacity_bytes()}), HumanBytes(Bytes{node.pool_used_bytes()}), node.ssd().state(),
               HumanCount(node.sessions()), node.has_followed() ? HumanCount(node.followed().chunks()) : "-", ToldOf(node)});
  }
  for (const auto& outcome : health.nodes()) {
    if (outcome.code() != 0) absl::StrAppend(&silent, Printable(outcome.node()), ": ", Printable(outcome.message()), "\n");
  }
  return absl::StrCat(health.healthy().empty() ? "" : table.Render(columns), silent);
}

std::string ToTable(const node::v1::ReloadReply& reload, size_t) {
  std::string text;
  if (reload.in_force().empty() && reload.needs_restart().empty()) text = "reloaded: nothing has changed\n";
  for (const std::string& key : reload.in_force()) absl::StrAppend(&text, Printable(key), ": in force now\n");
  for (const std::string& key : reload.needs_restart()) absl::StrAppend(&text, Printable(key), ": needs a restart\n");
  return text;
}

namespace {

bool IsClear(const node::v1::Job& job) { return job.kind() == "clear" || job.kind() == "clear-prompt"; }

// Of a job that moves chunks, what became of the others.
std::string OthersOf(const node::v1::Job& job) {
  std::string text;
  if (job.bytes() > 0 && !IsClear(job)) absl::StrAppend(&text, " (", HumanBytes({job.bytes()}), ")");
  if (job.bytes_after() > 0) {
    const double ratio = static_cast<double>(job.bytes()) / static_cast<double>(job.bytes_after());
    absl::StrAppend(
        &text, ", ", HumanBytes({job.bytes_after()}), " now, ",
        ratio >= 1 ? absl::StrFormat("%.2f times less", ratio) : absl::StrFormat("%.2f times as much", 1 / ratio),
        job.relative_error() == 0 ? ", bit for bit" : absl::StrFormat(", relative error %.4f", job.relative_error()));
    if (job.attention_error() > 0) absl::StrAppendFormat(&text, ", of attention %.4f", job.attention_error());
  }
  if (job.already_there() > 0) absl::StrAppend(&text, ", ", HumanCount(job.already_there()), " were there already");
  if (job.not_moved() > 0)
    absl::StrAppend(&text, ", ", HumanCount(job.not_moved()), " stay where they are: in use, or for want of room");
  if (!job.trouble().empty()) absl::StrAppend(&text, "; ", Printable(job.trouble()));
  return text;
}

}  // namespace

std::string ToTable(const node::v1::PromptJobsReply& jobs, size_t) {
  if (jobs.jobs().empty())
    return absl::StrCat("nothing to do: the prompt has no full chunk in ", Plural(jobs.spaces(), "space"), "\n");
  std::string text;
  for (const auto& job : jobs.jobs()) absl::StrAppend(&text, "space ", job.space(), ": ", ToTable(job));
  return text;
}

std::string ToTable(const node::v1::Job& job, size_t) {
  if (IsClear(job) && job.state() == "done") {
    const std::string where = job.tier().empty() ? "" : absl::StrCat(" in ", Printable(job.tier()));
    return absl::StrCat("cleared ", Plural(job.chunks(), "chunk"), where, OthersOf(job), "\n");
  }
  return absl::StrCat(
      "job ", job.id(), ", ", Printable(job.kind()), ": ", StateOf(job), ", ", Achieved(job), OthersOf(job),
      job.seconds_left() > 0 ? absl::StrCat(", ", HumanDuration(absl::Seconds(job.seconds_left())), " left") : "",
      IsClear(job) && job.tier().empty() && job.state() == "cancelled"
          ? "; the others stay hidden, and go when their room is needed or with the next clear\n"
          : "\n");
}

std::string ToTable(const node::v1::ListJobsReply& jobs, size_t columns) {
  if (jobs.jobs().empty()) return "no jobs: none runs, and none has ended lately\n";
  Table table({{"JOB", kRight},
               {"KIND"},
               {"SPACE"},
               {"STATE"},
               {"DONE", kRight},
               {"CHUNKS", kRight},
               {.title = "REQUEST", .if_any = true}});
  for (const auto& job : jobs.jobs()) {
    const std::string kind = job.tier().empty() ? job.kind() : absl::StrCat(job.kind(), " ", job.tier());
    table.Add({absl::StrCat(job.id()), kind, job.space().empty() ? "all" : job.space(), StateOf(job),
               HumanShare(job.total() == 0 && job.state() != "running" ? 1 : job.done(), std::max<uint64_t>(job.total(), 1)),
               HumanCount(job.chunks()), job.request()});
  }
  return table.Render(columns);
}

std::string ToTable(const node::v1::Quota& quota, size_t) {
  const std::string tenant = Printable(quota.tenant());
  std::string text = absl::StrCat("tenant ", tenant, ": ");
  if (quota.bytes() == 0) {
    absl::StrAppend(&text, "no quota");
  } else {
    absl::StrAppend(&text, "quota ", HumanBytes({quota.bytes()}));
  }
  absl::StrAppend(&text, ", ", HumanBytes({quota.used_bytes()}),
                  " used; a reload or restart brings the configuration's back\n");
  if (!quota.note().empty()) absl::StrAppend(&text, "warning: ", Printable(quota.note()), "\n");
  return text;
}

std::string ToTable(const node::v1::ListQuotasReply& quotas, size_t columns) {
  if (quotas.quotas().empty()) return "no tenants: no engine has connected since the start, and none has a quota\n";
  Table table({{"TENANT"},
               {"QUOTA", kRight},
               {"USED", kRight},
               {"OF QUOTA", kRight},
               {"EVICTED", kRight},
               {"SET BY", Table::Align::kLeft, 1},
               {.title = "NOTE", .if_any = true}});
  for (const auto& quota : quotas.quotas()) {
    table.Add({quota.tenant(), quota.bytes() == 0 ? "none" : HumanBytes({quota.bytes()}), HumanBytes({quota.used_bytes()}),
               HumanShare(quota.used_bytes(), quota.bytes()), HumanCount(quota.evictions()), quota.origin(), quota.note()});
  }
  return table.Render(columns);
}

std::string ToJsonLine(const Message& reply) {
  return Object(reply).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string ToJson(const Message& reply) {
  return Object(reply).dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string ToTable(const node::v1::LookupReply& found, size_t columns) {
  Table table({{"SPACE"},
               {"TENANT", Table::Align::kLeft, 2},
               {"MODEL", Table::Align::kLeft, 1},
               {"ASKED", kRight},
               {"HIT", kRight},
               {"TOKENS", kRight},
               {"IN DRAM", kRight},
               {"ON SSD", kRight},
               {"REMOTE", kRight}});
  for (const auto& space : found.spaces()) {
    table.Add({space.digest().substr(0, 16), space.tenant(), space.model(), HumanCount(space.prompt_chunks()),
               HumanCount(space.chunks()), HumanCount(space.tokens()), HumanCount(space.dram_tokens()),
               HumanCount(space.ssd_tokens()), HumanCount(space.remote_tokens())});
  }
  return table.Render(columns);
}

namespace {

std::string TableOf(const google::protobuf::RepeatedPtrField<node::v1::Pin>& pins, size_t columns) {
  Table table({{"PIN", kRight},
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
    table.Add({absl::StrCat(pin.id()), pin.owner(), pin.tenant(), pin.model(), HumanCount(pin.chunks()),
               HumanCount(pin.asked()), HumanBytes({pin.bytes()}), HumanCount(pin.count()),
               HumanDuration(absl::Seconds(pin.age_seconds())),
               pin.seconds_left() > 0 ? HumanDuration(absl::Seconds(pin.seconds_left())) : ""});
  }
  return table.Render(columns);
}

}  // namespace

std::string ToTable(const node::v1::AddPinReply& pinned, size_t columns) {
  const uint64_t without = pinned.spaces() - static_cast<uint64_t>(pinned.pins_size());
  std::string text = pinned.pins().empty() ? "" : TableOf(pinned.pins(), columns);
  if (without > 0)
    absl::StrAppend(&text, "nothing of the prompt is there in ", Plural(without, "space"), ": nothing was pinned there\n");
  return text;
}

std::string ToTable(const node::v1::ListPinsReply& pins, size_t columns) {
  return pins.pins().empty() ? "no pins: nobody has pinned a prompt\n" : TableOf(pins.pins(), columns);
}

std::string ToTable(const node::v1::Pin& pin, size_t) {
  return absl::StrCat("removed: ", HumanCount(pin.chunks()), " chunks of ", Printable(pin.owner()), " (",
                      Printable(pin.model()), "), ", HumanBytes({pin.bytes()}), ", may go now when room is needed\n");
}

}  // namespace kvist::ctl

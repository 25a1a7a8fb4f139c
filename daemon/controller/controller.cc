#include "daemon/controller/controller.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/controller/checks.h"
#include "daemon/controller/fan_out.h"
#include "daemon/controller/replies.h"
#include "daemon/rpc/replies.h"
#include "daemon/rpc/requests.h"
#include "storage/base/status.h"
#include "storage/base/utf8.h"

namespace kvist::controller {
namespace {

// As long as a node itself waits for its reactor. Of a shorter time the rest is for the reply: a node that hangs must not cost the caller the
// answers of the others.
constexpr absl::Duration kNodeTime = absl::Seconds(5);
constexpr double kNodeShare = 0.8;
// As many jobs as a node runs at a time.
constexpr size_t kSpacesClearedMax = 64;
// Between two looks at a job that is watched: short at first, because most are over soon.
constexpr absl::Duration kFirstPause = absl::Milliseconds(5);
constexpr absl::Duration kPause = absl::Milliseconds(200);
constexpr size_t kMethodMax = 64;

absl::Time NodeDeadline(absl::Time deadline) {
  const absl::Time now = MonotonicNow();
  return now + std::clamp(kNodeShare * (deadline - now), absl::ZeroDuration(), kNodeTime);
}

absl::Status OfNode(const std::string& node, const absl::Status& why) {
  return {why.code(), absl::StrCat(node, ": ", why.message())};
}

// Asks these nodes the same, puts how each has answered into the reply's `nodes`, and hands what they answered to `take` (node, answer).
template <class Request, class Answer, class Reply, class Take>
void AskThose(const std::vector<const NamedNode*>& nodes, Request request, NodeCall<Request, Answer> call,
              absl::Time deadline, Reply* reply, Take take) {
  const std::vector<absl::StatusOr<Answer>> answers =
      AskAll(SameOf(nodes, std::move(request)), call, NodeDeadline(deadline));
  for (size_t i = 0; i < nodes.size(); ++i) {
    *reply->add_nodes() = ToOutcome(nodes[i]->name, answers[i].status());
    if (answers[i].ok()) take(nodes[i]->name, *answers[i]);
  }
}

// What a change of one node alone comes to when it fails: that node's error.
template <class Reply>
absl::StatusOr<Reply> OrTheOnlyError(Reply reply) {
  if (reply.nodes_size() != 1 || reply.nodes(0).code() == 0) return reply;
  return absl::Status(static_cast<absl::StatusCode>(reply.nodes(0).code()),
                      absl::StrCat(reply.nodes(0).node(), ": ", reply.nodes(0).message()));
}

template <class Request, class Answer>
absl::StatusOr<Answer> AskOne(const NamedNode* node, Request request, NodeCall<Request, Answer> call, absl::Time deadline) {
  std::vector<absl::StatusOr<Answer>> answers =
      AskAll(SameOf(std::vector<const NamedNode*>{node}, std::move(request)), call, NodeDeadline(deadline));
  if (!answers[0].ok()) return OfNode(node->name, answers[0].status());
  return std::move(answers[0]);
}

void AddJob(const std::string& node, const node::v1::Job& job, v1::JobsReply* reply) {
  *reply->add_jobs() = ToJob(node, job);
  spdlog::info("{} in {} is job {}: asked for by the controller API", job.kind(),
               job.space().empty() ? "all spaces" : "space " + job.space(), MakeId(node, job.id()));
}

// What starts jobs on a prompt.
template <class Request>
absl::StatusOr<v1::JobsReply> StartJobs(const std::vector<const NamedNode*>& nodes, Request request,
                                        NodeCall<Request, node::v1::PromptJobsReply> call, absl::Time deadline) {
  v1::JobsReply reply;
  AskThose(nodes, std::move(request), call, deadline, &reply,
           [&reply](const std::string& node, const node::v1::PromptJobsReply& started) {
             for (const node::v1::Job& job : started.jobs()) AddJob(node, job, &reply);
           });
  return OrTheOnlyError(std::move(reply));
}

// A node's request on what the controller's is on.
template <class To, class From>
To OnPromptOf(const From& from) {
  To to;
  *to.mutable_space() = from.space();
  *to.mutable_prompt() = from.prompt();
  return to;
}

int64_t ToMillis(absl::Duration age) { return std::max<int64_t>(0, absl::ToInt64Milliseconds(age)); }

// What a node would answer that holds this.
absl::StatusOr<node::v1::LookupReply> ToAnswer(const std::vector<rpc::Found>& spaces) {
  if (spaces.empty()) return absl::NotFoundError("space: no space fits");
  return rpc::ToReply(spaces);
}

bool IsEmpty(const node::v1::SpaceFilter& space) {
  return space.digest().empty() && space.model().empty() && space.tenant().empty();
}

// Whether a node's space, of whose digest it says the first digits, fits.
bool Fits(const node::v1::StatusReply::Space& space, const node::v1::SpaceFilter& filter) {
  const std::string wanted = absl::AsciiStrToLower(filter.digest());
  const size_t digits = std::min(wanted.size(), space.digest().size());
  return space.digest().compare(0, digits, wanted, 0, digits) == 0 &&
         (filter.model().empty() || filter.model() == space.model()) &&
         (filter.tenant().empty() || filter.tenant() == space.tenant());
}

// What of a job is progress: time passes whether it gets on or not.
std::string ProgressOf(v1::Job job) {
  job.clear_seconds();
  job.clear_bytes_per_second();
  job.clear_seconds_left();
  return job.SerializeAsString();
}

absl::Status CheckMove(const v1::MoveRequest& request) {
  KVIST_RETURN_IF_ERROR(CheckPrompt(request.space(), request.prompt()));
  KVIST_RETURN_IF_ERROR(CheckTier("source.tier", request.source().tier()));
  const std::string& from = request.source().tier();
  const std::string& to = request.destination().tier();
  KVIST_RETURN_IF_ERROR(CheckTier("destination.tier", to));
  if (absl::StartsWith(from, "remote:") && absl::StartsWith(to, "remote:") && from != to) {
    return absl::UnimplementedError(absl::StrCat(
        "destination.tier: \"", to, "\": from one remote tier to another nothing is moved; move it to dram or ssd first"));
  }
  return CheckRequestName(request.request());
}

// Where a move begins, and whether it ends there.
absl::StatusOr<std::vector<const NamedNode*>> SourcesOf(const v1::MoveRequest& request, const Nodes& nodes) {
  const std::string& from = request.source().node();
  const std::string& to = request.destination().node();
  KVIST_ASSIGN_OR_RETURN(const std::vector<const NamedNode*> sources, nodes.OneOrAll("source.node", from));
  if (!to.empty()) {
    KVIST_ASSIGN_OR_RETURN(const NamedNode* const destination, nodes.Find("destination.node", to));
    if (from.empty() && sources.size() > 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("source.node: empty, and destination.node is \"", to, "\"; allowed: one node, or leave both out"));
    }
    if (destination != sources[0]) {
      return absl::UnimplementedError(absl::StrCat("destination.node: \"", to,
                                                   "\": nodes move prompts between their own tiers only, ", "not from ",
                                                   sources[0]->name, " to ", to, "; leave it out"));
    }
  }
  if (request.source().tier() == request.destination().tier())
    return absl::InvalidArgumentError(
        absl::StrCat("destination.tier: ", request.destination().tier(), " is where it comes from"));
  return sources;
}

// Of Compress and Decompress.
template <class Request>
absl::Status CheckPacking(const Request& request) {
  KVIST_RETURN_IF_ERROR(CheckPrompt(request.space(), request.prompt()));
  KVIST_RETURN_IF_ERROR(CheckTier("tier", request.tier()));
  return CheckRequestName(request.request());
}

}  // namespace

Controller::Controller(Nodes nodes, Following::Options following) : nodes_(std::move(nodes)) {
  const std::vector<const NamedNode*> all = nodes_.all();
  if (std::any_of(all.begin(), all.end(), [](const NamedNode* node) { return node->api->can_be_followed(); }))
    following_ = std::make_unique<Following>(&nodes_, following);
}

absl::StatusOr<v1::LookupReply> Controller::Lookup(const v1::LookupRequest& request, absl::Time deadline) const {
  KVIST_RETURN_IF_ERROR(CheckPrompt(request.space(), request.prompt()));
  KVIST_ASSIGN_OR_RETURN(const std::vector<const NamedNode*> nodes, nodes_.Those("nodes", request.nodes()));
  std::vector<std::optional<Following::Known>> known(nodes.size());
  const bool by_directory = following_ != nullptr && !request.ask_nodes();
  if (by_directory) {
    KVIST_ASSIGN_OR_RETURN(const rpc::SpaceFilter filter, rpc::ReadFilter(request.space()));
    KVIST_ASSIGN_OR_RETURN(const rpc::Prompt prompt, rpc::ReadPrompt(request.prompt()));
    known = following_->Lookup(nodes, filter, prompt);
  }
  const absl::Time now = MonotonicNow();
  absl::Time until = NodeDeadline(deadline);
  const bool patient = by_directory && until >= now + SilentNodes::kWait;  // enough to say of a node that it is silent
  if (by_directory) until = std::min(until, now + SilentNodes::kWait);
  std::vector<bool> left_alone(nodes.size());
  std::vector<const NamedNode*> asked;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (known[i].has_value()) continue;
    left_alone[i] = by_directory && !silent_.MayAsk(nodes[i], now);
    if (!left_alone[i]) asked.push_back(nodes[i]);
  }
  std::vector<absl::StatusOr<node::v1::LookupReply>> answers;
  if (!asked.empty()) answers = AskAll(SameOf(asked, OnPromptOf<node::v1::LookupRequest>(request)), &NodeApi::Lookup, until);
  for (size_t i = 0; i < asked.size(); ++i) {
    const bool answered = !absl::IsDeadlineExceeded(answers[i].status());
    if (answered || patient) silent_.Heard(asked[i], answered);
  }
  v1::LookupReply reply;
  auto answer = answers.begin();
  for (size_t i = 0; i < nodes.size(); ++i) {
    const absl::StatusOr<node::v1::LookupReply> found =
        known[i].has_value() ? ToAnswer(known[i]->spaces)
        : left_alone[i]
            ? absl::UnavailableError("it tells nothing, and didn't answer the last lookup; soon it is asked again")
            : std::move(*answer++);
    v1::Outcome& outcome = *reply.add_nodes();
    outcome = ToOutcome(nodes[i]->name, found.status());
    if (known[i].has_value()) {
      outcome.set_by_directory(true);
      outcome.set_as_of_ms(static_cast<uint64_t>(ToMillis(known[i]->age)));
    }
    if (!found.ok()) continue;
    for (const node::v1::LookupReply::InSpace& space : found->spaces())
      *reply.add_spaces() = ToInSpace(nodes[i]->name, space);
  }
  return reply;
}

absl::StatusOr<v1::QueryIpReply> Controller::QueryIp(const v1::QueryIpRequest& request, absl::Time deadline) const {
  KVIST_ASSIGN_OR_RETURN(const std::vector<const NamedNode*> nodes, nodes_.Those("nodes", request.nodes()));
  v1::QueryIpReply reply;
  for (const NamedNode* node : nodes) {
    v1::QueryIpReply::Addresses& addresses = *reply.add_addresses();
    addresses.set_node(node->name);
    addresses.set_api(node->api->address());
  }
  AskThose(nodes, node::v1::StatusRequest(), &NodeApi::Ips, deadline, &reply,
           [&reply](const std::string& node, const std::vector<std::string>& ips) {
             for (v1::QueryIpReply::Addresses& addresses : *reply.mutable_addresses()) {
               if (addresses.node() == node) addresses.mutable_ips()->Assign(ips.begin(), ips.end());
             }
           });
  return reply;
}

absl::StatusOr<v1::JobsReply> Controller::Move(const v1::MoveRequest& request, absl::Time deadline) const {
  KVIST_RETURN_IF_ERROR(CheckMove(request));
  KVIST_ASSIGN_OR_RETURN(const std::vector<const NamedNode*> nodes, SourcesOf(request, nodes_));
  auto move = OnPromptOf<node::v1::MoveRequest>(request);
  move.set_from(request.source().tier());
  move.set_to(request.destination().tier());
  move.set_keep_source(request.keep_source());
  move.set_request(request.request());
  return StartJobs(nodes, std::move(move), &NodeApi::Move, deadline);
}

absl::StatusOr<v1::JobsReply> Controller::Prefetch(const v1::PrefetchRequest& request, absl::Time deadline) const {
  KVIST_RETURN_IF_ERROR(CheckPrompt(request.space(), request.prompt()));
  KVIST_RETURN_IF_ERROR(request.tier().empty() ? absl::OkStatus() : CheckTier("tier", request.tier()));
  if (request.tier() == "dram") return absl::InvalidArgumentError("tier: dram is where a prefetch goes to");
  KVIST_RETURN_IF_ERROR(CheckRequestName(request.request()));
  KVIST_ASSIGN_OR_RETURN(const std::vector<const NamedNode*> nodes, nodes_.OneOrAll("node", request.node()));
  auto prefetch = OnPromptOf<node::v1::PrefetchRequest>(request);
  prefetch.set_from(request.tier());
  prefetch.set_request(request.request());
  return StartJobs(nodes, std::move(prefetch), &NodeApi::Prefetch, deadline);
}

absl::StatusOr<v1::JobsReply> Controller::Clear(const v1::ClearRequest& request, absl::Time deadline) const {
  const bool of_prompt = request.has_prompt(), of_spaces = !IsEmpty(request.space());
  if (of_prompt) KVIST_RETURN_IF_ERROR(CheckPrompt(request.space(), request.prompt()));
  KVIST_RETURN_IF_ERROR(CheckFilter(request.space()));
  if (request.everything() && (of_prompt || of_spaces))
    return absl::InvalidArgumentError("everything: there is a prompt or a space, too; allowed: one of them");
  if (!request.everything() && !of_prompt && !of_spaces) {
    return absl::InvalidArgumentError(
        "prompt: there is none, and the space is empty; to clear all that a node holds, say so by `everything`");
  }
  KVIST_RETURN_IF_ERROR(CheckRequestName(request.request()));
  KVIST_ASSIGN_OR_RETURN(const std::vector<const NamedNode*> nodes, nodes_.OneOrAll("node", request.node()));
  if (!request.tier().empty()) KVIST_RETURN_IF_ERROR(CheckTier("tier", request.tier()));
  if (of_prompt) {
    auto clear = OnPromptOf<node::v1::ClearPromptRequest>(request);
    clear.set_request(request.request());
    clear.set_tier(request.tier());
    return StartJobs(nodes, std::move(clear), &NodeApi::ClearPrompt, deadline);
  }
  if (of_spaces) return ClearSpaces(request, nodes, deadline);
  node::v1::ClearRequest clear;
  clear.set_request(request.request());
  clear.set_tier(request.tier());
  v1::JobsReply reply;
  AskThose(nodes, std::move(clear), &NodeApi::Clear, deadline, &reply,
           [&reply](const std::string& node, const node::v1::Job& job) { AddJob(node, job, &reply); });
  return OrTheOnlyError(std::move(reply));
}

// A node clears one space at a time, so it is asked for its spaces first.
absl::StatusOr<v1::JobsReply> Controller::ClearSpaces(const v1::ClearRequest& request,
                                                      const std::vector<const NamedNode*>& nodes,
                                                      absl::Time deadline) const {
  const std::vector<absl::StatusOr<node::v1::StatusReply>> statuses =
      AskAll(SameOf(nodes, node::v1::StatusRequest()), &NodeApi::Status, NodeDeadline(deadline));
  std::vector<absl::Status> why(nodes.size());  // [node]
  std::vector<Question<node::v1::ClearRequest>> questions;
  std::vector<size_t> asked;  // [question] the node's place
  for (size_t n = 0; n < nodes.size(); ++n) {
    why[n] = statuses[n].status();
    if (!statuses[n].ok()) continue;
    const size_t before = questions.size();
    for (const node::v1::StatusReply::Space& space : statuses[n]->spaces()) {
      if (!Fits(space, request.space())) continue;
      node::v1::ClearRequest clear;
      // The caller's digits may be more than the status has.
      clear.set_space(request.space().digest().size() > space.digest().size() ? request.space().digest() : space.digest());
      clear.set_tier(request.tier());
      // Without the space, a name would find the job of whichever space came first.
      if (!request.request().empty()) clear.set_request(absl::StrCat(request.request(), ":", space.digest()));
      questions.push_back({nodes[n], std::make_shared<const node::v1::ClearRequest>(std::move(clear))});
    }
    if (questions.size() == before) why[n] = absl::NotFoundError("space: no space fits");
    if (questions.size() - before > kSpacesClearedMax) {
      questions.resize(before);
      why[n] =
          absl::InvalidArgumentError(absl::StrCat("space: more than ", kSpacesClearedMax, " spaces fit; say more of which"));
    }
    asked.resize(questions.size(), n);
  }
  const std::vector<absl::StatusOr<node::v1::Job>> jobs = AskAll(questions, &NodeApi::Clear, NodeDeadline(deadline));
  v1::JobsReply reply;
  for (size_t i = 0; i < questions.size(); ++i) {
    if (jobs[i].ok()) {
      AddJob(nodes[asked[i]]->name, *jobs[i], &reply);
    } else if (why[asked[i]].ok()) {
      why[asked[i]] = jobs[i].status();
    }
  }
  for (size_t n = 0; n < nodes.size(); ++n) *reply.add_nodes() = ToOutcome(nodes[n]->name, why[n]);
  // Jobs that were started are said even when another space of that node wasn't cleared.
  if (reply.jobs_size() > 0) return reply;
  return OrTheOnlyError(std::move(reply));
}

absl::StatusOr<v1::JobsReply> Controller::Compress(const v1::CompressRequest& request, absl::Time deadline) const {
  KVIST_RETURN_IF_ERROR(CheckPacking(request));
  if (request.method().empty())
    return absl::InvalidArgumentError("method: empty; allowed: lossless, int8, int4, fp8, strongest");
  if (request.method().size() > kMethodMax)
    return absl::InvalidArgumentError(
        absl::StrCat("method: ", request.method().size(), " bytes; allowed: at most ", kMethodMax));
  KVIST_ASSIGN_OR_RETURN(const std::vector<const NamedNode*> nodes, nodes_.OneOrAll("node", request.node()));
  auto compress = OnPromptOf<node::v1::CompressRequest>(request);
  compress.set_tier(request.tier());
  compress.set_method(request.method());
  compress.set_request(request.request());
  return StartJobs(nodes, std::move(compress), &NodeApi::Compress, deadline);
}

absl::StatusOr<v1::JobsReply> Controller::Decompress(const v1::DecompressRequest& request, absl::Time deadline) const {
  KVIST_RETURN_IF_ERROR(CheckPacking(request));
  KVIST_ASSIGN_OR_RETURN(const std::vector<const NamedNode*> nodes, nodes_.OneOrAll("node", request.node()));
  auto decompress = OnPromptOf<node::v1::DecompressRequest>(request);
  decompress.set_tier(request.tier());
  decompress.set_request(request.request());
  return StartJobs(nodes, std::move(decompress), &NodeApi::Decompress, deadline);
}

absl::StatusOr<v1::PinReply> Controller::Pin(const v1::PinRequest& request, absl::Time deadline) const {
  KVIST_RETURN_IF_ERROR(CheckPrompt(request.space(), request.prompt()));
  KVIST_ASSIGN_OR_RETURN(const std::vector<const NamedNode*> nodes, nodes_.OneOrAll("node", request.node()));
  auto pin = OnPromptOf<node::v1::AddPinRequest>(request);
  pin.set_owner(request.owner());
  pin.set_seconds(request.seconds());
  KVIST_RETURN_IF_ERROR(rpc::ReadPinWish(pin).status());
  v1::PinReply reply;
  AskThose(nodes, std::move(pin), &NodeApi::AddPin, deadline, &reply,
           [&reply](const std::string& node, const node::v1::AddPinReply& added) {
             for (const node::v1::Pin& one : added.pins()) *reply.add_pins() = ToPin(node, one);
           });
  return OrTheOnlyError(std::move(reply));
}

absl::StatusOr<v1::PinnedPrompt> Controller::Unpin(const v1::UnpinRequest& request, absl::Time deadline) const {
  KVIST_ASSIGN_OR_RETURN(const NumberAtNode id, ReadId("pin", request.pin()));
  KVIST_ASSIGN_OR_RETURN(const NamedNode* const node, nodes_.Find("pin", id.node));
  node::v1::RemovePinRequest remove;
  remove.set_id(id.number);
  KVIST_ASSIGN_OR_RETURN(const node::v1::Pin was, AskOne(node, std::move(remove), &NodeApi::RemovePin, deadline));
  spdlog::info("pin {} of {} removed: asked for by the controller API", request.pin(), was.owner());
  return ToPin(node->name, was);
}

absl::StatusOr<v1::ListPinsReply> Controller::ListPins(const v1::ListPinsRequest& request, absl::Time deadline) const {
  KVIST_ASSIGN_OR_RETURN(const std::vector<const NamedNode*> nodes, nodes_.Those("nodes", request.nodes()));
  size_t at = 0;
  node::v1::ListPinsRequest list;
  if (!request.after().empty()) {
    KVIST_ASSIGN_OR_RETURN(const NumberAtNode after, ReadId("after", request.after()));
    KVIST_ASSIGN_OR_RETURN(const NamedNode* const node, nodes_.Find("after", after.node));
    at = static_cast<size_t>(std::find(nodes.begin(), nodes.end(), node) - nodes.begin());
    if (at == nodes.size()) return absl::InvalidArgumentError(absl::StrCat("after: ", after.node, " is not one of `nodes`"));
    list.set_after(after.number);
  }
  v1::ListPinsReply reply;
  if (at + 1 < nodes.size()) reply.set_next(MakeId(nodes[at + 1]->name, 0));
  AskThose({nodes[at]}, std::move(list), &NodeApi::ListPins, deadline, &reply,
           [&reply](const std::string& node, const node::v1::ListPinsReply& page) {
             for (const node::v1::Pin& pin : page.pins()) *reply.add_pins() = ToPin(node, pin);
             if (page.next() != 0) reply.set_next(MakeId(node, page.next()));
           });
  return reply;
}

absl::StatusOr<v1::HealthReply> Controller::Health(const v1::HealthRequest& request, absl::Time deadline) const {
  KVIST_ASSIGN_OR_RETURN(const std::vector<const NamedNode*> nodes, nodes_.Those("nodes", request.nodes()));
  v1::HealthReply reply;
  AskThose(nodes, node::v1::StatusRequest(), &NodeApi::Status, deadline, &reply,
           [&reply](const std::string& node, const node::v1::StatusReply& status) {
             *reply.add_healthy() = ToHealth(node, status);
           });
  for (v1::HealthReply::Node& row : *reply.mutable_healthy()) {
    for (const NamedNode* node : nodes) {
      if (node->name != row.node()) continue;
      if (const std::optional<v1::Followed> followed = FollowedOf(node)) *row.mutable_followed() = *followed;
    }
  }
  return reply;
}

absl::StatusOr<v1::ListNodesReply> Controller::ListNodes(const v1::ListNodesRequest&, absl::Time) const {
  v1::ListNodesReply reply;
  for (const NamedNode* node : nodes_.all()) {
    v1::ListNodesReply::Node& row = *reply.add_nodes();
    row.set_name(node->name);
    row.set_api(node->api->address());
    if (const std::optional<v1::Followed> followed = FollowedOf(node)) *row.mutable_followed() = *followed;
  }
  return reply;
}

std::optional<v1::Followed> Controller::FollowedOf(const NamedNode* node) const {
  const std::optional<Following::State> state = following_ != nullptr ? following_->StateOf(node) : std::nullopt;
  if (!state.has_value()) return std::nullopt;
  v1::Followed followed;
  followed.set_fresh(state->fresh);
  followed.set_chunks(state->chunks);
  followed.set_as_of_ms(state->age.has_value() ? ToMillis(*state->age) : -1);
  followed.set_why_not(IsUtf8(state->why_not) ? state->why_not : absl::CHexEscape(state->why_not));
  return followed;
}

absl::StatusOr<v1::Job> Controller::JobOf(const std::string& id, absl::Time deadline) const {
  KVIST_ASSIGN_OR_RETURN(const NumberAtNode read, ReadId("job", id));
  KVIST_ASSIGN_OR_RETURN(const NamedNode* const node, nodes_.Find("job", read.node));
  KVIST_ASSIGN_OR_RETURN(const node::v1::ListJobsReply jobs,
                         AskOne(node, node::v1::ListJobsRequest(), &NodeApi::ListJobs, deadline));
  for (const node::v1::Job& job : jobs.jobs()) {
    if (job.id() == read.number) return ToJob(node->name, job);
  }
  return absl::NotFoundError(
      absl::StrCat("job: ", node->name, " lists no job ", read.number, ": it never was, or ended long ago"));
}

absl::StatusOr<v1::Job> Controller::GetJob(const v1::GetJobRequest& request, absl::Time deadline) const {
  return JobOf(request.job(), deadline);
}

absl::StatusOr<v1::Job> Controller::CancelJob(const v1::CancelJobRequest& request, absl::Time deadline) const {
  KVIST_ASSIGN_OR_RETURN(const NumberAtNode id, ReadId("job", request.job()));
  KVIST_ASSIGN_OR_RETURN(const NamedNode* const node, nodes_.Find("job", id.node));
  node::v1::CancelJobRequest cancel;
  cancel.set_id(id.number);
  spdlog::info("cancel of job {}: asked for by the controller API", request.job());
  KVIST_ASSIGN_OR_RETURN(const node::v1::Job job, AskOne(node, std::move(cancel), &NodeApi::CancelJob, deadline));
  return ToJob(node->name, job);
}

absl::StatusOr<v1::ListJobsReply> Controller::ListJobs(const v1::ListJobsRequest& request, absl::Time deadline) const {
  KVIST_ASSIGN_OR_RETURN(const std::vector<const NamedNode*> nodes, nodes_.Those("nodes", request.nodes()));
  v1::ListJobsReply reply;
  AskThose(nodes, node::v1::ListJobsRequest(), &NodeApi::ListJobs, deadline, &reply,
           [&reply](const std::string& node, const node::v1::ListJobsReply& jobs) {
             for (const node::v1::Job& job : jobs.jobs()) *reply.add_jobs() = ToJob(node, job);
           });
  return reply;
}

absl::Status Controller::WatchJob(const v1::WatchJobRequest& request, absl::Time deadline,
                                  const std::function<bool(const v1::Job&)>& write, const std::function<bool()>& gone) {
  struct Watching {
    std::atomic<int>& watchers;
    const bool allowed = watchers.fetch_add(1) < kWatchersMax;
    ~Watching() { watchers.fetch_sub(1); }
  } watching{watchers_};
  if (!watching.allowed)
    return absl::ResourceExhaustedError(absl::StrCat(kWatchersMax, " watch jobs already: list them instead"));

  // Asked for again and again, for a node's own stream would take one of its few watchers' places.
  std::string last;
  for (absl::Duration pause = kFirstPause;; pause = std::min(2 * pause, kPause)) {
    KVIST_ASSIGN_OR_RETURN(const v1::Job job, JobOf(request.job(), deadline));
    std::string now = ProgressOf(job);
    if (now != last && !write(job)) return absl::CancelledError("nobody watches any more");
    if (job.state() != "running") return absl::OkStatus();
    last = std::move(now);
    if (gone()) return absl::CancelledError("nobody watches any more");
    if (MonotonicNow() + pause > deadline) return absl::DeadlineExceededError("the job goes on");
    absl::SleepFor(pause);
  }
}

}  // namespace kvist::controller

// What the admin API asks about prompts. Keys are computed on the caller's thread: the reactor only looks at them, a space at a time.

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "daemon/config_keys.h"
#include "daemon/core/core.h"
#include "daemon/kv_shape.h"
#include "daemon/node.h"
#include "daemon/node_rows.h"
#include "daemon/rpc/space_prefix.h"
#include "daemon/session/space_description.h"
#include "spdlog/spdlog.h"
#include "storage/base/clock.h"
#include "storage/base/log_subject.h"
#include "storage/base/status.h"
#include "storage/codec/method.h"

namespace kvist::daemon {
namespace {

static_assert(rpc::Prompt::kChunksMax == core::Core::kKeysMax, "a prompt's keys are one question to the core");

// Each costs the reactor some 50 us.
constexpr size_t kSpacesAtOnce = 256;
// How long an operator's lookup waits for the remote tier in all, at most: what is here is to be said, whatever becomes of a store.
constexpr absl::Duration kRemoteWait = absl::Milliseconds(500);

// A prompt's keys for each size of chunk, computed once.
class KeysBySize {
 public:
  explicit KeysBySize(const rpc::Prompt& prompt) : prompt_(prompt) {}
  std::shared_ptr<const std::vector<ChunkKey>> Of(uint32_t chunk_tokens) {
    std::shared_ptr<const std::vector<ChunkKey>>& keys = known_[chunk_tokens];
    if (keys == nullptr) keys = std::make_shared<const std::vector<ChunkKey>>(prompt_.KeysOf(chunk_tokens));
    return keys;
  }

 private:
  const rpc::Prompt& prompt_;
  std::map<uint32_t, std::shared_ptr<const std::vector<ChunkKey>>> known_;
};

}  // namespace

absl::StatusOr<std::vector<Node::FittingSpace>> Node::Fitting(const rpc::SpaceFilter& filter, absl::Time deadline) {
  KVIST_ASSIGN_OR_RETURN(
      std::vector<FittingSpace> spaces, Ask<std::vector<FittingSpace>>(deadline, [this, filter] {
        const core::Core& core = reactor_.core();
        const std::vector<core::CoreStatus::SpaceRow> rows = core.status().spaces;
        std::vector<FittingSpace> fit;
        for (uint32_t i = 0; i < rows.size(); ++i) {
          const std::string digest = Hex(rows[i].digest);
          if (fit.size() > kSpacesAtOnce || !filter.Fits(digest, rows[i].model, rows[i].tenant)) continue;
          fit.push_back({SpaceId{i}, digest, rows[i].tenant, rows[i].model, core.spec(SpaceId{i}).description, 0});
        }
        return fit;
      }));
  if (spaces.empty()) return absl::NotFoundError("space: no space fits; `kvistctl status` lists them");
  if (spaces.size() > kSpacesAtOnce)
    return absl::InvalidArgumentError(absl::StrCat("space: more than ", kSpacesAtOnce, " spaces fit; say more of which"));
  for (FittingSpace& space : spaces) {
    KVIST_ASSIGN_OR_RETURN(space.chunk_tokens, session::ChunkTokensOf(space.description));
  }
  return spaces;
}

absl::StatusOr<std::vector<rpc::Found>> Node::Lookup(const rpc::SpaceFilter& filter, const rpc::Prompt& prompt,
                                                     absl::Time deadline) {
  KVIST_ASSIGN_OR_RETURN(const std::vector<FittingSpace> spaces, Fitting(filter, deadline));
  const absl::Time now = MonotonicNow();
  const absl::Time remote_until = now + std::min((deadline - now) / 2, kRemoteWait);
  std::vector<rpc::Found> all;
  KeysBySize all_keys(prompt);
  for (const FittingSpace& space : spaces) {
    const auto keys = all_keys.Of(space.chunk_tokens);
    KVIST_ASSIGN_OR_RETURN(
        const core::Core::Located located,
        Ask<core::Core::Located>(deadline, [this, id = space.id, keys] { return reactor_.core().Locate(id, *keys); }));
    rpc::Found found{space.digest,   space.tenant, space.model, space.chunk_tokens, static_cast<uint32_t>(keys->size()),
                     located.chunks, located.below};
    if (below_.remote != nullptr) found.remote_tier = RemoteName();
    if (below_.remote != nullptr && located.chunks < keys->size()) {
      // Where it doesn't answer nothing is there: that is what an engine would find.
      const std::span<const ChunkKey> rest = std::span(*keys).subspan(located.chunks);
      const absl::StatusOr<core::SpaceSpec> spec = session::SpaceOf(space.description);
      if (spec.ok()) found.remote = below_.remote->Count(*spec, {rest.begin(), rest.end()}, remote_until).value_or(0);
    }
    all.push_back(std::move(found));
  }
  return all;
}

// Whatever changes something for a prompt does it for all of it.
absl::Status Node::CheckLength(const rpc::Prompt& prompt, const std::vector<FittingSpace>& spaces) {
  for (const FittingSpace& space : spaces) {
    if (prompt.tokens.size() / space.chunk_tokens <= rpc::Prompt::kChunksMax) continue;
    return absl::InvalidArgumentError(absl::StrCat("prompt.tokens: ", prompt.tokens.size(), " tokens are more than ",
                                                   rpc::Prompt::kChunksMax, " chunks of ", space.chunk_tokens, " in space ",
                                                   space.digest.substr(0, rpc::kShownDigits)));
  }
  return absl::OkStatus();
}

absl::StatusOr<rpc::Pinned> Node::Pin(const rpc::SpaceFilter& filter, const rpc::Prompt& prompt, const rpc::PinWish& wish,
                                      absl::Time deadline) {
  KVIST_ASSIGN_OR_RETURN(const std::vector<FittingSpace> spaces, Fitting(filter, deadline));
  KVIST_RETURN_IF_ERROR(CheckLength(prompt, spaces));
  rpc::Pinned pinned{.pins = {}, .spaces = spaces.size()};
  KeysBySize all_keys(prompt);
  for (const FittingSpace& space : spaces) {
    const auto keys = all_keys.Of(space.chunk_tokens);
    if (keys->empty()) continue;
    KVIST_ASSIGN_OR_RETURN(
        const std::optional<rpc::PinStatus> pin,
        (Ask<std::optional<rpc::PinStatus>>(
            deadline, [this, id = space.id, keys, wish]() -> absl::StatusOr<std::optional<rpc::PinStatus>> {
              KVIST_ASSIGN_OR_RETURN(const uint32_t chunks, reactor_.Pin(id, wish.owner, *keys, wish.lasts));
              if (chunks == 0) return std::nullopt;
              const core::PinName name{wish.owner, keys->back(), static_cast<uint32_t>(keys->size()), /*by_operator=*/true};
              return RowOf(*reactor_.core().FindPin(id, name), reactor_.core());
            })));
    if (!pin.has_value()) continue;
    const LogSubject about({.space = space.digest, .pin = pin->id});
    spdlog::info("pin {} of {}: {} chunks of space {}, asked for on the admin socket", pin->id, absl::CHexEscape(pin->owner),
                 pin->chunks, space.digest.substr(0, rpc::kShownDigits));
    pinned.pins.push_back(*pin);
  }
  SettlePins(deadline);
  return pinned;
}

absl::StatusOr<rpc::PromptJobs> Node::StartOnPrompt(const rpc::SpaceFilter& filter, const rpc::Prompt& prompt,
                                                    StartJob start, absl::Time deadline) {
  KVIST_ASSIGN_OR_RETURN(const std::vector<FittingSpace> spaces, Fitting(filter, deadline));
  KVIST_RETURN_IF_ERROR(CheckLength(prompt, spaces));
  rpc::PromptJobs started{.jobs = {}, .spaces = spaces.size()};
  KeysBySize all_keys(prompt);
  for (const FittingSpace& space : spaces) {
    const auto keys = all_keys.Of(space.chunk_tokens);
    if (keys->empty()) continue;
    KVIST_ASSIGN_OR_RETURN(
        rpc::JobStatus job,
        Ask<rpc::JobStatus>(deadline, [this, id = space.id, keys, start]() -> absl::StatusOr<rpc::JobStatus> {
          KVIST_ASSIGN_OR_RETURN(const core::JobId of, start(id, *keys));
          return JobNow(of);
        }));
    started.jobs.push_back(std::move(job));
  }
  SettleJobs(deadline);
  return started;
}

absl::StatusOr<rpc::PromptJobs> Node::ClearPrompt(const rpc::SpaceFilter& filter, const rpc::Prompt& prompt,
                                                  const rpc::ClearWish& wish, const std::string& request,
                                                  absl::Time deadline) {
  KVIST_ASSIGN_OR_RETURN(const std::optional<core::Tier> tier, TierOf(wish));
  const auto of_tier = [this, request, tier](SpaceId space, const std::vector<ChunkKey>& keys) {
    return reactor_.ClearTier({.job = {}, .tier = *tier, .space = space, .keys = keys}, request);
  };
  if (tier.has_value()) return StartOnPrompt(filter, prompt, of_tier, deadline);
  const auto start = [this, request](SpaceId space, const std::vector<ChunkKey>& keys) -> absl::StatusOr<core::JobId> {
    if (const uint32_t most = reactor_.core().ClearKeysMax(space); keys.size() > most) {
      return absl::InvalidArgumentError(
          absl::StrCat("prompt: ", keys.size(), " chunks; in this space at most ", most, " can be cleared at once"));
    }
    return reactor_.ClearPrompt({.job = {}, .space = space, .keys = keys}, request);
  };
  return StartOnPrompt(filter, prompt, start, deadline);
}

absl::Status Node::CheckRemote(const char* field, const std::string& name) const {
  if (below_.remote == nullptr)
    return absl::FailedPreconditionError(absl::StrCat(field, ": this kvistd has no remote tier: remote.store names none"));
  const std::string ours = RemoteName();
  if (name == ours) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(field, ": this kvistd has no remote tier of that name; it has ", ours));
}

absl::StatusOr<core::Tier> Node::TierNamed(const std::string& name) const {
  if (name == "dram") return core::Tier::kDram;
  if (name == "ssd") {
    if (below_.ssd != nullptr) return core::Tier::kSsd;
    return absl::FailedPreconditionError(absl::StrCat("tier: this kvistd has no SSD tier: ", below_.why_no_ssd));
  }
  if (!absl::StartsWith(name, "remote:"))
    return absl::InvalidArgumentError(absl::StrCat("tier: ", Quoted(name), " is no tier; allowed: dram, ssd, remote:NAME"));
  KVIST_RETURN_IF_ERROR(CheckRemote("tier", name));
  return core::Tier::kRemote;
}

absl::StatusOr<std::optional<core::Tier>> Node::TierOf(const rpc::ClearWish& wish) const {
  if (wish.tier.empty()) return std::nullopt;
  return TierNamed(wish.tier);
}

absl::StatusOr<rpc::PromptJobs> Node::Recode(const rpc::SpaceFilter& filter, const rpc::Prompt& prompt,
                                             const rpc::RecodeWish& wish, const std::string& request, absl::Time deadline) {
  KVIST_ASSIGN_OR_RETURN(const core::Tier tier, TierNamed(wish.tier));
  if (tier == core::Tier::kDram) {
    return absl::UnimplementedError(
        "tier: in dram KV lies as engines copy it, for a load from there decodes nothing; allowed: ssd, remote:NAME");
  }
  const std::optional<codec::Method> method = codec::MethodNamed(wish.method);
  if (!wish.method.empty() && !method.has_value())
    return absl::InvalidArgumentError("method: allowed: lossless, int8, int4, fp8, strongest");
  const auto start = [this, request, tier, method](SpaceId space,
                                                   const std::vector<ChunkKey>& keys) -> absl::StatusOr<core::JobId> {
    if (method.has_value()) KVIST_RETURN_IF_ERROR(MayEncode(reactor_.core().spec(space), *method));
    core::RecodeAsked asked{.job = {}, .tier = tier, .space = space, .keys = keys};
    asked.kind = method.has_value() ? core::JobKind::kCompress : core::JobKind::kDecompress;
    asked.method = method.has_value() ? static_cast<uint8_t>(*method) : uint8_t{0};
    return reactor_.Recode(asked, request);
  };
  return StartOnPrompt(filter, prompt, start, deadline);
}

absl::StatusOr<rpc::PromptJobs> Node::Move(const rpc::SpaceFilter& filter, const rpc::Prompt& prompt,
                                           const rpc::MoveWish& wish, const std::string& request, absl::Time deadline) {
  const bool from_remote = wish.from == rpc::Tier::kRemote;
  if (from_remote || wish.to == rpc::Tier::kRemote)
    KVIST_RETURN_IF_ERROR(CheckRemote(from_remote ? "from" : "to", wish.remote));
  if (below_.ssd == nullptr && (wish.from == rpc::Tier::kSsd || wish.to == rpc::Tier::kSsd)) {
    return absl::FailedPreconditionError(
        absl::StrCat(wish.from == rpc::Tier::kSsd ? "from" : "to", ": this kvistd has no SSD tier: ", below_.why_no_ssd));
  }
  const auto tier = [](rpc::Tier of) {
    return of == rpc::Tier::kSsd ? core::Tier::kSsd : of == rpc::Tier::kRemote ? core::Tier::kRemote : core::Tier::kDram;
  };
  core::MoveAsked move;
  move.kind = wish.prefetch ? core::JobKind::kPrefetch : core::JobKind::kMove;
  move.from = tier(wish.from);
  move.to = tier(wish.to);
  move.keep_source = wish.keep_source;
  const auto start = [this, request, move](SpaceId space, const std::vector<ChunkKey>& keys) {
    core::MoveAsked asked = move;
    asked.space = space;
    asked.keys = keys;
    return reactor_.Move(asked, request);
  };
  return StartOnPrompt(filter, prompt, start, deadline);
}

}  // namespace kvist::daemon

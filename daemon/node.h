#ifndef KVIST_DAEMON_NODE_H_
#define KVIST_DAEMON_NODE_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "cuda/gpus.h"
#include "daemon/job_keeper.h"
#include "daemon/options.h"
#include "daemon/remote_tier.h"
#include "daemon/rpc/node_control.h"
#include "daemon/session/reactor.h"
#include "daemon/ssd_tier.h"
#include "storage/base/clock.h"
#include "storage/base/units.h"
#include "storage/pool/pinned_region.h"
#include "storage/pool/slot_allocator.h"

namespace kvist::daemon {

// What the admin API's Reload does; called from any thread.
using ReloadCall = std::function<absl::StatusOr<rpc::ReloadResult>(absl::Time deadline)>;

// The admin API's view of a running kvistd: each question is a task on the reactor, waited for.
//
// Threads: those of NodeControl from any, Configure on the reactor's. All that is given here is borrowed, and read on the reactor's
// thread.
class Node final : public rpc::NodeControl {
 public:
  using Regions = std::vector<std::unique_ptr<pool::PinnedRegion>>;

  // The tiers below the slots.
  struct Below {
    const SsdTier* ssd = nullptr;  // none: `why_no_ssd` says why
    std::string why_no_ssd = {};
    RemoteTier* remote = nullptr;  // none: none was asked for, or `why_no_remote`
    std::string why_no_remote = {};
  };
  // `gpus` may be null: none is served; and `jobs`: none outlives the daemon. An empty `reload`: Unimplemented.
  Node(session::Reactor* reactor, const pool::SlotAllocator* slots, const Regions* regions, Below below,
       const cuda::Gpus* gpus, JobKeeper* jobs, const Options& options, ReloadCall reload);

  // The tenants and quotas of `options` are in force from now on, and no others.
  void Configure(const Options& options);

  absl::StatusOr<rpc::NodeStatus> Status(absl::Time deadline) override;
  absl::StatusOr<rpc::SsdStatus> Ssd(absl::Time deadline) override;
  absl::StatusOr<rpc::Page<rpc::SessionStatus>> Sessions(uint64_t after, absl::Time deadline) override;
  absl::StatusOr<rpc::JobStatus> Clear(const rpc::ClearWish& wish, const std::string& request, absl::Time deadline) override;
  absl::StatusOr<rpc::ReloadResult> Reload(absl::Time deadline) override;
  absl::StatusOr<std::vector<rpc::JobStatus>> Jobs(absl::Time deadline) override;
  absl::StatusOr<rpc::JobStatus> Job(uint64_t id, absl::Time deadline) override;
  absl::StatusOr<rpc::JobStatus> CancelJob(uint64_t id, absl::Time deadline) override;
  absl::StatusOr<std::vector<rpc::QuotaStatus>> Quotas(absl::Time deadline) override;
  absl::StatusOr<rpc::QuotaStatus> SetQuota(const std::string& tenant, Bytes bytes, absl::Time deadline) override;
  absl::StatusOr<std::vector<rpc::Found>> Lookup(const rpc::SpaceFilter& filter, const rpc::Prompt& prompt,
                                                 absl::Time deadline) override;
  absl::StatusOr<rpc::Pinned> Pin(const rpc::SpaceFilter& filter, const rpc::Prompt& prompt, const rpc::PinWish& wish,
                                  absl::Time deadline) override;
  absl::StatusOr<rpc::PromptJobs> ClearPrompt(const rpc::SpaceFilter& filter, const rpc::Prompt& prompt,
                                              const rpc::ClearWish& wish, const std::string& request,
                                              absl::Time deadline) override;
  absl::StatusOr<rpc::PromptJobs> Move(const rpc::SpaceFilter& filter, const rpc::Prompt& prompt, const rpc::MoveWish& wish,
                                       const std::string& request, absl::Time deadline) override;
  absl::StatusOr<rpc::Page<rpc::PinStatus>> Pins(uint64_t after, absl::Time deadline) override;
  absl::StatusOr<rpc::PromptJobs> Recode(const rpc::SpaceFilter& filter, const rpc::Prompt& prompt,
                                         const rpc::RecodeWish& wish, const std::string& request,
                                         absl::Time deadline) override;
  absl::StatusOr<rpc::PinStatus> RemovePin(uint64_t id, absl::Time deadline) override;

 private:
  // Has `question` answered on the reactor's thread, and waits for that; the answer may come after nobody waits any more.
  template <class T, class Question>
  absl::StatusOr<T> Ask(absl::Time deadline, Question question) {
    struct Waiting {
      absl::Notification answered;
      absl::StatusOr<T> answer = absl::UnavailableError("kvistd is stopping");
    };
    auto waiting = std::make_shared<Waiting>();
    reactor_.Run([question = std::move(question), waiting] {
      waiting->answer = question();
      waiting->answered.Notify();
    });
    if (!waiting->answered.WaitForNotificationWithTimeout(deadline - MonotonicNow()))
      return absl::DeadlineExceededError("the node didn't answer in time; what it was asked to do goes on");
    return waiting->answer;
  }
  struct FittingSpace {
    SpaceId id;
    std::string digest, tenant, model;
    std::string description;
    uint32_t chunk_tokens = 0;
  };
  // Errors: NotFound  none fits. InvalidArgument  more than can be asked at once.
  absl::StatusOr<std::vector<FittingSpace>> Fitting(const rpc::SpaceFilter& filter, absl::Time deadline);

  // Errors: InvalidArgument  it has more chunks in one of them than are looked at.
  static absl::Status CheckLength(const rpc::Prompt& prompt, const std::vector<FittingSpace>& spaces);

  // Has `start`, which the reactor's thread runs, begin a job on the prompt in each space that fits.
  using StartJob = std::function<absl::StatusOr<core::JobId>(SpaceId space, const std::vector<ChunkKey>& keys)>;
  absl::StatusOr<rpc::PromptJobs> StartOnPrompt(const rpc::SpaceFilter& filter, const rpc::Prompt& prompt, StartJob start,
                                                absl::Time deadline);

  // Jobs that were begun or cancelled are kept when this returns, or can't be soon.
  void SettleJobs(absl::Time deadline);
  void SettlePins(absl::Time deadline);
  static constexpr absl::Duration kSettleTime = absl::Seconds(1);

  // On the reactor's thread.
  rpc::NodeStatus StatusNow() const;
  rpc::Page<rpc::SessionStatus> SessionsNow(uint64_t after) const;
  absl::StatusOr<rpc::JobStatus> ClearNow(const std::string& space, std::optional<core::Tier> tier,
                                          const std::string& request);
  absl::StatusOr<rpc::JobStatus> JobNow(core::JobId id) const;
  std::vector<rpc::QuotaStatus> QuotasNow() const;
  absl::StatusOr<rpc::QuotaStatus> SetQuotaNow(const std::string& tenant, Bytes bytes);
  rpc::Page<rpc::PinStatus> PinsNow(uint64_t after) const;
  absl::StatusOr<rpc::PinStatus> RemovePinNow(uint64_t id);

  session::Reactor& reactor_;
  const pool::SlotAllocator& slots_;
  const Regions& regions_;
  std::string RemoteName() const { return "remote:" + options_.remote.name; }
  // Whether that is the name of the remote tier here.
  absl::Status CheckRemote(const char* field, const std::string& name) const;
  // The tier of that name, which is here; of a clear, nothing: all. Errors: InvalidArgument, FailedPrecondition.
  absl::StatusOr<core::Tier> TierNamed(const std::string& name) const;
  absl::StatusOr<std::optional<core::Tier>> TierOf(const rpc::ClearWish& wish) const;
  const Below below_;
  const cuda::Gpus* const gpus_;
  JobKeeper* const jobs_;
  const Options options_;
  const ReloadCall reload_;
  const absl::Time started_ = MonotonicNow();
  // The reactor thread's own.
  std::map<std::string, std::string> configured_tenants_ = options_.tenants;
  std::map<std::string, Bytes> configured_quotas_ = options_.quotas;
};

}  // namespace kvist::daemon

#endif  // KVIST_DAEMON_NODE_H_

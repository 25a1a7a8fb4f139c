#include "cuda/copy_engines.h"

#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace kvist::cuda {
namespace {

class CopyEngines final : public CopyEngine {
 public:
  CopyEngines(std::unique_ptr<CopyEngine> host, std::function<std::unique_ptr<CopyEngine>(Gpu*)> make)
      : make_(std::move(make)) {
    engines_[nullptr] = std::move(host);
  }

  void Submit(Copy copy) override {
    CopyEngine* engine = Of(copy.memory->gpu);
    engine->Submit(std::move(copy));
  }

  // Whose it is isn't kept: the others don't know it, and an engine is asked seldom.
  void Cancel(OpId op) override {
    absl::ReaderMutexLock lock(&mutex_);
    for (const auto& [gpu, engine] : engines_) engine->Cancel(op);
  }
  void Arrived() override {
    absl::ReaderMutexLock lock(&mutex_);
    for (const auto& [gpu, engine] : engines_) engine->Arrived();
  }
  void Look() override {
    absl::ReaderMutexLock lock(&mutex_);
    for (const auto& [gpu, engine] : engines_) engine->Look();
  }

 private:
  // Made by the thread that submits, and only there.
  CopyEngine* Of(Gpu* gpu) {
    {
      absl::ReaderMutexLock lock(&mutex_);
      if (const auto found = engines_.find(gpu); found != engines_.end()) return found->second.get();
    }
    std::unique_ptr<CopyEngine> made = make_(gpu);
    absl::WriterMutexLock lock(&mutex_);
    return (engines_[gpu] = std::move(made)).get();
  }

  const std::function<std::unique_ptr<CopyEngine>(Gpu*)> make_;
  absl::Mutex mutex_;
  std::map<Gpu*, std::unique_ptr<CopyEngine>> engines_ ABSL_GUARDED_BY(mutex_);  // by GPU; null: the host's
};

}  // namespace

std::unique_ptr<CopyEngine> JoinCopyEngines(std::unique_ptr<CopyEngine> host,
                                            std::function<std::unique_ptr<CopyEngine>(Gpu* gpu)> make) {
  return std::make_unique<CopyEngines>(std::move(host), std::move(make));
}

}  // namespace kvist::cuda

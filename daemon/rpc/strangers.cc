#include "daemon/rpc/strangers.h"

#include <algorithm>

namespace kvist::rpc {

void Strangers::Came(uint64_t number, const TcpPeer& peer, absl::Time now) {
  const Net net = peer.net();
  since_.emplace(number, Stranger{net, now});
  ++of_net_[net];
}

void Strangers::Forget(uint64_t number) {
  const auto stranger = since_.find(number);
  if (stranger == since_.end()) return;
  const auto of_net = of_net_.find(stranger->second.net);
  if (--of_net->second == 0) of_net_.erase(of_net);
  since_.erase(stranger);
}

void Strangers::ForgetBefore(absl::Time time) {
  while (!since_.empty() && since_.begin()->second.since < time) Forget(since_.begin()->first);
}

std::optional<uint64_t> Strangers::FirstToGo() const {
  if (since_.empty()) return std::nullopt;
  const auto most =
      std::max_element(of_net_.begin(), of_net_.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  const auto first = std::find_if(since_.begin(), since_.end(), [&](const auto& s) { return s.second.net == most->first; });
  return first->first;
}

}  // namespace kvist::rpc

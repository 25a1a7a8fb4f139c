#include "daemon/rpc/strangers.h"

#include <algorithm>

namespace kvist::rpc {

void Strangers::Came(uint64_t number, const TcpPeer& peer) {
  const Net net = peer.net();
  nets_.emplace(number, net);
  ++of_net_[net];
}

void Strangers::Forget(uint64_t number) {
  const auto stranger = nets_.find(number);
  if (stranger == nets_.end()) return;
  const auto of_net = of_net_.find(stranger->second);
  if (--of_net->second == 0) of_net_.erase(of_net);
  nets_.erase(stranger);
}

std::optional<uint64_t> Strangers::FirstToGo() const {
  if (nets_.empty()) return std::nullopt;
  const auto most =
      std::max_element(of_net_.begin(), of_net_.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  const auto first = std::find_if(nets_.begin(), nets_.end(), [&](const auto& s) { return s.second == most->first; });
  return first->first;
}

}  // namespace kvist::rpc

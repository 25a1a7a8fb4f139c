#ifndef KVIST_DAEMON_RPC_CLIENT_NAME_H_
#define KVIST_DAEMON_RPC_CLIENT_NAME_H_

#include <algorithm>
#include <cstddef>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace kvist::rpc {

// What a client is called that comes by TLS: a name in its certificate, with its kind before it. dns and uri are subject alternative names, which
// CAs check; cn is the subject's common name, which not every CA does.
inline constexpr size_t kClientNameMax = 255;
inline constexpr char kClientNameAllowed[] =
    "\"dns:NAME\", \"uri:URI\" (of SPIFFE, say) or \"cn:NAME\", in quotes, exactly as it stands in the client's "
    "certificate, at most 255 printable characters of ASCII; '*' isn't one of them: no name stands for several";

// A '*' is refused: who writes it expects a pattern, and would give a role to nobody, or to whoever has a certificate for many names.
inline bool IsClientName(absl::string_view name) {
  const bool has_kind = absl::StartsWith(name, "cn:") || absl::StartsWith(name, "dns:") || absl::StartsWith(name, "uri:");
  return has_kind && name.back() != ':' && name.size() <= kClientNameMax &&
         std::all_of(name.begin(), name.end(),
                     [](char c) { return absl::ascii_isprint(static_cast<unsigned char>(c)) && c != '*'; });
}

}  // namespace kvist::rpc

#endif  // KVIST_DAEMON_RPC_CLIENT_NAME_H_

// What an engine sends before it is served: a packet and its descriptors -> ClientFrame -> CheckHello -> ProbeCheck.
//
// Input: | descriptors 1 byte | packet |. The low two bits of the first byte say how many memfds come with the packet, the next two
// how each was made: sealed (mapped), not sealed (read with preadv), one page only, of zero bytes. process_regions are of this process, which is
// only read; addresses below 1 MiB count from the start of a MiB that is there.
// Holds: nothing crashes; what is accepted has names and sizes within the limits, and the same digest however often it is read.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "daemon/session/probe_check.h"
#include "daemon/session/registration.h"
#include "proto/session.pb.h"
#include "storage/base/check.h"
#include "storage/base/unique_fd.h"

namespace {

namespace session = kvist::session;
using kvist::UniqueFd;

constexpr off_t kRegionBytes[] = {1 << 20, 1 << 20, 4096, 0};

UniqueFd MakeRegion(size_t kind) {
  UniqueFd fd(::memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  KVIST_CHECK(fd && ::ftruncate(fd.get(), kRegionBytes[kind]) == 0);
  if (kind != 1) KVIST_CHECK(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK) == 0);
  return fd;
}

std::vector<UniqueFd> Descriptors(uint8_t how) {
  static const std::vector<UniqueFd> regions = [] {
    std::vector<UniqueFd> made;
    for (size_t kind = 0; kind < 4; ++kind) made.push_back(MakeRegion(kind));
    return made;
  }();
  std::vector<UniqueFd> fds;
  for (uint8_t i = 0; i < (how & 3); ++i) fds.emplace_back(::dup(regions[(how >> 2) & 3].get()));
  return fds;
}

// This process itself: its own memory is what process_regions name.
const session::Peer& Sender() {
  static const session::Peer self = [] {
    session::Peer peer;
    peer.pid = ::getpid();
    peer.uid = ::geteuid();
    peer.gid = ::getegid();
    peer.pidfd = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, peer.pid, 0)));
    KVIST_CHECK(peer.pidfd);
    return peer;
  }();
  return self;
}

void PlaceInOwnMemory(session::v1::KvMemory* memory) {
  static const std::vector<std::byte> own(kRegionBytes[0]);
  for (session::v1::KvMemory::ProcessRegion& region : *memory->mutable_process_regions()) {
    if (region.address() < own.size()) region.set_address(region.address() + reinterpret_cast<uintptr_t>(own.data()));
  }
}

// A Hello that was accepted keeps the promises of registration.h.
void CheckAccepted(const session::v1::Hello& hello, const session::Registration& registration) {
  KVIST_CHECK(!registration.instance.empty() && registration.instance.size() <= 255);
  KVIST_CHECK(!registration.space.model.empty() && registration.space.model.size() <= 255);
  KVIST_CHECK(registration.rank.value < registration.space.ranks());
  for (const kvist::core::GroupSpec& group : registration.space.groups) {
    for (const kvist::Bytes bytes : group.slot_bytes) KVIST_CHECK(bytes.value > 0 && bytes.value % 4096 == 0);
  }
  KVIST_CHECK((registration.memory != nullptr) == (registration.role == kvist::core::Role::kWorker));
  // Unknown fields and another order of the fields change nothing of what was understood.
  session::v1::Hello again;
  KVIST_CHECK(again.ParseFromString(hello.SerializeAsString()));
  again.set_role(session::v1::Hello::ROLE_SCHEDULER);
  const auto scheduler = session::CheckHello(again, {}, "tenant", Sender());
  KVIST_CHECK(scheduler.ok() && scheduler->space.digest == registration.space.digest);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  session::v1::ClientFrame frame;
  if (!frame.ParseFromString(std::string(reinterpret_cast<const char*>(data) + 1, size - 1)) || !frame.has_hello()) return 0;
  PlaceInOwnMemory(frame.mutable_hello()->mutable_memory());
  std::vector<kvist::UniqueFd> sent = Descriptors(data[0]);
  const auto registration = session::CheckHello(frame.hello(), sent, "tenant", Sender());
  if (!registration.ok()) {
    KVIST_CHECK(!registration.status().message().empty());
    return 0;
  }
  CheckAccepted(frame.hello(), *registration);
  if (registration->memory != nullptr) {
    for (uint16_t group = 0; group < registration->memory->layouts.size(); ++group) {
      kvist::Bytes left = kvist::MiB(64);
      const absl::StatusOr<bool> all = session::ProbeCheck(registration->memory, kvist::GroupId{group}, 7).GoOn(&left);
      KVIST_CHECK(all.ok() || !all.status().message().empty());
    }
  }
  return 0;
}

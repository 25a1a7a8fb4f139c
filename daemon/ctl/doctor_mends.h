#ifndef KVIST_DAEMON_CTL_DOCTOR_MENDS_H_
#define KVIST_DAEMON_CTL_DOCTOR_MENDS_H_

#include <string>

#include "absl/strings/string_view.h"
#include "daemon/ctl/doctor.h"

namespace kvist::ctl {

// Commands of findings that change a kvistd. They name the systemd unit whose process the running one is, whatever that is called: the units for
// machines with and without GPUs end one another. One of no unit is ended by its pid, and it is said that it has to be started as it was. When none
// runs, it is the unit that is enabled here.
//
// `what`: what else is to be done, as a comment; may be empty.

std::string Start(const Patient& patient);
std::string Restart(const Patient& patient, absl::string_view what = "");
// Has it go on with another value of a key.
std::string Reconfigure(const Patient& patient, absl::string_view what);
// Gives its unit a setting of [Service]; `otherwise`: what that is for one of no unit.
std::string EditUnit(const Patient& patient, absl::string_view setting, absl::string_view otherwise);
// Has this user join the group of a socket that it may not open. Of a socket whose group is root's, or is let in no more than others, names the
// settings of its section that make another of it; nothing is restarted, for it serves those whom it lets in.
std::string LetIn(const std::string& socket, absl::string_view section);

}  // namespace kvist::ctl

#endif  // KVIST_DAEMON_CTL_DOCTOR_MENDS_H_

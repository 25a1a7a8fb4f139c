#ifndef KVIST_DAEMON_PROCESS_H_
#define KVIST_DAEMON_PROCESS_H_

namespace kvist::daemon {

// What a daemon of ours has its process do before anything else; each says so in the log where it can't.

// A reader of our output that is gone is an error there, not an end.
void IgnoreBrokenPipes();
// A core would hold users' KV or prompts: what passes through buffers of ours, which no mapping leaves out, and keys of encryption. Nor may anybody
// raise it again.
void LeaveNoCore();
// The soft limit is low for the sake of programs that use select(), and a connection takes several descriptors.
void RaiseDescriptorLimit();

}  // namespace kvist::daemon

#endif  // KVIST_DAEMON_PROCESS_H_

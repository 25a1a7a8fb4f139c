#ifndef KVIST_EXAMPLES_REPLAY_STOP_SIGNAL_H_
#define KVIST_EXAMPLES_REPLAY_STOP_SIGNAL_H_

namespace kvist::replay {

// From now on SIGINT, SIGTERM and SIGHUP only ask the replay to end, so that the private daemon and its directory go with it.
// A second one ends the process at once; the daemon then follows by itself.
void CatchStopSignals();

// The signal that asked for the end, or 0. Any thread.
int StopSignal();

}  // namespace kvist::replay

#endif  // KVIST_EXAMPLES_REPLAY_STOP_SIGNAL_H_

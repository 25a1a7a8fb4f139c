#ifndef KVIST_EXAMPLES_REPLAY_STOP_SIGNAL_H_
#define KVIST_EXAMPLES_REPLAY_STOP_SIGNAL_H_

#include <chrono>

namespace kvist::replay {

// From now on SIGINT, SIGTERM and SIGHUP only ask the replay to end, so that the private daemon and its directory go with it.
// A second one ends the process at once; the daemon then follows by itself.
void CatchStopSignals();

// The signal that asked for the end, or 0. Any thread.
int StopSignal();

// Waits until `moment` or a stop signal.
void SleepUntil(std::chrono::steady_clock::time_point moment);

}  // namespace kvist::replay

#endif  // KVIST_EXAMPLES_REPLAY_STOP_SIGNAL_H_

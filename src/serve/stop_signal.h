// Word that the process is to end: SIGINT or SIGTERM, or a call.
#pragma once

#include "base/error.h"

namespace syncline::serve {

// At most one in a process. Signal handlers are used, not a signal mask, which child processes
// would inherit. After the first signal the default handling is back: a second one kills.
class StopSignal {
 public:
  static base::Status Install();
  // Thread-safe and async-signal-safe.
  static void Raise();
  // Returns after the signal or Raise, or, if asked for, when standard input has ended.
  static void Wait(bool or_end_of_input);
};

}  // namespace syncline::serve

#include "serve/stop_signal.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>

namespace syncline::serve {
namespace {

int event = -1;

void OnSignal(int number) {
  const int saved = errno;
  StopSignal::Raise();
  signal(number, SIG_DFL);
  errno = saved;
}

}  // namespace

base::Status StopSignal::Install() {
  event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (event < 0) return base::FailErrno(errno, "eventfd");
  signal(SIGINT, OnSignal);
  signal(SIGTERM, OnSignal);
  signal(SIGPIPE, SIG_IGN);
  return {};
}

void StopSignal::Raise() {
  const std::uint64_t one = 1;
  if (write(event, &one, sizeof one) < 0) return;  // full: it is raised already
}

void StopSignal::Wait(bool or_end_of_input) {
  std::array<pollfd, 2> watched = {pollfd{.fd = event, .events = POLLIN, .revents = 0},
                                   pollfd{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0}};
  const nfds_t count = or_end_of_input ? 2 : 1;
  for (;;) {
    if (poll(watched.data(), count, -1) < 0) continue;  // a signal came
    if (watched[0].revents != 0) return;
    // What comes from standard input means nothing; only its end does.
    std::array<char, 256> ignored;
    if (count == 2 && watched[1].revents != 0 &&
        read(STDIN_FILENO, ignored.data(), ignored.size()) <= 0) {
      return;
    }
  }
}

}  // namespace syncline::serve

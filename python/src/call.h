// How the binding calls the rooms: without the GIL, open to Ctrl-C, and with their errors turned
// into the package's exceptions.
#pragma once

#include <nanobind/nanobind.h>

#include <functional>
#include <optional>
#include <type_traits>
#include <utility>

#include "base/cancel.h"
#include "base/error.h"

namespace syncline::python {

// Throws the exception class that the error table names for error.code (python/syncline/errors.py).
[[noreturn]] void Raise(const base::Error& error);

// Runs `work` on a thread of its own, without the GIL, and waits for it. While it waits, Python's
// signal handlers run; if one of them raises (Ctrl-C: KeyboardInterrupt), `cancel` is set, which the
// work should heed, the work is waited for to the end, and what the handler raised is thrown, even
// if the work succeeded after all. Whatever else leaves `work` becomes MemoryError or InternalError.
// The caller holds the GIL.
void RunInterruptibly(base::CancelToken& cancel, const std::function<void()>& work);

// The value of work(cancel), a Result, run as above; a failed one is raised.
template <typename Work>
auto Call(const Work& work) {
  using Outcome = std::invoke_result_t<Work, const base::CancelToken&>;
  base::CancelToken cancel;
  std::optional<Outcome> outcome;
  RunInterruptibly(cancel, [&] { outcome.emplace(work(std::as_const(cancel))); });
  if (!*outcome) Raise(outcome->error());
  if constexpr (!std::is_void_v<typename Outcome::value_type>) return **std::move(outcome);
}

}  // namespace syncline::python

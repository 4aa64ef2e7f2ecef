// How a store is read, as Python says it.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <exception>
#include <optional>
#include <type_traits>
#include <utility>

#include "base/cancel.h"
#include "base/error.h"
#include "call.h"
#include "store/source.h"

namespace syncline::python {

// `_core.Connection`.
struct Connection {
  objects::Settings settings;
};

// `_core.Reading`. Not to be changed while a call uses it.
struct Reading {
  store::SourceOptions options;  // without before_read and cancel
  nanobind::object before_read;  // callable(version or None), or None
};

// Calls Reading::before_read for the time of one call, and keeps what it raises. Made and destroyed
// with the GIL; the hook itself may come from any thread without it.
class ReadHook {
 public:
  // Both must outlive the hook. If before_read raises, `cancel` is set: nothing goes on without it.
  ReadHook(const Reading& reading, base::CancelToken& cancel)
      : reading_(reading), cancel_(cancel) {}
  ReadHook(const ReadHook&) = delete;
  ReadHook& operator=(const ReadHook&) = delete;

  // The options to read with; they refer to this object.
  store::SourceOptions Options();
  // Throws what before_read raised, if it did.
  void Rethrow() const {
    if (raised_) std::rethrow_exception(raised_);
  }

 private:
  base::Status Run(std::optional<std::uint64_t> version);

  const Reading& reading_;
  base::CancelToken& cancel_;
  std::exception_ptr raised_;
};

// Call() for what reads a store: work(source options), which the token stops. An exception of the
// hook leaves as itself, whatever the work made of its failure.
template <typename Work>
auto CallReading(const Reading& reading, base::CancelToken& cancel, const Work& work) {
  using Outcome = std::invoke_result_t<Work, store::SourceOptions>;
  ReadHook hook(reading, cancel);
  store::SourceOptions options = hook.Options();
  std::optional<Outcome> outcome;
  RunInterruptibly(cancel, [&] { outcome.emplace(work(std::move(options))); });
  hook.Rethrow();
  if (!*outcome) Raise(outcome->error());
  return **std::move(outcome);
}

}  // namespace syncline::python

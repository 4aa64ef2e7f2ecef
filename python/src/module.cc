// The module syncline._core: the rooms without torch, for Python. Private: python/syncline gives it
// its public form.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string_view.h>

#include "base/error.h"
#include "bindings.h"

namespace nb = nanobind;

namespace syncline::python {
namespace {

nb::list ErrorTable() {
  nb::list table;
  for (const base::CodeInfo& info : base::CodeTable()) {
    table.append(nb::make_tuple(static_cast<int>(info.code), info.name, info.exit_code,
                                info.python_exception));
  }
  return table;
}

}  // namespace
}  // namespace syncline::python

NB_MODULE(_core, module) {
  // Objects that live until the interpreter ends are no leak of ours to report.
  nb::set_leak_warnings(false);
  module.attr("__version__") = SYNCLINE_VERSION;
  module.def("error_table", &syncline::python::ErrorTable);
  syncline::python::BindArrays(module);
  syncline::python::BindCheckpoint(module);
  syncline::python::BindReading(module);
  syncline::python::BindPublisher(module);
  syncline::python::BindReplica(module);
}

#include "reading.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <string>

#include "bindings.h"

namespace nb = nanobind;

namespace syncline::python {

store::SourceOptions ReadHook::Options() {
  store::SourceOptions options = reading_.options;
  options.cancel = &cancel_;
  if (!reading_.before_read.is_none()) {
    options.before_read = [this](std::optional<std::uint64_t> version) { return Run(version); };
  }
  return options;
}

base::Status ReadHook::Run(std::optional<std::uint64_t> version) {
  const nb::gil_scoped_acquire gil;
  if (!raised_) {
    try {
      reading_.before_read(version);
      return {};
    } catch (...) {
      raised_ = std::current_exception();
    }
  }
  cancel_.Cancel();
  return base::Fail(base::Code::kCancelled, "before_read raised an exception");
}

void BindReading(nb::module_& module) {
  nb::class_<Connection>(module, "Connection")
      .def(
          "__init__",
          [](Connection* self, const nb::bytes& ca_file, const std::string& endpoint,
             const std::string& region, std::optional<bool> path_style, double connect,
             double stall, double retry) {
            new (self) Connection{{.connect_seconds = connect,
                                   .stall_seconds = stall,
                                   .retry_seconds = retry,
                                   .ca_file = ToPath(ca_file),
                                   .endpoint = endpoint,
                                   .region = region,
                                   .path_style = path_style}};
          },
          nb::arg("ca_file"), nb::arg("s3_endpoint"), nb::arg("s3_region"),
          nb::arg("s3_path_style").none(), nb::arg("connect_seconds"), nb::arg("stall_seconds"),
          nb::arg("retry_seconds"));
  nb::class_<Reading>(module, "Reading")
      .def(
          "__init__",
          [](Reading* self, const nb::list& trust, std::optional<double> wait,
             const nb::object& before_read, const Connection& connection) {
            store::SourceOptions options{.connection = connection.settings, .wait_seconds = wait};
            for (const nb::handle key : trust) {
              options.trusted_keys.push_back(ToPath(nb::cast<nb::bytes>(key)));
            }
            new (self) Reading{std::move(options), before_read};
          },
          nb::arg("trust"), nb::arg("wait").none(), nb::arg("before_read").none(),
          nb::arg("connection"));
}

}  // namespace syncline::python

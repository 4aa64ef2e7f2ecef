// pull, verify and log. Reports go to Python as the keyword arguments of its own classes.
#include "replica/replica.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bindings.h"
#include "call.h"
#include "store/history.h"

namespace nb = nanobind;

namespace syncline::python {
namespace {

using base::CancelToken;
using base::FileSystem;

nb::dict Pull(const nb::bytes& store, const nb::bytes& into, std::optional<std::uint64_t> version,
              const nb::bytes& seed, std::size_t threads) {
  const std::string from = ToPath(store);
  const std::string to = ToPath(into);
  replica::PullOptions options = {.version = version, .seed = ToPath(seed), .threads = threads};
  const replica::PullReport report = Call([&](const CancelToken& cancel) {
    options.cancel = &cancel;
    return replica::Pull(FileSystem::Posix(), from, to, options);
  });
  nb::object seeded_from = nb::none();
  if (report.seeded_from) {
    seeded_from = nb::cast("full:" + std::to_string(*report.seeded_from));
  } else if (report.seeded) {
    seeded_from = nb::cast("seed");
  }
  nb::dict result;
  result["version"] = report.version;
  result["from_version"] = report.from_version;
  result["seeded_from"] = seeded_from;
  result["applied"] = report.applied;
  result["tensors_changed"] = report.tensors_changed;
  result["elements_changed"] = report.elements_changed;
  result["bytes_read"] = report.bytes_read;
  result["seconds"] = report.seconds;
  return result;
}

nb::dict Verify(const nb::bytes& path, std::optional<std::uint64_t> version, std::size_t threads) {
  const std::string what = ToPath(path);
  replica::VerifyOptions options = {.version = version, .threads = threads};
  const replica::VerifyReport report = Call([&](const CancelToken& cancel) {
    options.cancel = &cancel;
    return replica::Verify(FileSystem::Posix(), what, options);
  });
  constexpr std::array<std::string_view, 3> kKinds = {"store", "replica", "checkpoint"};
  nb::dict result;
  result["kind"] = kKinds.at(static_cast<std::size_t>(report.kind));
  result["versions"] = report.versions;
  result["tensors"] = report.tensors;
  result["tensors_hashed"] = report.tensors_hashed;
  result["bytes"] = report.bytes;
  result["seconds"] = report.seconds;
  return result;
}

nb::list Log(const nb::bytes& store) {
  const std::string path = ToPath(store);
  const std::vector<store::VersionSummary> history =
      Call([&](const CancelToken& cancel) -> base::Result<std::vector<store::VersionSummary>> {
        SYNCLINE_ASSIGN(const auto source,
                        store::Source::Open(FileSystem::Posix(), path, {.cancel = &cancel}));
        return store::ReadHistory(*source);
      });
  nb::list result;
  for (const store::VersionSummary& version : history) {
    nb::dict row;
    row["version"] = version.version;
    row["kind"] = !version.fault.empty() ? "broken" : version.base_version ? "delta" : "full";
    row["base_version"] = version.base_version;
    row["bytes"] = version.bytes;
    row["tensors"] = version.tensors;
    row["elements"] = version.elements;
    row["elements_changed"] = version.elements_changed;
    row["density"] = version.density();
    row["created_ns"] = version.created_ns;
    row["fault"] = version.fault.empty() ? nb::none() : nb::cast(version.fault);
    result.append(row);
  }
  return result;
}

}  // namespace

void BindReplica(nb::module_& module) {
  module.def("pull", &Pull, nb::arg("store"), nb::arg("into"), nb::arg("version").none(),
             nb::arg("seed"), nb::arg("threads"));
  module.def("verify", &Verify, nb::arg("path"), nb::arg("version").none(), nb::arg("threads"));
  module.def("log", &Log, nb::arg("store"));
}

}  // namespace syncline::python

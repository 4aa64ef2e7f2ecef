// What receivers call. Reports go to Python as the keyword arguments of its own classes.
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
#include "control.h"
#include "delta/encoding.h"
#include "reading.h"
#include "replica/changes.h"
#include "replica/fold.h"
#include "store/history.h"

namespace nb = nanobind;

namespace syncline::python {
namespace {

using base::CancelToken;
using base::FileSystem;

nb::dict Pull(const nb::bytes& store, const nb::bytes& into, std::optional<std::uint64_t> version,
              const nb::bytes& seed, const std::string& verify, std::size_t threads,
              const Reading& reading, Control& control) {
  const auto by = replica::FindVerifyBy(verify);
  if (!by) {
    Raise({base::Code::kInvalidArgument,
           "unknown verify \"" + verify + "\": expected hash, chained or full"});
  }
  const std::string from = ToPath(store);
  const std::string to = ToPath(into);
  replica::PullOptions options = {.version = version,
                                  .seed = ToPath(seed),
                                  .verify = *by,
                                  .threads = threads,
                                  .progress = &control.progress(),
                                  .cancel = &control.cancel()};
  const replica::PullReport report =
      CallReading(reading, control.cancel(), [&](store::SourceOptions source) {
        options.source = std::move(source);
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
  result["recovered"] = report.recovered;
  result["seeded_from"] = seeded_from;
  result["applied"] = report.applied;
  result["undone"] = report.undone;
  result["tensors_repaired"] = report.tensors_repaired;
  result["tensors_changed"] = report.tensors_changed;
  result["elements_changed"] = report.elements_changed;
  result["bytes_read"] = report.bytes_read;
  result["seconds"] = report.seconds;
  return result;
}

nb::dict Undo(const nb::bytes& replica, std::size_t threads) {
  const std::string path = ToPath(replica);
  const replica::UndoReport report = Call([&](const CancelToken& cancel) {
    return replica::Undo(FileSystem::Posix(), path, {.threads = threads, .cancel = &cancel});
  });
  nb::dict result;
  result["version"] = report.version;
  result["from_version"] = report.from_version;
  result["seconds"] = report.seconds;
  return result;
}

nb::dict Verify(const nb::bytes& path, std::optional<std::uint64_t> version, bool repair,
                const nb::bytes& store, const nb::bytes& seed, std::size_t threads,
                const Reading& reading) {
  const std::string what = ToPath(path);
  CancelToken cancel;
  replica::VerifyOptions options = {.version = version,
                                    .repair = repair,
                                    .store = ToPath(store),
                                    .seed = ToPath(seed),
                                    .threads = threads,
                                    .cancel = &cancel};
  const replica::VerifyReport report =
      CallReading(reading, cancel, [&](store::SourceOptions source) {
        options.source = std::move(source);
        return replica::Verify(FileSystem::Posix(), what, options);
      });
  constexpr std::array<std::string_view, 3> kKinds = {"store", "replica", "checkpoint"};
  nb::list edited;
  for (const std::string& name : report.edited) edited.append(FromPath(name));
  nb::dict result;
  result["kind"] = kKinds.at(static_cast<std::size_t>(report.kind));
  result["versions"] = report.versions;
  result["tensors"] = report.tensors;
  result["tensors_hashed"] = report.tensors_hashed;
  result["tensors_repaired"] = report.tensors_repaired;
  result["edited"] = edited;
  result["bytes"] = report.bytes;
  result["seconds"] = report.seconds;
  return result;
}

nb::dict Fold(const nb::bytes& store, std::uint64_t from, std::uint64_t to, const nb::bytes& base,
              const nb::bytes& work_directory, const std::string& encoding, double link_gbps,
              const nb::bytes& signing_key, std::size_t threads, const Reading& reading) {
  const auto known = delta::ChooseEncoding(encoding, link_gbps);
  if (!known) Raise(known.error());
  const std::string path = ToPath(store);
  CancelToken cancel;
  replica::FoldOptions options = {.from = from,
                                  .to = to,
                                  .base = ToPath(base),
                                  .work_directory = ToPath(work_directory),
                                  .encoding = *known,
                                  .signing_key = ToPath(signing_key),
                                  .threads = threads,
                                  .cancel = &cancel};
  const replica::FoldReport report = CallReading(reading, cancel, [&](store::SourceOptions source) {
    options.source = std::move(source);
    return replica::Fold(FileSystem::Posix(), path, options);
  });
  nb::dict result;
  result["from_version"] = report.from;
  result["to_version"] = report.to;
  result["identity"] = report.identity;
  result["tensors"] = report.tensors;
  result["tensors_changed"] = report.tensors_changed;
  result["elements"] = report.elements;
  result["elements_changed"] = report.elements_changed;
  result["bytes"] = report.bytes;
  result["bytes_without"] = report.bytes_without;
  result["seconds"] = report.seconds;
  return result;
}

nb::dict Changes(const nb::bytes& replica, std::uint64_t since) {
  const std::string path = ToPath(replica);
  const replica::ChangeSummary summary = Call(
      [&](const CancelToken&) { return replica::ChangesSince(FileSystem::Posix(), path, since); });
  nb::dict tensors;
  for (const replica::ChangedTensor& tensor : summary.tensors) {
    tensors[nb::cast(tensor.name)] = tensor.elements;
  }
  nb::dict result;
  result["from_version"] = summary.from;
  result["to_version"] = summary.to;
  result["everything"] = summary.everything;
  result["tensors"] = tensors;
  return result;
}

nb::list Log(const nb::bytes& store, const Reading& reading) {
  const std::string path = ToPath(store);
  CancelToken cancel;
  using History = std::vector<store::VersionSummary>;
  const History history =
      CallReading(reading, cancel, [&](store::SourceOptions options) -> base::Result<History> {
        SYNCLINE_ASSIGN(const auto source,
                        store::Source::Open(FileSystem::Posix(), path, std::move(options)));
        SYNCLINE_TRY(source->Refresh(std::nullopt));
        return store::ReadHistory(*source);
      });
  nb::list result;
  for (const store::VersionSummary& version : history) {
    nb::dict row;
    row["version"] = version.version;
    row["kind"] = !version.fault.empty() ? "broken" : version.base_version ? "delta" : "full";
    row["base_version"] = version.base_version;
    row["full_copy"] = version.full_copy;
    row["bytes"] = version.bytes;
    row["tensors"] = version.tensors;
    row["elements"] = version.elements;
    row["elements_changed"] = version.elements_changed;
    row["density"] = version.density();
    row["created_ns"] = version.created_ns;
    row["signed_by"] = version.signed_by.empty() ? nb::none() : nb::cast(version.signed_by);
    row["fault"] = version.fault.empty() ? nb::none() : nb::cast(version.fault);
    result.append(row);
  }
  return result;
}

nb::tuple ProgressOf(const Control& control) {
  const Control::State state = control.state();
  return nb::make_tuple(state.phase, state.done, state.total);
}

}  // namespace

void BindReplica(nb::module_& module) {
  nb::class_<Control>(module, "Control")
      .def(nb::init<>())
      .def("cancel", [](Control& self) { self.cancel().Cancel(); })
      .def("progress", &ProgressOf);
  module.def("pull", &Pull, nb::arg("store"), nb::arg("into"), nb::arg("version").none(),
             nb::arg("seed"), nb::arg("verify"), nb::arg("threads"), nb::arg("reading"),
             nb::arg("control"));
  module.def("undo", &Undo, nb::arg("replica"), nb::arg("threads"));
  module.def("verify", &Verify, nb::arg("path"), nb::arg("version").none(), nb::arg("repair"),
             nb::arg("store"), nb::arg("seed"), nb::arg("threads"), nb::arg("reading"));
  module.def("fold", &Fold, nb::arg("store"), nb::arg("from_version"), nb::arg("to_version"),
             nb::arg("base"), nb::arg("work_directory"), nb::arg("encoding"), nb::arg("link_gbps"),
             nb::arg("signing_key"), nb::arg("threads"), nb::arg("reading"));
  module.def("changes", &Changes, nb::arg("replica"), nb::arg("since"));
  module.def("log", &Log, nb::arg("store"), nb::arg("reading"));
}

}  // namespace syncline::python

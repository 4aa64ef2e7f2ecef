// The publisher of one trainer process.
#include "store/publisher.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <unistd.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bindings.h"
#include "call.h"
#include "reading.h"
#include "replica/resume.h"
#include "tensor/dtype.h"

namespace nb = nanobind;

namespace syncline::python {
namespace {

using base::CancelToken;
using base::Code;
using base::Fail;
using base::FileSystem;
using base::Result;
using store::PublishReport;
using tensor::TensorView;

// The memory of Python objects, held for the time of one call. Made and destroyed with the GIL.
class Buffers {
 public:
  explicit Buffers(std::size_t count) { held_.reserve(count); }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;
  ~Buffers() {
    for (Py_buffer& buffer : held_) PyBuffer_Release(&buffer);
  }

  base::ByteSpan Hold(const nb::handle& object) {
    Py_buffer buffer;
    if (PyObject_GetBuffer(object.ptr(), &buffer, PyBUF_SIMPLE) != 0) throw nb::python_error();
    held_.push_back(buffer);
    return {static_cast<const std::byte*>(buffer.buf), static_cast<std::size_t>(buffer.len)};
  }

 private:
  std::vector<Py_buffer> held_;
};

// `tensor`: (name, dtype, shape, buffer).
TensorView ToView(const nb::tuple& tensor, Buffers& buffers) {
  TensorView view;
  view.name = nb::cast<std::string>(tensor[0]);
  const auto dtype = nb::cast<std::string>(tensor[1]);
  const auto known = tensor::FindDtype(dtype);
  if (!known) {
    Raise({Code::kInvalidArgument, "tensor " + view.name + ": unknown dtype " + dtype});
  }
  view.dtype = *known;
  for (const nb::handle size : nb::cast<nb::tuple>(tensor[2])) {
    view.shape.push_back(nb::cast<std::uint64_t>(size));
  }
  view.bytes = buffers.Hold(tensor[3]);
  return view;
}

nb::dict ToDict(const PublishReport& report) {
  nb::dict result;
  result["version"] = report.version;
  result["kind"] = report.base_version ? "delta" : "full";
  result["base_version"] = report.base_version;
  result["full_copy"] = report.full_copy;
  result["identity"] = report.identity;
  result["tensors"] = report.tensors;
  result["tensors_changed"] = report.tensors_changed;
  result["elements"] = report.elements;
  result["elements_changed"] = report.elements_changed;
  result["density"] = report.density();
  result["bytes"] = report.bytes;
  result["full_bytes"] = report.full_bytes;
  result["seconds"] = report.seconds;
  result["url"] = nb::bytes(report.url.data(), report.url.size());
  return result;
}

std::optional<replica::BaselineKind> FindBaseline(std::string_view name) {
  if (name == "memory") return replica::BaselineKind::kMemory;
  if (name == "disk") return replica::BaselineKind::kDisk;
  if (name == "none") return replica::BaselineKind::kNone;
  return std::nullopt;
}

// Calls a function of Python from a thread without the GIL. What it raises is the error.
std::function<base::Status()> Hook(const nb::object& function) {
  if (function.is_none()) return nullptr;
  // Copied and destroyed by whatever thread, so by a pointer that takes the GIL at the end.
  const std::shared_ptr<nb::object> held(new nb::object(function), [](nb::object* object) {
    const nb::gil_scoped_acquire gil;
    delete object;
  });
  return [held]() -> base::Status {
    const nb::gil_scoped_acquire gil;
    try {
      (*held)();
      return {};
    } catch (const std::exception& error) {
      return Fail(Code::kIo, std::string("a hook raised: ") + error.what());
    }
  };
}

base::Status CheckDirectory(const std::string& path) {
  SYNCLINE_ASSIGN(const base::FileInfo info, FileSystem::Posix().Stat(path));
  if (info.kind == base::FileInfo::Kind::kDirectory) return {};
  return Fail(Code::kInvalidArgument, path + " is not a directory");
}

// One thread at a time: the Python class holds a lock around each call.
class Publisher {
 public:
  Publisher(const nb::bytes& store, const std::string& encoding, const nb::bytes& base,
            const nb::bytes& files, std::size_t threads, bool durable, const nb::bytes& signing_key,
            double full_copy_ratio, const std::string& baseline,
            const nb::bytes& baseline_directory, const nb::bytes& work_directory,
            std::uint64_t rank, std::uint64_t world, double timeout, const nb::object& flush,
            const nb::object& refresh, const Connection& connection, double link_gbps) {
    const auto known = delta::ChooseEncoding(encoding, link_gbps);
    if (!known) Raise(known.error());
    const std::string path = ToPath(store);
    const auto kind = FindBaseline(baseline);
    if (!kind) {
      Raise({Code::kInvalidArgument,
             "unknown baseline \"" + baseline + "\": expected memory, disk or none"});
    }
    replica::ResumeOptions options = {.base = ToPath(base),
                                      .baseline = *kind,
                                      .baseline_directory = ToPath(baseline_directory),
                                      .publisher = {.encoding = *known,
                                                    .companions_from = ToPath(files),
                                                    .signing_key = ToPath(signing_key),
                                                    .full_copy_ratio = full_copy_ratio,
                                                    .durable = durable,
                                                    .ranks = {.rank = rank,
                                                              .world = world,
                                                              .timeout_seconds = timeout,
                                                              .flush = Hook(flush),
                                                              .refresh = Hook(refresh)},
                                                    .threads = threads,
                                                    .work_directory = ToPath(work_directory),
                                                    .objects = connection.settings}};
    publisher_ = Call([&](const CancelToken& cancel) -> Result<std::unique_ptr<store::Publisher>> {
      options.cancel = &cancel;
      std::string& companions = options.publisher.companions_from;
      if (!companions.empty()) {
        SYNCLINE_TRY(CheckDirectory(companions));
      } else if (CheckDirectory(options.base)) {
        companions = options.base;
      }
      SYNCLINE_ASSIGN(store::Publisher publisher,
                      replica::ResumePublisher(FileSystem::Posix(), path, options));
      return std::make_unique<store::Publisher>(std::move(publisher));
    });
    last_version_ = publisher_->last_version();
  }

  ~Publisher() { Close(); }

  nb::dict Publish(std::optional<std::uint64_t> version, const nb::list& tensors, bool full) {
    if (!publisher_) Raise({Code::kInvalidArgument, "the publisher is closed"});
    if (getpid() != process_) {
      Raise({Code::kInvalidArgument,
             "the publisher was made before a fork: only the process that "
             "made it can publish"});
    }
    if (broken_) {
      Raise({Code::kInternal,
             "an earlier publish ended in the middle: make a new publisher, which "
             "goes on from what the store holds"});
    }
    Buffers buffers(tensors.size());
    std::vector<TensorView> views;
    for (const nb::handle tensor : tensors) {
      views.push_back(ToView(nb::cast<nb::tuple>(tensor), buffers));
    }
    base::Progress progress;
    return ToDict(Call([&](const CancelToken& cancel) {
      broken_ = true;  // unless the room returns
      auto report = publisher_->Publish(version, std::move(views), full, progress, &cancel);
      broken_ = false;
      last_version_ = publisher_->last_version();
      return report;
    }));
  }

  std::optional<std::uint64_t> last_version() const { return last_version_; }

  void Close() {
    // A forked child has none of the threads that the destructor would wait for.
    if (getpid() != process_) {
      static_cast<void>(publisher_.release());
    } else {
      publisher_.reset();
    }
  }

 private:
  std::unique_ptr<store::Publisher> publisher_;
  std::optional<std::uint64_t> last_version_;
  pid_t process_ = getpid();
  bool broken_ = false;
};

}  // namespace

void BindPublisher(nb::module_& module) {
  nb::class_<Publisher>(module, "Publisher")
      .def(nb::init<const nb::bytes&, const std::string&, const nb::bytes&, const nb::bytes&,
                    std::size_t, bool, const nb::bytes&, double, const std::string&,
                    const nb::bytes&, const nb::bytes&, std::uint64_t, std::uint64_t, double,
                    const nb::object&, const nb::object&, const Connection&, double>(),
           nb::arg("store"), nb::arg("encoding"), nb::arg("base"), nb::arg("files"),
           nb::arg("threads"), nb::arg("durable"), nb::arg("signing_key"),
           nb::arg("full_copy_ratio"), nb::arg("baseline"), nb::arg("baseline_directory"),
           nb::arg("work_directory"), nb::arg("rank"), nb::arg("world"), nb::arg("timeout"),
           nb::arg("flush").none(), nb::arg("refresh").none(), nb::arg("connection"),
           nb::arg("link_gbps"))
      .def("publish", &Publisher::Publish, nb::arg("version").none(), nb::arg("tensors"),
           nb::arg("full"))
      .def_prop_ro("version", &Publisher::last_version)
      .def("close", &Publisher::Close);
}

}  // namespace syncline::python

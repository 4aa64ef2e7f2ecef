// Checkpoints, mapped: a tensor is a read-only buffer over the mapping, which lives as long as any
// view of it.
#include "checkpoint/checkpoint.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <memory>
#include <string>

#include "bindings.h"
#include "call.h"

namespace nb = nanobind;

namespace syncline::python {
namespace {

using checkpoint::CheckpointTensor;
using checkpoint::MappedCheckpoint;

// Shared by the checkpoint and all its tensors.
struct OpenCheckpoint {
  std::shared_ptr<const MappedCheckpoint> mapped;
};

class MappedTensor {
 public:
  MappedTensor(const OpenCheckpoint& open, std::string_view name)
      : mapped_(open.mapped), tensor_(mapped_->checkpoint().Find(name)) {
    if (tensor_ == nullptr) throw nb::key_error(std::string(name).c_str());
  }

  const CheckpointTensor& info() const { return *tensor_; }
  base::ByteSpan bytes() const { return mapped_->Bytes(*tensor_); }

 private:
  std::shared_ptr<const MappedCheckpoint> mapped_;
  const CheckpointTensor* tensor_;
};

int GetBuffer(PyObject* self, Py_buffer* view, int flags) {
  // PyBuffer_FillInfo does not write through the pointer, and refuses writers.
  const base::ByteSpan bytes = nb::inst_ptr<MappedTensor>(self)->bytes();
  static constexpr std::byte kEmpty{};
  void* data = const_cast<std::byte*>(bytes.empty() ? &kEmpty : bytes.data());
  return PyBuffer_FillInfo(view, self, data, static_cast<Py_ssize_t>(bytes.size()), 1, flags);
}

PyType_Slot buffer_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(&GetBuffer)}, {0, nullptr}};

OpenCheckpoint Open(const nb::bytes& path) {
  return Call([path = ToPath(path)](const base::CancelToken&) -> base::Result<OpenCheckpoint> {
    SYNCLINE_ASSIGN(auto mapped, MappedCheckpoint::Open(base::FileSystem::Posix(), path));
    return OpenCheckpoint{std::make_shared<const MappedCheckpoint>(std::move(mapped))};
  });
}

nb::list Names(const OpenCheckpoint& open) {
  nb::list names;
  for (const CheckpointTensor& tensor : open.mapped->checkpoint().tensors()) {
    names.append(tensor.name);
  }
  return names;
}

nb::tuple Shape(const MappedTensor& tensor) {
  nb::list shape;
  for (const std::uint64_t size : tensor.info().shape) shape.append(size);
  return nb::tuple(shape);
}

}  // namespace

void BindCheckpoint(nb::module_& module) {
  nb::class_<OpenCheckpoint>(module, "Checkpoint")
      .def("names", &Names)
      .def_prop_ro("nbytes", [](const OpenCheckpoint& self) {
        return self.mapped->checkpoint().total_bytes();
      });
  module.def("open_checkpoint", &Open, nb::arg("path"));
  nb::class_<MappedTensor>(module, "TensorView", nb::type_slots(buffer_slots))
      .def(nb::init<const OpenCheckpoint&, std::string_view>(), nb::arg("checkpoint"),
           nb::arg("name"))
      .def_prop_ro("name", [](const MappedTensor& self) { return self.info().name; })
      .def_prop_ro("dtype", [](const MappedTensor& self) { return Name(self.info().dtype); })
      .def_prop_ro("shape", &Shape)
      .def_prop_ro("nbytes", [](const MappedTensor& self) { return self.info().bytes; });
}

}  // namespace syncline::python

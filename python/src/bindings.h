// The parts of the module `_core`, one function for each file. Contracts of what they bind:
// python/syncline/_core.pyi.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

namespace syncline::python {

void BindArrays(nanobind::module_& module);      // arrays.cc: foreign DLPack arrays
void BindCheckpoint(nanobind::module_& module);  // checkpoint.cc: Checkpoint, TensorView
void BindPublisher(nanobind::module_& module);   // publisher.cc: Publisher
void BindReading(nanobind::module_& module);     // reading.cc: Connection, Reading
void BindReplica(nanobind::module_& module);     // replica.cc: Control, pull, undo, verify, log …

// Paths come as the bytes that the operating system takes.
inline std::string ToPath(const nanobind::bytes& path) { return {path.c_str(), path.size()}; }

// And go back as os.fsdecode would give them: a path need not be UTF-8.
inline nanobind::object FromPath(const std::string& path) {
  nanobind::object text = nanobind::steal(
      PyUnicode_DecodeFSDefaultAndSize(path.data(), static_cast<Py_ssize_t>(path.size())));
  if (!text.is_valid()) throw nanobind::python_error();
  return text;
}

}  // namespace syncline::python

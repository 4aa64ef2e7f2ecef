// The parts of the module `_core`, one function for each file. Contracts of what they bind:
// python/syncline/_core.pyi.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

namespace syncline::python {

void BindArrays(nanobind::module_& module);      // arrays.cc: foreign DLPack arrays
void BindCheckpoint(nanobind::module_& module);  // checkpoint.cc: Checkpoint, TensorView
void BindPublisher(nanobind::module_& module);   // publisher.cc: Publisher
void BindReplica(nanobind::module_& module);     // replica.cc: pull, verify, log

// Paths come as the bytes that the operating system takes.
inline std::string ToPath(const nanobind::bytes& path) { return {path.c_str(), path.size()}; }

}  // namespace syncline::python

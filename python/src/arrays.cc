// Arrays of libraries that we do not know, by the DLPack protocol.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <vector>

#include "base/error.h"
#include "bindings.h"
#include "call.h"

namespace nb = nanobind;

namespace syncline::python {
namespace {

using nb::device::cpu;
using nb::device::cuda_host;
using nb::device::rocm_host;

bool IsHostMemory(int device) {
  return device == cpu::value || device == cuda_host::value || device == rocm_host::value;
}

// (DLPack type code, bits, device type, view). The view is a read-only numpy array of unsigned
// integers of the same size, shape and strides, over the same memory, which it keeps alive; None
// where the memory is not the host's or elements are not whole integers of 1, 2, 4 or 8 bytes.
nb::tuple ReadDlpack(const nb::object& source) {
  nb::ndarray<nb::ro> array;
  if (!nb::try_cast(source, array)) {
    Raise({base::Code::kInvalidArgument, "the object does not export its memory by DLPack"});
  }
  const nb::dlpack::dtype dtype = array.dtype();
  const bool whole = dtype.lanes == 1 &&
                     (dtype.bits == 8 || dtype.bits == 16 || dtype.bits == 32 || dtype.bits == 64);
  nb::object view = nb::none();
  if (whole && IsHostMemory(array.device_type())) {
    std::vector<std::size_t> shape(array.ndim());
    std::vector<std::int64_t> strides(array.ndim());
    for (std::size_t i = 0; i < array.ndim(); ++i) {
      shape[i] = array.shape(i);
      strides[i] = array.stride(i);
    }
    const nb::dlpack::dtype unsigned_type = {
        static_cast<std::uint8_t>(nb::dlpack::dtype_code::UInt), dtype.bits, 1};
    view = nb::cast(nb::ndarray<nb::numpy, nb::ro>(array.data(), array.ndim(), shape.data(),
                                                   nb::cast(array), strides.data(), unsigned_type));
  }
  return nb::make_tuple(static_cast<int>(dtype.code), static_cast<int>(dtype.bits) * dtype.lanes,
                        array.device_type(), view);
}

}  // namespace

void BindArrays(nb::module_& module) { module.def("read_dlpack", &ReadDlpack, nb::arg("source")); }

}  // namespace syncline::python

# Finds the libtorch inside whatever torch wheel a Python environment holds, and offers it as Libtorch::Libtorch.
#
# The wheel's own CMake package asks for a CUDA toolkit where the wheel is a CUDA build; we link its CPU part, which every wheel has.
#
#   SYNCLINE_PYTHON_ENVIRONMENT   the environment to look in (default: .venv of this project)
#   Libtorch_ROOT                 the folder `torch` itself, instead
set(SYNCLINE_PYTHON_ENVIRONMENT ${PROJECT_SOURCE_DIR}/.venv CACHE PATH "Python environment that holds torch")
file(GLOB candidates LIST_DIRECTORIES true ${SYNCLINE_PYTHON_ENVIRONMENT}/lib/python3*/site-packages/torch)
find_path(Libtorch_INCLUDE_DIR ATen/core/Tensor.h PATHS ${Libtorch_ROOT} ${candidates} PATH_SUFFIXES include NO_DEFAULT_PATH)
find_library(Libtorch_CPU_LIBRARY torch_cpu PATHS ${Libtorch_ROOT} ${candidates} PATH_SUFFIXES lib NO_DEFAULT_PATH)
find_library(Libtorch_C10_LIBRARY c10 PATHS ${Libtorch_ROOT} ${candidates} PATH_SUFFIXES lib NO_DEFAULT_PATH)

if(Libtorch_INCLUDE_DIR AND EXISTS ${Libtorch_INCLUDE_DIR}/../version.py)
  file(STRINGS ${Libtorch_INCLUDE_DIR}/../version.py version_line REGEX "^__version__")
  string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" Libtorch_VERSION "${version_line}")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Libtorch
  REQUIRED_VARS Libtorch_CPU_LIBRARY Libtorch_C10_LIBRARY Libtorch_INCLUDE_DIR
  VERSION_VAR Libtorch_VERSION)

if(Libtorch_FOUND AND NOT TARGET Libtorch::Libtorch)
  add_library(Libtorch::Libtorch INTERFACE IMPORTED)
  # The wheel carries headers of other libraries too (fmt): the system's own must be found before them.
  target_compile_options(Libtorch::Libtorch INTERFACE
    "SHELL:-idirafter ${Libtorch_INCLUDE_DIR}" "SHELL:-idirafter ${Libtorch_INCLUDE_DIR}/torch/csrc/api/include")
  # ATen's loops are OpenMP templates, compiled by whoever uses them (with -fopenmp). They must run on the OpenMP library that
  # libtorch itself uses: two would be two sets of threads.
  get_filename_component(libtorch_folder ${Libtorch_CPU_LIBRARY} DIRECTORY)
  file(GLOB openmp_library ${libtorch_folder}/libgomp*.so* ${libtorch_folder}/../../torch.libs/libgomp*.so*)
  if(NOT openmp_library)
    set(openmp_library gomp)
  endif()
  target_link_libraries(Libtorch::Libtorch INTERFACE ${Libtorch_CPU_LIBRARY} ${Libtorch_C10_LIBRARY} ${openmp_library})
endif()
mark_as_advanced(Libtorch_INCLUDE_DIR Libtorch_CPU_LIBRARY Libtorch_C10_LIBRARY)

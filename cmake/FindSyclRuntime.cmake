# Finds the SYCL runtime: headers and libsycl, for host code by any C++ compiler. Looks in LOWTIDE_SYCL_ROOT (a prefix
# with include/sycl and lib), else for a Python with the package intel-sycl-rt (this project's .venv, then the Python
# that runs the build), else in oneAPI (CMPLR_ROOT, /opt/intel/oneapi/compiler/latest). Sets
#   SyclRuntime_FOUND   SyclRuntime_ROOT   SyclRuntime_MAJOR (the 9 of libsycl.so.9)
#   SyclRuntime_COMPILER_ROOT  the prefix of the libsycl that compiles kernels
#   SyclRuntime_REASON  what is missing, in words, if it is not found
# and makes the target SyclRuntime::SyclRuntime.
set(LOWTIDE_SYCL_ROOT "" CACHE PATH "Prefix of the SYCL runtime (include/sycl, lib); empty: the Python package or oneAPI")
set(LOWTIDE_SYCL_COMPILER_ROOT "" CACHE PATH "Prefix of the SYCL runtime that compiles kernels; empty: the plug-in's own")

# Major versions with which the sources are known to build.
set(lt_sycl_majors 8 9)
list(JOIN lt_sycl_majors ", " lt_sycl_wanted)

function(lt_sycl_root_of_python python out)
  set(${out} "" PARENT_SCOPE)
  if(NOT EXISTS "${python}")
    return()
  endif()
  execute_process(
    COMMAND
      "${python}" -c
      "import importlib.metadata as m, pathlib
for f in m.files('intel-sycl-rt') or []:
    if f.as_posix().endswith('include/sycl/sycl.hpp'):
        print(pathlib.Path(f.locate()).resolve().parents[2])"
    OUTPUT_VARIABLE root OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  set(${out} "${root}" PARENT_SCOPE)
endfunction()

if(LOWTIDE_SYCL_ROOT)
  set(lt_sycl_roots "${LOWTIDE_SYCL_ROOT}")
else()
  find_package(Python3 QUIET COMPONENTS Interpreter)
  set(lt_sycl_roots)
  foreach(lt_sycl_python IN ITEMS "${PROJECT_SOURCE_DIR}/.venv/bin/python" "${Python_EXECUTABLE}" "${Python3_EXECUTABLE}")
    lt_sycl_root_of_python("${lt_sycl_python}" lt_sycl_root)
    list(APPEND lt_sycl_roots ${lt_sycl_root})
  endforeach()
  list(APPEND lt_sycl_roots $ENV{CMPLR_ROOT} /opt/intel/oneapi/compiler/latest)
endif()

set(SyclRuntime_ROOT)
set(SyclRuntime_MAJOR)
# Joined by commas, because CMake would split the text at semicolons.
list(JOIN lt_sycl_roots ", " lt_sycl_places)
set(SyclRuntime_REASON "no include/sycl/sycl.hpp with lib/libsycl.so in ${lt_sycl_places} (pip install intel-sycl-rt)")
foreach(lt_sycl_root IN LISTS lt_sycl_roots)
  if(EXISTS "${lt_sycl_root}/include/sycl/version.hpp" AND EXISTS "${lt_sycl_root}/lib/libsycl.so")
    file(STRINGS "${lt_sycl_root}/include/sycl/version.hpp" lt_sycl_line REGEX "__LIBSYCL_MAJOR_VERSION")
    string(REGEX MATCH "[0-9]+" lt_sycl_major "${lt_sycl_line}")
    if(lt_sycl_major IN_LIST lt_sycl_majors)
      set(SyclRuntime_ROOT "${lt_sycl_root}")
      set(SyclRuntime_MAJOR "${lt_sycl_major}")
      set(SyclRuntime_REASON)
      break()
    endif()
    set(SyclRuntime_REASON "${lt_sycl_root} has libsycl ${lt_sycl_major}; wanted one of ${lt_sycl_wanted}")
  endif()
endforeach()

# libsycl's compiler needs a device to compile for. The compiler of libsycl 8 lacks files.
set(SyclRuntime_COMPILER_ROOT)
if(SyclRuntime_ROOT)
  set(lt_sycl_root "${SyclRuntime_ROOT}")
  if(LOWTIDE_SYCL_COMPILER_ROOT)
    set(lt_sycl_root "${LOWTIDE_SYCL_COMPILER_ROOT}")
  endif()
  file(GLOB lt_sycl_compiler "${lt_sycl_root}/lib/libsycl-jit.so*")
  if(NOT lt_sycl_compiler OR NOT EXISTS "${lt_sycl_root}/lib/libsycl.so.9")
    string(CONCAT SyclRuntime_REASON "${lt_sycl_root}/lib has no libsycl.so.9 with libsycl-jit.so, which compiles "
                  "kernels, and LOWTIDE_SYCL_COMPILER_ROOT names no other prefix (pip install intel-sycl-rt intel-opencl-rt)")
  elseif(NOT EXISTS "${lt_sycl_root}/lib/libintelocl.so")
    string(CONCAT SyclRuntime_REASON "${lt_sycl_root}/lib has no libintelocl.so, the device that kernels are compiled "
                  "for (pip install intel-opencl-rt)")
  else()
    set(SyclRuntime_COMPILER_ROOT "${lt_sycl_root}")
  endif()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(SyclRuntime REQUIRED_VARS SyclRuntime_ROOT SyclRuntime_MAJOR SyclRuntime_COMPILER_ROOT
                                  REASON_FAILURE_MESSAGE "${SyclRuntime_REASON}")

if(SyclRuntime_FOUND AND NOT TARGET SyclRuntime::SyclRuntime)
  add_library(SyclRuntime::SyclRuntime SHARED IMPORTED)
  set_target_properties(
    SyclRuntime::SyclRuntime
    PROPERTIES IMPORTED_LOCATION "${SyclRuntime_ROOT}/lib/libsycl.so.${SyclRuntime_MAJOR}"
               IMPORTED_SONAME "libsycl.so.${SyclRuntime_MAJOR}"
               INTERFACE_INCLUDE_DIRECTORIES "${SyclRuntime_ROOT}/include"
               INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${SyclRuntime_ROOT}/include"
               INTERFACE_COMPILE_DEFINITIONS SYCL_DISABLE_FSYCL_SYCLHPP_WARNING)
endif()

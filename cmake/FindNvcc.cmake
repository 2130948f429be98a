# Finds CUDA's compiler, the runtime's headers and its static library, from a toolkit or from NVIDIA's wheels (folders
# cuda_nvcc and cuda_runtime side by side): as LOWTIDE_NVCC, else in PATH, CUDA_HOME and /usr/local/cuda. Sets
#   Nvcc_FOUND   Nvcc_EXECUTABLE   Nvcc_VERSION   Nvcc_VERSION_MAJOR   Nvcc_REASON (what is missing, in words)
# and makes the target Nvcc::cudart_static, headers included.
set(LOWTIDE_NVCC "" CACHE FILEPATH "CUDA's compiler; empty: the one in PATH, CUDA_HOME or /usr/local/cuda")

# The first version that knows compute capability 12.0.
set(lt_nvcc_oldest 12.8)

set(Nvcc_EXECUTABLE "${LOWTIDE_NVCC}")
if(NOT Nvcc_EXECUTABLE)
  find_program(lt_nvcc_found nvcc HINTS "$ENV{CUDA_HOME}/bin" "$ENV{CUDA_PATH}/bin" /usr/local/cuda/bin NO_CACHE)
  if(lt_nvcc_found)
    set(Nvcc_EXECUTABLE "${lt_nvcc_found}")
  endif()
endif()

set(Nvcc_VERSION)
set(Nvcc_REASON "no nvcc in PATH, CUDA_HOME or /usr/local/cuda")
if(Nvcc_EXECUTABLE)
  execute_process(COMMAND "${Nvcc_EXECUTABLE}" --version OUTPUT_VARIABLE lt_nvcc_words ERROR_QUIET)
  if(lt_nvcc_words MATCHES "release ([0-9]+)\\.([0-9]+)")
    set(Nvcc_VERSION "${CMAKE_MATCH_1}.${CMAKE_MATCH_2}")
    set(Nvcc_VERSION_MAJOR "${CMAKE_MATCH_1}")
  endif()
  get_filename_component(lt_nvcc_root "${Nvcc_EXECUTABLE}" REALPATH)
  get_filename_component(lt_nvcc_root "${lt_nvcc_root}" DIRECTORY)
  get_filename_component(lt_nvcc_root "${lt_nvcc_root}" DIRECTORY)
  set(lt_nvcc_roots "${lt_nvcc_root}" "${lt_nvcc_root}/targets/${CMAKE_SYSTEM_PROCESSOR}-linux"
                    "${lt_nvcc_root}/../cuda_runtime")
  find_path(Nvcc_INCLUDE cuda_runtime.h PATHS ${lt_nvcc_roots} PATH_SUFFIXES include NO_DEFAULT_PATH NO_CACHE)
  find_library(Nvcc_CUDART libcudart_static.a PATHS ${lt_nvcc_roots} PATH_SUFFIXES lib64 lib NO_DEFAULT_PATH NO_CACHE)
  if(NOT Nvcc_VERSION OR Nvcc_VERSION VERSION_LESS lt_nvcc_oldest)
    set(Nvcc_REASON "${Nvcc_EXECUTABLE} is of CUDA '${Nvcc_VERSION}', wanted ${lt_nvcc_oldest} or newer")
    set(Nvcc_VERSION)
  elseif(NOT Nvcc_INCLUDE OR NOT Nvcc_CUDART)
    set(Nvcc_REASON "no cuda_runtime.h and libcudart_static.a beside ${Nvcc_EXECUTABLE}, in: ${lt_nvcc_roots}")
  else()
    set(Nvcc_REASON)
  endif()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Nvcc REQUIRED_VARS Nvcc_EXECUTABLE Nvcc_VERSION Nvcc_INCLUDE Nvcc_CUDART
                                  REASON_FAILURE_MESSAGE "${Nvcc_REASON}")

if(Nvcc_FOUND AND NOT TARGET Nvcc::cudart_static)
  add_library(Nvcc::cudart_static STATIC IMPORTED)
  set_target_properties(
    Nvcc::cudart_static
    PROPERTIES IMPORTED_LOCATION "${Nvcc_CUDART}" INTERFACE_INCLUDE_DIRECTORIES "${Nvcc_INCLUDE}"
               INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${Nvcc_INCLUDE}")
  set_property(TARGET Nvcc::cudart_static PROPERTY INTERFACE_LINK_LIBRARIES Threads::Threads ${CMAKE_DL_LIBS} rt)
endif()

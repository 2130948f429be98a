# Builds the CUDA backend's plug-in, liblowtide_cuda<CUDA's major>.so. The C++ compiler builds host code against the
# toolkit's headers, and nvcc builds kernels. CUDA's runtime is linked statically, so the plug-in needs only the
# driver's library and loads even without it. The library finds the plug-in beside itself (backend/cuda/loader.h). Tests
# build the same sources, lt_cuda_host_sources and lt_cuda_device_sources, against other headers.
set(LOWTIDE_CUDA_ARCHITECTURES "75;80;90;100;120" CACHE STRING
    "Compute capabilities to make kernels for, the oldest first; the first and the last also as PTX, for others")
set(LOWTIDE_CUDA_RULES "" CACHE STRING
    "Rules of portable/rules.def that the plug-in has kernels for, e.g. adamw;lion, in a fraction of the time. Empty: all")
list(JOIN LOWTIDE_CUDA_RULES "," lt_cuda_rules)  # for tests
include(cuda_architectures)

lt_plugin_host_sources(cuda lt_cuda_host_sources)
file(GLOB lt_cuda_device_sources CONFIGURE_DEPENDS "${lt_src}/backend/cuda/device/*.cu")
include(rules)
lt_generate_rule_sources("${lt_src}/portable/rules.def" step_rule.cu.in .cu lt_cuda_exact_rules)
set(LT_CUDA_FAST ON)
lt_generate_rule_sources("${lt_src}/portable/rules.def" step_rule.cu.in _fast.cu lt_cuda_fast_rules)
list(APPEND lt_cuda_device_sources ${lt_cuda_exact_rules} ${lt_cuda_fast_rules})
lt_read_rules("${lt_src}/portable/rules.def")
lt_require_names(LOWTIDE_CUDA_RULES ${lt_rules})

lt_find_for_plugin(CUDA Nvcc "nvcc")
if(NOT Nvcc_FOUND)
  return()
endif()

set(lt_cuda lowtide_cuda${Nvcc_VERSION_MAJOR})
message(STATUS "CUDA plug-in: lib${lt_cuda}.so with ${Nvcc_EXECUTABLE} (${Nvcc_VERSION})")

set(lt_nvcc_flags
    -std=c++20
    -O3
    "-Xcompiler=-fPIC,-fvisibility=hidden,-ffp-contract=off"
    "-I${PROJECT_SOURCE_DIR}/include"
    "-I${lt_src}"
    "-I${Nvcc_INCLUDE}")
# Exact kernels give the bits of the CPU backend: nothing is contracted, and division and roots follow IEEE 754. Fast
# kernels are in separate files.
list(APPEND lt_nvcc_flags --fmad=false)
foreach(lt_arch IN LISTS LOWTIDE_CUDA_ARCHITECTURES)
  list(APPEND lt_nvcc_flags "--generate-code=arch=compute_${lt_arch},code=sm_${lt_arch}")
endforeach()
# The newest version's PTX is for future GPUs and the oldest version's for GPUs in between, because machine code runs
# only on its own major version. PTX is an intermediate result, so it costs no time.
list(GET LOWTIDE_CUDA_ARCHITECTURES 0 -1 lt_ptx)
list(REMOVE_DUPLICATES lt_ptx)
foreach(lt_arch IN LISTS lt_ptx)
  list(APPEND lt_nvcc_flags "--generate-code=arch=compute_${lt_arch},code=compute_${lt_arch}")
endforeach()
# The smallest size takes a tenth more time, and drivers older than CUDA 12.4's cannot read it.
if(LOWTIDE_DEV OR Nvcc_VERSION VERSION_LESS 13)
  list(APPEND lt_nvcc_flags --compress-mode=speed)
else()
  list(APPEND lt_nvcc_flags --compress-mode=size)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND lt_nvcc_flags "--compiler-bindir=${CMAKE_CXX_COMPILER}")
endif()
set(lt_nvcc_fast_flags --fmad=true --ftz=true --prec-div=false --prec-sqrt=false)

# nvcc's objects, and an object that replaces the rules that are left out. The emulated device has all rules.
set(lt_cuda_objects)
set(lt_absent_rules)
foreach(lt_source IN LISTS lt_cuda_device_sources)
  get_filename_component(lt_name "${lt_source}" NAME_WE)
  set(lt_object "${PROJECT_BINARY_DIR}/cuda/${lt_name}.o")
  set(lt_flags ${lt_nvcc_flags})
  if(lt_source IN_LIST lt_cuda_fast_rules)
    list(REMOVE_ITEM lt_flags --fmad=false)
    list(APPEND lt_flags ${lt_nvcc_fast_flags})
  endif()
  if(LOWTIDE_CUDA_RULES AND lt_name MATCHES "^step_")
    string(REGEX REPLACE "^step_|_fast$" "" lt_rule "${lt_name}")
    if(NOT lt_rule IN_LIST LOWTIDE_CUDA_RULES)
      list(APPEND lt_absent_rules "LT_ABSENT(${lt_rule})")
      continue()
    endif()
  endif()
  add_custom_command(
    OUTPUT "${lt_object}"
    COMMAND "${CMAKE_COMMAND}" -E make_directory "${PROJECT_BINARY_DIR}/cuda"
    COMMAND "${Nvcc_EXECUTABLE}" ${lt_flags} -MD -MF "${lt_object}.d" -MT "${lt_object}" -c "${lt_source}" -o
            "${lt_object}"
    DEPENDS "${lt_source}" "${Nvcc_EXECUTABLE}"
    DEPFILE "${lt_object}.d"
    COMMENT "nvcc ${lt_name}.cu"
    VERBATIM)
  list(APPEND lt_cuda_objects "${lt_object}")
endforeach()

set(lt_cuda_absent)
if(lt_absent_rules)
  list(REMOVE_DUPLICATES lt_absent_rules)
  list(JOIN lt_absent_rules "\n" LT_ABSENT_RULES)
  set(lt_absent_source "${CMAKE_CURRENT_BINARY_DIR}/rules/absent_rules.cpp")
  configure_file("${PROJECT_SOURCE_DIR}/cmake/absent_rules.cpp.in" "${lt_absent_source}" @ONLY)
  add_library(lowtide_cuda_absent OBJECT "${lt_absent_source}")
  lt_plugin_properties(lowtide_cuda_absent)
  set_target_properties(lowtide_cuda_absent PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_link_libraries(lowtide_cuda_absent PRIVATE Nvcc::cudart_static)
  set(lt_cuda_absent $<TARGET_OBJECTS:lowtide_cuda_absent>)
endif()

add_library(${lt_cuda} MODULE ${lt_cuda_host_sources} ${lt_plugin_core_sources} ${lt_cuda_objects} ${lt_cuda_absent})
lt_unite(${lt_cuda} cuda_host ${lt_cuda_host_sources})
lt_plugin_properties(${lt_cuda})
list(JOIN LOWTIDE_CUDA_ARCHITECTURES "," lt_cuda_machine_code)
list(JOIN lt_ptx "," lt_cuda_ptx)
target_compile_definitions(${lt_cuda} PRIVATE "LT_CUDA_MACHINE_CODE=${lt_cuda_machine_code}"
                                              "LT_CUDA_PTX=${lt_cuda_ptx}")
target_link_libraries(${lt_cuda} PRIVATE Nvcc::cudart_static)
lt_install_plugin(${lt_cuda})

# The SYCL backend's plug-in, liblowtide_sycl<libsycl's major>.so: plain C++ against the runtime's headers, kernels as
# SPIR-V that is part of the sources (tools/make_spirv.py). The library finds it beside itself (backend/registry.cpp).
set(LOWTIDE_SYCL AUTO CACHE STRING "Build the SYCL plug-in: ON, OFF, or AUTO: if the SYCL runtime is found")
set_property(CACHE LOWTIDE_SYCL PROPERTY STRINGS AUTO ON OFF)
if(NOT LOWTIDE_SYCL)
  set(SyclRuntime_REASON "LOWTIDE_SYCL is OFF")
  return()
endif()

# The driver's own threads and memory are not the sanitizers' business; ON tries all the same.
if(LOWTIDE_SYCL STREQUAL "AUTO" AND LOWTIDE_SANITIZE)
  set(SyclRuntime_REASON "sanitized builds have it with LOWTIDE_SYCL=ON only")
  return()
endif()

find_package(SyclRuntime QUIET)
if(NOT SyclRuntime_FOUND)
  if(LOWTIDE_SYCL STREQUAL "AUTO")
    message(STATUS "SYCL plug-in: not built (${SyclRuntime_REASON})")
    return()
  endif()
  message(FATAL_ERROR "LOWTIDE_SYCL is ON, but the SYCL runtime was not found: ${SyclRuntime_REASON}")
endif()

set(lt_sycl lowtide_sycl${SyclRuntime_MAJOR})
message(STATUS "SYCL plug-in: lib${lt_sycl}.so with ${SyclRuntime_ROOT}")
set(lt_spirv "${lt_src}/backend/sycl/spirv")
lt_plugin_host_sources(sycl lt_sycl_sources)
file(GLOB lt_spirv_files CONFIGURE_DEPENDS "${lt_spirv}/*.spv")
# Objects, since its tests reach inside.
add_library(lowtide_sycl_objects OBJECT ${lt_sycl_sources})
set_target_properties(lowtide_sycl_objects PROPERTIES POSITION_INDEPENDENT_CODE ON)
add_library(${lt_sycl} MODULE $<TARGET_OBJECTS:lowtide_sycl_objects> ${lt_plugin_core_sources})
set_source_files_properties("${lt_src}/backend/sycl/host/programs.cpp"
                            PROPERTIES COMPILE_DEFINITIONS "LOWTIDE_SPIRV_DIR=\"${lt_spirv}\""
                                       OBJECT_DEPENDS "${lt_spirv_files}")
foreach(target IN ITEMS lowtide_sycl_objects ${lt_sycl})
  lt_plugin_properties(${target})
  target_link_libraries(${target} PRIVATE SyclRuntime::SyclRuntime)
endforeach()
# Installed as a wheel, the plug-in is in lib/python3.x/site-packages/lowtide, and pip's libsycl in lib. Elsewhere
# libsycl is found as any library is, or is in the process already.
set_target_properties(${lt_sycl} PROPERTIES INSTALL_RPATH "$ORIGIN/../../..")
lt_install_plugin(${lt_sycl})

# The SYCL backend's plug-in, liblowtide_sycl<libsycl's major>.so: plain C++ against the runtime's headers, kernels as
# SPIR-V that is part of the sources (tools/make_spirv.py). The library finds it beside itself (backend/registry.cpp).
lt_find_for_plugin(SYCL SyclRuntime "the SYCL runtime")
if(NOT SyclRuntime_FOUND)
  return()
endif()

set(lt_sycl lowtide_sycl${SyclRuntime_MAJOR})
message(STATUS "SYCL plug-in: lib${lt_sycl}.so with ${SyclRuntime_ROOT}")
set(lt_spirv "${lt_src}/backend/sycl/spirv")
lt_plugin_host_sources(sycl lt_sycl_sources)
file(GLOB lt_spirv_files CONFIGURE_DEPENDS "${lt_spirv}/*.spv")
# Objects, since its tests reach inside.
add_library(lowtide_sycl_objects OBJECT ${lt_sycl_sources})
lt_unite(lowtide_sycl_objects sycl_host ${lt_sycl_sources})
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

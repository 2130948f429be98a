# liblowtide_bnb.so: bitsandbytes' C functions for its optimizers and paged memory (include/lowtide/bnb.h). Built from
# liblowtide's objects, because it needs more than the public interface. It finds plug-ins next to itself.
set(lt_src "${PROJECT_SOURCE_DIR}/src")
set(map "${PROJECT_SOURCE_DIR}/cmake/bnb.map")
# The parts that tests call without the C functions.
add_library(lowtide_bnb_inner OBJECT "${lt_src}/bnb/device_step.cpp" "${lt_src}/bnb/host_step.cpp"
                                     "${lt_src}/bnb/map8.cpp" "${lt_src}/bnb/memory.cpp" "${lt_src}/bnb/update.cpp")
set_target_properties(lowtide_bnb_inner PROPERTIES POSITION_INDEPENDENT_CODE ON)
target_include_directories(lowtide_bnb_inner PRIVATE "${PROJECT_SOURCE_DIR}/include" "${lt_src}")
target_link_libraries(lowtide_bnb_inner PRIVATE lowtide_flags)
set(lt_bnb_inner_objects $<TARGET_OBJECTS:lowtide_bnb_inner>)
add_library(lowtide_bnb SHARED "${lt_src}/bnb/bnb.cpp" ${lt_bnb_inner_objects})
add_library(lowtide::bnb ALIAS lowtide_bnb)
target_include_directories(
  lowtide_bnb PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_link_libraries(lowtide_bnb PRIVATE lowtide_objects)
target_link_options(lowtide_bnb PRIVATE "LINKER:--version-script=${map}" "LINKER:--gc-sections")
if(NOT LOWTIDE_SANITIZE)  # the program may provide a sanitizer's symbols
  target_link_options(lowtide_bnb PRIVATE "LINKER:--no-undefined")
endif()
set_target_properties(lowtide_bnb PROPERTIES EXPORT_NAME bnb LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}"
                                             LINK_DEPENDS "${map}")
foreach(plugin IN LISTS lt_plugins)
  if(TARGET ${plugin})
    add_dependencies(lowtide_bnb ${plugin})
  endif()
endforeach()
lt_install_library(lowtide_bnb EXPORT lowtideTargets)  # Python opens it by its path

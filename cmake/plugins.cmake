# Settings that the plug-ins of all backends share.
set(lt_src "${PROJECT_SOURCE_DIR}/src")

# Sources of the library of which each plug-in has its own copy.
set(lt_plugin_core_sources
    "${lt_src}/backend/backend.cpp" "${lt_src}/backend/catalog.cpp" "${lt_src}/backend/signs.cpp"
    "${lt_src}/core/error.cpp" "${lt_src}/core/layout.cpp")

# Host code: the backend's own in this folder, and the code that all backends with kernels share.
function(lt_plugin_host_sources folder out)
  file(GLOB found CONFIGURE_DEPENDS "${lt_src}/backend/${folder}/host/*.cpp" "${lt_src}/backend/kernels/*.cpp")
  list(FILTER found EXCLUDE REGEX "_test\\.cpp$")
  set(${out} ${found} PARENT_SCOPE)
endfunction()

# Finds `package`, with which a plug-in is built, if LOWTIDE_<backend> wants the plug-in; ${package}_REASON says why
# not. AUTO leaves it out of sanitized builds, because sanitizers understand neither drivers' threads nor nvcc.
macro(lt_find_for_plugin backend package what)
  set(LOWTIDE_${backend} AUTO CACHE STRING "Build the ${backend} plug-in: ON, OFF, or AUTO: if ${what} is found")
  set_property(CACHE LOWTIDE_${backend} PROPERTY STRINGS AUTO ON OFF)
  set(${package}_FOUND FALSE)
  if(NOT LOWTIDE_${backend})
    set(${package}_REASON "LOWTIDE_${backend} is OFF")
  elseif(LOWTIDE_${backend} STREQUAL "AUTO" AND LOWTIDE_SANITIZE)
    set(${package}_REASON "sanitized builds have it with LOWTIDE_${backend}=ON only")
  else()
    find_package(${package} QUIET)
    if(NOT ${package}_FOUND AND LOWTIDE_${backend} STREQUAL "AUTO")
      message(STATUS "${backend} plug-in: not built (${${package}_REASON})")
    elseif(NOT ${package}_FOUND)
      message(FATAL_ERROR "LOWTIDE_${backend} is ON, but ${what} cannot be used: ${${package}_REASON}")
    endif()
  endif()
endmacro()

# Sets the flags and paths of a target with such sources.
function(lt_plugin_properties target)
  target_compile_definitions(${target} PRIVATE LOWTIDE_VERSION="${PROJECT_VERSION}")
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}/include" "${lt_src}")
  target_link_libraries(${target} PRIVATE lowtide_flags)
endfunction()

# Installs a library without a version in its name, which others find next to themselves: next to liblowtide, and in the
# Python package. Further arguments (EXPORT ...) go to install().
function(lt_install_library target)
  install(TARGETS ${target} ${ARGN} LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT library)
  if(LOWTIDE_PYTHON)
    install(TARGETS ${target} LIBRARY DESTINATION lowtide COMPONENT python EXCLUDE_FROM_ALL)
  endif()
endfunction()

# Installs a plug-in. It exports only its entry point, and the library finds it next to itself.
function(lt_install_plugin target)
  set(map "${PROJECT_SOURCE_DIR}/cmake/plugin.map")
  target_link_options(${target} PRIVATE "LINKER:--version-script=${map}" "LINKER:--as-needed")
  if(NOT LOWTIDE_SANITIZE)
    target_link_options(${target} PRIVATE "LINKER:--no-undefined")
  endif()
  set_target_properties(${target} PROPERTIES LINK_DEPENDS "${map}")
  set_target_properties(${target} PROPERTIES PREFIX lib LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}")
  lt_install_library(${target})
  install(TARGETS ${target} LIBRARY DESTINATION . COMPONENT plugin EXCLUDE_FROM_ALL)  # for the plug-in's own package
  set(lt_plugins ${lt_plugins} ${target} PARENT_SCOPE)
endfunction()

# Builds the plug-in of each line of backends.def with its folder's plugin.cmake. The library contains the other
# backends.
macro(lt_include_plugins)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${lt_src}/backend/backends.def")
  file(STRINGS "${lt_src}/backend/backends.def" lt_lines REGEX "^LT_BACKEND")
  foreach(line IN LISTS lt_lines)
    string(REGEX REPLACE "^LT_BACKEND\\(([a-z0-9_]+),.*" "\\1" backend "${line}")
    include("${lt_src}/backend/${backend}/plugin.cmake" OPTIONAL)
  endforeach()
endmacro()

# Settings that the plug-ins of all backends share.
set(lt_src "${PROJECT_SOURCE_DIR}/src")

# Sources of the library that a plug-in has its own copies of.
set(lt_plugin_core_sources
    "${lt_src}/backend/backend.cpp" "${lt_src}/backend/catalog.cpp" "${lt_src}/backend/signs.cpp"
    "${lt_src}/core/dtype.cpp" "${lt_src}/core/error.cpp" "${lt_src}/core/layout.cpp")

# Host code: of the backend in this folder, and what all that have kernels share.
function(lt_plugin_host_sources folder out)
  file(GLOB found CONFIGURE_DEPENDS "${lt_src}/backend/${folder}/host/*.cpp" "${lt_src}/backend/kernels/*.cpp")
  list(FILTER found EXCLUDE REGEX "_test\\.cpp$")
  set(${out} ${found} PARENT_SCOPE)
endfunction()

# Flags and paths of a target with such sources.
function(lt_plugin_properties target)
  target_compile_definitions(${target} PRIVATE LOWTIDE_VERSION="${PROJECT_VERSION}")
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}/include" "${lt_src}")
  target_link_libraries(${target} PRIVATE lowtide_flags)
endfunction()

# A library without a version in its name, which others find beside themselves: beside liblowtide, and in the wheel.
function(lt_install_library target)
  install(TARGETS ${target} LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT library)
  if(LOWTIDE_PYTHON)
    install(TARGETS ${target} LIBRARY DESTINATION lowtide COMPONENT python EXCLUDE_FROM_ALL)
  endif()
endfunction()

# The library finds plug-ins beside itself.
function(lt_install_plugin target)
  set_target_properties(${target} PROPERTIES PREFIX lib LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}")
  lt_install_library(${target})
  set(lt_plugins ${lt_plugins} ${target} PARENT_SCOPE)
endfunction()

# Builds the plug-in of each line of backends.def, by its folder's plugin.cmake. A backend without one is part of the
# library.
macro(lt_include_plugins)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${lt_src}/backend/backends.def")
  file(STRINGS "${lt_src}/backend/backends.def" lt_lines REGEX "^LT_BACKEND")
  foreach(line IN LISTS lt_lines)
    string(REGEX REPLACE "^LT_BACKEND\\(([a-z0-9_]+),.*" "\\1" backend "${line}")
    include("${lt_src}/backend/${backend}/plugin.cmake" OPTIONAL)
  endforeach()
endmacro()

# Install rules, all relocatable: libraries, headers, CMake package (lowtide::lowtide, lowtide::bnb), pkg-config,
# license.
include(CMakePackageConfigHelpers)

set(lt_cmake_dir "${CMAKE_INSTALL_LIBDIR}/cmake/lowtide")
get_target_property(lt_library_type lowtide TYPE)
set(lt_pc_requires)
set(lt_pc_libs)
set(LOWTIDE_NEEDS_HIGHWAY OFF)
if(lt_library_type STREQUAL "SHARED_LIBRARY")
  set(LOWTIDE_IS_SHARED ON)
else()
  # No shared library has this name, so these go into Libs: only --static would show Libs.private.
  set(LOWTIDE_IS_SHARED OFF)
  set(lt_pc_libs " -lstdc++ -lm -pthread ${CMAKE_DL_LIBS}")
  string(REPLACE " dl" " -ldl" lt_pc_libs "${lt_pc_libs}")
  if(LIBURING_ARCHIVE AND LIBURING_INCLUDE)
    string(APPEND lt_pc_libs " -l:liburing.a")
  endif()
  if(NOT LOWTIDE_HIGHWAY_SOURCE)
    set(LOWTIDE_NEEDS_HIGHWAY ON)
    set(lt_pc_requires libhwy)
  endif()
endif()

install(
  TARGETS lowtide
  EXPORT lowtideTargets
  LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT library NAMELINK_COMPONENT development
  ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT development
  INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
set(lt_no_header)
if(NOT LOWTIDE_BNB)
  set(lt_no_header PATTERN bnb.h EXCLUDE)
endif()
install(DIRECTORY include/lowtide DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" COMPONENT development
        FILES_MATCHING PATTERN "*.h" PATTERN "*.def" ${lt_no_header})
install(EXPORT lowtideTargets NAMESPACE lowtide:: DESTINATION "${lt_cmake_dir}" COMPONENT development)

configure_package_config_file(cmake/lowtideConfig.cmake.in "${PROJECT_BINARY_DIR}/lowtideConfig.cmake"
                              INSTALL_DESTINATION "${lt_cmake_dir}")
# Before 1.0 a minor version may break its users.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/lowtideConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/lowtideConfig.cmake" "${PROJECT_BINARY_DIR}/lowtideConfigVersion.cmake"
        DESTINATION "${lt_cmake_dir}" COMPONENT development)

set(lt_pc_dir "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
file(RELATIVE_PATH lt_pc_to_prefix "/prefix/${lt_pc_dir}" "/prefix")
function(lt_install_pc name library description)
  configure_file(cmake/lowtide.pc.in "${PROJECT_BINARY_DIR}/${name}.pc" @ONLY)
  install(FILES "${PROJECT_BINARY_DIR}/${name}.pc" DESTINATION "${lt_pc_dir}" COMPONENT development)
endfunction()
lt_install_pc(lowtide "lowtide${lt_pc_libs}" "${PROJECT_DESCRIPTION}")
if(LOWTIDE_BNB)
  set(lt_pc_requires)
  lt_install_pc(lowtide-bnb lowtide_bnb "bitsandbytes' C functions on Lowtide's kernels")
endif()

install(FILES LICENSE DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT library)

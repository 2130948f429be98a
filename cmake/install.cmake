# Install rules: library, headers, CMake package (lowtide::lowtide) and pkg-config file. All relocatable.
include(CMakePackageConfigHelpers)

set(lt_cmake_dir "${CMAKE_INSTALL_LIBDIR}/cmake/lowtide")
get_target_property(lt_library_type lowtide TYPE)
if(lt_library_type STREQUAL "SHARED_LIBRARY")
  set(LOWTIDE_IS_SHARED ON)
  set(lt_pc_requires_private)
  set(lt_pc_libs_private)
else()
  set(LOWTIDE_IS_SHARED OFF)
  set(lt_pc_requires_private libhwy)
  set(lt_pc_libs_private "-lstdc++ -pthread")
endif()

install(
  TARGETS lowtide
  EXPORT lowtideTargets
  LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT library NAMELINK_COMPONENT development
  ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT development
  INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(DIRECTORY include/lowtide DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" COMPONENT development
        FILES_MATCHING PATTERN "*.h" PATTERN "*.def")
install(EXPORT lowtideTargets NAMESPACE lowtide:: DESTINATION "${lt_cmake_dir}" COMPONENT development)

configure_package_config_file(cmake/lowtideConfig.cmake.in "${PROJECT_BINARY_DIR}/lowtideConfig.cmake"
                              INSTALL_DESTINATION "${lt_cmake_dir}")
# Before 1.0 a minor version may break its users.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/lowtideConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/lowtideConfig.cmake" "${PROJECT_BINARY_DIR}/lowtideConfigVersion.cmake"
        DESTINATION "${lt_cmake_dir}" COMPONENT development)

set(lt_pc_dir "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
file(RELATIVE_PATH lt_pc_to_prefix "/prefix/${lt_pc_dir}" "/prefix")
configure_file(cmake/lowtide.pc.in lowtide.pc @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/lowtide.pc" DESTINATION "${lt_pc_dir}" COMPONENT development)

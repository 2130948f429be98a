# liblowtide_bnb.so: bitsandbytes' C functions of paged memory (include/lowtide/bnb.h). Small, for it holds no CPU
# kernels; it finds the SYCL plug-in beside itself.
set(lt_src "${PROJECT_SOURCE_DIR}/src")
set(map "${PROJECT_SOURCE_DIR}/cmake/bnb.map")
add_library(lowtide_bnb SHARED "${lt_src}/bnb/bnb.cpp" "${lt_src}/bnb/memory.cpp" "${lt_src}/backend/sycl_loader.cpp"
                               "${lt_src}/backend/plugin_loader.cpp"
                               "${lt_src}/core/error.cpp")
target_compile_definitions(lowtide_bnb PRIVATE LOWTIDE_VERSION="${PROJECT_VERSION}")
target_include_directories(lowtide_bnb PUBLIC "${PROJECT_SOURCE_DIR}/include" PRIVATE "${lt_src}")
target_link_libraries(lowtide_bnb PRIVATE lowtide_flags ${CMAKE_DL_LIBS})
target_link_options(lowtide_bnb PRIVATE "LINKER:--version-script=${map}")
set_target_properties(lowtide_bnb PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}" LINK_DEPENDS "${map}")
if(TARGET SyclRuntime::SyclRuntime)
  add_dependencies(lowtide_bnb ${lt_sycl})
endif()
# No version in its name: Python opens it by its path.
if(LOWTIDE_FOR_WHEEL)
  install(TARGETS lowtide_bnb LIBRARY DESTINATION lowtide COMPONENT python)
else()
  install(TARGETS lowtide_bnb LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT library)
endif()

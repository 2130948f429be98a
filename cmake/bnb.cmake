# liblowtide_bnb.so: bitsandbytes' C functions of its optimizers and of paged memory (include/lowtide/bnb.h). Holds the
# CPU backend; finds the SYCL and CUDA plug-ins beside itself.
set(lt_src "${PROJECT_SOURCE_DIR}/src")
set(map "${PROJECT_SOURCE_DIR}/cmake/bnb.map")
# What the tests call without the C functions.
set(lt_bnb_inner_sources "${lt_src}/bnb/device_step.cpp" "${lt_src}/bnb/host_step.cpp" "${lt_src}/bnb/map8.cpp"
                         "${lt_src}/bnb/memory.cpp" "${lt_src}/bnb/rule_tile.cpp" "${lt_src}/bnb/update.cpp")
add_library(lowtide_bnb SHARED "${lt_src}/bnb/bnb.cpp" "${lt_src}/bnb/guard.cpp" "${lt_src}/bnb/optimizers.cpp"
                               ${lt_bnb_inner_sources})
target_include_directories(lowtide_bnb PUBLIC "${PROJECT_SOURCE_DIR}/include" PRIVATE "${lt_src}")
target_link_libraries(lowtide_bnb PRIVATE lowtide_objects)
target_link_options(lowtide_bnb PRIVATE "LINKER:--version-script=${map}" "LINKER:--gc-sections")
set_target_properties(lowtide_bnb PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}" LINK_DEPENDS "${map}")
foreach(plugin IN ITEMS ${lt_sycl} ${lt_cuda})
  if(TARGET ${plugin})
    add_dependencies(lowtide_bnb ${plugin})
  endif()
endforeach()
# No version in its name: Python opens it by its path.
if(LOWTIDE_FOR_WHEEL)
  install(TARGETS lowtide_bnb LIBRARY DESTINATION lowtide COMPONENT python)
else()
  install(TARGETS lowtide_bnb LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT library)
endif()

# Builds the SYCL backend's plug-in, liblowtide_sycl<libsycl's major>.so, from plain C++ against the runtime's headers
# and from kernels that the compiler inside libsycl turns into SPIR-V. The library finds the plug-in beside itself
# (backend/registry.cpp).
set(LOWTIDE_SYCL_BALLOTS "" CACHE STRING
    "Rules of portable/rules.def that the SYCL plug-in can make ballots of, e.g. adamw;lion: half of the kernels' time. Empty: all")
list(JOIN LOWTIDE_SYCL_BALLOTS "," lt_sycl_ballots)  # for tests
lt_find_for_plugin(SYCL SyclRuntime "the SYCL runtime, its compiler included,")
if(NOT SyclRuntime_FOUND)
  return()
endif()

set(lt_sycl lowtide_sycl${SyclRuntime_MAJOR})
message(STATUS "SYCL plug-in: lib${lt_sycl}.so with ${SyclRuntime_ROOT}")

# The compiler is a separate program that calls libsycl.
add_executable(lowtide_spirv_compiler "${lt_src}/backend/sycl/spirv_compiler.cpp")
target_compile_features(lowtide_spirv_compiler PRIVATE cxx_std_20)
target_include_directories(lowtide_spirv_compiler SYSTEM PRIVATE "${SyclRuntime_COMPILER_ROOT}/include")
target_compile_definitions(lowtide_spirv_compiler PRIVATE SYCL_DISABLE_FSYCL_SYCLHPP_WARNING)
target_link_libraries(lowtide_spirv_compiler PRIVATE "${SyclRuntime_COMPILER_ROOT}/lib/libsycl.so")

# Each program has its own SPIR-V, because a driver compiles a program when it is first used. Each rule has two
# programs, and a third if it needs norms or sums; each type of signs has one. Every program sees all portable kernels.
set(lt_spirv "${PROJECT_BINARY_DIR}/spirv")
file(GLOB_RECURSE lt_device_sources CONFIGURE_DEPENDS "${lt_src}/portable/*.h" "${lt_src}/portable/*.def"
     "${lt_src}/backend/kernels/*.h" "${lt_src}/backend/sycl/device/*")
list(APPEND lt_device_sources "${lt_src}/backend/limits.h" "${lt_src}/backend/norms.h")
set(lt_programs)
set(lt_spirv_files)
# Adds a program from device/<source>.inc. Further arguments are macros that are defined for it.
function(lt_add_program name source)
  set(text "#include \"backend/sycl/device/${source}.inc\"\n")
  foreach(define IN LISTS ARGN)
    string(PREPEND text "#define ${define}\n")
  endforeach()
  file(CONFIGURE OUTPUT "${lt_spirv}/${name}.cpp" CONTENT "${text}" @ONLY)
  # Like the CPU kernels, programs are compiled without contraction and with IEEE 754 division and square root. libsycl
  # needs a device to compile for; this is the CPU, whose driver no system folder lists if it comes from pip. The driver
  # makes machine code of the SPIR-V, which nothing runs: unoptimized, it costs a tenth of the time and not half of it.
  add_custom_command(
    OUTPUT "${lt_spirv}/${name}.spv"
    COMMAND "${CMAKE_COMMAND}" -E env "OCL_ICD_FILENAMES=${SyclRuntime_COMPILER_ROOT}/lib/libintelocl.so"
            SYCL_PROGRAM_COMPILE_OPTIONS=-cl-opt-disable --unset=ONEAPI_DEVICE_SELECTOR
            $<TARGET_FILE:lowtide_spirv_compiler> "-I${lt_src}" -ffp-contract=off -fno-math-errno
            -foffload-fp32-prec-div -foffload-fp32-prec-sqrt -- "${lt_spirv}/${name}.cpp" "${lt_spirv}/${name}.spv"
    DEPENDS lowtide_spirv_compiler "${lt_spirv}/${name}.cpp" ${lt_device_sources}
    COMMENT "SPIR-V ${name}"
    VERBATIM)
  set(lt_programs "${lt_programs}LT_PROGRAM(${name})\n" PARENT_SCOPE)
  set(lt_spirv_files ${lt_spirv_files} "${lt_spirv}/${name}.spv" PARENT_SCOPE)
endfunction()

include(rules)
lt_read_rules("${lt_src}/portable/rules.def")
lt_require_names(LOWTIDE_SYCL_BALLOTS ${lt_rules})
foreach(lt_name IN LISTS lt_rules)
  set(lt_kinds step)
  if(NOT LOWTIDE_SYCL_BALLOTS OR lt_name IN_LIST LOWTIDE_SYCL_BALLOTS)
    list(APPEND lt_kinds ballot)
  endif()
  if(lt_name IN_LIST lt_norm_rules)
    list(APPEND lt_kinds norms)
  endif()
  if(lt_name IN_LIST lt_sum_rules)
    list(APPEND lt_kinds terms)
  endif()
  foreach(lt_kind IN LISTS lt_kinds)
    lt_add_program(${lt_kind}_${lt_name} ${lt_kind}_rule "LT_SYCL_RULE ${lt_struct_of_${lt_name}}"
                   "LT_SYCL_RULE_NAME ${lt_name}")
  endforeach()
endforeach()
foreach(lt_type IN ITEMS "float32 float" "bfloat16 bf16" "float16 f16")
  string(REPLACE " " ";" lt_type "${lt_type}")
  list(GET lt_type 0 lt_name)
  list(GET lt_type 1 lt_struct)
  lt_add_program(sign_${lt_name} sign_kernels "LT_SYCL_SIGN_TYPE ${lt_struct}" "LT_SYCL_SIGN_NAME ${lt_name}")
endforeach()
foreach(lt_name IN ITEMS aux fill vote apply feedback sums)
  lt_add_program(${lt_name} ${lt_name}_kernels)
endforeach()
file(CONFIGURE OUTPUT "${lt_spirv}/programs.def" CONTENT "${lt_programs}#undef LT_PROGRAM\n" @ONLY)

lt_plugin_host_sources(sycl lt_sycl_sources)
# An object library, because tests use the plug-in's internals.
add_library(lowtide_sycl_objects OBJECT ${lt_sycl_sources})
lt_unite(lowtide_sycl_objects sycl_host ${lt_sycl_sources})
set_target_properties(lowtide_sycl_objects PROPERTIES POSITION_INDEPENDENT_CODE ON)
add_library(${lt_sycl} MODULE $<TARGET_OBJECTS:lowtide_sycl_objects> ${lt_plugin_core_sources})
set_source_files_properties("${lt_src}/backend/sycl/host/programs.cpp"
                            PROPERTIES INCLUDE_DIRECTORIES "${PROJECT_BINARY_DIR}"
                                       COMPILE_DEFINITIONS "LOWTIDE_SPIRV_DIR=\"${lt_spirv}\""
                                       OBJECT_DEPENDS "${lt_spirv_files}")
foreach(target IN ITEMS lowtide_sycl_objects ${lt_sycl})
  lt_plugin_properties(${target})
  target_link_libraries(${target} PRIVATE SyclRuntime::SyclRuntime)
endforeach()
# If installed as a wheel, the plug-in is in lib/python3.x/site-packages/lowtide and pip's libsycl is in lib. Otherwise
# libsycl is found like any library, or the process has already loaded it.
set_target_properties(${lt_sycl} PROPERTIES INSTALL_RPATH "$ORIGIN/../../..")
lt_install_plugin(${lt_sycl})

# The Python module lowtide._core (nanobind), with the library's objects linked in: one file for all versions of Python
# from 3.10 on, by the stable ABI. nanobind's own part, of each version, is in the package nanobind-backend.
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
if(NOT nanobind_DIR AND NOT LOWTIDE_FOR_WHEEL)
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -m nanobind --cmake_dir
    OUTPUT_VARIABLE lt_nanobind_dir OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  list(APPEND CMAKE_PREFIX_PATH "${lt_nanobind_dir}")
endif()
find_package(nanobind 3.1 CONFIG QUIET)
if(NOT nanobind_FOUND)
  message(FATAL_ERROR "LOWTIDE_PYTHON needs nanobind >= 3.1: ${Python_EXECUTABLE} -m pip install nanobind nanobind-backend")
endif()

nanobind_add_module(
  _core BACKEND_MODULE nanobind_backend NB_SUPPRESS_WARNINGS NOMINSIZE
  python/collective_binding.cpp
  python/core_module.cpp
  python/error_binding.cpp
  python/mapped_file_binding.cpp
  python/measured_gradients.cpp
  python/optimizer_binding.cpp
  python/param_binding.cpp
  python/planning_binding.cpp
  python/py_optimizer.cpp
  python/python_allocator.cpp
  python/sign_binding.cpp
  python/spec_binding.cpp
  python/tensor_reader.cpp)
target_compile_definitions(_core PRIVATE LOWTIDE_VERSION="${PROJECT_VERSION}")
target_link_libraries(_core PRIVATE lowtide_objects)
set(lt_core_map "${PROJECT_BINARY_DIR}/core.map")
set(lt_core_exports "")
if(LOWTIDE_DEV)
  set(lt_core_exports " lt_*;")
endif()
configure_file("${PROJECT_SOURCE_DIR}/cmake/core.map.in" "${lt_core_map}" @ONLY)
target_link_options(_core PRIVATE "LINKER:--version-script=${lt_core_map}")
set_target_properties(_core PROPERTIES LINK_DEPENDS "${lt_core_map}")
# A wheel build makes only the target _core.
if(LOWTIDE_BNB)
  add_dependencies(_core lowtide_bnb)
endif()
foreach(plugin IN LISTS lt_plugins)
  add_dependencies(_core ${plugin})
endforeach()

# _core.pyi, the types for type checkers and editors, from the binding's signatures and texts. A module for another
# machine cannot be loaded, so it takes the types of this machine's.
set(LOWTIDE_CORE_STUB "" CACHE FILEPATH "The _core.pyi of another build; empty: made by loading the module")
set(lt_stub "${CMAKE_CURRENT_BINARY_DIR}/_core.pyi")
if(LOWTIDE_CORE_STUB)
  configure_file("${LOWTIDE_CORE_STUB}" "${lt_stub}" COPYONLY)
  add_custom_target(_core_stub)
else()
  nanobind_add_stub(
    _core_stub MODULE _core OUTPUT "${lt_stub}" PYTHON_PATH "$<TARGET_FILE_DIR:_core>"
    PATTERN_FILE "${CMAKE_CURRENT_SOURCE_DIR}/python/core_stub.pat" DEPENDS _core)
endif()

# A module for one machine lists the processor features that it needs (python/lowtide/__init__.py), as
# /proc/cpuinfo names them.
if(LOWTIDE_NATIVE AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  execute_process(COMMAND "${CMAKE_CXX_COMPILER}" -march=native -dM -E -x c++ /dev/null OUTPUT_VARIABLE lt_macros)
  set(lt_flags "")
  foreach(lt_set SSE4_2=sse4_2 POPCNT=popcnt MOVBE=movbe AVX=avx AVX2=avx2 FMA=fma F16C=f16c BMI=bmi1 BMI2=bmi2 LZCNT=abm
          ADX=adx GFNI=gfni VAES=vaes VPCLMULQDQ=vpclmulqdq AVX512F=avx512f AVX512CD=avx512cd AVX512DQ=avx512dq
          AVX512BW=avx512bw AVX512VL=avx512vl AVX512IFMA=avx512ifma AVX512VBMI=avx512vbmi AVX512VBMI2=avx512_vbmi2
          AVX512VNNI=avx512_vnni AVX512BITALG=avx512_bitalg AVX512VPOPCNTDQ=avx512_vpopcntdq AVXVNNI=avx_vnni)
    string(REPLACE "=" ";" lt_pair "${lt_set}")
    list(GET lt_pair 0 lt_macro)
    list(GET lt_pair 1 lt_flag)
    if(lt_macros MATCHES "#define __${lt_macro}__ 1")
      string(APPEND lt_flags "${lt_flag}\n")
    endif()
  endforeach()
  file(WRITE "${CMAKE_CURRENT_BINARY_DIR}/processor.txt" "${lt_flags}")
  install(FILES "${CMAKE_CURRENT_BINARY_DIR}/processor.txt" DESTINATION lowtide COMPONENT python EXCLUDE_FROM_ALL)
endif()

install(TARGETS _core LIBRARY DESTINATION lowtide COMPONENT python EXCLUDE_FROM_ALL)
install(FILES "${lt_stub}" DESTINATION lowtide COMPONENT python EXCLUDE_FROM_ALL)

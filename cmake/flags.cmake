# Compiler flags of all our code, as the target lowtide_flags; consumers of the library get none of them. Results must
# not depend on the compiler, so contraction is off and no fast-math flag is ever set.
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Release, RelWithDebInfo or Debug" FORCE)
endif()

add_library(lowtide_flags INTERFACE)
target_compile_features(lowtide_flags INTERFACE cxx_std_20 c_std_11)
target_compile_options(
  lowtide_flags
  INTERFACE -ffp-contract=off
            -fno-math-errno
            -Wall
            -Wextra
            -Wpedantic)

if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 17)
  # std::stable_sort of libstdc++ 12 uses a function that C++17 deprecates.
  target_compile_options(lowtide_flags INTERFACE -Wno-deprecated-declarations)
endif()

if(LOWTIDE_QUICK_KERNELS AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # The compiler does not sweep its memory: sweeping takes a seventh of the time of files that need a gigabyte.
  target_compile_options(lowtide_flags INTERFACE --param=ggc-min-expand=1000 --param=ggc-min-heapsize=2000000)
endif()

if(LOWTIDE_NATIVE)
  # Leaves out two extensions that make Highway see a newer instruction set than AVX-512; no kernel uses them.
  include(CheckCXXCompilerFlag)
  set(lt_native -march=native)
  check_cxx_compiler_flag("-mno-avx512bf16 -mno-avx512fp16" lt_has_newer_avx512)
  if(lt_has_newer_avx512)
    list(APPEND lt_native -mno-avx512bf16 -mno-avx512fp16)
  endif()
  target_compile_options(lowtide_flags INTERFACE ${lt_native})
  target_compile_definitions(lowtide_flags INTERFACE HWY_COMPILE_ONLY_STATIC)
endif()

if(LOWTIDE_SANITIZE)
  target_compile_options(lowtide_flags INTERFACE -fsanitize=${LOWTIDE_SANITIZE} -fno-sanitize-recover=all
                                                 -fno-omit-frame-pointer)
  target_link_options(lowtide_flags INTERFACE -fsanitize=${LOWTIDE_SANITIZE})
endif()

set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

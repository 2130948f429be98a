# The library needs Highway (SIMD with run-time dispatch) and threads.
find_package(Threads REQUIRED)

# lt_highway: the target to link; lt_highway_sources: the Highway sources that become part of the library.
set(LOWTIDE_HIGHWAY_SOURCE "" CACHE PATH "Highway's source folder, to be built into the library; empty: as installed")
if(LOWTIDE_HIGHWAY_SOURCE)
  if(NOT EXISTS "${LOWTIDE_HIGHWAY_SOURCE}/hwy/highway.h" OR NOT EXISTS "${LOWTIDE_HIGHWAY_SOURCE}/hwy/targets.cc")
    message(FATAL_ERROR "LOWTIDE_HIGHWAY_SOURCE: got ${LOWTIDE_HIGHWAY_SOURCE}, wanted a copy of "
                        "github.com/google/highway, with hwy/highway.h and hwy/targets.cc")
  endif()
  # They list the CPU's instruction sets, and the vector sizes that tell ARM64's apart; from 1.1 on, one reports errors.
  file(GLOB lt_highway_sources "${LOWTIDE_HIGHWAY_SOURCE}/hwy/targets.cc" "${LOWTIDE_HIGHWAY_SOURCE}/hwy/per_target.cc"
       "${LOWTIDE_HIGHWAY_SOURCE}/hwy/abort.cc")
  add_library(lowtide_highway INTERFACE)
  target_include_directories(lowtide_highway SYSTEM INTERFACE "${LOWTIDE_HIGHWAY_SOURCE}")
  target_compile_definitions(lowtide_highway INTERFACE HWY_STATIC_DEFINE)
  set(lt_highway $<BUILD_INTERFACE:lowtide_highway>)
else()
  find_package(hwy 1.0 QUIET)
  if(NOT hwy_FOUND)
    message(FATAL_ERROR "Lowtide needs Highway >= 1.0 (CMake package 'hwy'), which was not found.\n"
                        "Debian or Ubuntu: apt-get install libhwy-dev\n"
                        "Elsewhere: pass -DLOWTIDE_HIGHWAY_SOURCE=DIR, a copy of github.com/google/highway, or build it "
                        "and pass -Dhwy_DIR=PREFIX/lib/cmake/hwy")
  endif()
  set(lt_highway hwy::hwy)
  set(lt_highway_sources)
endif()

# Header-only libraries: xxHash (checksums of chunks), nlohmann-json (the checkpoint's header).
foreach(lt_header IN ITEMS "xxhash.h;xxHash;libxxhash-dev" "nlohmann/json.hpp;nlohmann-json;nlohmann-json3-dev")
  list(GET lt_header 0 lt_file)
  list(GET lt_header 1 lt_name)
  list(GET lt_header 2 lt_debian)
  find_path(LOWTIDE_HEADER_${lt_name} "${lt_file}")
  mark_as_advanced(LOWTIDE_HEADER_${lt_name})
  if(NOT LOWTIDE_HEADER_${lt_name})
    message(FATAL_ERROR "Lowtide needs ${lt_name} (the header ${lt_file}), which was not found.\n"
                        "Debian or Ubuntu: apt-get install ${lt_debian}\n"
                        "Elsewhere: pass -DLOWTIDE_HEADER_${lt_name}=FOLDER, the one with ${lt_file}")
  endif()
  target_include_directories(lowtide_flags SYSTEM INTERFACE "${LOWTIDE_HEADER_${lt_name}}")
endforeach()

if(LOWTIDE_DEV)
  find_package(GTest QUIET)
  if(NOT GTest_FOUND)
    message(FATAL_ERROR "LOWTIDE_DEV needs GoogleTest, which was not found.\n"
                        "Debian or Ubuntu: apt-get install libgtest-dev\n"
                        "Without tests: -DLOWTIDE_DEV=OFF")
  endif()
endif()

# The library needs Highway (SIMD with run-time dispatch) and threads.
find_package(Threads REQUIRED)

find_package(hwy 1.0 QUIET)
if(NOT hwy_FOUND)
  message(FATAL_ERROR "Lowtide needs Highway >= 1.0 (CMake package 'hwy'), which was not found.\n"
                      "Debian or Ubuntu: apt-get install libhwy-dev\n"
                      "Elsewhere: build github.com/google/highway and pass -Dhwy_DIR=PREFIX/lib/cmake/hwy")
endif()

if(LOWTIDE_DEV)
  find_package(GTest QUIET)
  if(NOT GTest_FOUND)
    message(FATAL_ERROR "LOWTIDE_DEV needs GoogleTest, which was not found.\n"
                        "Debian or Ubuntu: apt-get install libgtest-dev\n"
                        "Without tests: -DLOWTIDE_DEV=OFF")
  endif()
endif()

/* The version of these headers, for the preprocessor of C and C++; lt_version() and lowtide::version() give the version
 * of the running library. It is defined only here: CMake and the Python package read it from this file. */
#ifndef LOWTIDE_VERSION_H_
#define LOWTIDE_VERSION_H_

#define LOWTIDE_VERSION_MAJOR 0
#define LOWTIDE_VERSION_MINOR 1
#define LOWTIDE_VERSION_PATCH 0

/* Grows with every release: #if LOWTIDE_VERSION_NUMBER >= 200 is 0.2.0 or later. */
#define LOWTIDE_VERSION_NUMBER (LOWTIDE_VERSION_MAJOR * 10000 + LOWTIDE_VERSION_MINOR * 100 + LOWTIDE_VERSION_PATCH)

#endif

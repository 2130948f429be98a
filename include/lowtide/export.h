/* Marks the symbols that the shared library exports; all others are hidden. */
#pragma once

#if defined(_WIN32)
#error "Lowtide is built for POSIX systems; Windows is not supported yet"
#else
#define LT_API __attribute__((visibility("default")))
#endif

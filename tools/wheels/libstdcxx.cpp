// Functions that libstdc++'s headers call and the libstdc++.so.6 of manylinux_2_28 does not have: a wheel brings its
// own, by way of older ones.
#include <condition_variable>
#include <exception>
#include <new>

// libstdc++.a reads it, and glibc has it from 2.32 on: there may be several threads.
extern const char lt_single_threaded asm("__libc_single_threaded");
const char lt_single_threaded = 0;

// exception_ptr's copying and destruction, which headers made inline since.
asm(".symver lt_copy_exception_ptr, _ZNSt15__exception_ptr13exception_ptrC1ERKS0_@CXXABI_1.3.3\n"
    ".symver lt_destroy_exception_ptr, _ZNSt15__exception_ptr13exception_ptrD1Ev@CXXABI_1.3.3");
extern "C" void lt_copy_exception_ptr(void* copy, const void* from);
extern "C" void lt_destroy_exception_ptr(void* pointer);

namespace std {

void __throw_bad_array_new_length() { throw bad_array_new_length(); }

void __exception_ptr::exception_ptr::_M_addref() noexcept {
  alignas(exception_ptr) unsigned char copy[sizeof(exception_ptr)];
  lt_copy_exception_ptr(copy, this);  // and it is never destroyed
}

void __exception_ptr::exception_ptr::_M_release() noexcept { lt_destroy_exception_ptr(this); }

void condition_variable::wait(unique_lock<mutex>& lock) {
  pthread_cond_wait(native_handle(), lock.mutex()->native_handle());
}

}  // namespace std

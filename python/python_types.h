// Types of arguments and results as Python knows them where C++ sees less: what is in a dict, how a function is called.
// The build makes the stub _core.pyi from the binding; it has these texts.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <utility>

namespace lowtide::python {

#define LT_PYTHON_TYPE(Type, Parent, text)                           \
  struct Type : nanobind::Parent {                                   \
    using Base = nanobind::Parent;                                   \
    using Base::Base;                                                \
    Type() = default;                                                \
    Type(Base value) : Base(std::move(value)) {}                     \
    static constexpr auto Name = nanobind::detail::const_name(text); \
  }

LT_PYTHON_TYPE(Tensor, object, "torch.Tensor");
LT_PYTHON_TYPE(TensorDict, dict, "dict[str, torch.Tensor]");
LT_PYTHON_TYPE(FieldDict, dict, "dict[str, typing.Any]");
LT_PYTHON_TYPE(HyperDict, dict, "dict[str, float | bool]");
LT_PYTHON_TYPE(HyperValue, object, "float | bool");
LT_PYTHON_TYPE(Report, dict, "typing.Any");  // lowtide.report.fields.CoreReport, which stands above this module
LT_PYTHON_TYPE(Exchange, object, "collections.abc.Callable[[int, int, int], None]");  // send, receive, bytes for each
LT_PYTHON_TYPE(Ready, object, "collections.abc.Callable[[], bool]");
LT_PYTHON_TYPE(Allocate, object, "collections.abc.Callable[[int], int]");
LT_PYTHON_TYPE(Free, object, "collections.abc.Callable[[int], None]");

// Says, at a function's definition, that it runs without the GIL: it must touch nothing of Python's.
constexpr nanobind::call_guard<nanobind::gil_scoped_release> kReleased;

// An int of Python's: the address of memory that it keeps alive for the call, or of a queue; 0: none.
struct Address {
  uintptr_t value = 0;
  template <class T>
  operator T*() const {
    return reinterpret_cast<T*>(value);
  }
};

}  // namespace lowtide::python

namespace nanobind::detail {

template <>
struct type_caster<lowtide::python::Address> {
  NB_TYPE_CASTER(lowtide::python::Address, const_name("int"))
  bool from_python(handle source, auto flags, cleanup_list* cleanup) noexcept {
    make_caster<uintptr_t> number;
    if (!number.from_python(source, flags, cleanup)) return false;
    value.value = number.value;
    return true;
  }
};

}  // namespace nanobind::detail

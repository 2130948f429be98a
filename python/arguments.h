// Code that the files of the binding share: Python arguments and results, and the core's types made from them. Where
// Python types say more than C++ types (the contents of a dict, a function's arguments), a type has the text that the
// stub _core.pyi shows.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lowtide/optimizer.h"
#include "optim/hyper.h"
#include "optim/param_spec.h"

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
LT_PYTHON_TYPE(OptionDict, dict, "dict[str, str | int | None]");
LT_PYTHON_TYPE(NumberDict, dict, "dict[str, float]");
LT_PYTHON_TYPE(OptionValue, object, "str | int | None");
LT_PYTHON_TYPE(Report, dict, "typing.Any");  // lowtide.report.fields.CoreReport, which this module cannot import
LT_PYTHON_TYPE(Allocate, object, "collections.abc.Callable[[int], int]");
LT_PYTHON_TYPE(Free, object, "collections.abc.Callable[[int], None]");
LT_PYTHON_TYPE(NoteUse, object, "collections.abc.Callable[[int, int], None]");

// At a function's definition: it runs without the GIL and must not touch Python objects.
constexpr nanobind::call_guard<nanobind::gil_scoped_release> kReleased;

// Calls fn without the GIL: fn must not touch Python objects.
template <class Fn>
std::invoke_result_t<Fn> released(Fn&& fn) {
  const nanobind::gil_scoped_release nogil;
  return fn();
}

// A Python int: the address of memory that the caller keeps alive for the call, or of a queue; 0: none.
struct Address {
  uintptr_t value = 0;
  template <class T>
  operator T*() const {
    return reinterpret_cast<T*>(value);
  }
};

// Reads a dict whose keys are names. A missing key leaves its value unchanged; unknown keys are refused.
class Fields {
 public:
  // of: the kind of name, for errors.
  Fields(const nanobind::dict& given, const char* of) : given_(given), of_(of) {}

  // Reads the dict's value of this name, if it has one. Throws ValueError, naming `wanted`, for another type.
  template <class T>
  void take(const char* name, T& value, const char* wanted) {
    if (!given_.contains(name)) return;
    ++used_;
    try {
      value = nanobind::cast<T>(given_[name]);
    } catch (const nanobind::cast_error&) {
      const std::string got = nanobind::cast<std::string>(nanobind::repr(given_[name]));
      throw nanobind::value_error(("got " + std::string(name) + "=" + got + ", wanted " + wanted).c_str());
    }
  }

  // Throws ValueError if the dict has a key that no take() asked for.
  void done() const {
    if (used_ == given_.size()) return;
    const std::string keys = nanobind::cast<std::string>(nanobind::repr(given_.keys()));
    throw nanobind::value_error(("unknown " + std::string(of_) + " among " + keys).c_str());
  }

 private:
  const nanobind::dict& given_;
  const char* of_;
  size_t used_ = 0;
};

inline Hyper hyper_from(Hyper h, const HyperDict& given) {
  Fields fields(given, "hyper-parameter");
  for_each_hyper(h, [&](const char* name, auto& value) { fields.take(name, value, "a number"); });
  fields.done();
  return h;
}

// A lowtide.memory.budgets.Budget; None: no limit.
using GivenMemory = std::optional<std::tuple<int64_t, std::string, int64_t, int64_t, int64_t, bool, std::string, bool>>;

inline std::optional<Memory> memory_from(const GivenMemory& given) {
  if (!given) return std::nullopt;
  const auto& [host, disk, disk_limit, chunk, device, managed, transfer, automatic] = *given;
  return Memory{host, disk, disk_limit, chunk, device, managed, transfer, automatic};
}

// A group's options from lowtide/group.def, except its budget. None becomes "".
inline GroupOptions group_from(const OptionDict& given, const Hyper& hyper) {
  GroupOptions out{.hyper = hyper};
  Fields fields(given, "option");
  for_each_option(out, [&]<class T>(const char* name, T& value, bool) {
    if constexpr (std::is_same_v<T, std::string>) {
      std::optional<std::string> text = value;
      fields.take(name, text, "a str or None");
      value = text.value_or("");
    } else if constexpr (std::is_same_v<T, int64_t>) {
      fields.take(name, value, "an integer below 2^63");
    }
  });
  fields.done();
  return out;
}

// A shard: sizes of the whole, whether rows are cut, and where the shard begins.
using GivenWhole = std::optional<std::tuple<std::vector<int64_t>, bool, std::vector<int64_t>>>;

inline std::optional<WholeParam> whole_from(const GivenWhole& given) {
  if (!given) return std::nullopt;
  const auto& [sizes, rows_cut, offsets] = *given;
  return WholeParam{sizes, rows_cut, offsets};
}

// -- The parts of the module lowtide._core, each in x_binding.cpp.

void bind_collective(nanobind::module_& m);   // the collective over two Python functions
void bind_mapped_file(nanobind::module_& m);  // weights in a file, as memory
void bind_measured(nanobind::module_& m);     // gradients whose norm was measured
void bind_optimizer(nanobind::module_& m);    // the class Optimizer; saving and loading several
void bind_planning(nanobind::module_& m);     // planning and measured rates
void bind_sign(nanobind::module_& m);         // signs as bits: of arrays and of gradients
void bind_spec(nanobind::module_& m);         // questions about groups, parameters and codecs that need no optimizer

// Translates the core's errors to Python exceptions. An OSError has `complete`: true if everything but the write to
// disk was done. Errors of a collective have `cause`: "disagreement", "digest", "damage" or "rank failed".
void bind_errors(nanobind::module_& m);

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

#include "tensor_reader.h"

#include <algorithm>
#include <optional>
#include <string_view>

namespace lowtide::python {
namespace {

// The head of DLPack's exchange table (dlpack.h 1.2, struct DLPackExchangeAPI): the fields up to the one used.
struct ExchangeTable {
  struct Header {
    uint32_t major, minor;
    Header* previous;
  } header;
  void* allocator;
  void* managed_from_object;
  void* managed_to_object;
  int (*dltensor_from_object)(void* object, nb::dlpack::dltensor* out);
};

nb::object attribute(nb::handle object, const char* name) { return nb::getattr(object, name); }

bool dtype_from(uint8_t code, uint8_t bits, DType& out) {
  constexpr uint8_t kFloat = 2, kBfloat = 4;  // DLDataTypeCode
  if (code == kFloat && bits == 32) return out = DType::kF32, true;
  if (code == kBfloat && bits == 16) return out = DType::kBF16, true;
  if (code == kFloat && bits == 16) return out = DType::kF16, true;
  return false;
}

std::optional<DType> find_dtype(std::string_view name) {
  constexpr std::string_view kTorch = "torch.";
  if (name.starts_with(kTorch)) name.remove_prefix(kTorch.size());
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16})
    if (name == dtype_name(dtype)) return dtype;
  return std::nullopt;
}

// True for a tensor that stands in for others and has no memory: the arguments of functions under torch.func
// transforms, and the tensors with which torch.compile and fake-tensor modes trace.
bool stands_in(nb::handle tensor) {
  const nb::object torch = nb::module_::import_("torch");
  const nb::object of_func = attribute(attribute(torch, "_C"), "_functorch").attr("is_functorch_wrapped_tensor");
  return nb::cast<bool>(of_func(tensor)) || nb::cast<bool>(torch.attr("_is_functional_tensor")(tensor)) ||
         text_of(attribute(tensor.type(), "__module__")).starts_with("torch._subclasses.");
}

}  // namespace

void refuse_value(const std::string& message) { throw nb::value_error(message.c_str()); }
std::string text_of(nb::handle value) { return nb::cast<std::string>(nb::str(value)); }

nb::object local_tensor(nb::handle dtensor) {
  nb::object local = attribute(dtensor, "_local_tensor");
  // The result of a collective that may still run is a wrapper with its own type.
  return nb::hasattr(local, "trigger_wait") ? local.attr("wait")() : local;
}

bool TensorInfo::is_contiguous() const {
  int64_t expected = 1;
  for (int d = ndim - 1; d >= 0; --d) {
    if (shape[d] == 0) return true;
    if (shape[d] != 1 && strides[d] != expected) return false;
    expected *= shape[d];
  }
  return true;
}

bool TensorInfo::has_memory() const { return data || std::find(shape, shape + ndim, 0) != shape + ndim; }

TensorView TensorInfo::view() const { return {data, dtype, {shape, shape + ndim}, {strides, strides + ndim}}; }

void TensorAttribute::find(nb::handle tensor_class) {
  const nb::object getter = nb::getattr(tensor_class, nb::handle(name_));
  if (!Py_IS_TYPE(getter.ptr(), &PyGetSetDescr_Type)) return;
  getter_ = getter.ptr();
  get_ = reinterpret_cast<descrgetfunc>(PyType_GetSlot(&PyGetSetDescr_Type, Py_tp_descr_get));
}

TensorReader::TensorReader(std::string device) : device_(std::move(device)) {
  const nb::object torch = nb::module_::import_("torch");
  const nb::object tensor = torch.attr("Tensor");
  const nb::object capsule = nb::getattr(tensor, "__dlpack_c_exchange_api__", nb::none());
  if (!PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api")) return;
  const auto* table = static_cast<const ExchangeTable*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  if (table->header.major != 1) return;
  exchange_ = table->dltensor_from_object;
  // A subclass may differ from its memory (a wrapper without storage): read its attributes instead.
  exchange_types_[0] = tensor.ptr();
  exchange_types_[1] = nb::object(torch.attr("nn").attr("Parameter")).ptr();
  grad_.find(tensor);
  version_.find(tensor);
}

nb::object TensorReader::version(nb::handle tensor) const {
  try {
    return version_.of(tensor, is_exact(tensor));
  } catch (const nb::python_error& error) {
    if (!error.matches(PyExc_RuntimeError) || !nb::cast<bool>(tensor.attr("is_inference")())) throw;
    return nb::none();
  }
}

bool TensorReader::read(nb::handle tensor, TensorInfo& info) {
  if (!exchange_ || !is_exact(tensor)) return read_attributes(tensor, info);
  const bool learn = numbers_.device_type == 0;
  if (learn && !read_attributes(tensor, info)) return false;
  nb::dlpack::dltensor t;
  if (exchange_(tensor.ptr(), &t) != 0) {
    PyErr_Clear();  // sparse, for example; refuse() gives a better message
    return false;
  }
  if (learn) numbers_ = t.device;
  if (t.device.device_type != numbers_.device_type || t.device.device_id != numbers_.device_id || t.dtype.lanes != 1)
    return false;
  info.data = static_cast<std::byte*>(t.data) + t.byte_offset;
  info.ndim = t.ndim;
  info.shape = t.shape;
  info.strides = t.strides;
  return dtype_from(t.dtype.code, t.dtype.bits, info.dtype) && info.has_memory();
}

bool TensorReader::is_here(nb::handle tensor) const {
  const nb::object device = attribute(tensor, "device");
  return device_ == (device_ == "cpu" ? text_of(attribute(device, "type")) : text_of(device));
}

bool TensorReader::read_attributes(nb::handle tensor, TensorInfo& info) {
  const nb::object torch = nb::module_::import_("torch");
  if (!nb::isinstance(tensor, torch.attr("Tensor")) || !attribute(tensor, "layout").is(torch.attr("strided")) ||
      !is_here(tensor) || nb::hasattr(tensor, "_local_tensor") || stands_in(tensor))
    return false;
  const std::optional<DType> dtype = find_dtype(text_of(attribute(tensor, "dtype")));
  if (!dtype) return false;
  info.dtype = *dtype;
  shape_.clear();
  strides_.clear();
  for (const nb::handle size : attribute(tensor, "shape")) shape_.push_back(nb::cast<int64_t>(size));
  for (const nb::handle stride : attribute(tensor, "stride")()) strides_.push_back(nb::cast<int64_t>(stride));
  info.data = reinterpret_cast<void*>(nb::cast<uintptr_t>(attribute(tensor, "data_ptr")()));
  info.ndim = static_cast<int>(shape_.size());
  info.shape = shape_.data();
  info.strides = strides_.data();
  return info.has_memory();
}

void TensorReader::refuse(nb::handle tensor, const std::string& what) const {
  const nb::object torch = nb::module_::import_("torch");
  if (!nb::isinstance(tensor, torch.attr("Tensor")))
    throw nb::type_error(("got " + what + " of type " + text_of(tensor.type()) + ", wanted torch.Tensor").c_str());
  if (nb::hasattr(tensor, "_local_tensor"))
    refuse_value("got " + what + " as a DTensor, wanted a plain tensor: only DTensor parameters have such gradients");
  if (stands_in(tensor))
    refuse_value("got " + what + " as a tensor of torch.func, of functionalize or of a fake mode (" +
                 text_of(attribute(tensor.type(), "__name__")) +
                 "), which has no memory, wanted a tensor that has: call the optimizer outside of the function that is "
                 "transformed or traced");
  if (!is_here(tensor))
    refuse_value("got " + what + " on device '" + text_of(attribute(tensor, "device")) + "', wanted '" + device_ +
                 "': build a new optimizer for parameters that are elsewhere");
  const nb::object layout = attribute(tensor, "layout");
  if (!layout.is(torch.attr("strided")))
    refuse_value("got " + what + " of layout " + text_of(layout) +
                 ", wanted torch.strided (dense): an embedding layer gives such gradients with sparse=False");
  if (const nb::object dtype = attribute(tensor, "dtype"); !find_dtype(text_of(dtype)))
    refuse_value("got " + what + " of dtype " + text_of(dtype) +
                 ", wanted torch.float32, torch.bfloat16 or torch.float16");
  refuse_value("got " + what + " without memory (its storage was freed), wanted a dense tensor");
}

DType dtype_named(const std::string& name) {
  if (const std::optional<DType> dtype = find_dtype(name)) return *dtype;
  refuse_value("got dtype " + name + ", wanted float32, bfloat16 or float16");
}

}  // namespace lowtide::python

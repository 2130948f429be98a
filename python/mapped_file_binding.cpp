#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include "arguments.h"
#include "core/error.h"
#include "memory/mapped_file.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lowtide::python {

void bind_mapped_file(nb::module_& m) {
  using Released = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<MappedFile>(m, "MappedFile",
                         "Weights in an unnamed file of a directory, as memory (memory/mapped_file.h). Offsets and sizes: bytes, "
                         "multiples of 4096. Any thread. ValueError, OSError, MemoryError.")
      .def(
          "__init__",
          [](MappedFile* self, const std::string& directory, int64_t bytes) {
            const nb::gil_scoped_release others;
            new (self) MappedFile(system_env(), directory, bytes);
          },
          "directory"_a, "bytes"_a)
      .def(
          "tensor",
          [](nb::handle self, int64_t offset, int64_t bytes) {
            const MappedFile& file = nb::cast<const MappedFile&>(self);
            LT_REQUIRE(offset >= 0 && bytes >= 0 && bytes <= file.bytes() && offset <= file.bytes() - bytes,
                       "got %lld bytes at offset %lld, wanted them within %lld", ll(bytes), ll(offset), ll(file.bytes()));
            const size_t size = static_cast<size_t>(bytes);
            return nb::cast(nb::ndarray<nb::pytorch, uint8_t>(file.data() + offset, 1, &size, self));
          },
          "offset"_a, "bytes"_a, nb::sig("def tensor(self, offset: int, bytes: int) -> Any"),
          "The memory as uint8, with a storage of its own, which keeps the file.")
      .def("bring", &MappedFile::bring, "offset"_a, "bytes"_a, Released())
      .def("let_go", &MappedFile::let_go, "offset"_a, "bytes"_a, "changed"_a, Released())
      .def_prop_ro("read_bytes", &MappedFile::read_bytes)
      .def_prop_ro("written_bytes", &MappedFile::written_bytes);
}

}  // namespace lowtide::python

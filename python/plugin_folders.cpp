#include "plugin_folders.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

#include "backend/plugin.h"
#include "backend/registry.h"

namespace nb = nanobind;

namespace lowtide::python {

void add_plugin_folders() {
  for (const PluginPackage& one : kPluginPackages) {
    try {
      const nb::object spec = nb::module_::import_("importlib.util").attr("find_spec")(one.package);
      if (spec.is_none()) continue;
      for (const nb::handle folder : spec.attr("submodule_search_locations"))
        add_plugin_folder(nb::cast<std::string>(folder));
    } catch (const nb::python_error&) {  // from a foreign finder in sys.meta_path
    }
  }
}

}  // namespace lowtide::python

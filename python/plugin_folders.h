// Finds plug-ins that are separate Python packages (backend/plugin.h).
#pragma once

namespace lowtide::python {

// Tells the library where these packages are. Skips a package that cannot be found: backends() reports it as missing.
void add_plugin_folders();

}  // namespace lowtide::python

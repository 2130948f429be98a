// Plug-ins that are Python packages of their own (backend/plugin.h), wherever Python finds them.
#pragma once

namespace lowtide::python {

// Tells the library where these packages are. One that cannot be found is passed over: backends() says that it is
// missing.
void add_plugin_folders();

}  // namespace lowtide::python

// Compiles SYCL device programs to SPIR-V with the compiler inside libsycl; the build runs it (plugin.cmake).
//   spirv_compiler OPTION... -- SOURCE OUT [SOURCE OUT]...
// Exits 1 with the compiler's message if a program does not compile.
#include <sycl/sycl.hpp>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

namespace {
namespace sx = sycl::ext::oneapi::experimental;

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path);
  return {std::istreambuf_iterator<char>(file), {}};
}

sycl::device find_device() {
  for (sycl::device device : sycl::device::get_devices())
    if (device.ext_oneapi_can_compile(sx::source_language::sycl)) return device;
  throw std::runtime_error("no device that libsycl can compile kernels for; pip install intel-opencl-rt brings one");
}

void compile(const sycl::device& device, const std::vector<std::string>& options, const std::string& source,
             const std::string& out) {
  const sycl::context context(device);
  auto bundle = sx::create_kernel_bundle_from_source(context, sx::source_language::sycl, read(source));
  auto built = sx::build(bundle, {device}, sx::properties{sx::build_options{options}});
  std::vector<std::vector<std::byte>> images;
  for (const auto& image : built) images.push_back(image.ext_oneapi_get_backend_content());
  if (images.size() != 1 || images[0].empty())
    throw std::runtime_error(source + ": got " + std::to_string(images.size()) +
                             " device images, wanted one that is not empty: kernels of a program may not differ in "
                             "what they need of a device, nor use device libraries");
  std::ofstream file(out, std::ios::binary);
  file.write(reinterpret_cast<const char*>(images[0].data()), static_cast<std::streamsize>(images[0].size()));
  if (!file.flush()) throw std::runtime_error("cannot write " + out);
}

void run(const std::vector<std::string>& words) {
  const auto dashes = std::find(words.begin(), words.end(), "--");
  const std::vector<std::string> options(words.begin(), dashes);
  const auto files = words.end() - dashes - 1;
  if (files < 2 || files % 2) throw std::runtime_error("wanted: spirv_compiler OPTION... -- SOURCE OUT...");
  const sycl::device device = find_device();
  for (auto word = dashes + 1; word != words.end(); word += 2) compile(device, options, word[0], word[1]);
}
}  // namespace

int main(int argc, char** argv) {
  try {
    run({argv + 1, argv + argc});
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}

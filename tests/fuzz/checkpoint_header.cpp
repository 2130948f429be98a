// Fuzzes the JSON header of checkpoints. What is decoded and valid comes back from its own encoding.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "lowtide/error.h"
#include "optim/checkpoint_format.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lowtide;
  try {
    const Checkpoint read = checkpoint::decode_header({reinterpret_cast<const char*>(data), size});
    checkpoint::arrays_of(read);
    const std::string text = checkpoint::encode_header(read);
    if (checkpoint::encode_header(checkpoint::decode_header(text)) != text) __builtin_trap();
  } catch (const Error&) {
  }
  return 0;
}

#include "backend/kernels/codec_tables.h"

#include <memory>

namespace lowtide::kernels {
namespace {
#include "portable/portable.h"

template <class C>
std::vector<std::byte> tables_of() {
  const auto tables = std::make_unique<typename C::Tables>();
  if constexpr (requires(typename C::Tables t) { C::make_tables(t); }) C::make_tables(*tables);
  const auto* bytes = reinterpret_cast<const std::byte*>(tables.get());
  return {bytes, bytes + sizeof *tables};
}
}  // namespace

std::vector<std::byte> codec_tables(int codec) {
  switch (codec) {
#define LT_CODEC(number, name, C) \
  case number:                    \
    return tables_of<C>();
#include "portable/codecs.def"
#undef LT_CODEC
  }
  return {};
}

}  // namespace lowtide::kernels

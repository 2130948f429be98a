// The codecs' tables as bytes, to be copied to a device.
#pragma once

#include <cstddef>
#include <vector>

namespace lowtide::kernels {

// The tables of the codec with this number. A codec without tables has something, too, that kernels can refer to.
std::vector<std::byte> codec_tables(int codec);

}  // namespace lowtide::kernels

// The codecs' tables as bytes, to be copied to a device.
#pragma once

#include <cstddef>
#include <vector>

namespace lowtide::kernels {

// Of the codec with this number: also a codec without any has something that kernels can refer to.
std::vector<std::byte> codec_tables(int codec);

}  // namespace lowtide::kernels

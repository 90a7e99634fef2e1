// libFuzzer target: model.safetensors.index.json out of arbitrary bytes. It is refused with a
// ValueError, or names files beside it only, and written again it reads the same.
#include <cstdint>
#include <cstdlib>

#include "automoe/error.h"
#include "hub/shard_index.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace automoe::hub;
  try {
    const auto map = parse_index({reinterpret_cast<const char*>(data), size}, "x");
    for (const auto& [tensor, file] : map)
      if (file.find('/') != std::string::npos || !file.ends_with(".safetensors")) std::abort();
    if (parse_index(emit_index(map, 1, 2), "y") != map) std::abort();
  } catch (const automoe::ValueError&) {
  }
  return 0;
}

// Peak memory, for metrics.
#pragma once

#include <c10/core/Device.h>

namespace automoe::train {

/// Most memory used so far, in GiB: of the process on the CPU, of the allocator elsewhere.
double peak_memory_gib(c10::Device device);

}  // namespace automoe::train

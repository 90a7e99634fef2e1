#include "train/memory.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <sys/resource.h>

namespace automoe::train {
namespace {

constexpr double kGib = 1024.0 * 1024.0 * 1024.0;

}  // namespace

double peak_memory_gib(c10::Device device) {
  if (device.is_cpu()) {
    struct rusage usage {};
    getrusage(RUSAGE_SELF, &usage);
    return double(usage.ru_maxrss) * 1024.0 / kGib;  // Linux counts in KiB
  }
  const auto stats = c10::getDeviceAllocator(device.type())
                         ->getDeviceStats(device.has_index() ? device.index() : 0);
  return double(stats.allocated_bytes[size_t(c10::CachingAllocator::StatType::AGGREGATE)].peak) /
         kGib;
}

}  // namespace automoe::train

// What loading and saving both ask of a list of parameters.
#pragma once

#include <vector>

#include "automoe/checkpoint.h"

namespace automoe::hub {

/// Throws ValueError naming the parameter: a name twice, two names for one memory (a tied head is
/// listed once), no memory (meta device), no strided layout.
void check_parameters(const std::vector<NamedTensor>& parameters);

/// Waits for all work on the devices that hold parameters: loading and saving run on streams of
/// their own.
void synchronize_devices(const std::vector<NamedTensor>& parameters);

}  // namespace automoe::hub

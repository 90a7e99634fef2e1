// What every block of one forward pass sees besides its input.
#pragma once

#include "blocks/params.h"
#include "blocks/recompute.h"
#include "blocks/sequences.h"

namespace automoe::blocks {

struct RopeTables {
  Tensor cos, sin;  // [T, d/2] in the model's dtype
};

struct Context {
  const Params& params;
  const Sequences& sequences;
  const RopeTables& rope;
  Recompute recompute = Recompute::kNorms;
};

}  // namespace automoe::blocks

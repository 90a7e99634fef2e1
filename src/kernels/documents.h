// The documents of a token stream: attention never crosses their boundaries.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace automoe::kernels {

/// T tokens, document d being [ends[d-1], ends[d]). Never empty documents.
struct Documents {
  std::vector<int64_t> ends;  // ascending; the last one is T
  at::Tensor offsets;         // [D + 1] int32 on the tokens' device, 0 first
  int64_t longest = 0;
  bool equal = false;  // all documents have `longest` tokens

  /// Throws ValueError unless `ends` ascends strictly from above 0.
  static Documents from_ends(std::vector<int64_t> ends, at::Device device);
  int64_t count() const { return static_cast<int64_t>(ends.size()); }
  int64_t tokens() const { return ends.empty() ? 0 : ends.back(); }
};

}  // namespace automoe::kernels

// MXFP4 (OCP Microscaling Formats 1.0, section 5.3): numbers of 4 bits (E2M1); 32 of them share a
// power of two. As GPT-OSS is published: beside the name of a parameter [..., K, N], whose numbers
// run along K, "<name>_blocks" [..., N, K / 32, 16] holds two numbers a byte, the low half first,
// and "<name>_scales" [..., N, K / 32] the exponents, 127 for 1.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "hub/safetensors.h"

namespace automoe::hub {

inline std::string mxfp4_blocks_name(const std::string& name) { return name + "_blocks"; }
inline std::string mxfp4_scales_name(const std::string& name) { return name + "_scales"; }

/// Shape of the scales for a parameter of this shape, that of the blocks without its 16; nothing
/// for shapes that have none.
std::optional<std::vector<int64_t>> mxfp4_scales_shape(const std::vector<int64_t>& parameter);

/// Appends the transfers that fill `tensor` [..., K, N]; blocks and scales have the shapes above.
void add_mxfp4_transfers(const File& blocks_file, const TensorEntry& blocks,
                         const File& scales_file, const TensorEntry& scales,
                         const at::Tensor& tensor, std::vector<Transfer>& transfers);

/// Reads one of them: value * 2^(exponent - 127), rounded to the tensor's type, which gives
/// Transformers' numbers bit for bit.
void read_mxfp4(const Transfer& transfer);

}  // namespace automoe::hub

// Hugging Face checkpoints on disk: which file tensors fill which parameter, reading and writing.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

namespace automoe {

/// How file tensors may also be stored. They are dequantised as they are read, and saved as plain
/// numbers.
enum class Quantised {
  kNone,
  kMxfp4  // "<disk>_blocks" and "<disk>_scales", dims swapped: src/hub/mxfp4.h
};

/// One row of a family's name table: how a parameter is spelled on disk. Names without a row are
/// the same on both sides. The disk pattern says the whole layout:
///   {layer}    any number, the same on both sides
///   {rest}     whatever follows, the same on both sides; at the end
///   {expert}   the parameter's dim 0 is cut into one file tensor per expert
///   {a,b,...}  what is left of dim 0 is cut into equal parts, in this order
/// The first rule that fits counts. Example:
/// "model.layers.{layer}.mlp.experts.{expert}.{gate_proj,up_proj}.weight" fills
/// "model.layers.{layer}.mlp.experts.gate_up_proj" [E, 2I, H] from 2E tensors [I, H].
struct NameRule {
  std::string disk;
  std::string parameter;
  Quantised quantised = Quantised::kNone;
};
using NameMap = std::vector<NameRule>;

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

/// What load_checkpoint found, for a report to the user.
struct LoadReport {
  int64_t tensors = 0;  // file tensors read
  int64_t bytes = 0;    // bytes read
  double seconds = 0;
  std::vector<std::string> ignored;  // file tensors that no parameter wants and `ignore` allows
};

struct LoadOptions {
  std::vector<std::string>
      ignore;       // patterns of file tensors that may stay unused ({layer}, {expert}, {rest})
  int threads = 0;  // 0: one per core, at most 8
};

/// Fills every parameter from the safetensors files of `folder` (model.safetensors, or the shards
/// named by model.safetensors.index.json; or `folder` is itself such a file), in place: any dtype
/// and device; dtypes are converted. Reads by slice and in parallel, telling rate and time left on
/// stderr if it takes long; host memory beyond the parameters stays under 1 GiB. A parameter is
/// also accepted under its own fused name. Every parameter is filled exactly once and every file
/// tensor is used or matched by `ignore`. Throws ValueError naming file and tensor, what was
/// expected and found: missing, unexpected, wrong-shaped, duplicated or truncated tensors, a
/// corrupt header, an index that lies.
LoadReport load_checkpoint(const std::filesystem::path& folder, const NameMap& names,
                           const std::vector<NamedTensor>& parameters,
                           const LoadOptions& options = {});

struct SaveOptions {
  int64_t max_shard_bytes = 50'000'000'000;  // Transformers' default, "50GB"
  std::set<std::string> buffers = {};        // those of `parameters` that an index does not count
  /// File tensors of another folder that are saved too, bit for bit: patterns as in
  /// LoadOptions::ignore. Should the folder be gone, that is a warning.
  std::vector<std::string> carry = {};
  std::filesystem::path carry_from = {};
};

/// Writes `parameters` as safetensors into `folder` under their disk names, sharded, named and laid
/// out as Transformers does: model.safetensors, or model-0000i-of-0000n.safetensors and the index.
/// Other files of `folder` stay, stale shards go. All files are written under temporary names,
/// flushed, and renamed last: after a crash the folder holds the old weights or the new ones.
/// Throws RuntimeError naming the bytes needed and free if the disk is too small, before writing.
void save_checkpoint(const std::filesystem::path& folder, const NameMap& names,
                     const std::vector<NamedTensor>& parameters, const SaveOptions& options = {});

}  // namespace automoe

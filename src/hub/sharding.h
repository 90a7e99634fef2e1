// How Transformers orders tensors and spreads them over files. Needs no Torch header.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace automoe::hub {

/// Whether parameter `a` comes before `b`: between dots, numbers by value before words, and a
/// word's trailing number by value too.
bool natural_less(std::string_view a, std::string_view b);

/// Shards as lists of block numbers. Blocks fill a shard in order until one does not fit; one
/// larger than `max_bytes` gets a shard of its own, which comes before the one being filled.
std::vector<std::vector<size_t>> split_into_shards(const std::vector<uint64_t>& block_bytes,
                                                   uint64_t max_bytes);

/// model.safetensors if there is one shard, else model-0000i-of-0000n.safetensors; `shard` from 0.
std::string shard_file_name(size_t shard, size_t num_shards);

/// Whether a file of this name is a shard that some save has written.
bool is_shard_file_name(std::string_view name);

}  // namespace automoe::hub

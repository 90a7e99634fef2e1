#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "automoe/checkpoint.h"
#include "automoe/error.h"
#include "core/file.h"
#include "core/log.h"
#include "core/text.h"
#include "hub/jobs.h"
#include "hub/name_map.h"
#include "hub/parameters.h"
#include "hub/publish.h"
#include "hub/safetensors.h"
#include "hub/sharding.h"
#include "hub/weights_folder.h"

namespace automoe {
namespace hub {
namespace {

// A tensor of the new files: out of a parameter, or carried over from another file.
struct Piece {
  std::string name;
  at::Tensor tensor;
  std::optional<FileTensor> carried = std::nullopt;

  Dtype dtype() const { return carried ? carried->entry->dtype : dtype_of(tensor.scalar_type()); }
  std::vector<int64_t> shape() const {
    return carried ? carried->entry->shape : tensor.sizes().vec();
  }
  uint64_t bytes() const {
    return carried ? carried->entry->end - carried->entry->begin : tensor.nbytes();
  }
};
using Block = std::vector<Piece>;  // stays within one shard

// A file as it is to be written.
struct Shard {
  std::vector<TensorEntry> entries;
  std::string header;
  std::map<std::string, Piece> pieces;

  uint64_t file_bytes() const { return entries.empty() ? header.size() : entries.back().end; }
};

uint64_t bytes_of(const Block& block) {
  return std::accumulate(block.begin(), block.end(), uint64_t{0},
                         [](uint64_t sum, const Piece& piece) { return sum + piece.bytes(); });
}

// The folder that tensors are carried over from, if there is anything to carry.
std::optional<WeightsFolder> source_of(const SaveOptions& options) {
  if (options.carry.empty() || options.carry_from.empty()) return std::nullopt;
  try {
    return std::make_optional<WeightsFolder>(options.carry_from);
  } catch (const ValueError& error) {
    warn_once(text("[checkpoint] ", join(options.carry), " cannot be saved along: ", error.what()));
    return std::nullopt;
  }
}

// One block each, behind those of the parameters.
void add_carried(const WeightsFolder& source, const std::vector<std::string>& patterns,
                 std::vector<Block>& blocks) {
  std::set<std::string_view> saved;
  for (const Block& block : blocks)
    for (const Piece& piece : block) saved.insert(piece.name);
  const std::vector<NamePattern> wanted(patterns.begin(), patterns.end());
  std::vector<Block> carried;
  for (const auto& [name, from] : source.tensors())
    if (!saved.contains(name) &&
        std::ranges::any_of(wanted, [&](const auto& pattern) { return pattern.matches(name); }))
      carried.push_back({{std::string(name), at::Tensor(), from}});
  std::ranges::move(carried, std::back_inserter(blocks));
}

// In Transformers' order: parameters by natural name order, then as NameTable cuts them.
std::vector<Block> blocks_of(const NameMap& names, const std::vector<NamedTensor>& parameters) {
  const NameTable table(names);
  std::vector<const NamedTensor*> ordered;
  for (const NamedTensor& parameter : parameters) ordered.push_back(&parameter);
  std::stable_sort(ordered.begin(), ordered.end(), [](const NamedTensor* a, const NamedTensor* b) {
    return natural_less(a->name, b->name);
  });
  std::vector<Block> blocks;
  std::set<std::string> seen;
  for (const NamedTensor* parameter : ordered) {
    const size_t first = blocks.size();
    for (const DiskTensor& part : table.expand(parameter->name, parameter->tensor.sizes().vec())) {
      AUTOMOE_CHECK_VALUE(seen.insert(part.name).second,
                          "[checkpoint] two parameters would be saved as '", part.name,
                          "'; one of them is '", parameter->name, "'");
      blocks.resize(std::max(blocks.size(), first + size_t(part.block) + 1));
      blocks[first + size_t(part.block)].push_back(
          {part.name, part.part_of(parameter->tensor.detach())});
    }
  }
  return blocks;
}

std::vector<Shard> shards_of(const std::vector<Block>& blocks, int64_t max_shard_bytes) {
  std::vector<uint64_t> sizes;
  for (const Block& block : blocks) sizes.push_back(bytes_of(block));
  std::vector<Shard> shards;
  for (const std::vector<size_t>& members : split_into_shards(sizes, uint64_t(max_shard_bytes))) {
    Shard& shard = shards.emplace_back();
    for (const size_t member : members)
      for (const Piece& piece : blocks[member]) {
        shard.entries.push_back({piece.name, piece.dtype(), piece.shape()});
        shard.pieces.emplace(piece.name, piece);
      }
    shard.header = lay_out(shard.entries);
  }
  return shards;
}

// Checks for room before anything is written; an index entry takes less than its header entry and
// 100 bytes.
void require_room(const std::filesystem::path& folder, const std::vector<Shard>& shards) {
  uint64_t needed = 0;
  for (const Shard& shard : shards) {
    require_file_size_allowed(folder / "model.safetensors", shard.file_bytes());
    needed += shard.file_bytes() + shard.header.size() + 100 * shard.entries.size();
  }
  require_free_space(folder, needed);
}

std::vector<StagedShard> stage_names(const std::filesystem::path& folder,
                                     const std::vector<Shard>& shards) {
  std::vector<StagedShard> staged;
  for (const Shard& shard : shards) {
    const std::string name = shard_file_name(staged.size(), shards.size());
    StagedShard& now = staged.emplace_back(StagedShard{temporary_for(folder, name), name, {}});
    for (const TensorEntry& entry : shard.entries) now.tensors.push_back(entry.name);
  }
  return staged;
}

// Bytes that go from file to file as they are.
struct Copy {
  const File *from, *to;
  uint64_t read_at, write_at, bytes;
};

constexpr uint64_t kCopyBytes = 16 << 20;

void add_copies(const FileTensor& from, const File& to, uint64_t begin, std::vector<Copy>& copies) {
  const uint64_t bytes = from.entry->end - from.entry->begin;
  for (uint64_t done = 0; done < bytes; done += kCopyBytes)
    copies.push_back({from.file, &to, from.entry->begin + done, begin + done,
                      std::min(kCopyBytes, bytes - done)});
}

void run(const Copy& copy) {
  std::vector<std::byte> buffer(copy.bytes);
  copy.from->read_at(copy.read_at, buffer);
  copy.to->write_at(copy.write_at, buffer);
}

void write_shards(const std::vector<Shard>& shards, const std::vector<StagedShard>& staged) {
  std::vector<File> files;
  files.reserve(shards.size());  // transfers point to them
  std::vector<Transfer> transfers;
  std::vector<Copy> copies;
  for (size_t i = 0; i < shards.size(); ++i) {
    const File& file = files.emplace_back(File::create(staged[i].temporary));
    file.reserve(shards[i].file_bytes());
    file.write_at(0, std::as_bytes(std::span(shards[i].header)));
    for (const TensorEntry& entry : shards[i].entries) {
      const Piece& piece = shards[i].pieces.at(entry.name);
      if (piece.carried)
        add_copies(*piece.carried, file, entry.begin, copies);
      else
        add_transfers(file, entry, piece.tensor, transfers);
    }
  }
  run_jobs(transfers.size(), num_threads_for(0), [&](size_t i) { write_transfer(transfers[i]); });
  run_jobs(copies.size(), num_threads_for(0), [&](size_t i) { run(copies[i]); });
  for (const File& file : files) file.flush();
}

// Reads back the header, and with it the size, of each file that was written.
void check_written(const std::vector<Shard>& shards, const std::vector<StagedShard>& staged) {
  for (size_t i = 0; i < shards.size(); ++i)
    AUTOMOE_CHECK(SafetensorsFile(staged[i].temporary).tensors() == shards[i].entries,
                  "[checkpoint] ", staged[i].temporary.string(),
                  " does not hold what was written; is the disk failing?");
}

}  // namespace
}  // namespace hub

void save_checkpoint(const std::filesystem::path& folder, const NameMap& names,
                     const std::vector<NamedTensor>& parameters, const SaveOptions& options) {
  AUTOMOE_CHECK_VALUE(options.max_shard_bytes > 0,
                      "[checkpoint] max_shard_bytes must be positive, found ",
                      options.max_shard_bytes);
  hub::check_parameters(parameters);
  std::vector<hub::Block> blocks = hub::blocks_of(names, parameters);
  const std::optional<hub::WeightsFolder> source = hub::source_of(options);
  if (source) hub::add_carried(*source, options.carry, blocks);
  const std::vector<hub::Shard> shards = hub::shards_of(blocks, options.max_shard_bytes);
  int64_t total_parameters = 0, total_bytes = 0;
  for (const NamedTensor& parameter : parameters)
    if (!options.buffers.contains(parameter.name)) total_parameters += parameter.tensor.numel();
  for (const hub::Block& block : blocks) total_bytes += int64_t(hub::bytes_of(block));

  AUTOMOE_CHECK_VALUE(!std::filesystem::is_regular_file(folder), "[checkpoint] cannot save into ",
                      folder.string(), ": it is a file, expected a folder");
  std::filesystem::create_directories(folder);
  hub::remove_leftovers(folder);
  hub::require_room(folder, shards);
  hub::synchronize_devices(parameters);
  const std::vector<hub::StagedShard> staged = hub::stage_names(folder, shards);
  try {
    hub::write_shards(shards, staged);
    hub::check_written(shards, staged);
    for (const auto& step : hub::publication(folder, staged, total_parameters, total_bytes)) step();
  } catch (...) {
    hub::remove_leftovers(folder);
    throw;
  }
}

}  // namespace automoe

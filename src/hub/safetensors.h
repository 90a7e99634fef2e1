// Safetensors files and tensors: bytes straight between a file and tensor storage, piece by piece.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <vector>

#include "core/file.h"
#include "hub/safetensors_header.h"

namespace automoe::hub {

/// The format's type for a tensor's. Throws ValueError if it has none.
Dtype dtype_of(at::ScalarType type);

/// A safetensors file open for reading, its header checked.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  const File& file() const { return file_; }
  const std::vector<TensorEntry>& tensors() const { return tensors_; }  // in file order

 private:
  File file_;
  std::vector<TensorEntry> tensors_;
};

/// Where the scales of quantised numbers lie.
struct BlockScales {
  const File* file;
  uint64_t offset, bytes;
};

/// Bytes of a file and the tensor they fill or come from; at most some 16 MiB, so that threads
/// share large tensors. The tensor may lie on any device, with any strides.
struct Transfer {
  const File* file = nullptr;
  uint64_t offset = 0;
  Dtype dtype = Dtype::kF32;  // of the bytes
  at::Tensor tensor;
  std::optional<BlockScales> scales = std::nullopt;  // the bytes are numbers to be scaled
};

/// Appends the transfers of one file tensor. Its shape must be that of `tensor`.
void add_transfers(const File& file, const TensorEntry& entry, const at::Tensor& tensor,
                   std::vector<Transfer>& transfers);

/// Throws ValueError, beginning with `where`, if this file tensor cannot become a tensor of type
/// `wanted`: types without a counterpart, and integers for floats, which need scales that we do not
/// know.
void check_convertible(const TensorEntry& entry, at::ScalarType wanted, const std::string& where);

/// File to tensor, converting the type; dequantising where there are scales. Needs no memory on the
/// host where the types agree, the tensor is contiguous and lies there; else a small staging
/// tensor.
void read_transfer(const Transfer& transfer);

/// Reads all of them on up to `threads` threads, which tell `on_read` of the bytes as they come.
void read_transfers(std::vector<Transfer> transfers, int threads,
                    const std::function<void(uint64_t bytes)>& on_read);

/// Tensor to file. The types must agree.
void write_transfer(const Transfer& transfer);

}  // namespace automoe::hub

// The header of a safetensors file: 8 bytes of length, then JSON that names each tensor's dtype,
// shape and bytes. Needs no Torch header, so that fuzzers link it alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace automoe::hub {

/// Element types of the format, in the order in which a writer lays tensors out.
enum class Dtype : uint8_t {
  kU64,
  kI64,
  kF64,
  kC64,
  kF32,
  kU32,
  kI32,
  kBF16,
  kF16,
  kU16,
  kI16,
  kF8E5M2FNUZ,
  kF8E4M3FNUZ,
  kF8E8M0,
  kF8E4M3,
  kF8E5M2,
  kI8,
  kU8,
  kF6E3M2,
  kF6E2M3,
  kF4,
  kBool
};

std::string_view dtype_name(Dtype dtype);  // "BF16"
std::optional<Dtype> dtype_from(std::string_view name);
int dtype_bits(Dtype dtype);

struct TensorEntry {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;  // bytes from the start of the file

  bool operator==(const TensorEntry&) const = default;
};

/// "BF16 [2, 3]", for messages.
std::string describe(const TensorEntry& tensor);

/// Bytes that a tensor of this dtype and shape takes; nothing if that is no whole number of bytes
/// or does not fit 64 bits.
std::optional<uint64_t> tensor_bytes(Dtype dtype, const std::vector<int64_t>& shape);

constexpr size_t kLengthBytes = 8;

/// Length of the JSON, from the first bytes of a file (8, or all if it is shorter).
/// Throws ValueError that names `file` if no header of that length can be in a file of
/// `file_bytes`.
uint64_t header_length(std::string_view first_bytes, uint64_t file_bytes, const std::string& file);

/// The tensors that the JSON names, in file order, checked in full: JSON and UTF-8, no name twice,
/// known dtypes, shape x dtype = bytes, and byte ranges that cover the rest of the file without gap
/// or overlap. Throws ValueError that names `file`, the tensor, what was expected and found.
std::vector<TensorEntry> parse_header(std::string_view json, uint64_t file_bytes,
                                      const std::string& file);

/// Puts `tensors` into file order, sets their byte ranges, and returns the header, length included.
/// Equal byte for byte to what the safetensors library writes with metadata {"format": "pt"}.
std::string lay_out(std::vector<TensorEntry>& tensors);

}  // namespace automoe::hub

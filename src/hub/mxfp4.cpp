#include "hub/mxfp4.h"

#include <ATen/Dispatch.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "automoe/error.h"

namespace automoe::hub {
namespace {

constexpr int64_t kBlock = 32, kBlockBytes = kBlock / 2;
constexpr int64_t kTransferBytes = 16 << 20;
constexpr int64_t kTileRows = 64;  // rows of N read at a time: their bytes stay in the core's cache

constexpr std::array<float, 8> kMagnitudes{0, 0.5, 1, 1.5, 2, 3, 4, 6};

float number_of(uint8_t bits) { return bits & 8 ? -kMagnitudes[bits & 7] : kMagnitudes[bits & 7]; }

// The two numbers of every byte.
const std::array<std::array<float, 2>, 256>& pairs() {
  static const auto table = [] {
    std::array<std::array<float, 2>, 256> pairs;
    for (int byte = 0; byte < 256; ++byte)
      pairs[byte] = {number_of(byte & 15), number_of(byte >> 4)};
    return pairs;
  }();
  return table;
}

// `rows` rows of blocks, one after another -> out [K, rows], its rows `stride` apart.
template <typename T>
void dequantise(const uint8_t* blocks, const uint8_t* scales, int64_t rows, int64_t blocks_per_row,
                T* out, int64_t stride) {
  const auto& numbers = pairs();
  for (int64_t block = 0; block < blocks_per_row; ++block)
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t at = row * blocks_per_row + block;
      const double scale = std::ldexp(1.0, scales[at] - 127);  // fp32 has no 2^128
      T* to = out + block * kBlock * stride + row;
      for (int64_t i = 0; i < kBlockBytes; ++i) {
        const auto& [low, high] = numbers[blocks[at * kBlockBytes + i]];
        to[2 * i * stride] = T(low * scale);
        to[(2 * i + 1) * stride] = T(high * scale);
      }
    }
}

std::span<std::byte> bytes_of(std::vector<uint8_t>& buffer) {
  return std::as_writable_bytes(std::span(buffer));
}

}  // namespace

std::optional<std::vector<int64_t>> mxfp4_scales_shape(const std::vector<int64_t>& parameter) {
  const size_t dims = parameter.size();
  if (dims < 2 || parameter[dims - 2] % kBlock != 0) return std::nullopt;
  std::vector<int64_t> scales(parameter);
  scales[dims - 2] = parameter[dims - 1];
  scales[dims - 1] = parameter[dims - 2] / kBlock;
  return scales;
}

void add_mxfp4_transfers(const File& blocks_file, const TensorEntry& blocks,
                         const File& scales_file, const TensorEntry& scales,
                         const at::Tensor& tensor, std::vector<Transfer>& transfers) {
  if (tensor.numel() == 0) return;
  const int64_t width = tensor.size(-2), row_bytes = width / 2;
  const int64_t step = std::max<int64_t>(1, kTransferBytes / row_bytes);
  const at::Tensor matrices = tensor.dim() == 2 ? tensor.unsqueeze(0) : tensor.flatten(0, -3);
  for (int64_t matrix = 0, row = 0; matrix < matrices.size(0); ++matrix)
    for (int64_t first = 0; first < matrices.size(2); first += step) {
      const int64_t rows = std::min(step, matrices.size(2) - first);
      transfers.push_back(
          {.file = &blocks_file,
           .offset = blocks.begin + uint64_t(row * row_bytes),
           .dtype = Dtype::kF4,
           .tensor = matrices[matrix].narrow(1, first, rows),
           .scales = BlockScales{&scales_file, scales.begin + uint64_t(row * width / kBlock),
                                 uint64_t(rows * width / kBlock)}});
      row += rows;
    }
}

void read_mxfp4(const Transfer& transfer) {
  const at::Tensor& tensor = transfer.tensor;  // [K, rows]
  const int64_t blocks_per_row = tensor.size(0) / kBlock;
  const bool in_place = tensor.is_cpu() && tensor.stride(1) == 1;
  std::vector<uint8_t> blocks, scales;
  for (int64_t row = 0; row < tensor.size(1); row += kTileRows) {
    const int64_t rows = std::min(kTileRows, tensor.size(1) - row), at = row * blocks_per_row;
    blocks.resize(size_t(rows * blocks_per_row * kBlockBytes));
    scales.resize(size_t(rows * blocks_per_row));
    transfer.file->read_at(transfer.offset + uint64_t(at * kBlockBytes), bytes_of(blocks));
    transfer.scales->file->read_at(transfer.scales->offset + uint64_t(at), bytes_of(scales));
    const at::Tensor part = tensor.narrow(1, row, rows);
    const at::Tensor to =
        in_place ? part : at::empty(part.sizes(), part.options().device(at::kCPU));
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, to.scalar_type(), "mxfp4", [&] {
      dequantise(blocks.data(), scales.data(), rows, blocks_per_row,
                 to.mutable_data_ptr<scalar_t>(), to.stride(0));
    });
    if (!in_place) part.copy_(to);
  }
}

}  // namespace automoe::hub

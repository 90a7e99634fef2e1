#include "hub/mxfp4.h"

#include <cmath>

#include "hub/test_checkpoints.h"

namespace automoe::hub {
namespace {

const NameMap kNames{{"l.{layer}.up", "l.{layer}.up", Quantised::kMxfp4}};

at::Tensor random_bytes(at::IntArrayRef shape, int64_t low = 0, int64_t high = 256) {
  return at::randint(low, high, shape, at::kByte);
}

// By the definition, number by number: blocks [N, K / 32, 16] -> [K, N] in double.
at::Tensor by_definition(const at::Tensor& blocks, const at::Tensor& scales) {
  const int64_t rows = blocks.size(0), groups = blocks.size(1);
  at::Tensor out = at::empty({groups * 32, rows}, at::kDouble);
  for (int64_t n = 0; n < rows; ++n)
    for (int64_t k = 0; k < groups * 32; ++k) {
      const int byte = blocks[n][k / 32][k % 32 / 2].item<uint8_t>();
      const int bits = k % 2 == 0 ? byte & 15 : byte >> 4;
      const int exponent = bits >> 1 & 3, mantissa = bits & 1;
      const double magnitude =
          exponent == 0 ? mantissa / 2.0 : std::ldexp(1 + mantissa / 2.0, exponent - 1);
      out[k][n] =
          std::ldexp(bits & 8 ? -magnitude : magnitude, scales[n][k / 32].item<uint8_t>() - 127);
    }
  return out;
}

TEST(Mxfp4, ReadsEachNumberOfEveryMatrixTransposedAndExact) {
  const Scratch folder;
  const int64_t experts = 3, rows = 130, width = 96;  // more rows than are read at a time
  const at::Tensor blocks = random_bytes({experts, rows, width / 32, 16});
  const at::Tensor scales = random_bytes({experts, rows, width / 32}, 110, 140);
  write_weights(folder / "model.safetensors",
                {{"l.7.up_blocks", blocks}, {"l.7.up_scales", scales}});
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    const at::Tensor up = at::full({experts, width, rows}, -77, type);
    const LoadReport report = load_checkpoint(folder, kNames, {{"l.7.up", up}});
    EXPECT_EQ(report.tensors, 2);
    EXPECT_EQ(report.bytes, blocks.numel() + scales.numel());
    for (int64_t e = 0; e < experts; ++e)
      EXPECT_TRUE(up[e].to(at::kDouble).equal(by_definition(blocks[e], scales[e]))) << type;
  }
}

TEST(Mxfp4, FillsParametersOfAnyStrides) {
  const Scratch folder;
  const at::Tensor blocks = random_bytes({2, 5, 1, 16}), scales = random_bytes({2, 5, 1}, 120, 130);
  write_weights(folder / "model.safetensors",
                {{"l.0.up_blocks", blocks}, {"l.0.up_scales", scales}});
  const at::Tensor dense = at::zeros({2, 32, 5});
  load_checkpoint(folder, kNames, {{"l.0.up", dense}});
  EXPECT_GT(dense.abs().sum().item<double>(), 0);
  for (const at::Tensor& strided :
       {at::zeros({2, 5, 32}).transpose(1, 2), at::zeros({2, 32, 10}).slice(2, 0, 10, 2),
        at::zeros({32, 2, 5}).transpose(0, 1)}) {
    load_checkpoint(folder, kNames, {{"l.0.up", strided}});
    EXPECT_TRUE(strided.equal(dense));
  }
}

TEST(Mxfp4, TheSameParameterIsReadPlainAndSavedPlain) {
  const Scratch folder;
  const std::vector<NamedTensor> parameters{{"l.0.up", random_tensor({2, 32, 5}, at::kBFloat16)}};
  save_checkpoint(folder, kNames, parameters);
  const std::vector<NamedTensor> loaded = blank(parameters);
  load_checkpoint(folder, kNames, loaded);
  expect_equal(loaded, parameters);
}

TEST(Mxfp4, WhatDoesNotFitIsNamed) {
  const Scratch folder;
  const at::Tensor blocks = random_bytes({2, 5, 1, 16}), scales = random_bytes({2, 5, 1});
  const std::vector<NamedTensor> up{{"l.0.up", at::zeros({2, 32, 5})}};
  const auto refused = [&](const std::vector<NamedTensor>& files,
                           const std::vector<NamedTensor>& parameters,
                           const std::string& expected) {
    write_weights(folder / "model.safetensors", files);
    EXPECT_SAYS(message_of([&] { load_checkpoint(folder, kNames, parameters); }), expected);
  };
  refused({{"l.0.up_blocks", blocks}}, up, "missing: 1 tensor: 'l.0.up_scales'");
  refused({{"l.0.up_scales", scales}}, up, "missing: 1 tensor: 'l.0.up'");
  refused({{"l.0.up_blocks", blocks}, {"l.0.up_scales", scales}, {"l.0.up", up[0].tensor}}, up,
          "not used by the model: 2 tensors: 'l.0.up_blocks', 'l.0.up_scales'");
  refused({{"l.0.up_blocks", blocks.slice(1, 0, 4).contiguous()}, {"l.0.up_scales", scales}}, up,
          "expected shape [2, 5, 1, 16]");
  refused({{"l.0.up_blocks", blocks}, {"l.0.up_scales", scales.to(at::kFloat)}}, up, "expected U8");
  refused({{"l.0.up_blocks", blocks}, {"l.0.up_scales", scales}},
          {{"l.0.up", at::zeros({2, 31, 5})}}, "blocks of 32");
}

// One row of 32 numbers for every scale there is, with every nibble in both halves of a byte.
const char* const kScript = R"(
import sys, torch
from safetensors.torch import save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors
blocks = torch.cat([torch.arange(16) * 17, torch.arange(16) * 16 + 15 - torch.arange(16)]).to(torch.uint8)
blocks = blocks.view(1, 1, 2, 16).repeat(1, 256, 1, 1)
scales = torch.arange(256, dtype=torch.uint8).view(1, 256, 1).repeat(1, 1, 2)
save_file({"l.0.up_blocks": blocks, "l.0.up_scales": scales}, sys.argv[1] + "/model.safetensors")
for dtype in (torch.bfloat16, torch.float32, torch.float16):
    up = convert_moe_packed_tensors(blocks, scales, dtype=dtype)
    save_file({"l.0.up": up}, f"{sys.argv[1]}/{dtype}.safetensors")
)";

TEST(Mxfp4, EveryScaleAndNumberGivesTheBitsOfTransformers) {
  const Scratch folder;
  if (!run_python("transformers", kScript, folder))
    GTEST_SKIP() << "no Python with transformers (set AUTOMOE_PYTHON)";
  for (const auto& [name, type] :
       {std::pair{"torch.bfloat16", at::kBFloat16}, std::pair{"torch.float32", at::kFloat},
        std::pair{"torch.float16", at::kHalf}}) {
    const std::vector<NamedTensor> ours{{"l.0.up", at::zeros({1, 64, 256}, type)}};
    const std::vector<NamedTensor> theirs = blank(ours);
    load_checkpoint(folder, kNames, ours);
    load_checkpoint(folder / (std::string(name) + ".safetensors"), kNames, theirs);
    const auto bits = [&](const at::Tensor& x) {
      return x.view(type == at::kFloat ? at::kInt : at::kShort);
    };
    const at::Tensor nan = ours[0].tensor.isnan();
    EXPECT_TRUE(nan.equal(theirs[0].tensor.isnan())) << name;
    EXPECT_TRUE(
        bits(ours[0].tensor).masked_fill(nan, 0).equal(bits(theirs[0].tensor).masked_fill(nan, 0)))
        << name;
  }
}

}  // namespace
}  // namespace automoe::hub

#include "hub/safetensors.h"

#include "hub/jobs.h"
#include "hub/test_support.h"

namespace automoe::hub {
namespace {

// A file that holds one tensor, written through transfers.
void write_one(const std::filesystem::path& path, const at::Tensor& tensor) {
  std::vector<TensorEntry> entries{{"w", dtype_of(tensor.scalar_type()), tensor.sizes().vec()}};
  const std::string header = lay_out(entries);
  const File file = File::create(path);
  file.write_at(0, std::as_bytes(std::span(header)));
  std::vector<Transfer> transfers;
  add_transfers(file, entries[0], tensor, transfers);
  run_jobs(transfers.size(), 3, [&](size_t i) { write_transfer(transfers[i]); });
}

at::Tensor read_one(const std::filesystem::path& path, at::Tensor into) {
  const SafetensorsFile file(path);
  std::vector<Transfer> transfers;
  add_transfers(file.file(), file.tensors().at(0), into, transfers);
  std::atomic<uint64_t> told{0};
  read_transfers(transfers, 3, [&](uint64_t bytes) { told += bytes; });
  EXPECT_EQ(told, file.tensors()[0].end - file.tensors()[0].begin);
  return into;
}

at::Tensor numbers(at::IntArrayRef shape, at::ScalarType type) {
  return at::arange(c10::multiply_integers(shape), at::kLong).remainder(113).to(type).view(shape);
}

// Same shape, other strides.
at::Tensor strided_zeros(const at::Tensor& like, at::ScalarType type) {
  std::vector<int64_t> reversed(like.sizes().rbegin(), like.sizes().rend());
  at::Tensor out = at::zeros(reversed, type);
  std::vector<int64_t> order;
  for (int64_t dim = like.dim(); dim-- > 0;) order.push_back(dim);
  return out.permute(order);
}

TEST(Safetensors, TensorsOfAnyStridesSurviveAFileInAnyStrides) {
  const Scratch folder;
  for (const auto type : {at::kFloat, at::kBFloat16, at::kLong, at::kBool, at::kFloat8_e4m3fn})
    for (const at::Tensor& tensor :
         {numbers({3, 5, 7}, type), numbers({3, 5, 7}, type).transpose(0, 2), numbers({}, type),
          numbers({0, 3}, type), numbers({9, 4}, type).select(1, 2),
          numbers({7, 9}, type).narrow(1, 2, 5)}) {
      write_one(folder / "m", tensor);
      for (const at::Tensor& into : {at::zeros(tensor.sizes(), type), strided_zeros(tensor, type)})
        EXPECT_TRUE(read_one(folder / "m", into).to(at::kFloat).equal(tensor.to(at::kFloat)))
            << tensor.sizes() << type;
    }
}

TEST(Safetensors, LargeTensorsAreCutAndConvertedWithoutLosingAnElement) {
  const Scratch folder;
  const at::Tensor tensor = at::arange((20 << 20) / 4 + 333, at::kFloat);  // more than one transfer
  write_one(folder / "m", tensor);
  EXPECT_TRUE(read_one(folder / "m", at::zeros_like(tensor)).equal(tensor));
  EXPECT_TRUE(
      read_one(folder / "m", at::zeros(tensor.sizes(), at::kDouble)).equal(tensor.to(at::kDouble)));
  EXPECT_TRUE(read_one(folder / "m", at::zeros(tensor.sizes(), at::kBFloat16))
                  .equal(tensor.to(at::kBFloat16)));
}

TEST(Safetensors, ParametersThatRequireGradientsAreFilledInPlace) {
  const Scratch folder;
  write_one(folder / "m", numbers({4, 3}, at::kFloat));
  const at::Tensor parameter = at::zeros({4, 3}, at::kDouble).set_requires_grad(true);
  read_one(folder / "m", parameter);
  EXPECT_TRUE(parameter.is_leaf());
  EXPECT_TRUE(parameter.detach().equal(numbers({4, 3}, at::kDouble)));
}

TEST(Safetensors, BytesThatAreNoBoolBecomeTrue) {
  const Scratch folder;
  write_one(folder / "m", at::tensor({0, 1, 2, 255}, at::kByte));
  std::string file = content_of(folder / "m");
  file.replace(file.find("\"U8\",\"shape\""), 4, "\"BOOL\"");
  file.erase(file.find("  ", 8), 2);  // two of the padding spaces
  write_content(folder / "m", file);
  const at::Tensor read = read_one(folder / "m", at::zeros({4}, at::kBool));
  EXPECT_TRUE(read.to(at::kLong).equal(at::tensor({0, 1, 1, 1}, at::kLong)));
}

TEST(Safetensors, ShardCutAnywhereIsRefusedByNameBeforeReading) {
  const Scratch folder;
  write_one(folder / "m", numbers({4, 3}, at::kFloat));
  const std::string whole = content_of(folder / "m");
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    write_content(folder / "m", whole.substr(0, bytes));
    const std::string message = message_of([&] { SafetensorsFile(folder / "m"); });
    EXPECT_SAYS(message, (folder / "m").string());
    EXPECT_SAYS(message, "truncated");
  }
}

TEST(Safetensors, TypesThatNeedDequantisingAreRefused) {
  const TensorEntry packed{"w", Dtype::kU8, {2, 3}};
  EXPECT_SAYS(message_of([&] { check_convertible(packed, at::kBFloat16, "m: 'w'"); }),
              "m: 'w' is U8 [2, 3], which cannot become BFloat16; a quantised checkpoint");
  EXPECT_SAYS(message_of([&] {
                check_convertible({"w", Dtype::kF4, {2}}, at::kFloat, "w");
              }),
              "F4 [2]");
  EXPECT_SAYS(message_of([&] {
                check_convertible({"w", Dtype::kC64, {2}}, at::kFloat, "w");
              }),
              "C64");
  EXPECT_EQ(message_of([&] {
              check_convertible({"w", Dtype::kF8E4M3, {2}}, at::kHalf, "w");
            }),
            "no error");
  EXPECT_SAYS(message_of([] { dtype_of(at::kComplexDouble); }), "has no type for ComplexDouble");
}

}  // namespace
}  // namespace automoe::hub

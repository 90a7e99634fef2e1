#include "blocks/sequences.h"

#include "automoe/error.h"
#include "kernels/linear_cross_entropy.h"

namespace automoe::blocks {
namespace {

std::vector<int64_t> to_host(const Tensor& x) {
  const Tensor host = x.to(at::kCPU, at::kLong).contiguous();
  return {host.data_ptr<int64_t>(), host.data_ptr<int64_t>() + host.numel()};
}

void check_shapes(const Batch& batch) {
  const Tensor& ids = batch.input_ids;
  AUTOMOE_CHECK_VALUE(ids.dim() == 2 && ids.scalar_type() == at::kLong,
                      "[forward] input_ids must be [B, S] int64, got ", ids.sizes(), " ",
                      ids.scalar_type());
  const auto same = [&](const std::optional<Tensor>& x, const char* name) {
    AUTOMOE_CHECK_VALUE(!x || x->sizes() == ids.sizes(), "[forward] ", name,
                        " must have the shape of input_ids ", ids.sizes(), ", got ", x->sizes());
  };
  same(batch.attention_mask, "attention_mask");
  same(batch.labels, "labels");
  const auto& positions = batch.position_ids;
  AUTOMOE_CHECK_VALUE(
      !positions || (positions->dim() == 2 && positions->size(1) == ids.size(1) &&
                     (positions->size(0) == ids.size(0) || positions->size(0) == 1)),
      "[forward] position_ids must be [B, S] or [1, S] with the B, S of input_ids ", ids.sizes(),
      ", got ", positions->sizes());
}

// Ends of the runs of consecutive positions in each row of [B, S].
std::vector<int64_t> ends_from_positions(const Tensor& positions) {
  const int64_t length = positions.size(1);
  const std::vector<int64_t> flat = to_host(positions);
  std::vector<int64_t> ends;
  for (int64_t i = 1; i <= static_cast<int64_t>(flat.size()); ++i)
    if (i % length == 0 || flat[i] != flat[i - 1] + 1) ends.push_back(i);
  return ends;
}

// Row ends of the stream after the padding is gone; rows without a real token vanish.
std::vector<int64_t> ends_from_mask(const Tensor& mask) {
  std::vector<int64_t> ends;
  int64_t total = 0;
  for (const int64_t count : to_host(mask.sum(1)))
    if (count > 0) ends.push_back(total += count);
  return ends;
}

std::vector<int64_t> full_rows(int64_t rows, int64_t length) {
  std::vector<int64_t> ends(rows);
  for (int64_t row = 0; row < rows; ++row) ends[row] = (row + 1) * length;
  return ends;
}

}  // namespace

Sequences Sequences::from(const Batch& batch) {
  check_shapes(batch);
  const Tensor& ids = batch.input_ids;
  Sequences out;
  out.batch = ids.size(0);
  out.length = ids.size(1);
  AUTOMOE_CHECK_VALUE(ids.numel() > 0, "[forward] input_ids is empty: ", ids.sizes());
  Tensor positions = batch.position_ids ? batch.position_ids->expand(ids.sizes())
                                        : at::arange(out.length, ids.options()).expand(ids.sizes());
  Tensor targets;
  if (batch.labels) {
    const Tensor none = at::full({out.batch, 1}, kernels::kIgnoreIndex, batch.labels->options());
    targets = at::cat({batch.labels->slice(1, 1), none}, 1).to(at::kLong);
  }
  std::vector<int64_t> ends;
  const bool padded =
      batch.attention_mask && !batch.attention_mask->to(at::kBool).all().item<bool>();
  if (padded) {
    const Tensor mask = batch.attention_mask->to(at::kBool);
    out.token_index = mask.flatten().nonzero().squeeze(1);
    AUTOMOE_CHECK_VALUE(out.token_index.size(0) > 0, "[forward] attention_mask has no real token");
    ends = ends_from_mask(mask);
  } else if (!batch.document_ends.empty()) {
    ends = batch.document_ends;
  } else if (batch.position_ids && !batch.attention_mask) {
    ends = ends_from_positions(positions);
  } else {
    ends = full_rows(out.batch, out.length);
  }
  const auto stream = [&](const Tensor& x) {
    const Tensor flat = x.flatten();
    return out.token_index.defined() ? flat.index_select(0, out.token_index) : flat;
  };
  out.ids = stream(ids);
  out.positions = stream(positions);
  if (targets.defined()) out.targets = stream(targets);
  out.documents = kernels::Documents::from_ends(std::move(ends), ids.device());
  AUTOMOE_CHECK_VALUE(out.documents.tokens() == out.ids.size(0),
                      "[forward] document_ends must end at ", out.ids.size(0), " tokens, got ",
                      out.documents.tokens());
  return out;
}

Tensor Sequences::pad(const Tensor& tokens) const {
  const int64_t width = tokens.size(1);
  if (!token_index.defined()) return tokens.view({batch, length, width});
  return at::zeros({batch * length, width}, tokens.options())
      .index_copy(0, token_index, tokens)
      .view({batch, length, width});
}

}  // namespace automoe::blocks

#include "kernels/ssd_scan.h"

#include <limits>

#include "automoe/error.h"
#include "kernels/tensor_args.h"

namespace automoe::kernels {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Sizes {
  int64_t tokens, heads, head_dim, groups, state, chunk;  // T, h, P, G, N, Q

  int64_t chunks() const { return (tokens + chunk - 1) / chunk; }
  int64_t heads_per_group() const { return heads / groups; }
};

struct Inputs {
  Tensor x, dt, b, c, a_log, d, dt_bias;
};

// The chunks [first, first + count) of the stream: as many as work on at once.
struct Slab {
  int64_t first, count;  // n below
};

// As many chunks as keep one [n, h, Q, Q] within the caches of a CPU, or within 256 MiB on a GPU.
std::vector<Slab> slabs_of(const Sizes& s, at::Device device) {
  const int64_t elements = int64_t{1} << (device.is_cpu() ? 19 : 26);
  const int64_t most = std::max<int64_t>(1, elements / (s.heads * s.chunk * s.chunk));
  std::vector<Slab> slabs;
  for (int64_t first = 0; first < s.chunks(); first += most)
    slabs.push_back({first, std::min(most, s.chunks() - first)});
  return slabs;
}

// Rows of a slab out of t [T, ...], zeros behind the last token: [n, Q, ...] of `dtype`.
Tensor rows_of(const Tensor& t, const Sizes& s, const Slab& slab, at::ScalarType dtype) {
  const int64_t begin = slab.first * s.chunk, rows = slab.count * s.chunk;
  Tensor part = t.slice(0, begin, std::min(begin + rows, s.tokens)).to(dtype);
  if (part.size(0) < rows) {
    std::vector<int64_t> pad(2 * t.dim(), 0);
    pad.back() = rows - part.size(0);
    part = at::constant_pad_nd(part, pad);
  }
  return part.unflatten(0, {slab.count, s.chunk});
}

// Which document a token is in, [chunks * Q] int32; what is behind the last token is in none.
Tensor document_index(const Tensor& offsets, const Sizes& s) {
  const Tensor tokens = at::arange(s.chunks() * s.chunk, offsets.options());
  return at::searchsorted(offsets.slice(0, 1), tokens, /*out_int32=*/true, /*right=*/true);
}

// [n, Q, h, ...] -> [n, h, Q, ...], and [n, Q, G, ...] -> [n * G, Q, ...]; dense.
Tensor by_head(const Tensor& t) { return t.transpose(1, 2).contiguous(); }
Tensor by_group(const Tensor& t) { return by_head(t).flatten(0, 1); }

// What the decays of a slab are made of. Their logarithms are summed in double: a difference of two
// large sums is still exact to fp32.
struct Decays {
  Tensor raw;      // [n, Q, h] dt + dt_bias
  Tensor step;     // [n, Q, h]
  Tensor a;        // [h]
  Tensor log;      // [n, h, Q] double: sums of step * A from the chunk's first token on
  Tensor into;     // [n, h, Q] of the chunk's first state into a token; 0 in a later document
  Tensor onward;   // [n, h, Q] of a token into the chunk's last state; 0 in an earlier document
  Tensor across;   // [n, h] of the chunk's first state into its last
  Tensor visible;  // [n, 1, Q, Q] whether row sees column
};

Decays decays_of(const Inputs& in, const Sizes& s, const Slab& slab, const Tensor& documents,
                 double min_step) {
  const at::ScalarType wide = wide_type(in.x);
  Decays out;
  out.a = -in.a_log.to(wide).exp();
  out.raw = rows_of(in.dt, s, slab, wide) + in.dt_bias.to(wide);
  out.step = at::softplus(out.raw).clamp_min(min_step);
  if ((slab.first + slab.count) * s.chunk > s.tokens)  // nothing moves behind the last token
    out.step.flatten(0, 1).slice(0, s.tokens - slab.first * s.chunk).zero_();
  out.log = by_head(out.step.to(at::kDouble) * out.a.to(at::kDouble)).cumsum(2);

  const int64_t begin = slab.first * s.chunk;
  const Tensor index = documents.slice(0, begin, begin + slab.count * s.chunk)
                           .view({slab.count, 1, s.chunk});  // [n, 1, Q]
  const Tensor last = index.narrow(2, s.chunk - 1, 1);
  // The document before a chunk: none before the first.
  Tensor before = at::full({slab.count, 1, 1}, -1, index.options());
  before.slice(0, 1).copy_(last.slice(0, 0, slab.count - 1));
  if (slab.first > 0) before[0] = documents[begin - 1];
  out.visible = index.unsqueeze(3).eq(index.unsqueeze(2)).tril_();
  out.into = out.log.exp().masked_fill_(index.ne(before), 0).to(wide);
  const Tensor end = out.log.narrow(2, s.chunk - 1, 1);
  out.onward = (end - out.log).exp_().masked_fill_(index.ne(last), 0).to(wide);
  out.across = out.into.select(2, s.chunk - 1);
  return out;
}

// Decays between tokens of one chunk: [n, h, Q, Q], 0 where the row does not see the column.
Tensor decays_within(const Decays& decays, at::ScalarType wide) {
  Tensor log = (decays.log.unsqueeze(3) - decays.log.unsqueeze(2)).to(wide);
  return log.masked_fill_(decays.visible.logical_not(), -std::numeric_limits<double>::infinity())
      .exp_();
}

// What both passes make of a slab's inputs.
struct Chunks {
  Decays decays;
  Tensor x;         // [n, Q, h, P]
  Tensor b, c;      // [n * G, Q, N]
  Tensor weighted;  // [n * G, Q, h/G * P] x * step * onward, what reaches the last state
  Tensor states;    // [n + 1, h, P, N] before each chunk, and after the last
};

// [n, h, Q] -> [n, Q, h, 1], to scale [n, Q, h, P] by.
Tensor per_row(const Tensor& t) { return t.transpose(1, 2).unsqueeze(3); }

Tensor split_groups(const Tensor& t, const Sizes& s) {  // [n, Q, h, P] -> [n * G, Q, h/G * P]
  return by_group(t.unflatten(2, {s.groups, s.heads_per_group()})).flatten(2);
}

Tensor join_groups(const Tensor& t, const Sizes& s) {  // its inverse, as a view
  return t.view({-1, s.groups, s.chunk, s.heads_per_group(), s.head_dim})
      .transpose(1, 2)
      .flatten(2, 3);
}

// [n, h, P, N] as the matrices of the groups: [n * G, h/G * P, N].
Tensor group_states(const Tensor& t, const Sizes& s) {
  return t.reshape({-1, s.heads_per_group() * s.head_dim, s.state});
}

Chunks chunks_of(const Inputs& in, const Sizes& s, const Slab& slab, const Tensor& documents,
                 double min_step, const Tensor& before) {
  const at::ScalarType wide = wide_type(in.x);
  Chunks out;
  out.decays = decays_of(in, s, slab, documents, min_step);
  out.x = rows_of(in.x, s, slab, wide);
  out.b = by_group(rows_of(in.b, s, slab, wide));
  out.c = by_group(rows_of(in.c, s, slab, wide));
  const Tensor scale = out.decays.step.unsqueeze(3) * per_row(out.decays.onward);
  out.weighted = split_groups(out.x * scale, s);
  out.states = at::empty({slab.count + 1, s.heads, s.head_dim, s.state}, out.x.options());
  out.states[0].copy_(before);
  Tensor after = group_states(out.states.slice(0, 1), s);
  at::bmm_out(after, out.weighted.transpose(1, 2), out.b);
  for (int64_t i = 0; i < slab.count; ++i)
    out.states[i + 1].addcmul_(out.states[i], out.decays.across[i].view({-1, 1, 1}));
  return out;
}

// Scores of a group, each head its own decays: [n * G, Q, Q] and [n, h, Q, Q] -> [n, h, Q, Q].
Tensor times_heads(const Tensor& scores, const Tensor& within, const Sizes& s) {
  const Tensor grouped = within.unflatten(1, {s.groups, s.heads_per_group()});
  return (grouped * scores.view({-1, s.groups, 1, s.chunk, s.chunk})).flatten(1, 2);
}

// The rows of a slab, [n, Q, h, P] -> [tokens, h, P].
Tensor tokens_of(const Tensor& rows, const Sizes& s, const Slab& slab) {
  return rows.flatten(0, 1).slice(0, 0, s.tokens - slab.first * s.chunk);
}

void store(const Tensor& to, const Tensor& rows, const Sizes& s, const Slab& slab) {
  const Tensor part = tokens_of(rows, s, slab);
  to.narrow(0, slab.first * s.chunk, part.size(0)).copy_(part);
}

struct Forward {
  Tensor y;       // [T, h, P]
  Tensor states;  // [slabs, h, P, N] before each slab
};

Forward run_forward(const Inputs& in, const Sizes& s, const Tensor& offsets, double min_step) {
  const at::ScalarType wide = wide_type(in.x);
  const Tensor documents = document_index(offsets, s);
  const std::vector<Slab> slabs = slabs_of(s, in.x.device());
  const auto num_slabs = static_cast<int64_t>(slabs.size());
  const Forward out{
      at::empty(in.x.sizes(), in.x.options().memory_format(at::MemoryFormat::Contiguous)),
      at::zeros({num_slabs, s.heads, s.head_dim, s.state}, in.x.options().dtype(wide))};
  for (int64_t i = 0; i < num_slabs; ++i) {
    const Slab& slab = slabs[i];
    const Chunks chunks = chunks_of(in, s, slab, documents, min_step, out.states[i]);
    if (i + 1 < num_slabs) out.states[i + 1].copy_(chunks.states[slab.count]);
    const Tensor scores = times_heads(at::bmm(chunks.c, chunks.b.transpose(1, 2)),
                                      decays_within(chunks.decays, wide), s);
    const Tensor stepped = by_head(chunks.x * chunks.decays.step.unsqueeze(3));  // [n, h, Q, P]
    const Tensor within = at::matmul(scores, stepped).transpose(1, 2);
    const Tensor from_before =
        at::bmm(chunks.c, group_states(chunks.states.slice(0, 0, slab.count), s).transpose(1, 2));
    const Tensor y = at::addcmul(within, join_groups(from_before, s), per_row(chunks.decays.into));
    store(out.y, y.addcmul_(chunks.x, in.d.to(wide).view({-1, 1})), s, slab);
  }
  return out;
}

// Sums of products over the last dim.
Tensor row_sums(const Tensor& a, const Tensor& b) { return (a * b).sum(-1); }

struct Grads {
  Tensor x, dt, b, c;        // as the inputs
  Tensor a_log, d, dt_bias;  // [h] wide, sums over slabs
};

// The gradients of one slab. `d_after` [h, P, N]: that of the state behind it, which becomes that
// of the state before it.
void backward_slab(const Inputs& in, const Sizes& s, const Slab& slab, const Chunks& chunks,
                   const Tensor& dy, double min_step, Tensor& d_after, Grads& grads) {
  const at::ScalarType wide = wide_type(in.x);
  const Decays& decays = chunks.decays;
  const Tensor step = decays.step.unsqueeze(3), into = per_row(decays.into);
  const Tensor before = chunks.states.slice(0, 0, slab.count);  // [n, h, P, N]

  // What a token takes from the state before its chunk.
  const Tensor d_from = split_groups(dy * into, s);  // [n * G, Q, h/G * P]
  const Tensor from_before = at::bmm(chunks.c, group_states(before, s).transpose(1, 2));
  Tensor d_log = row_sums(dy, join_groups(from_before, s) * into).to(at::kDouble);  // [n, Q, h]
  Tensor dc = at::bmm(d_from, group_states(before, s));                             // [n * G, Q, N]

  // States from the last chunk to the first: d_states[i] is that of the state before chunk i.
  const Tensor d_states = at::empty_like(chunks.states);
  d_states[slab.count].copy_(d_after);
  Tensor d_before = group_states(d_states.slice(0, 0, slab.count), s);
  at::bmm_out(d_before, d_from.transpose(1, 2), chunks.c);
  for (int64_t i = slab.count - 1; i >= 0; --i)
    d_states[i].addcmul_(d_states[i + 1], decays.across[i].view({-1, 1, 1}));
  d_after = d_states[0];
  const Tensor d_local = d_states.slice(0, 1);  // of what each chunk adds to the state
  const Tensor d_across =
      row_sums(d_local.flatten(2), before.flatten(2)).to(at::kDouble) * decays.across;  // [n, h]

  // What a token gives to the state behind its chunk.
  const Tensor to_last = at::bmm(chunks.b, group_states(d_local, s).transpose(1, 2));
  Tensor d_stepped = join_groups(to_last, s) * per_row(decays.onward);  // [n, Q, h, P]
  const Tensor d_onward = (row_sums(d_stepped, chunks.x) * decays.step).to(at::kDouble);
  d_log -= d_onward;
  d_log.select(1, s.chunk - 1) += d_onward.sum(1) + d_across;
  Tensor db = at::bmm(chunks.weighted, group_states(d_local, s));

  // What the tokens of a chunk take from one another.
  const Tensor scores = at::bmm(chunks.c, chunks.b.transpose(1, 2));  // [n * G, Q, Q]
  const Tensor within = decays_within(decays, wide), by_head_dy = by_head(dy);
  const Tensor decayed = times_heads(scores, within, s);  // [n, h, Q, Q]
  d_stepped = d_stepped + at::matmul(decayed.transpose(2, 3), by_head_dy).transpose(1, 2);
  const Tensor d_decayed =
      at::matmul(by_head_dy, by_head(chunks.x * step).transpose(2, 3));  // [n, h, Q, Q]
  const Tensor moved = d_decayed * decayed;
  d_log += (moved.sum(3, false, at::kDouble) - moved.sum(2, false, at::kDouble)).transpose(1, 2);
  const Tensor d_scores =
      (d_decayed * within).unflatten(1, {s.groups, s.heads_per_group()}).sum(2).flatten(0, 1);
  dc.baddbmm_(d_scores, chunks.b);
  db.baddbmm_(d_scores.transpose(1, 2), chunks.c);

  // The logarithms are running sums of step * A.
  const Tensor d_decay = d_log.flip(1).cumsum(1).flip(1).to(wide);  // [n, Q, h]
  Tensor d_step = row_sums(d_stepped, chunks.x) + d_decay * decays.a;
  d_step = at::where(at::softplus(decays.raw).ge(min_step), d_step, 0);
  const Tensor d_raw = at::softplus_backward(d_step, decays.raw, 1, 20);
  const Tensor d_skip = in.d.to(wide).view({-1, 1});
  store(grads.x, at::addcmul(dy * d_skip, d_stepped, step), s, slab);
  store(grads.dt, d_raw, s, slab);
  const auto ungrouped = [&](const Tensor& t) {  // [n * G, Q, N] -> [n, Q, G, N]
    return t.view({slab.count, s.groups, s.chunk, s.state}).transpose(1, 2);
  };
  store(grads.b, ungrouped(db), s, slab);
  store(grads.c, ungrouped(dc), s, slab);
  grads.a_log += (d_decay * decays.step).sum(at::IntArrayRef{0, 1}) * decays.a;
  grads.d += row_sums(dy, chunks.x).sum(at::IntArrayRef{0, 1});
  grads.dt_bias += tokens_of(d_raw, s, slab).sum(0);
}

Grads run_backward(const Inputs& in, const Sizes& s, const Tensor& offsets, double min_step,
                   const Tensor& states, const Tensor& dy) {
  const at::ScalarType wide = wide_type(in.x);
  const auto like = [](const Tensor& t) {
    return at::empty(t.sizes(), t.options().memory_format(at::MemoryFormat::Contiguous));
  };
  const auto zeros = [&] { return at::zeros({s.heads}, in.x.options().dtype(wide)); };
  Grads grads{like(in.x), like(in.dt), like(in.b), like(in.c), zeros(), zeros(), zeros()};
  const Tensor documents = document_index(offsets, s);
  const std::vector<Slab> slabs = slabs_of(s, in.x.device());
  Tensor d_after = at::zeros({s.heads, s.head_dim, s.state}, in.x.options().dtype(wide));
  for (int64_t i = static_cast<int64_t>(slabs.size()) - 1; i >= 0; --i) {
    const Chunks chunks = chunks_of(in, s, slabs[i], documents, min_step, states[i]);
    backward_slab(in, s, slabs[i], chunks, rows_of(dy, s, slabs[i], wide), min_step, d_after,
                  grads);
  }
  return grads;
}

struct SsdScan : torch::autograd::Function<SsdScan> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& dt, const Tensor& b,
                        const Tensor& c, const Tensor& a_log, const Tensor& d,
                        const Tensor& dt_bias, const Tensor& offsets, int64_t chunk_size,
                        double min_step) {
    const Inputs in{x, dt, b, c, a_log, d, dt_bias};
    const Forward out = run_forward(in, sizes_of(in, chunk_size), offsets, min_step);
    ctx->save_for_backward({x, dt, b, c, a_log, d, dt_bias, offsets, out.states});
    ctx->saved_data["chunk_size"] = chunk_size;
    ctx->saved_data["min_step"] = min_step;
    return out.y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list upstream) {
    const variable_list saved = ctx->get_saved_variables();
    const Inputs in{saved[0], saved[1], saved[2], saved[3], saved[4], saved[5], saved[6]};
    const Sizes sizes = sizes_of(in, ctx->saved_data["chunk_size"].toInt());
    const Grads grads = run_backward(in, sizes, saved[7], ctx->saved_data["min_step"].toDouble(),
                                     saved[8], upstream[0]);
    return {grads.x,
            grads.dt,
            grads.b,
            grads.c,
            grads.a_log.to(in.a_log.scalar_type()),
            grads.d.to(in.d.scalar_type()),
            grads.dt_bias.to(in.dt_bias.scalar_type()),
            Tensor(),
            Tensor(),
            Tensor()};
  }

  static Sizes sizes_of(const Inputs& in, int64_t chunk_size) {
    return {in.x.size(0), in.x.size(1), in.x.size(2), in.b.size(1), in.b.size(2), chunk_size};
  }
};

}  // namespace

Tensor ssd_scan(const Tensor& x, const Tensor& dt, const Tensor& b, const Tensor& c,
                const Tensor& a_log, const Tensor& d, const Tensor& dt_bias,
                const Documents& documents, const SsdScanOptions& options) {
  AUTOMOE_CHECK_VALUE(x.dim() == 3 && dt.sizes() == x.sizes().slice(0, 2) && b.dim() == 3 &&
                          b.sizes() == c.sizes() && b.size(0) == x.size(0),
                      "[ssd_scan] x [T, heads, P], dt [T, heads] and b, c [T, G, N] expected, got ",
                      x.sizes(), ", ", dt.sizes(), ", ", b.sizes(), ", ", c.sizes());
  AUTOMOE_CHECK_VALUE(b.size(1) > 0 && x.size(1) % b.size(1) == 0, "[ssd_scan] ", x.size(1),
                      " heads do not divide into ", b.size(1), " groups");
  for (const Tensor& each : {a_log, d, dt_bias})
    AUTOMOE_CHECK_VALUE(each.sizes() == x.sizes().slice(1, 1),
                        "[ssd_scan] a_log, d and dt_bias [heads = ", x.size(1), "] expected, got ",
                        each.sizes());
  AUTOMOE_CHECK_VALUE(options.chunk_size >= 1, "[ssd_scan] chunk_size must be positive, got ",
                      options.chunk_size);
  AUTOMOE_CHECK_VALUE(documents.tokens() == x.size(0), "[ssd_scan] x has ", x.size(0),
                      " tokens, the documents have ", documents.tokens());
  return SsdScan::apply(x, dt, b, c, a_log, d, dt_bias, documents.offsets, options.chunk_size,
                        options.min_step);
}

}  // namespace automoe::kernels

#include "blocks/mla.h"

#include "blocks/rope.h"
#include "blocks/testing.h"

namespace automoe::blocks {
namespace {

constexpr LatentAttention::Options kOptions{.hidden = 13,
                                            .heads = 3,
                                            .query_rank = 7,
                                            .key_value_rank = 5,
                                            .plain_dim = 4,
                                            .rotary_dim = 6,
                                            .value_dim = 9,
                                            .scale = 0.37,
                                            .eps = 1e-6};
const std::vector<int64_t> kDocuments{5, 1, 8};

Tensor normed(const Tensor& x, const Tensor& weight) {
  return x * at::rsqrt(x.square().mean(-1, /*keepdim=*/true) + kOptions.eps) * weight;
}

// Element 2i turns with 2i + 1, or i with i + half. x [T, heads, R].
Tensor turned(const Tensor& x, const RopeTables& rope, bool pairs) {
  const Tensor cos = rope.cos.unsqueeze(1).to(x.scalar_type()),
               sin = rope.sin.unsqueeze(1).to(x.scalar_type());
  const int64_t half = rope.cos.size(1);
  const Tensor a = pairs ? x.slice(-1, 0, 2 * half, 2) : x.slice(-1, 0, half);
  const Tensor b = pairs ? x.slice(-1, 1, 2 * half, 2) : x.slice(-1, half);
  return at::cat({a * cos - b * sin, b * cos + a * sin}, -1);  // queries and keys alike
}

// Head by head and document by document, as section 2.1 of the paper has it. The parameters come
// in declaration order, after x and the weight of the norm before the block.
Tensor formula(const Tensors& in, const LatentAttention::Options& o, const RopeTables& rope) {
  const Tensor h = normed(in[0], in[1]);
  size_t next = 2;
  const auto layer = [&](const Tensor& x, bool bias) {
    const Tensor y = at::linear(x, in[next++]);
    return bias ? y + in[next++] : y;
  };
  Tensor q = layer(h, o.bias && o.query_rank > 0);
  if (o.query_rank > 0) {
    q = normed(q, in[next++]);
    q = layer(q, /*bias=*/false);
  }
  const Tensor compressed = layer(h, o.bias);
  const Tensor latent = normed(compressed.slice(1, 0, o.key_value_rank), in[next++]);
  const Tensor kv = layer(latent, /*bias=*/false).view({-1, o.heads, o.plain_dim + o.value_dim});
  q = q.view({-1, o.heads, o.plain_dim + o.rotary_dim});
  const Tensor q_turned = turned(q.slice(2, o.plain_dim), rope, o.pairs);
  const Tensor k_turned =
      turned(compressed.slice(1, o.key_value_rank).unsqueeze(1), rope, o.pairs).squeeze(1);
  Tensors documents;
  for (int64_t begin = 0; const int64_t length : kDocuments) {
    const auto part = [&](const Tensor& x) { return x.slice(0, begin, begin + length); };
    Tensors heads;
    for (int64_t head = 0; head < o.heads; ++head) {
      const auto of_head = [&](const Tensor& x) { return part(x).select(1, head); };
      const Tensor plain =
          at::mm(of_head(q).slice(1, 0, o.plain_dim), of_head(kv).slice(1, 0, o.plain_dim).t());
      const Tensor rotary = at::mm(of_head(q_turned), part(k_turned).t());
      const Tensor future = at::ones({length, length}, at::kBool).triu(1);
      const Tensor scores = ((plain + rotary) * o.scale)
                                .masked_fill(future, -std::numeric_limits<double>::infinity());
      heads.push_back(at::mm(scores.softmax(-1), of_head(kv).slice(1, o.plain_dim)));
    }
    documents.push_back(at::cat(heads, 1));
    begin += length;
  }
  return layer(at::cat(documents), o.bias);
}

void expect_as_formula(const LatentAttention::Options& options, Recompute recompute) {
  std::vector<ParameterSpec> specs;
  const RmsNorm norm(ParamScope(specs, "norm."), options.hidden, options.eps);
  const LatentAttention block(ParamScope(specs, "self_attn."), options);
  const Sequences sequences = documents_of(kDocuments);
  const RopeTables rope =
      Rope({{"rope_type", "default"}, {"rope_theta", 100.0}}, options.rotary_dim, 64)
          .tables(sequences.positions, at::kFloat);
  Tensors inputs = random_parameters(specs, /*seed=*/10);
  inputs.insert(inputs.begin(), kernels::random_tensor({14, options.hidden}, at::kCPU, 1));
  const auto actual = [&](const Tensors& in) {
    const Params params(Tensors(in.begin() + 1, in.end()));
    const RopeTables tables{rope.cos.to(in[0].scalar_type()), rope.sin.to(in[0].scalar_type())};
    return block.forward({params, sequences, tables, recompute}, norm, in[0]).y;
  };
  kernels::expect_same_value_and_grads(
      actual, [&](const Tensors& in) { return formula(in, options, rope); }, inputs);
}

TEST(LatentAttention, ValueAndGradientsMatchTheFormulaUnderEveryPolicy) {
  for (const Recompute policy : {Recompute::kNone, Recompute::kNorms})
    for (const int64_t query_rank : {0, 7})
      for (const bool pairs : {false, true})
        for (const bool bias : {false, true}) {
          SCOPED_TRACE(::testing::Message()
                       << "query rank " << query_rank << " pairs " << pairs << " bias " << bias);
          LatentAttention::Options options = kOptions;
          options.query_rank = query_rank;
          options.pairs = pairs;
          options.bias = bias;
          expect_as_formula(options, policy);
        }
}

TEST(LatentAttention, ParametersStandInTheOrderOfTransformers) {
  std::vector<ParameterSpec> specs;
  const LatentAttention block(ParamScope(specs, ""), kOptions);
  std::vector<std::string> names;
  for (const ParameterSpec& spec : specs) names.push_back(spec.name);
  EXPECT_EQ(names,
            (std::vector<std::string>{"q_a_proj.weight", "q_a_layernorm.weight", "q_b_proj.weight",
                                      "kv_a_proj_with_mqa.weight", "kv_a_layernorm.weight",
                                      "kv_b_proj.weight", "o_proj.weight"}));
}

}  // namespace
}  // namespace automoe::blocks

// Time of each kernel, its TB/s or TFLOP/s, the ceiling of the same machine in the same run, and
// the time of the same formula composed of ATen operators. Usage: kernels_bench [tokens] [part of a
// name]
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "kernels/activation.h"
#include "kernels/adamw.h"
#include "kernels/attention.h"
#include "kernels/documents.h"
#include "kernels/experts.h"
#include "kernels/linear_cross_entropy.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"
#include "kernels/routing.h"
#ifdef AUTOMOE_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;
using Function = std::function<Tensor(const Tensors&)>;
namespace kernels = automoe::kernels;

bool on_cuda() {
#ifdef AUTOMOE_WITH_CUDA
  return at::hasCUDA() && at::detail::getCUDAHooks().deviceCount() > 0;
#else
  return false;
#endif
}

void wait() {
#ifdef AUTOMOE_WITH_CUDA
  if (on_cuda()) cudaDeviceSynchronize();
#endif
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Seconds of one call: the median of rounds long enough to time, after a warm-up.
double seconds(const std::function<void()>& call) {
  for (int i = 0; i < 3; ++i) call();
  wait();
  double begin = now();
  call();
  wait();
  const int calls = std::clamp(static_cast<int>(0.02 / (now() - begin)), 1, 50);
  std::vector<double> rounds;
  for (int round = 0; round < 9; ++round) {
    begin = now();
    for (int i = 0; i < calls; ++i) call();
    wait();
    rounds.push_back((now() - begin) / calls);
  }
  std::sort(rounds.begin(), rounds.end());
  return rounds[rounds.size() / 2];
}

struct Ceilings {
  double bytes, flops;
};  // a second

struct Work {
  double bytes = 0, flops = 0;
};  // of one call; the larger share of the ceiling is printed

class Report {
 public:
  Report(Ceilings ceilings, std::string filter) : ceilings_(ceilings), filter_(std::move(filter)) {
    std::printf("ceilings of this run: copy %.3f TB/s, matrix product %.2f TFLOP/s\n",
                ceilings.bytes * 1e-12, ceilings.flops * 1e-12);
    std::printf("%-34s %10s %14s %9s %12s\n", "kernel", "ms", "rate", "ceiling", "ATen ms (x)");
  }

  void row(const std::string& name, Work work, const std::function<void()>& ours,
           const std::function<void()>& aten) {
    const double time = seconds(ours), reference = aten ? seconds(aten) : 0;
    const double memory = work.bytes / time, compute = work.flops / time;
    const bool by_memory = memory / ceilings_.bytes > compute / ceilings_.flops;
    std::printf("%-34s %10.4f %8.3f %s %8.0f%%", name.c_str(), time * 1e3,
                (by_memory ? memory : compute) * 1e-12, by_memory ? "TB/s   " : "TFLOP/s",
                100 * (by_memory ? memory / ceilings_.bytes : compute / ceilings_.flops));
    if (aten) std::printf(" %9.4f (%.2f)", reference * 1e3, reference / time);
    std::printf("\n");
    std::fflush(stdout);
  }

  // Forward and backward pass of `ours`, each beside that of `aten` where there is one.
  void passes(const std::string& name, const Tensors& inputs, Work forward, Work backward,
              const Function& ours, const Function& aten = {}) {
    if (name.find(filter_) == std::string::npos) return;
    const auto run = [&](const Function& f) -> std::function<void()> {
      if (!f) return {};
      return [=] { f(inputs); };
    };
    const auto differentiate = [&](const Function& f) -> std::function<void()> {
      if (!f) return {};
      Tensors leaves, wanted;
      for (const Tensor& input : inputs) {
        leaves.push_back(input.detach());
        if (input.is_floating_point()) wanted.push_back(leaves.back().requires_grad_(true));
      }
      const Tensor out = f(leaves), upstream = at::ones_like(out);
      return [=] { torch::autograd::grad({out}, wanted, {upstream}, /*retain_graph=*/true); };
    };
    {
      const at::NoGradGuard no_grad;
      row(name + " forward", forward, run(ours), run(aten));
    }
    row(name + " backward", backward, differentiate(ours), differentiate(aten));
  }

  const std::string& filter() const { return filter_; }

 private:
  Ceilings ceilings_;
  std::string filter_;
};

struct Sizes {
  int64_t tokens, hidden, heads, kv_heads, head_dim, width, vocab;  // dense
  int64_t experts, slots, expert_width;
};

class Bench {
 public:
  Bench(const Sizes& sizes, const std::string& filter)
      : s_(sizes),
        options_(on_cuda() ? at::TensorOptions(at::kCUDA).dtype(at::kBFloat16)
                           : at::TensorOptions(at::kFloat)),
        report_(ceilings(), filter) {}

  void run() {
    rms_norm();
    silu_mul();
    rope();
    attention();
    routing();
    experts();
    head();
    adamw();
  }

 private:
  double size() const { return static_cast<double>(options_.dtype().itemsize()); }
  Tensor random(at::IntArrayRef shape) const { return at::randn(shape, options_); }

  Ceilings ceilings() const {
    const int64_t n = on_cuda() ? 8192 : 1024,
                  count = on_cuda() ? int64_t{1} << 29 : int64_t{1} << 25;
    const Tensor a = at::randn({n, n}, options_), b = at::randn({n, n}, options_),
                 c = at::empty({n, n}, options_);
    const Tensor from = at::zeros({count}, options_), to = at::zeros({count}, options_);
    Tensor out = c;
    const double product = seconds([&] { at::mm_out(out, a, b); }),
                 copy = seconds([&] { to.copy_(from); });
    return {2.0 * from.numel() * size() / copy, 2.0 * n * n * n / product};
  }

  void rms_norm() {
    const auto ours = [](const Tensors& in) { return kernels::rms_norm(in[0], in[1], 1e-6); };
    const auto aten = [](const Tensors& in) {
      const Tensor wide = in[0].to(at::kFloat);
      return in[1] *
             (wide * at::rsqrt(wide.square().mean(-1, true) + 1e-6)).to(in[0].scalar_type());
    };
    const double pass = size() * s_.tokens * s_.hidden,
                 heads = size() * s_.tokens * s_.heads * s_.head_dim;
    report_.passes("rms_norm", {random({s_.tokens, s_.hidden}), random({s_.hidden})}, {2 * pass},
                   {3 * pass}, ours, aten);
    report_.passes("rms_norm of heads",
                   {random({s_.tokens, s_.heads, s_.head_dim}), random({s_.head_dim})}, {2 * heads},
                   {3 * heads}, ours, aten);
    report_.passes(
        "add_rms_norm",
        {random({s_.tokens, s_.hidden}), random({s_.tokens, s_.hidden}), random({s_.hidden})},
        {4 * pass}, {3 * pass},
        [](const Tensors& in) { return kernels::add_rms_norm(in[0], in[1], in[2], 1e-6).second; },
        [aten](const Tensors& in) {
          return aten({in[0] + in[1], in[2]});
        });
  }

  void silu_mul() {
    const double pass = size() * s_.tokens * s_.width;
    report_.passes(
        "silu_mul", {random({s_.tokens, s_.width}), random({s_.tokens, s_.width})}, {3 * pass},
        {5 * pass}, [](const Tensors& in) { return kernels::silu_mul(in[0], in[1]); },
        [](const Tensors& in) { return at::silu(in[0]) * in[1]; });
  }

  void rope() {
    const Tensor cos = random({s_.tokens, s_.head_dim / 2}),
                 sin = random({s_.tokens, s_.head_dim / 2});
    const Tensor c = at::cat({cos, cos}, -1).unsqueeze(1), s = at::cat({sin, sin}, -1).unsqueeze(1);
    const double pass = size() * s_.tokens * s_.heads * s_.head_dim;
    report_.passes(
        "rope", {random({s_.tokens, s_.heads, s_.head_dim})}, {2 * pass}, {2 * pass},
        [=](const Tensors& in) { return kernels::apply_rope(in[0], cos, sin); },
        [=](const Tensors& in) {
          const auto halves = in[0].chunk(2, -1);
          return in[0] * c + at::cat({-halves[1], halves[0]}, -1) * s;
        });
  }

  void attention() {
    const int64_t tokens = on_cuda() ? s_.tokens : 1024;
    std::vector<int64_t> equal, ragged;
    for (int64_t end = 4096; end < tokens; end += 4096) equal.push_back(end);
    for (int64_t end = 19, step = 57; end < tokens; end += step, step = step * 7 % 1200 + 19)
      ragged.push_back(end);
    equal.push_back(tokens);
    ragged.push_back(tokens);
    attention("attention", equal, 0);
    attention("attention packed", ragged, 0);
    attention("attention packed window", ragged, 128);
  }

  void attention(const std::string& name, const std::vector<int64_t>& ends, int64_t window) {
    double seen = 0;  // (query, key) pairs
    for (int64_t begin = 0; const int64_t end : ends) {
      const double length = static_cast<double>(end - begin);
      seen += window > 0 && window < end - begin ? length * window : length * length / 2;
      begin = end;
    }
    const auto documents = kernels::Documents::from_ends(ends, options_.device());
    const double product = 2 * seen * s_.heads * s_.head_dim;
    report_.passes(name,
                   {random({ends.back(), s_.heads, s_.head_dim}),
                    random({ends.back(), s_.kv_heads, s_.head_dim}),
                    random({ends.back(), s_.kv_heads, s_.head_dim})},
                   {0, 2 * product}, {0, 5 * product}, [=](const Tensors& in) {
                     return kernels::attention(in[0], in[1], in[2], documents, {0.1, window});
                   });
  }

  void routing() {
    const Tensor indices = picks(),
                 score = at::rand({s_.tokens, s_.slots}, options_.dtype(at::kFloat));
    const kernels::Routing routing = kernels::sort_pairs(indices, s_.experts);
    const Tensor x = random({s_.tokens, s_.hidden}), rows = kernels::gather_rows(x, routing);
    const double once = size() * s_.tokens * s_.hidden, all = once * s_.slots;
    if (std::string("routing").find(filter()) == std::string::npos) return;
    report_.row(
        "routing sort", {20.0 * s_.tokens * s_.slots},
        [&] { kernels::sort_pairs(indices, s_.experts); },
        [&] { indices.flatten().sort(true, 0, false); });
    report_.row(
        "routing gather", {once + all}, [&] { kernels::gather_rows(x, routing); },
        [&] {
          x.repeat_interleave(s_.slots, 0, s_.tokens * s_.slots).index_select(0, routing.pair);
        });
    report_.row(
        "routing combine", {once + all}, [&] { kernels::combine_rows(rows, routing, score); },
        [&] {
          (rows.index_select(0, routing.position.flatten()).view({s_.tokens, s_.slots, -1}) *
           score.unsqueeze(-1))
              .sum(1);
        });
  }

  Tensor picks() const {
    return at::rand({s_.tokens, s_.experts}, options_.dtype(at::kFloat))
        .argsort(int64_t{1}, false)
        .narrow(1, 0, s_.slots)
        .contiguous();
  }

  void experts() {
    const Tensor indices = picks();
    const double product = 2.0 * s_.tokens * s_.slots * 3 * s_.hidden * s_.expert_width;
    report_.passes("experts",
                   {random({s_.tokens, s_.hidden}), at::rand({s_.tokens, s_.slots}, options_),
                    random({s_.experts, 2 * s_.expert_width, s_.hidden}),
                    random({s_.experts, s_.hidden, s_.expert_width})},
                   {0, product}, {0, 2 * product}, [=](const Tensors& in) {
                     return kernels::experts(in[0], indices, in[1], {in[2], in[3]});
                   });
  }

  void head() {
    const Tensor targets = at::randint(s_.vocab, {s_.tokens}, options_.dtype(at::kLong));
    const double product = 2.0 * s_.tokens * s_.vocab * s_.hidden;
    const auto both = [](const Function& f, const Tensors& in) {
      return [=] {
        const Tensor hidden = in[0].detach().requires_grad_(true),
                     weight = in[1].detach().requires_grad_(true);
        f({hidden, weight}).backward();
      };
    };
    if (std::string("linear_cross_entropy").find(filter()) == std::string::npos) return;
    const Tensors in{random({s_.tokens, s_.hidden}), random({s_.vocab, s_.hidden})};
    report_.row(
        "linear_cross_entropy both", {0, 3 * product},
        both(
            [=](const Tensors& in) { return kernels::linear_cross_entropy(in[0], in[1], targets); },
            in),
        both(
            [=](const Tensors& in) {
              return at::cross_entropy_loss(at::linear(in[0], in[1]).to(at::kFloat), targets);
            },
            in));
  }

  void adamw() {
    if (std::string("adamw").find(filter()) == std::string::npos) return;
    const int64_t count = on_cuda() ? int64_t{1} << 28 : int64_t{1} << 23;
    const auto fp32 = options_.dtype(at::kFloat);
    const Tensor parameter = random({count}), grad = random({count});
    const Tensor master = on_cuda() ? parameter.to(at::kFloat) : parameter;
    const Tensor exp_avg = at::zeros({count}, fp32), exp_avg_sq = at::zeros({count}, fp32);
    report_.row("adamw", {28.0 * count},
                [&] { kernels::adamw_(parameter, master, exp_avg, exp_avg_sq, grad, {}, {}); }, {});
  }

  const std::string& filter() const { return report_.filter(); }

  Sizes s_;
  at::TensorOptions options_;
  Report report_;
};

}  // namespace

int main(int argc, char** argv) {
  // Qwen3-30B-A3B on a GPU; a 135M dense model and a small MoE on a CPU.
  Sizes sizes = on_cuda() ? Sizes{8192, 2048, 32, 4, 128, 6144, 151936, 128, 8, 768}
                          : Sizes{2048, 576, 9, 3, 64, 1536, 49152, 16, 4, 256};
  if (argc > 1) sizes.tokens = std::atoll(argv[1]);
  Bench(sizes, argc > 2 ? argv[2] : "").run();
}

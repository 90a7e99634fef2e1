#include "kernels/causal_conv1d_args.h"
#include "kernels/cpu/loops.h"

namespace automoe::kernels {
namespace {

using namespace cpu;

constexpr int64_t kBlock = 128;  // channels whose window stays in the first-level cache

// Rows of x that token t sees, oldest first; null before its document's `begin`.
template <typename T>
struct Window {
  const T* rows[kTaps];

  Window(const void* x, int64_t stride, int64_t t, int64_t begin) {
    for (int64_t k = 0; k < kTaps; ++k) {
      const int64_t at = t - (kTaps - 1) + k;
      rows[k] = at < begin ? nullptr : static_cast<const T*>(x) + at * stride;
    }
  }
};

// The convolution before its SiLU, at channels [first, first + count).
template <typename T, typename W>
[[gnu::always_inline]] inline void convolve(const Window<T>& window, const W* weight, const W* bias,
                                            int64_t channels, int64_t first, int64_t count,
                                            W* __restrict sum) {
  for (int64_t c = 0; c < count; ++c) sum[c] = bias[first + c];
  for (int64_t k = 0; k < kTaps; ++k) {
    if (!window.rows[k]) continue;
    const T* row = window.rows[k] + first;
    const W* tap = weight + k * channels + first;
    for (int64_t c = 0; c < count; ++c) sum[c] += tap[c] * widen(row[c]);
  }
}

template <typename T>
[[gnu::always_inline]] inline void fwd_rows(const CausalConv1dFwdArgs& args, int64_t begin,
                                            int64_t end) {
  using W = Wide<T>;
  const int32_t* document =
      std::upper_bound(args.offsets, args.offsets + args.documents + 1, begin) - 1;
  W sum[kBlock];
  for (int64_t t = begin; t < end; ++t) {
    if (t == document[1]) ++document;
    const Window<T> window(args.x, args.x_stride, t, *document);
    for (int64_t first = 0; first < args.channels; first += kBlock) {
      const int64_t count = std::min(kBlock, args.channels - first);
      convolve(window, static_cast<const W*>(args.weight), static_cast<const W*>(args.bias),
               args.channels, first, count, sum);
      auto* __restrict y = static_cast<T*>(args.y) + t * args.channels + first;
      for (int64_t c = 0; c < count; ++c) y[c] = T(sum[c] / (W(1) + exponential(-sum[c])));
    }
  }
}

// Tokens from the last to the first: a token's dx takes the gradients of itself and the next three.
template <typename T>
[[gnu::always_inline]] inline void bwd_block(const CausalConv1dBwdArgs& args, int64_t first,
                                             int64_t count) {
  using W = Wide<T>;
  const int64_t channels = args.channels;
  const auto* weight = static_cast<const W*>(args.weight);
  W sums[kTaps + 1][kBlock] = {}, later[kTaps][kBlock];  // later[t % kTaps]: d of the sum at t
  for (int64_t document = args.documents - 1; document >= 0; --document) {
    const int64_t begin = args.offsets[document], end = args.offsets[document + 1];
    for (int64_t t = end - 1; t >= begin; --t) {
      const Window<T> window(args.x, args.x_stride, t, begin);
      W* __restrict d = later[t % kTaps];
      convolve(window, weight, static_cast<const W*>(args.bias), channels, first, count, d);
      const auto* dy = static_cast<const T*>(args.dy) + t * channels + first;
      for (int64_t c = 0; c < count; ++c) {
        const W s = W(1) / (W(1) + exponential(-d[c]));
        d[c] = widen(dy[c]) * s * (W(1) + d[c] * (W(1) - s));
      }
      for (int64_t c = 0; c < count; ++c) sums[kTaps][c] += d[c];
      for (int64_t k = 0; k < kTaps; ++k) {
        if (!window.rows[k]) continue;
        const T* row = window.rows[k] + first;
        for (int64_t c = 0; c < count; ++c) sums[k][c] += d[c] * widen(row[c]);
      }
      W dx[kBlock] = {};
      for (int64_t ahead = 0; ahead < std::min<int64_t>(kTaps, end - t); ++ahead) {
        const W* tap = weight + (kTaps - 1 - ahead) * channels + first;
        const W* from = later[(t + ahead) % kTaps];
        for (int64_t c = 0; c < count; ++c) dx[c] += tap[c] * from[c];
      }
      auto* out = static_cast<T*>(args.dx) + t * channels + first;
      for (int64_t c = 0; c < count; ++c) out[c] = T(dx[c]);
    }
  }
  for (int64_t k = 0; k <= kTaps; ++k)
    std::copy(sums[k], sums[k] + count, static_cast<W*>(args.sums) + k * channels + first);
}

AUTOMOE_VECTOR_CLONES
void fwd_rows_float(const CausalConv1dFwdArgs& args, int64_t begin, int64_t end) {
  fwd_rows<float>(args, begin, end);
}
AUTOMOE_VECTOR_CLONES
void bwd_block_float(const CausalConv1dBwdArgs& args, int64_t first, int64_t count) {
  bwd_block<float>(args, first, count);
}

}  // namespace

// The backward pass is split by channels.
int64_t causal_conv1d_parts_cpu(int64_t) { return 1; }

void causal_conv1d_fwd_cpu(const CausalConv1dFwdArgs& args) {
  visit_dtype(args.dtype, [&]<typename T>(T) {
    parallel_rows(args.tokens, args.channels, [&](int64_t begin, int64_t end) {
      if constexpr (std::is_same_v<T, float>) return fwd_rows_float(args, begin, end);
      fwd_rows<T>(args, begin, end);
    });
  });
}

void causal_conv1d_bwd_cpu(const CausalConv1dBwdArgs& args) {
  visit_dtype(args.dtype, [&]<typename T>(T) {
    at::parallel_for(0, (args.channels + kBlock - 1) / kBlock, 1, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        const int64_t first = block * kBlock, count = std::min(kBlock, args.channels - first);
        if constexpr (std::is_same_v<T, float>)
          bwd_block_float(args, first, count);
        else
          bwd_block<T>(args, first, count);
      }
    });
  });
}

}  // namespace automoe::kernels

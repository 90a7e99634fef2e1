// Linked instead of the CUDA kernels where they are not built.
#include "automoe/error.h"
#include "kernels/activation_args.h"
#include "kernels/adamw_args.h"
#include "kernels/causal_conv1d_args.h"
#include "kernels/cross_entropy_args.h"
#include "kernels/gated_rms_norm_args.h"
#include "kernels/grouped_linear_args.h"
#include "kernels/rms_norm_args.h"
#include "kernels/rope_args.h"
#include "kernels/routing_args.h"

namespace automoe::kernels {
namespace {

[[noreturn]] void not_built() {
  throw RuntimeError("automoe was built without CUDA kernels; build with AUTOMOE_CUDA=ON");
}

}  // namespace

int64_t rms_norm_parts_cuda(int64_t, int64_t) { not_built(); }
int64_t sort_pairs_scratch_cuda(int64_t, int64_t) { not_built(); }
int64_t causal_conv1d_parts_cuda(int64_t) { not_built(); }
int64_t gated_rms_norm_parts_cuda(int64_t) { not_built(); }
void add_group_bias_cuda(const AddGroupBiasArgs&, Stream) { not_built(); }
void adamw_cuda(const AdamWArgs&, const float*, Stream) { not_built(); }
void causal_conv1d_fwd_cuda(const CausalConv1dFwdArgs&, Stream) { not_built(); }
void causal_conv1d_bwd_cuda(const CausalConv1dBwdArgs&, Stream) { not_built(); }
void gated_rms_norm_fwd_cuda(const GatedRmsNormFwdArgs&, Stream) { not_built(); }
void gated_rms_norm_bwd_cuda(const GatedRmsNormBwdArgs&, Stream) { not_built(); }
void rms_norm_fwd_cuda(const RmsNormFwdArgs&, Stream) { not_built(); }
void rms_norm_bwd_cuda(const RmsNormBwdArgs&, Stream) { not_built(); }
void activation_fwd_cuda(const ActivationFwdArgs&, Stream) { not_built(); }
void activation_bwd_cuda(const ActivationBwdArgs&, Stream) { not_built(); }
void activation_scored_bwd_cuda(const ActivationScoredBwdArgs&, Stream) { not_built(); }
void rope_cuda(const RopeArgs&, Stream) { not_built(); }
void sort_pairs_cuda(const SortPairsArgs&, Stream) { not_built(); }
void gather_rows_cuda(const GatherRowsArgs&, Stream) { not_built(); }
void combine_rows_cuda(const CombineRowsArgs&, Stream) { not_built(); }
void cross_entropy_cuda(const CrossEntropyArgs&, Stream) { not_built(); }

}  // namespace automoe::kernels

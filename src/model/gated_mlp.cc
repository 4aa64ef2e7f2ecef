#include "model/gated_mlp.h"

#include "model/linear.h"
#include "model/ops.h"

namespace syncline::model {
namespace {

class GatedMlp : public MlpBlock {
 public:
  GatedMlp(WeightMatrix gate_up, at::Tensor gate_up_bias, SummedLinear down)
      : gate_up_(std::move(gate_up)),
        gate_up_bias_(std::move(gate_up_bias)),
        down_(std::move(down)) {}

  at::Tensor Run(const at::Tensor& x, std::vector<std::uint32_t>* /*chosen*/) const override {
    return down_.Part(SiluAndMultiply(Linear(x, gate_up_, gate_up_bias_)));
  }

 private:
  WeightMatrix gate_up_;
  at::Tensor gate_up_bias_;
  SummedLinear down_;
};

}  // namespace

std::unique_ptr<MlpBlock> MakeGatedMlp(const layout::Shard& shard, const GatedMlpParameters& mlp,
                                       const ParameterTensors& parameters) {
  return std::make_unique<GatedMlp>(
      parameters.Matrix(mlp.gate_up), parameters[mlp.gate_up.bias],
      SummedLinear(parameters.Matrix(mlp.down), parameters[mlp.down.bias], shard));
}

}  // namespace syncline::model

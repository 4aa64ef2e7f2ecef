#include "layout/digest.h"

#include "layout/runs.h"

namespace syncline::layout {

tensor::Digest DigestOwned(const Plan& plan, std::size_t tensor,
                           std::span<const base::ByteSpan> parameters) {
  const TensorSpec& spec = plan.tensors()[tensor];
  const std::size_t unit = tensor::DigestUnitBytes(spec.dtype);
  tensor::Digest digest;
  for (const Piece& piece : plan.PiecesOf(tensor)) {
    if (!piece.owner) continue;
    const TensorSpec& parameter = plan.parameters()[piece.parameter];
    const base::ByteSpan bytes = parameters[piece.parameter];
    const Runs runs =
        FindRuns(spec.dtype, {parameter.shape, piece.destination}, {spec.shape, piece.source});
    ForEachRun(runs, [&](std::uint64_t from, std::uint64_t to) {
      digest += tensor::DigestOf(bytes.subspan(from, runs.run), unit, to / unit);
    });
  }
  return digest;
}

}  // namespace syncline::layout

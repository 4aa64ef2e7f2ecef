#include "layout/digest.h"

#include <algorithm>

#include "layout/runs.h"

namespace syncline::layout {

std::optional<tensor::Digest> DigestOwned(const Plan& plan, std::size_t tensor,
                                          std::span<const base::ByteSpan> parameters,
                                          const base::CancelToken* cancel) {
  constexpr std::uint64_t kBetweenLooks = 1 << 20;  // bytes
  const TensorSpec& spec = plan.tensors()[tensor];
  const std::size_t unit = tensor::DigestUnitBytes(spec.dtype);
  tensor::Digest digest;
  std::uint64_t since_look = kBetweenLooks;
  bool cancelled = false;
  const auto add = [&](base::ByteSpan run, std::uint64_t at) {
    while (!run.empty() && !cancelled) {
      if (since_look >= kBetweenLooks) {
        cancelled = cancel != nullptr && cancel->cancelled();
        since_look = 0;
      }
      const base::ByteSpan part = run.first(std::min<std::uint64_t>(run.size(), kBetweenLooks));
      digest += tensor::DigestOf(part, unit, at / unit);
      at += part.size();
      since_look += part.size();
      run = run.subspan(part.size());
    }
  };
  for (const Piece& piece : plan.PiecesOf(tensor)) {
    if (!piece.owner) continue;
    const TensorSpec& parameter = plan.parameters()[piece.parameter];
    const Runs runs =
        FindRuns(spec.dtype, {parameter.shape, piece.destination}, {spec.shape, piece.source});
    ForEachRun(runs, [&](std::uint64_t from, std::uint64_t to) {
      add(parameters[piece.parameter].subspan(from, runs.run), to);
    });
  }
  if (cancelled) return std::nullopt;
  return digest;
}

}  // namespace syncline::layout

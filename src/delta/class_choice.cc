#include "delta/class_choice.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace syncline::delta {
namespace {

double Information(double part, double all) { return part > 0 ? -part * std::log2(part / all) : 0; }

}  // namespace

StepSample::StepSample(UnitKind kind)
    : kind_(kind), groups_(WithKind(kind, []<UnitKind k>() {
        using Traits = UnitTraits<k>;
        return Traits::kFloat ? std::size_t{Traits::Exponent(Traits::kMagnitude)} + 1 : 1;
      })) {}

void StepSample::Add(base::ByteSpan old_bytes, base::ByteSpan new_bytes) {
  WithKind(kind_, [&]<UnitKind k>() {
    using Traits = UnitTraits<k>;
    using Unit = typename Traits::Unit;
    for (std::size_t at = 0; at < old_bytes.size(); at += sizeof(Unit)) {
      const Unit before = base::Load<Unit>(&old_bytes[at]);
      const Unit after = base::Load<Unit>(&new_bytes[at]);
      Group& group = groups_[Traits::kFloat ? Traits::Exponent(before) : 0];
      ++group.units;
      if (before == after) continue;
      const Token token = StepToken(static_cast<Unit>(Traits::Key(after) - Traits::Key(before)));
      ++group.changed;
      ++group.tokens[token.token];
      group.extra_bits += token.extra_bits;
    }
    units_ += old_bytes.size() / sizeof(Unit);
  });
}

StepSample::Group& StepSample::Group::operator+=(const Group& other) {
  units += other.units;
  changed += other.changed;
  extra_bits += other.extra_bits;
  for (std::size_t i = 0; i < kTokens; ++i) tokens[i] += other.tokens[i];
  return *this;
}

double StepSample::Group::Bits() const {
  double bits = Information(changed, units) + Information(units - changed, units) + extra_bits;
  for (const double count : tokens) bits += Information(count, changed);
  return bits;
}

StepSample::Choice StepSample::Choose() const {
  Group all;
  for (const Group& group : groups_) all += group;
  Choice choice{.gap_bits = all.Bits(), .changed = all.changed};
  choice.class_bits = choice.gap_bits;
  if (groups_.size() == 1) return choice;
  // What a range of exponents takes together, from below up to each, and from each up.
  const std::size_t count = groups_.size();
  std::vector<double> single(count);
  std::vector<double> up_to(count);
  std::vector<double> from(count + 1);
  Group below;
  for (std::size_t i = 0; i < count; ++i) {
    single[i] = groups_[i].Bits();
    below += groups_[i];
    up_to[i] = below.Bits();
  }
  Group above;
  for (std::size_t i = count; i-- > 0;) {
    above += groups_[i];
    from[i] = above.Bits();
  }
  choice.class_bits = std::numeric_limits<double>::infinity();
  for (std::size_t base = 0; base < count; ++base) {
    double bits = up_to[base];
    for (std::size_t i = base + 1; i < std::min(base + kMaxClasses - 1, count); ++i) {
      bits += single[i];
    }
    bits += from[std::min(base + kMaxClasses - 1, count)];
    if (bits >= choice.class_bits) continue;
    choice.class_bits = bits;
    choice.base = static_cast<unsigned>(base);
  }
  return choice;
}

}  // namespace syncline::delta

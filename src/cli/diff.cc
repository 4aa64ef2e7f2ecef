// syncline diff: how two checkpoints differ, and what each encoding would make of it.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <array>
#include <charconv>
#include <memory>
#include <optional>

#include "base/bytes.h"
#include "checkpoint/checkpoint.h"
#include "cli/command.h"
#include "cli/difference.h"
#include "delta/compare.h"
#include "delta/encoding.h"
#include "store/manifest.h"
#include "store/version.h"

namespace syncline::cli {
namespace {

using base::Code;
using base::Fail;
using base::Json;
using base::Result;
using checkpoint::Checkpoint;
using checkpoint::CheckpointTensor;

struct Options {
  std::string a;
  std::string b;
};

// "STORE@7" is the checkpoint that version 7 of a store holds: a full version, or a full copy.
Result<std::string> Locate(const Session& session, const std::string& text) {
  SYNCLINE_ASSIGN(const bool there, base::Exists(session.files, text));
  const std::size_t at = text.rfind('@');
  std::uint64_t number = 0;
  if (there || at == std::string::npos) return text;
  const auto [end, error] = std::from_chars(&text[at] + 1, text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return text;
  SYNCLINE_ASSIGN(const auto version,
                  store::ReadVersion(session.files, text.substr(0, at), number));
  if (!version.delta) return version.directory;
  std::string copy = base::JoinPath(version.directory, store::kFullCopyFolder);
  SYNCLINE_ASSIGN(const bool full, base::Exists(session.files, copy));
  if (full) return copy;
  return Fail(Code::kIncompatible,
              fmt::format("version {} of {} is a delta: pull it into a replica, and compare that",
                          number, text.substr(0, at)));
}

Result<Side> OpenSide(const Session& session, const std::string& text) {
  SYNCLINE_ASSIGN(const std::string path, Locate(session, text));
  SYNCLINE_ASSIGN(Checkpoint opened, Checkpoint::Open(session.files, path));
  Side side{.checkpoint = std::move(opened), .files = {}};
  for (std::size_t i = 0; i < side.checkpoint.files().size(); ++i) {
    SYNCLINE_ASSIGN(auto file,
                    session.files.Open(side.checkpoint.FilePath(i), base::OpenMode::kRead));
    side.files.push_back(std::move(file));
  }
  return side;
}

double Share(std::uint64_t part, std::uint64_t all) {
  return all == 0 ? 0 : static_cast<double>(part) / static_cast<double>(all);
}

double BitsEach(std::uint64_t bytes, std::uint64_t changed) { return 8 * Share(bytes, changed); }

struct NamedSize {
  std::string_view encoding;
  std::optional<std::uint64_t> bytes;  // nothing: not possible
  bool predicted = false;              // not encoded, but counted
};
std::array<NamedSize, 4> Encodings(const EncodedSizes& sizes) {
  return {NamedSize{Name(delta::Encoding::kXor), sizes.xor_bytes},
          NamedSize{Name(delta::Encoding::kOverwrite), sizes.overwrite_bytes},
          NamedSize{Name(delta::Encoding::kCompact), sizes.compact_bytes, true},
          NamedSize{"compact-gap", sizes.compact_gap_bytes, true}};
}

std::string Describe(const CheckpointTensor& tensor) {
  return fmt::format("{} {}", Name(tensor.dtype), tensor::ShapeText(tensor.shape));
}

// ---- For people.

std::string StepsText(const delta::StepHistogram& steps) {
  std::uint64_t counted = steps.sign_changes + steps.nan;
  std::string text;
  const auto line = [&](const std::string& name, std::uint64_t count) {
    if (count > 0) {
      text += fmt::format("  {:>12}  {:>12}  {:6.2f} %\n", name, count,
                          100 * Share(count, steps.changed));
    }
  };
  for (std::size_t bin = 0; bin < steps.steps.size(); ++bin) {
    const std::uint64_t first = delta::FirstOfBin(bin);
    const std::uint64_t last = delta::LastOfBin(bin);
    line(first == last ? fmt::to_string(first) : fmt::format("{}–{}", first, last),
         steps.steps[bin]);
    counted += steps.steps[bin];
  }
  line("sign", steps.sign_changes);
  line("NaN", steps.nan);
  line("no float", steps.changed - counted);
  return text;
}

std::string TextOf(const Difference& difference) {
  std::string text;
  for (const TensorPair& pair : difference.pairs) {
    if (pair.steps.changed == 0) continue;
    text += fmt::format("{}  {}  {} of {} changed ({:.4f} %)\n", pair.a->name, Describe(*pair.a),
                        pair.steps.changed, pair.steps.elements,
                        100 * Share(pair.steps.changed, pair.steps.elements));
  }
  for (const auto* tensor : difference.only_a) text += fmt::format("only in A: {}\n", tensor->name);
  for (const auto* tensor : difference.only_b) text += fmt::format("only in B: {}\n", tensor->name);
  for (const TensorPair& pair : difference.unlike) {
    text += fmt::format("not comparable: {}: {} in A, {} in B\n", pair.a->name, Describe(*pair.a),
                        Describe(*pair.b));
  }
  const delta::StepHistogram& steps = difference.steps;
  text += fmt::format("{} of {} tensors and {} of {} elements changed ({:.4f} %)\n",
                      difference.tensors_changed, difference.pairs.size(), steps.changed,
                      steps.elements, 100 * Share(steps.changed, steps.elements));
  if (steps.changed == 0) return text;
  text += "steps in units in the last place:\n" + StepsText(steps);
  text += fmt::format("frames of a delta, by encoding, of {} in full:\n",
                      base::HumanBytes(difference.bytes));
  for (const auto& [name, bytes, predicted] : Encodings(difference.sizes)) {
    text += bytes ? fmt::format("  {:<11}{:>12}  {:.2f} bits a changed element{}\n", name,
                                base::HumanBytes(*bytes), BitsEach(*bytes, steps.changed),
                                predicted ? ", predicted" : "")
                  : fmt::format("  {:<11}  not possible: a tensor is larger than 4 GiB\n", name);
  }
  return text;
}

// ---- For programs.

Json JsonOf(const delta::StepHistogram& steps) {
  Json::Array bins;
  for (std::size_t bin = 0; bin < steps.steps.size(); ++bin) {
    if (steps.steps[bin] == 0) continue;
    bins.emplace_back(Json::Object{{"from", delta::FirstOfBin(bin)},
                                   {"to", delta::LastOfBin(bin)},
                                   {"elements", steps.steps[bin]}});
  }
  return Json(Json::Object{
      {"bins", std::move(bins)}, {"sign_changes", steps.sign_changes}, {"nan", steps.nan}});
}

Json JsonOf(const EncodedSizes& sizes, std::uint64_t changed) {
  Json::Object encodings;
  for (const auto& [name, bytes, predicted] : Encodings(sizes)) {
    encodings.emplace_back(
        name, bytes ? Json(Json::Object{{"bytes", *bytes},
                                        {"bits_per_changed_element", BitsEach(*bytes, changed)},
                                        {"predicted", predicted}})
                    : Json());
  }
  return Json(std::move(encodings));
}

Json JsonOf(const TensorPair& pair) {
  return Json(Json::Object{{"name", pair.a->name},
                           {"dtype", Name(pair.a->dtype)},
                           {"shape", Json::Array(pair.a->shape.begin(), pair.a->shape.end())},
                           {"elements", pair.steps.elements},
                           {"elements_changed", pair.steps.changed},
                           {"density", Share(pair.steps.changed, pair.steps.elements)},
                           {"steps", delta::HasSteps(pair.a->dtype) ? JsonOf(pair.steps) : Json()},
                           {"encodings", JsonOf(pair.sizes, pair.steps.changed)}});
}

Json Names(const std::vector<const CheckpointTensor*>& tensors) {
  Json::Array names;
  for (const CheckpointTensor* tensor : tensors) names.emplace_back(tensor->name);
  return Json(std::move(names));
}

Json JsonOf(const Difference& difference) {
  Json::Array tensors;
  for (const TensorPair& pair : difference.pairs) tensors.push_back(JsonOf(pair));
  Json::Array unlike;
  for (const TensorPair& pair : difference.unlike) {
    unlike.emplace_back(
        Json::Object{{"name", pair.a->name}, {"a", Describe(*pair.a)}, {"b", Describe(*pair.b)}});
  }
  const delta::StepHistogram& steps = difference.steps;
  return Json(Json::Object{{"tensors_changed", difference.tensors_changed},
                           {"elements", steps.elements},
                           {"elements_changed", steps.changed},
                           {"density", Share(steps.changed, steps.elements)},
                           {"full_bytes", difference.bytes},
                           {"steps", JsonOf(steps)},
                           {"encodings", JsonOf(difference.sizes, steps.changed)},
                           {"only_in_a", Names(difference.only_a)},
                           {"only_in_b", Names(difference.only_b)},
                           {"not_comparable", std::move(unlike)},
                           {"tensors", std::move(tensors)}});
}

Result<Output> Diff(const Session& session, const Options& options) {
  SYNCLINE_ASSIGN(const Side a, OpenSide(session, options.a));
  SYNCLINE_ASSIGN(const Side b, OpenSide(session, options.b));
  SYNCLINE_ASSIGN(const Difference difference, Compare(session, a, b));
  return Output{.text = TextOf(difference), .json = JsonOf(difference)};
}

}  // namespace

void AddDiff(CLI::App& app, Session& session) {
  CLI::App& command = AddCommand(app, session, "diff",
                                 "Compare two checkpoints: density, steps, size of each encoding",
                                 "syncline diff out/step-1 out/step-2");
  const auto options = std::make_shared<Options>();
  const char* kind = "Checkpoint, replica, or STORE@N for a full version of a store";
  command.add_option("a", options->a, kind)->required();
  command.add_option("b", options->b, kind)->required();
  command.callback([&session, options] {
    session.action = [&session, options] { return Diff(session, *options); };
  });
}

}  // namespace syncline::cli

// What is read begins between two steps on all ranks, in the order of commands, so that all read the
// same version. A change of the weights does not wait: whoever reads begins again, a few times.
#include "update/readings.h"

#include <fmt/format.h>

#include <algorithm>
#include <future>
#include <iterator>
#include <string_view>

#include "layout/pieces.h"
#include "update/compare_digests.h"

namespace syncline::update {

using base::Code;
using base::Fail;
using base::Result;
using base::Status;

namespace {

constexpr int kAttempts = 5;

// Reads until the weights have stayed the same.
template <typename Read>
auto ReadAgain(const Read& read) {
  auto result = read();
  for (int i = 1; i < kAttempts && !result && result.error().code == Code::kOutOfOrder; ++i) {
    result = read();
  }
  return result;
}

// Adds the message of a comparison to those of other ranks and runners: the first line, the same in
// all, comes once, and `whose` stands before each of the others.
void AddMessage(std::string& all, std::string_view message, const std::string& whose) {
  std::size_t end = message.find('\n');
  if (all.empty()) all = message.substr(0, end);
  while (end != std::string_view::npos) {
    message.remove_prefix(end + 1);
    end = message.find('\n');
    all += fmt::format("\n{}{}", whose, message.substr(0, end));
  }
}

// Puts the parts of all ranks together. kInternal where they are not the whole tensor.
Result<ExportedTensor> Assemble(const layout::TensorSpec& spec, const std::string& name,
                                std::span<const layout::OwnedPart> own, const Answers& answers) {
  ExportedTensor exported = {name, spec.dtype, spec.shape, {}};
  exported.bytes.resize(spec.bytes());
  std::uint64_t covered = 0;
  const auto add = [&](const layout::OwnedPart& part) -> Status {
    bool fits =
        part.box.begin.size() == spec.shape.size() && part.box.end.size() == spec.shape.size();
    for (std::size_t d = 0; fits && d < spec.shape.size(); ++d) {
      fits = part.box.begin[d] < part.box.end[d] && part.box.end[d] <= spec.shape[d];
    }
    if (!fits || part.bytes.size() != layout::PieceBytes(spec.dtype, part.box)) {
      return Fail(Code::kInternal, fmt::format("tensor {}: a rank exports {} with {} bytes", name,
                                               BoxText(part.box), part.bytes.size()));
    }
    layout::PutBox(spec, part.box, part.bytes, exported.bytes);
    covered += part.bytes.size();
    return {};
  };
  for (const layout::OwnedPart& part : own) SYNCLINE_TRY(add(part));
  for (const Result<Payload>& answer : answers) {
    if (!answer) return std::unexpected(answer.error());
    SYNCLINE_ASSIGN(const std::vector<layout::OwnedPart> parts, DecodeOwnedParts(*answer));
    for (const layout::OwnedPart& part : parts) SYNCLINE_TRY(add(part));
  }
  if (covered == spec.bytes()) return exported;
  return Fail(Code::kInternal, fmt::format("tensor {}: all ranks together export {} of {} bytes",
                                           name, covered, spec.bytes()));
}

}  // namespace

Readings::Readings(base::FileSystem& files, engine::Engine& engine, const layout::Plan& plan,
                   RankWeights& own, const Others& others, const base::CancelToken& cancel,
                   std::string launch_path)
    : files_(files),
      engine_(engine),
      plan_(plan),
      own_(own),
      others_(others),
      cancel_(cancel),
      launch_path_(std::move(launch_path)) {}

void Readings::Export(std::string name, const std::function<void(Result<ExportedTensor>)>& done) {
  std::size_t tensor = plan_.FindTensor(name);
  if (tensor == layout::Plan::npos) tensor = plan_.FindAlias(name);
  if (tensor == layout::Plan::npos) {
    return done(Fail(Code::kNotFound, fmt::format("the model has no tensor \"{}\"", name)));
  }
  const bool queued = engine_.BetweenSteps([this, tensor, name = std::move(name), done] {
    auto others =
        std::make_shared<std::future<Answers>>(others_.Command(kExport, EncodeNumber(tensor)));
    auto own = std::make_shared<Result<std::vector<layout::OwnedPart>>>(own_.ExportOwned(tensor));
    exports_.Post([this, tensor, name, done, others, own] {
      const Answers answers = others->get();
      if (!*own) return done(std::unexpected(own->error()));
      done(Assemble(plan_.tensors()[tensor], name, **own, answers));
    });
  });
  if (!queued) done(Fail(Code::kUnavailable, "the engine is shutting down"));
}

// ---- digests ----

// Lets all ranks begin to read between two steps.
Result<Readings::Begun> Readings::Begin(RankMessage kind, const Payload& payload) {
  auto promise = std::make_shared<std::promise<Begun>>();
  std::future<Begun> begun = promise->get_future();
  const bool queued = engine_.BetweenSteps([this, promise, kind, payload] {
    promise->set_value({.own = own_.BeginReading(),
                        .others = others_.Command(kind, payload),
                        .weight_version = engine_.stats().weight_version});
  });
  if (!queued) return Fail(Code::kUnavailable, "the engine is shutting down");
  return begun.get();
}

Result<DigestReport> Readings::SumDigests(const std::function<std::string()>& model_path) {
  SYNCLINE_ASSIGN(Begun begun, Begin(kDigests, {}));
  DigestReport report;
  report.weight_version = begun.weight_version;
  report.model_path = model_path();
  Result<RankDigests> own = own_.Digests(*begun.own);
  const Answers answers = begun.others.get();
  if (!own) return std::unexpected(own.error());
  for (std::string& name : own_.TensorNames()) {
    report.tensors.push_back({std::move(name), own->tensors[report.tensors.size()]});
  }
  report.derived.push_back(own->derived);
  for (const Result<Payload>& answer : answers) {
    if (!answer) return std::unexpected(answer.error());
    SYNCLINE_ASSIGN(const RankDigests other, DecodeRankDigests(*answer));
    if (other.tensors.size() != report.tensors.size()) {
      return Fail(Code::kInternal, fmt::format("a rank knows {} tensors, this one {}",
                                               other.tensors.size(), report.tensors.size()));
    }
    for (std::size_t i = 0; i < other.tensors.size(); ++i) {
      report.tensors[i].digest += other.tensors[i];
    }
    report.derived.push_back(other.derived);
  }
  return report;
}

Result<DigestReport> Readings::Digests(const DigestRequest& request, const std::string& source,
                                       const std::function<std::string()>& model_path) {
  Result<DigestReport> report = ReadAgain([&] { return SumDigests(model_path); });
  if (!report || !request.version) return report;
  if (source.empty()) {
    return Fail(Code::kInvalidArgument,
                "no store to compare with: nothing was pulled yet; name one as \"source\"");
  }
  const auto target = std::span(report->tensors).first(plan_.tensors().size());
  SYNCLINE_ASSIGN(report->comparison, CompareDigests(files_, plan_, target, source,
                                                     *request.version, launch_path_, cancel_));
  return report;
}

// ---- checks ----

Status Readings::Exclusive(const std::function<Status()>& work) {
  std::promise<Status> done;
  engine_.Exclusive({}, work, [&](Status status) { done.set_value(std::move(status)); });
  return done.get_future().get();
}

Status Readings::Snapshot(const CheckMessage& message) {
  std::future<Answers> others = others_.Ask(kSnapshot, Encode(message));
  const Status own = own_.Snapshot(message.selector);
  SYNCLINE_TRY(AllWell(others.get()));
  return own;
}

Status Readings::Reset(const CheckMessage& message) {
  return Exclusive([&]() -> Status {
    std::future<Answers> others = others_.Command(kReset, Encode(message));
    const Status own = own_.Reset(message.selector, message.options);
    SYNCLINE_TRY(AllWell(others.get()));
    return own;
  });
}

Result<std::vector<std::string>> Readings::PutBack(const CheckMessage& message) {
  std::vector<std::string> names;
  SYNCLINE_TRY(Exclusive([&]() -> Status {
    std::future<Answers> others = others_.Command(kPutBack, Encode(message));
    Result<std::vector<std::string>> own = own_.PutBack(message.selector);
    const Answers answers = others.get();
    if (!own) return std::unexpected(own.error());
    names = *std::move(own);
    return AddTexts(answers, names);
  }));
  std::ranges::sort(names);
  const auto twice = std::ranges::unique(names);
  names.erase(twice.begin(), twice.end());
  return names;
}

// kCompare or kChecksums.
Result<Readings::Checks> Readings::ReadChecks(RankMessage kind, const CheckMessage& message) {
  SYNCLINE_ASSIGN(Begun begun, Begin(kind, Encode(message)));
  auto own = kind == kCompare ? own_.Compare(message.selector, message.options, *begun.own)
                              : own_.Checksums(message.selector, message.options, *begun.own);
  const Answers answers = begun.others.get();
  if (!own) return std::unexpected(own.error());
  Checks checks = {*std::move(own)};
  for (const Result<Payload>& answer : answers) {
    if (!answer) return std::unexpected(answer.error());
    SYNCLINE_ASSIGN(checks.emplace_back(), DecodeRankChecks(*answer));
  }
  return checks;
}

Status Readings::Compare(const CheckMessage& message, CheckReport& report) {
  SYNCLINE_ASSIGN(const Checks checks, ReadAgain([&] { return ReadChecks(kCompare, message); }));
  std::uint64_t scrambled = 0;
  for (std::size_t rank = 0; rank < checks.size(); ++rank) {
    for (const RankCheck& check : checks[rank]) {
      report.compared += check.compared;
      scrambled += check.scrambled;
      AddMessage(report.message, check.message,
                 (checks.size() > 1 ? fmt::format("rank {}: ", rank) : "") +
                     (check.role.empty() ? "" : fmt::format("[{}] ", check.role)));
    }
  }
  // Who asked for a reset wanted to see it undone by an update; that failed, and noise is no weight.
  if (!report.message.empty() && scrambled > 0) {
    SYNCLINE_ASSIGN(report.put_back, PutBack(message));
  }
  return {};
}

Result<CheckReport> Readings::Check(const CheckRequest& request) {
  const CheckMessage message = {.selector = request.selector, .options = request.options};
  CheckReport report;
  if (request.action != CheckRequest::Action::kSnapshot) {
    report.skipped = own_.SkippedNames(request.selector, request.options);
  }
  switch (request.action) {
    case CheckRequest::Action::kSnapshot:
      SYNCLINE_TRY(Snapshot(message));
      return report;
    case CheckRequest::Action::kReset:
      SYNCLINE_TRY(Reset(message));
      return report;
    case CheckRequest::Action::kCompare:
      SYNCLINE_TRY(Compare(message, report));
      return report;
    case CheckRequest::Action::kChecksum:
      break;
  }
  SYNCLINE_ASSIGN(Checks checks, ReadAgain([&] { return ReadChecks(kChecksums, message); }));
  for (std::vector<RankCheck>& rank : checks) {
    std::vector<RoleChecksums>& roles = report.ranks.emplace_back();
    for (RankCheck& check : rank) {
      const std::string prefix = check.role.empty() ? "" : check.role + ".";
      for (auto* hashes : {&check.checksums.tensors, &check.checksums.derived}) {
        for (checker::NamedHash& hash : *hashes) hash.name = prefix + hash.name;
      }
      roles.push_back({.role = check.role.empty() ? "target" : check.role,
                       .checksums = std::move(check.checksums)});
    }
  }
  return report;
}

}  // namespace syncline::update

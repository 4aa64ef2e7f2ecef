// A line for each step: {"check": "<32 digits>", "change": {…}} as in the head file. When the file
// has kMaxLines, the older half goes. A line is written with one call at the end of the file; a
// line that was cut by a crash is damaged, and ends what can be answered, as a missing one does.
#include "replica/changes.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/json.h"
#include "base/log.h"
#include "replica/checked_text.h"

namespace syncline::replica {
namespace {

using base::Json;
using base::Result;
using base::Status;

constexpr std::string_view kName = "changes.jsonl";
constexpr std::uint64_t kMaxBytes = 64 << 20;
constexpr std::size_t kMaxLines = 1024;

std::string LineOf(const Change& change) {
  Json::Array tensors;
  for (const ChangedTensor& tensor : change.tensors) {
    tensors.emplace_back(Json::Array{tensor.name, tensor.elements});
  }
  const Json json(Json::Object{{"from", HeldJson(change.from)},
                               {"to", HeldJson(change.to)},
                               {"everything", change.everything},
                               {"tensors", std::move(tensors)}});
  return CheckedText("change", ToText(json)) + "\n";
}

std::optional<Change> ParseLine(std::string_view line) {
  const auto body = CheckedBody("change", line);
  if (!body) return std::nullopt;
  const Result<Json> json = base::ParseJson(*body);
  if (!json) return std::nullopt;
  const auto from = ParseHeld(json->Find("from"));
  const auto to = ParseHeld(json->Find("to"));
  const Json* everything = json->Find("everything");
  const Json* tensors = json->Find("tensors");
  if (!from || !to || everything == nullptr || tensors == nullptr || tensors->array() == nullptr ||
      !std::holds_alternative<bool>(everything->value())) {
    return std::nullopt;
  }
  Change change{*from, *to, std::get<bool>(everything->value()), {}};
  for (const Json& item : *tensors->array()) {
    const Json::Array* pair = item.array();
    if (pair == nullptr || pair->size() != 2 || (*pair)[0].string() == nullptr ||
        (*pair)[1].unsigned_integer() == nullptr) {
      return std::nullopt;
    }
    change.tensors.push_back({*(*pair)[0].string(), *(*pair)[1].unsigned_integer()});
  }
  return change;
}

std::vector<std::string_view> Lines(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

Status Append(const ReplicaState& state, const std::string& line) {
  const std::string path = state.Path(kName);
  auto text = base::ReadText(state.files(), path, kMaxBytes);
  const bool missing = !text && text.error().code == base::Code::kNotFound;
  const bool start_anew = missing || (!text && text.error().code == base::Code::kLimitExceeded);
  if (!text && !start_anew) return std::unexpected(text.error());
  if (start_anew) return base::WriteTextAtomically(state.files(), path, line, false);
  const std::vector<std::string_view> lines = Lines(*text);
  if (lines.size() >= kMaxLines) {
    std::string shorter;
    for (std::size_t i = lines.size() / 2; i < lines.size(); ++i) {
      shorter += fmt::format("{}\n", lines[i]);
    }
    return base::WriteTextAtomically(state.files(), path, shorter + line, false);
  }
  SYNCLINE_ASSIGN(const auto file, state.files().Open(path, base::OpenMode::kReadWrite));
  const std::string_view gap = text->empty() || text->ends_with('\n') ? "" : "\n";
  return file->WriteAt(base::AsBytes(fmt::format("{}{}", gap, line)), text->size());
}

}  // namespace

void RecordChange(const ReplicaState& state, const Change& change) {
  if (const Status status = Append(state, LineOf(change)); !status) {
    base::Log(base::LogLevel::kWarning,
              fmt::format("the change record has a gap: {}", status.error().message));
  }
}

Result<ChangeSummary> ChangesSince(base::FileSystem& files, const std::string& replica,
                                   std::uint64_t since) {
  const ReplicaState state(files, replica);
  SYNCLINE_ASSIGN(const auto lock, state.Lock(base::LockMode::kShared, nullptr));
  SYNCLINE_ASSIGN(const auto marker, state.ReadMarker());
  if (!marker) {
    return base::Fail(base::Code::kNotFound, fmt::format("{} holds no whole version", replica));
  }
  ChangeSummary summary{.from = since, .to = marker->version};
  if (since == marker->version) return summary;
  auto text = base::ReadText(files, state.Path(kName), kMaxBytes);
  std::string wanted = marker->token;
  std::map<std::string, std::uint64_t> sums;
  bool reached = false;
  std::vector<std::string_view> lines;
  if (text) lines = Lines(*text);
  for (std::size_t i = lines.size(); i-- > 0 && !reached && !wanted.empty();) {
    const auto change = ParseLine(lines[i]);
    if (!change || change->to.token != wanted || change->everything) break;
    for (const ChangedTensor& tensor : change->tensors) sums[tensor.name] += tensor.elements;
    reached = change->from.version == since;
    wanted = change->from.token;
  }
  summary.everything = !reached;
  if (!reached) return summary;
  for (const auto& [name, elements] : sums) summary.tensors.push_back({name, elements});
  return summary;
}

}  // namespace syncline::replica

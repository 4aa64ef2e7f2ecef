#include "serve/update_fields.h"

#include <fmt/format.h>

#include <string>

#include "serve/replies.h"

namespace syncline::serve {

using base::Json;
using base::Result;
using update::UpdateReport;

namespace {

void Count(Meters& meters, const Result<UpdateReport>& result, bool in_session) {
  if (!result) return meters.failed_tensor_updates.Add();
  meters.tensor_updates.Add();
  meters.tensor_bytes.Add(result->bytes);
  meters.tensor_stage_seconds.Observe(result->stage_seconds);
  if (in_session) return;  // the end of the session applies it
  meters.tensor_apply_seconds.Observe(result->apply_seconds);
  if (result->unchanged) meters.unchanged_updates.Add();
}

}  // namespace

void ReadSelector(Fields& fields, std::optional<update::Selector>& out) {
  std::optional<std::string> name;
  fields.Read("selector", name);
  if (!name) return;
  out = update::FindSelector(*name);
  if (out) return;
  fields.Refuse("selector",
                R"(expected "all", "target" or "draft", got )" + Describe(Json(*std::move(name))));
}

Json::Object ReportFields(const update::UpdateReport& report) {
  return {{"tensors", report.tensors},
          {"skipped_tensors", report.skipped},
          {"bytes", report.bytes},
          {"unchanged", report.unchanged},
          {"undoable", report.undoable},
          {"pending", NameList(report.pending)},
          {"stage_seconds", report.stage_seconds},
          {"apply_seconds", report.apply_seconds}};
}

http::Response TensorReply(Front& front, const Result<UpdateReport>& result, std::string success,
                           const std::optional<std::string>& label) {
  front.NoteChange();
  const bool in_session = front.weights().session().open;
  Count(front.meters(), result, in_session);
  if (!result) return Outcome(false, result.error().message);
  if (label && !in_session) success += fmt::format(" Weight version updated to {}.", *label);
  Json::Object reply = {{"success", true}, {"message", std::move(success)}};
  if (label && in_session) reply.emplace_back("weight_version_pending", *label);
  for (auto& field : ReportFields(*result)) reply.push_back(std::move(field));
  return JsonReply(Json(std::move(reply)));
}

Json NameList(const std::vector<std::string>& names) {
  return Json(Json::Array(names.begin(), names.end()));
}

}  // namespace syncline::serve

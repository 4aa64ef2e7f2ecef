#include "serve/update_fields.h"

#include <string>

namespace syncline::serve {

using base::Json;

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

Json NameList(const std::vector<std::string>& names) {
  return Json(Json::Array(names.begin(), names.end()));
}

}  // namespace syncline::serve

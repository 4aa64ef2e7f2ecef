#include "serve/update_fields.h"

#include <array>
#include <string>
#include <utility>

namespace syncline::serve {
namespace {

using base::Json;
using update::Selector;

constexpr std::array<std::pair<std::string_view, Selector>, 3> kSelectors = {
    {{"all", Selector::kAll}, {"target", Selector::kTarget}, {"draft", Selector::kDraft}}};

}  // namespace

void ReadSelector(Fields& fields, std::optional<Selector>& out) {
  std::optional<std::string> name;
  fields.Read("selector", name);
  if (!name) return;
  for (const auto& [known, selector] : kSelectors) {
    if (*name == known) {
      out = selector;
      return;
    }
  }
  fields.Refuse("selector",
                R"(expected "all", "target" or "draft", got )" + Describe(Json(*std::move(name))));
}

std::string_view SelectorName(Selector selector) {
  for (const auto& [name, known] : kSelectors) {
    if (known == selector) return name;
  }
  return "";
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

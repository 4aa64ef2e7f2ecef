#include "checkpoint/components.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <span>

#include "base/json.h"

namespace syncline::checkpoint {
namespace {

using base::Code;
using base::Fail;
using base::FileInfo;
using base::FileSystem;
using base::Json;
using base::Result;

constexpr std::array kStems = {kModelStem, kDiffusersStem};
constexpr std::string_view kEnding = ".safetensors";
constexpr std::uint64_t kMaxPipelineIndexBytes = 1 << 20;
constexpr std::size_t kMaxNameBytes = 255;

// The weights of one folder by the first of these rules that finds some; nothing if none does.
Result<std::optional<Component>> LookInto(FileSystem& files, const std::string& directory,
                                          const std::string& folder,
                                          std::span<const std::string_view> stems, bool can_list) {
  const std::string path = folder.empty() ? directory : base::JoinPath(directory, folder);
  std::optional<Component> found;
  for (const std::string_view stem : stems) {
    Component component{.folder = folder, .stem = std::string(stem)};
    SYNCLINE_ASSIGN(component.indexed,
                    base::Exists(files, base::JoinPath(path, IndexNameOf(stem))));
    if (!component.indexed) {
      const std::string single = SingleFileNameOf(stem);
      SYNCLINE_ASSIGN(const bool there, base::Exists(files, base::JoinPath(path, single)));
      if (!there) continue;
      component.files = {single};
    }
    if (found) {
      return Fail(Code::kCorrupt,
                  fmt::format("{} holds weights under two names, {} and {}: one of them must go",
                              path, SingleFileNameOf(found->stem), SingleFileNameOf(stem)));
    }
    found = std::move(component);
  }
  if (found || !can_list) return found;
  SYNCLINE_ASSIGN(std::vector<std::string> names, files.List(path));
  std::erase_if(names, [](const std::string& name) { return !name.ends_with(kEnding); });
  if (names.empty()) return std::nullopt;
  return Component{.folder = folder, .stem = std::string(kModelStem), .files = std::move(names)};
}

// Sub-folders that may be components, by name.
Result<std::vector<std::string>> ListFolders(FileSystem& files, const std::string& directory) {
  SYNCLINE_ASSIGN(const std::vector<std::string> names, files.List(directory));
  std::vector<std::string> folders;
  for (const std::string& name : names) {
    if (name.starts_with('.')) continue;
    const Result<FileInfo> info = files.Stat(base::JoinPath(directory, name));
    if (!info && info.error().code == Code::kNotFound) continue;  // a link that leads nowhere
    if (!info) return std::unexpected(info.error());
    if (info->kind == FileInfo::Kind::kDirectory && IsComponentName(name)) folders.push_back(name);
  }
  std::ranges::sort(folders);
  return folders;
}

// The same as the pipeline's own list has it; nothing if there is no such list.
Result<std::optional<std::vector<std::string>>> ReadFolders(FileSystem& files,
                                                            const std::string& directory) {
  const std::string path = base::JoinPath(directory, kPipelineIndexName);
  const Result<std::string> text = base::ReadText(files, path, kMaxPipelineIndexBytes);
  if (!text && text.error().code == Code::kNotFound) return std::nullopt;
  if (!text) return std::unexpected(text.error());
  const Result<Json> json = base::ParseJson(*text);
  if (!json) return Annotate(base::Error(json.error()), path);
  if (json->object() == nullptr) return Fail(Code::kCorrupt, path + " is not a JSON object");
  std::set<std::string> folders;
  for (const auto& [name, value] : *json->object()) {
    if (value.array() != nullptr && IsComponentName(name)) folders.insert(name);
  }
  return std::vector<std::string>(folders.begin(), folders.end());
}

}  // namespace

std::string IndexNameOf(std::string_view stem) {
  return fmt::format("{}.safetensors.index.json", stem);
}

std::string SingleFileNameOf(std::string_view stem) { return fmt::format("{}{}", stem, kEnding); }

std::string_view UsualStem(std::string_view folder) {
  const bool of_transformers =
      folder.starts_with("text_encoder") || folder == "image_encoder" || folder == "safety_checker";
  return of_transformers ? kModelStem : kDiffusersStem;
}

bool IsComponentName(std::string_view folder) {
  if (folder.empty() || folder.starts_with('.')) return false;
  if (folder.starts_with("weight_v") || folder.starts_with("fold_v")) return false;
  if (folder.size() > kMaxNameBytes || folder.contains('/') || !base::IsInsidePath(folder)) {
    return false;
  }
  // The name becomes a part of tensors' names, which are UTF-8.
  return base::ParseJson(ToText(Json(std::string(folder)))).has_value();
}

std::string_view FolderOfTensor(std::string_view name) {
  const std::size_t slash = name.find('/');
  if (slash == std::string_view::npos || slash + 1 == name.size()) return {};
  const std::string_view folder = name.substr(0, slash);
  return IsComponentName(folder) ? folder : std::string_view();
}

Result<std::vector<Component>> FindComponents(FileSystem& files, const std::string& directory) {
  auto root = LookInto(files, directory, "", std::span(kStems).first(1), true);
  const bool can_list = root || root.error().code != Code::kIncompatible;
  if (!root && can_list) return std::unexpected(std::move(root).error());
  if (root && *root) return std::vector<Component>{**std::move(root)};
  std::vector<std::string> folders;
  if (can_list) {
    SYNCLINE_ASSIGN(folders, ListFolders(files, directory));
  } else {
    SYNCLINE_ASSIGN(auto listed, ReadFolders(files, directory));
    if (!listed) return std::unexpected(std::move(root).error());
    folders = *std::move(listed);
  }
  std::vector<Component> components;
  for (const std::string& folder : folders) {
    SYNCLINE_ASSIGN(auto component, LookInto(files, directory, folder, kStems, can_list));
    if (component) components.push_back(*std::move(component));
  }
  return components;
}

}  // namespace syncline::checkpoint

#include "store/full_writer.h"

#include <fmt/format.h>

#include "checkpoint/writer.h"
#include "store/manifest.h"
#include "store/version.h"

namespace syncline::store {
namespace {

using base::Code;
using base::Fail;
using base::FileSystem;
using base::Result;
using base::Status;
using checkpoint::Component;
using checkpoint::Stems;

constexpr std::uint64_t kMaxCompanionBytes = std::uint64_t{1} << 30;

// In a version full/ is the full copy.
std::string_view FolderOf(std::string_view tensor) {
  const std::string_view folder = checkpoint::FolderOfTensor(tensor);
  return folder == kFullCopyFolder ? std::string_view() : folder;
}

std::string ParentOf(const std::string& name) {
  const std::size_t slash = name.rfind('/');
  return slash == std::string::npos ? "" : name.substr(0, slash);
}

// Names relative to `from`.
Result<std::vector<std::string>> ChooseCompanions(FileSystem& files, const std::string& from,
                                                  bool tree) {
  std::vector<std::string> chosen;
  if (tree) {
    SYNCLINE_ASSIGN(chosen, ListCompanions(files, from));
    std::erase_if(chosen, [](const std::string& name) {
      return !IsCompanionFile(base::BaseName(name)) ||
             name.starts_with(fmt::format("{}/", kFullCopyFolder));
    });
    return chosen;
  }
  SYNCLINE_ASSIGN(const std::vector<std::string> names, files.List(from));
  for (const std::string& name : names) {
    SYNCLINE_ASSIGN(const base::FileInfo info, files.Stat(base::JoinPath(from, name)));
    if (info.kind == base::FileInfo::Kind::kFile && IsCompanionFile(name)) chosen.push_back(name);
  }
  return chosen;
}

// The files in a folder of a checkpoint, with the folder.
Status ListFolder(FileSystem& files, const std::string& directory, const std::string& folder,
                  std::vector<std::string>& found) {
  SYNCLINE_ASSIGN(const auto names, files.List(base::JoinPath(directory, folder)));
  for (const std::string& name : names) found.push_back(base::JoinPath(folder, name));
  return {};
}

}  // namespace

Result<Stems> ChooseStems(FileSystem& files, std::span<const std::string_view> tensors,
                          const std::string& companions_from) {
  Stems stems;
  std::string_view outside;
  for (const std::string_view name : tensors) {
    const std::string_view folder = FolderOf(name);
    if (folder.empty()) {
      outside = name;
    } else if (!stems.contains(folder)) {
      stems.emplace(folder, checkpoint::UsualStem(folder));
    }
  }
  if (stems.empty()) return stems;
  std::vector<Component> components;
  if (!companions_from.empty()) {
    SYNCLINE_ASSIGN(components, checkpoint::FindComponents(files, companions_from));
  }
  if (components.size() == 1 && components.front().folder.empty()) return Stems();
  if (!outside.empty() && components.empty()) return Stems();
  if (!outside.empty()) {
    return Fail(Code::kInvalidArgument,
                fmt::format("tensor {} belongs to no component, and {} is a tree of components",
                            outside, companions_from));
  }
  for (const Component& component : components) {
    const auto stem = stems.find(component.folder);
    if (stem != stems.end()) stem->second = component.stem;
  }
  return stems;
}

Status CopyCompanions(FileSystem& files, const std::string& from, const std::string& to, bool tree,
                      bool durable, std::vector<std::string>& copied) {
  SYNCLINE_ASSIGN(const std::vector<std::string> names, ChooseCompanions(files, from, tree));
  for (const std::string& name : names) {
    SYNCLINE_ASSIGN(const std::string text,
                    base::ReadText(files, base::JoinPath(from, name), kMaxCompanionBytes));
    const std::string folder = ParentOf(name);
    if (!folder.empty()) SYNCLINE_TRY(files.MakeDirectories(base::JoinPath(to, folder)));
    SYNCLINE_TRY(base::WriteTextAtomically(files, base::JoinPath(to, name), text, durable));
    copied.push_back(name);
  }
  return {};
}

Result<std::vector<std::string>> WriteFull(FileSystem& files, const std::string& directory,
                                           std::span<const tensor::TensorView> tensors,
                                           const std::string& companions_from, bool durable,
                                           const tensor::Loader* loader, base::ThreadPool& pool,
                                           base::Progress& progress,
                                           const base::CancelToken* cancel) {
  std::vector<std::string_view> names;
  for (const tensor::TensorView& view : tensors) names.emplace_back(view.name);
  SYNCLINE_ASSIGN(const Stems stems, ChooseStems(files, names, companions_from));
  SYNCLINE_TRY(checkpoint::WriteCheckpoint(
      files, directory, tensors, {.durable = durable, .loader = loader, .components = stems}, pool,
      progress, cancel));
  std::vector<std::string> written;
  if (stems.empty()) SYNCLINE_TRY(ListFolder(files, directory, "", written));
  for (const auto& [folder, stem] : stems) {
    SYNCLINE_TRY(ListFolder(files, directory, folder, written));
  }
  if (!companions_from.empty()) {
    SYNCLINE_TRY(
        CopyCompanions(files, companions_from, directory, !stems.empty(), durable, written));
  }
  return written;
}

}  // namespace syncline::store

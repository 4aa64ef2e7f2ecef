#include "checkpoint/checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <unordered_map>

#include "checkpoint/index.h"

namespace syncline::checkpoint {

using base::Code;
using base::Fail;
using base::FileInfo;
using base::FileSystem;
using base::Result;
using base::Status;

namespace {

Result<Index> ReadIndex(FileSystem& files, const std::string& path) {
  SYNCLINE_ASSIGN(const std::string text, base::ReadText(files, path, kMaxIndexBytes));
  Result<Index> index = ParseIndex(text);
  if (!index) return Annotate(std::move(index).error(), path);
  return index;
}

// What the index says must be what its files hold; tensors that it does not name are not part of
// the checkpoint. Looks at the tensors from number `begin` on, those of the index's own folder.
Status CheckAgainstIndex(const Index& index, const std::string& index_path,
                         const std::string& folder,
                         const std::vector<Checkpoint::WeightFile>& weight_files, std::size_t begin,
                         std::vector<CheckpointTensor>& tensors) {
  std::unordered_map<std::string, std::string> expected;
  for (const auto& [tensor, file] : index.weight_map) {
    expected.emplace(base::JoinPath(folder, tensor), base::JoinPath(folder, file));
  }
  const auto own =
      std::ranges::subrange(tensors.begin() + static_cast<std::ptrdiff_t>(begin), tensors.end());
  const auto unknown = std::ranges::remove_if(own, [&](const CheckpointTensor& tensor) {
    const auto found = expected.find(tensor.name);
    if (found == expected.end() || found->second != weight_files[tensor.file].name) return true;
    expected.erase(found);
    return false;
  });
  tensors.erase(unknown.begin(), unknown.end());
  if (expected.empty()) return {};
  const auto& [tensor, file] = *expected.begin();
  return Fail(
      Code::kCorrupt,
      fmt::format(
          "{}: tensor {} is not in its file {}{}", index_path, tensor, file,
          expected.size() == 1 ? "" : fmt::format(" (and {} more tensors)", expected.size() - 1)));
}

}  // namespace

Status Checkpoint::AddFile(FileSystem& files, const std::string& folder, const std::string& name) {
  const std::string relative = base::JoinPath(folder, name);
  SYNCLINE_ASSIGN(const auto file,
                  files.Open(base::JoinPath(directory_, relative), base::OpenMode::kRead));
  SYNCLINE_ASSIGN(SafetensorsHeader header, ReadSafetensorsHeader(*file));
  for (TensorInfo& info : header.tensors) {
    tensors_.push_back({.name = base::JoinPath(folder, info.name),
                        .dtype = info.dtype,
                        .shape = std::move(info.shape),
                        .file = files_.size(),
                        .offset = info.offset,
                        .bytes = info.bytes});
  }
  files_.push_back(
      {.name = relative, .bytes = header.file_bytes, .metadata = std::move(header.metadata)});
  return {};
}

Status Checkpoint::AddComponent(FileSystem& files, const Component& component) {
  if (!component.indexed) {
    for (const std::string& name : component.files) {
      SYNCLINE_TRY(AddFile(files, component.folder, name));
    }
    return {};
  }
  const std::string folder = base::JoinPath(directory_, component.folder);
  const std::string index_path = base::JoinPath(folder, IndexNameOf(component.stem));
  SYNCLINE_ASSIGN(const Index index, ReadIndex(files, index_path));
  std::set<std::string> names;
  for (const auto& [tensor, file] : index.weight_map) names.insert(file);
  std::vector<std::string> missing;
  for (const std::string& name : names) {
    SYNCLINE_ASSIGN(const bool there, base::Exists(files, base::JoinPath(folder, name)));
    if (!there) missing.push_back(name);
  }
  if (!missing.empty()) {
    return Fail(Code::kNotFound, fmt::format("{} names files that are not there: {}", index_path,
                                             fmt::join(missing, ", ")));
  }
  const std::size_t begin = tensors_.size();
  for (const std::string& name : names) SYNCLINE_TRY(AddFile(files, component.folder, name));
  return CheckAgainstIndex(index, index_path, component.folder, files_, begin, tensors_);
}

Status Checkpoint::Finish() {
  std::ranges::sort(tensors_, {}, &CheckpointTensor::name);
  const auto twice = std::ranges::adjacent_find(tensors_, {}, &CheckpointTensor::name);
  if (twice != tensors_.end()) {
    return Fail(Code::kCorrupt,
                fmt::format("{}: tensor {} is held by {} and by {}, and no index says which counts",
                            directory_, twice->name, files_[twice->file].name,
                            files_[std::next(twice)->file].name));
  }
  for (const CheckpointTensor& tensor : tensors_) total_bytes_ += tensor.bytes;
  return {};
}

Result<Checkpoint> Checkpoint::Open(FileSystem& files, const std::string& path) {
  Checkpoint result;
  SYNCLINE_ASSIGN(const FileInfo info, files.Stat(path));
  if (info.kind != FileInfo::Kind::kDirectory) {
    const std::size_t slash = path.rfind('/');
    result.directory_ = slash == std::string::npos ? "." : path.substr(0, slash + 1);
    SYNCLINE_TRY(result.AddFile(files, "", std::string(base::BaseName(path))));
    SYNCLINE_TRY(result.Finish());
    return result;
  }

  result.directory_ = path;
  SYNCLINE_ASSIGN(const std::vector<Component> components, FindComponents(files, path));
  if (components.empty()) {
    return Fail(Code::kNotFound,
                fmt::format("{} is no checkpoint: neither it nor its sub-folders hold {} or a "
                            ".safetensors file",
                            path, kIndexName));
  }
  for (const Component& component : components) {
    SYNCLINE_TRY(result.AddComponent(files, component));
  }
  SYNCLINE_TRY(result.Finish());
  return result;
}

const CheckpointTensor* Checkpoint::Find(std::string_view name) const {
  const auto found = std::ranges::lower_bound(tensors_, name, {}, &CheckpointTensor::name);
  return found != tensors_.end() && found->name == name ? &*found : nullptr;
}

std::string Checkpoint::FilePath(std::size_t file) const {
  return base::JoinPath(directory_, files_[file].name);
}

Result<MappedCheckpoint> MappedCheckpoint::Open(FileSystem& files, const std::string& path) {
  SYNCLINE_ASSIGN(Checkpoint checkpoint, Checkpoint::Open(files, path));
  return Map(files, std::move(checkpoint));
}

std::vector<tensor::TensorView> MappedCheckpoint::Views() const {
  std::vector<tensor::TensorView> views;
  views.reserve(checkpoint_.tensors().size());
  for (const CheckpointTensor& tensor : checkpoint_.tensors()) {
    views.push_back({tensor.name, tensor.dtype, tensor.shape, Bytes(tensor)});
  }
  return views;
}

Result<MappedCheckpoint> MappedCheckpoint::Map(FileSystem& files, Checkpoint checkpoint) {
  MappedCheckpoint mapped(std::move(checkpoint));
  for (std::size_t i = 0; i < mapped.checkpoint_.files().size(); ++i) {
    const std::string path = mapped.checkpoint_.FilePath(i);
    SYNCLINE_ASSIGN(const auto file, files.Open(path, base::OpenMode::kRead));
    SYNCLINE_ASSIGN(base::Mapping map, file->Map(false));
    if (map.bytes().size() != mapped.checkpoint_.files()[i].bytes) {
      return Fail(Code::kCorrupt,
                  fmt::format("{} changed its size while it was opened: {} bytes, "
                              "then {}",
                              path, mapped.checkpoint_.files()[i].bytes, map.bytes().size()));
    }
    mapped.maps_.push_back(std::move(map));
  }
  return mapped;
}

}  // namespace syncline::checkpoint

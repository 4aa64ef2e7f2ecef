#include "store/full_writer.h"

#include "checkpoint/writer.h"
#include "store/version.h"

namespace syncline::store {
namespace {

using base::FileSystem;
using base::Result;
using base::Status;

constexpr std::uint64_t kMaxCompanionBytes = std::uint64_t{1} << 30;

}  // namespace

Status CopyCompanions(FileSystem& files, const std::string& from, const std::string& to,
                      bool durable, std::vector<std::string>& copied) {
  SYNCLINE_ASSIGN(const std::vector<std::string> names, files.List(from));
  for (const std::string& name : names) {
    SYNCLINE_ASSIGN(const base::FileInfo info, files.Stat(base::JoinPath(from, name)));
    if (info.kind != base::FileInfo::Kind::kFile || !IsCompanionFile(name)) continue;
    SYNCLINE_ASSIGN(const std::string text,
                    base::ReadText(files, base::JoinPath(from, name), kMaxCompanionBytes));
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
  SYNCLINE_TRY(checkpoint::WriteCheckpoint(
      files, directory, tensors, {.durable = durable, .loader = loader}, pool, progress, cancel));
  SYNCLINE_ASSIGN(std::vector<std::string> written, files.List(directory));
  if (!companions_from.empty()) {
    SYNCLINE_TRY(CopyCompanions(files, companions_from, directory, durable, written));
  }
  return written;
}

}  // namespace syncline::store

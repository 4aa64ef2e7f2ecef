// 1. Versions are visited from the newest one down. What a version says of its tensors is noted; of
//    a tensor that was noted before only what is missing is taken: dtype and shape, never a digest,
//    which would be that of older bytes.
// 2. It ends as soon as all tensors of the model (as many as a manifest on the way says) are noted
//    with dtype and shape, or with a full version, or a copy whose tensors the manifest names.
// 3. Where the next base is not in the store: the headers of a full copy that was passed name what
//    is missing, without digests. Where that is not signed as it must be, or the base is version 0,
//    a checkpoint outside of the store, the answer is not complete.
#include "store/version_digests.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"

namespace syncline::store {
namespace {

using base::Code;
using base::Fail;
using base::Result;
using base::Status;

struct Form {
  tensor::Dtype dtype = tensor::Dtype::kU8;
  std::vector<std::uint64_t> shape;
  bool operator==(const Form&) const = default;
};

class Walk {
 public:
  Walk(Source& source, const base::CancelToken* cancel) : source_(source), cancel_(cancel) {}

  Result<VersionDigests> Run(std::uint64_t version) {
    for (std::uint64_t at = version; true;) {
      if (cancel_ != nullptr) SYNCLINE_TRY(cancel_->Check());
      SYNCLINE_ASSIGN(const Described described, source_.Describe(at));
      if (at == version) identity_ = described.identity;
      SYNCLINE_TRY(CheckParent(described));
      auto all = Visit(described);
      if (!all) {
        return Annotate(std::move(all).error(), fmt::format("version {} of {}", at, source_.url()));
      }
      if (*all) return Finish(true);
      at = described.delta->base_version;
      SYNCLINE_ASSIGN(const bool there, source_.Has(at));
      if (!there) return EndWithout(at);
    }
  }

 private:
  struct Noted {
    std::optional<Form> form;
    std::optional<tensor::Digest> digest;
    std::uint64_t version = 0;  // the newest one that names it
  };

  // The version that was just read must be the one that the delta before was made on.
  Status CheckParent(const Described& described) {
    const std::string parent = std::exchange(
        parent_, described.manifest ? described.manifest->manifest.parent : std::string());
    if (parent.empty() || !described.manifest || parent == described.identity) return {};
    return Fail(Code::kOutOfOrder,
                fmt::format("version {} of {} is another one than the next version was made on "
                            "(parent {:.12}…, found {:.12}…)",
                            described.number, source_.url(), parent, described.identity));
  }

  // Is every tensor noted now?
  Result<bool> Visit(const Described& version) {
    const Manifest* manifest = version.manifest ? &version.manifest->manifest : nullptr;
    if (manifest != nullptr && !total_) total_ = manifest->tensors_total;
    if (!version.delta) {
      if (manifest != nullptr) return NoteAll(manifest->tensors, version.number);
      return NoteHeaders(version.directory, version.number);
    }
    SYNCLINE_TRY(VisitDelta(version, manifest));
    if (manifest != nullptr && !manifest->copy_tensors.empty()) {
      return NoteAll(manifest->copy_tensors, version.number);
    }
    if (copy_.empty() && version.full_copy_bytes) {
      copy_ = base::JoinPath(version.directory, kFullCopyFolder);
      copy_version_ = version.number;
    }
    return total_ && noted_.size() == *total_ && formless_ == 0;
  }

  Status VisitDelta(const Described& version, const Manifest* manifest) {
    const bool compact = version.delta->encoding == delta::Encoding::kCompact;
    const bool told = manifest != nullptr && !manifest->tensors_in_files &&
                      (!compact || std::ranges::all_of(manifest->tensors, [](const auto& tensor) {
                        return tensor.digest.has_value();
                      }));
    if (told) {
      for (const ManifestTensor& tensor : manifest->tensors) {
        SYNCLINE_TRY(
            Note(tensor.name, Form{tensor.dtype, tensor.shape}, tensor.digest, version.number));
      }
      return {};
    }
    // A signature covers the manifest, which covers files as a whole.
    if (source_.trusts_keys() && manifest != nullptr) {
      base::ThreadPool pool;
      SYNCLINE_TRY(CheckFiles(source_.files(), version.directory, *manifest, Part::kVersion,
                              /*hash=*/true, pool, cancel_));
    }
    SYNCLINE_ASSIGN(const Version read,
                    ReadVersion(source_.files(), source_.path(), version.number));
    for (const delta::CompactTable& table : read.tables) {
      for (const delta::CompactCell& cell : table.cells) {
        for (const delta::CompactTensor& tensor : cell.tensors) {
          SYNCLINE_TRY(
              Note(tensor.name, Form{tensor.dtype, tensor.shape}, tensor.digest, version.number));
        }
      }
    }
    if (compact) return {};
    for (const DeltaTensor& tensor : read.tensors) {
      SYNCLINE_TRY(Note(tensor.name, std::nullopt, std::nullopt, version.number));
    }
    return {};
  }

  Status Note(const std::string& name, std::optional<Form> form,
              const std::optional<tensor::Digest>& digest, std::uint64_t version) {
    const auto [place, fresh] = noted_.try_emplace(name);
    Noted& noted = place->second;
    if (fresh) {
      noted = {std::move(form), digest, version};
      if (!noted.form) ++formless_;
      return {};
    }
    if (!form || noted.form == form) return {};
    if (!noted.form) {
      noted.form = std::move(form);
      --formless_;
      return {};
    }
    return Fail(Code::kCorrupt,
                fmt::format("tensor {} is {} {}, in version {} it is {} {}", name,
                            Name(form->dtype), tensor::ShapeText(form->shape), noted.version,
                            Name(noted.form->dtype), tensor::ShapeText(noted.form->shape)));
  }

  // Of tensors that are all of the model; any other that was noted cannot be one of it.
  Result<bool> NoteAll(const std::vector<ManifestTensor>& tensors, std::uint64_t version) {
    for (const ManifestTensor& tensor : tensors) {
      SYNCLINE_TRY(Note(tensor.name, Form{tensor.dtype, tensor.shape}, tensor.digest, version));
    }
    const auto extra = std::ranges::find_if(noted_, [&](const auto& noted) {
      const auto found = std::ranges::lower_bound(tensors, noted.first, {}, &ManifestTensor::name);
      return found == tensors.end() || found->name != noted.first;
    });
    if (extra == noted_.end()) return true;
    return Fail(Code::kCorrupt, fmt::format("it has no tensor {}, which version {} changes",
                                            extra->first, extra->second.version));
  }

  // The same of a checkpoint, by its headers.
  Result<bool> NoteHeaders(const std::string& directory, std::uint64_t version) {
    const auto checkpoint = checkpoint::Checkpoint::Open(source_.files(), directory);
    if (!checkpoint && checkpoint.error().code == Code::kNotFound) {
      return Fail(Code::kIncompatible,
                  fmt::format("it has no manifest, and its tensors cannot be found: {}",
                              checkpoint.error().message));
    }
    if (!checkpoint) return std::unexpected(checkpoint.error());
    std::vector<ManifestTensor> tensors;
    for (const checkpoint::CheckpointTensor& tensor : checkpoint->tensors()) {
      tensors.push_back({tensor.name, tensor.dtype, tensor.shape, {}});
    }
    return NoteAll(tensors, version);
  }

  // Step 3.
  Result<VersionDigests> EndWithout(std::uint64_t base) {
    if (!copy_.empty() && !source_.trusts_keys()) {
      auto all = NoteHeaders(copy_, copy_version_);
      if (all) return Finish(true);
      return Annotate(std::move(all).error(),
                      fmt::format("full copy of version {} of {}", copy_version_, source_.url()));
    }
    if (base != 0 && copy_.empty()) {
      return Fail(Code::kNotFound,
                  fmt::format("the chain is broken: {} lacks version {}", source_.url(), base));
    }
    return Finish(false);
  }

  Result<VersionDigests> Finish(bool complete) {
    VersionDigests found{.tensors = {}, .complete = complete, .identity = std::move(identity_)};
    for (auto& [name, noted] : noted_) {
      if (!noted.form) {
        return Fail(Code::kIncompatible,
                    fmt::format("version {} of {} has no manifest: nothing tells the dtype and "
                                "shape of tensor {}, which it changes",
                                noted.version, source_.url(), name));
      }
      found.tensors.push_back(
          {name, noted.form->dtype, std::move(noted.form->shape), noted.digest});
    }
    return found;
  }

  Source& source_;
  const base::CancelToken* cancel_;
  std::string identity_;
  std::string parent_;                  // of the version visited last, by its manifest
  std::optional<std::uint64_t> total_;  // tensors of the model
  std::map<std::string, Noted, std::less<>> noted_;
  std::uint64_t formless_ = 0;  // of these, without dtype and shape
  std::string copy_;            // the newest full copy that was passed; empty: none
  std::uint64_t copy_version_ = 0;
};

}  // namespace

Result<VersionDigests> ReadVersionDigests(Source& source, std::uint64_t version,
                                          const base::CancelToken* cancel) {
  return Walk(source, cancel).Run(version);
}

}  // namespace syncline::store

// The trainer's side of a store directory: turns each set of weights into the next version.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "delta/changed_lines.h"
#include "store/manifest.h"
#include "store/version.h"
#include "tensor/view.h"

namespace syncline::store {

// The tensors of the last published version, which the next one is compared with.
class Baseline {
 public:
  virtual ~Baseline() = default;
  // By name.
  virtual std::span<const tensor::TensorView> tensors() const = 0;
  // Becomes `tensors` (by name). lines[i], if there are any, says where tensor i differs from what
  // is held.
  virtual base::Status Advance(std::span<const tensor::TensorView> tensors,
                               std::span<const delta::ChangedLines> lines,
                               base::ThreadPool& pool) = 0;
};

// A copy in memory.
std::unique_ptr<Baseline> MakeMemoryBaseline();
// Views of memory that somebody else keeps and replaces; Advance does nothing.
std::unique_ptr<Baseline> MakeBorrowedBaseline(std::vector<tensor::TensorView> tensors);

struct PublisherOptions {
  delta::Encoding encoding = delta::Encoding::kXor;
  std::string companions_from;  // directory whose other files (configuration, tokenizer …) go into
                                // full versions
  bool durable = true;          // a version that is announced is on the device
  std::size_t threads = 0;      // 0: one for each processor
};

struct PublishReport {
  std::uint64_t version = 0;
  std::optional<std::uint64_t> base_version;  // nothing: a full version
  std::uint64_t tensors = 0;
  std::uint64_t tensors_changed = 0;
  std::uint64_t elements = 0;
  std::uint64_t elements_changed = 0;
  std::uint64_t bytes = 0;       // of all files of the version
  std::uint64_t full_bytes = 0;  // of all tensors
  double seconds = 0;

  double density() const {
    return elements == 0 ? 0
                         : static_cast<double>(elements_changed) / static_cast<double>(elements);
  }
};

// One thread at a time. Holds the store's publisher lock: a second publisher on the same store
// fails with kLocked.
class Publisher {
 public:
  // Makes the directory if it is missing. The store has `last_version` (see last_version()) or is
  // empty; `baseline` holds its tensors, or those of version 0 where version 0 is a checkpoint that
  // both sides have already (based_at_zero). Without a baseline the first version is full.
  static base::Result<Publisher> Open(base::FileSystem& files, const std::string& store,
                                      std::unique_ptr<Baseline> baseline, bool based_at_zero,
                                      PublisherOptions options);

  // The newest version that the baseline stands for; nothing before the first.
  std::optional<std::uint64_t> last_version() const { return last_version_; }

  // Publishes all tensors of the model. `version`: nothing = the next one. The first version of a
  // store without baseline, or `full`, is a full one; any other is the delta against the last
  // version and must be the next number. Tensors must have the names, dtypes and shapes of the
  // baseline, unless full. The baseline moves only when the version stands; after a failure the
  // next call covers what this one did not.
  base::Result<PublishReport> Publish(std::optional<std::uint64_t> version,
                                      std::vector<tensor::TensorView> tensors, bool full,
                                      base::Progress& progress,
                                      const base::CancelToken* cancel = nullptr);

 private:
  Publisher() = default;

  base::Result<std::uint64_t> ChooseVersion(std::optional<std::uint64_t> asked, bool full) const;
  // The checkpoint and its companions; `written` receives their names.
  base::Status WriteFullFiles(const std::string& directory,
                              std::span<const tensor::TensorView> tensors,
                              std::vector<std::string>& written, base::Progress& progress,
                              const base::CancelToken* cancel);
  // Sizes and hashes of the files of those names, by name.
  base::Result<std::vector<ManifestFile>> HashWritten(const std::string& directory,
                                                      std::vector<std::string> names,
                                                      const base::CancelToken* cancel);
  base::Status CheckSameTensors(std::span<const tensor::TensorView> tensors) const;

  base::FileSystem* files_ = nullptr;
  std::string store_;
  std::unique_ptr<base::FileLock> lock_;
  std::unique_ptr<Baseline> baseline_;
  PublisherOptions options_;
  std::unique_ptr<base::ThreadPool> pool_;
  std::optional<std::uint64_t> last_version_;
  std::string run_;
  std::string parent_;  // identity of last_version_; empty: it has no manifest
};

// Where a store directory keeps what is its own and no version.
std::string OwnDirectory(const std::string& store);

}  // namespace syncline::store

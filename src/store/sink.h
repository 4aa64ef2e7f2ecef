// Where a publisher's versions go. Whatever the place, a version is first written to a staging
// directory on a local disk and then committed in one step.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/cancel.h"
#include "base/file.h"
#include "base/progress.h"
#include "objects/object_store.h"
#include "store/latest.h"
#include "store/manifest.h"

namespace syncline::store {

struct NewestVersion {
  std::uint64_t version = 0;
  std::optional<ReadManifestResult> manifest;  // nothing: a foreign version
};

// A version (or a fold, see folds.h) whose files lie in the directory that Stage() gave.
struct StagedVersion {
  std::string name;  // of its folder in the store
  std::string directory;
  std::vector<std::string> files;  // relative; all but manifest and signature
  std::string manifest_text;
  std::string signature_text;  // empty: not signed
};

// What became of a commit.
enum class Outcome {
  kNothing,    // the version does not stand, and never will by this call
  kCommitted,  // it stands, also where `status` is an error
  kUnknown,    // the answer was lost; FindNewest will tell
};
struct CommitResult {
  Outcome outcome = Outcome::kNothing;
  base::Status status;
};

// One thread at a time.
class Sink {
 public:
  virtual ~Sink() = default;

  // Of the store, for messages.
  virtual const std::string& url() const = 0;
  // Of a store in a directory: its path; else empty.
  virtual std::string local_path() const = 0;
  // Path of that name on a local disk where nobody but who holds this sink writes.
  virtual std::string OwnPath(std::string_view name) const = 0;
  // Path or URL of a folder in the store, for those who are told of it.
  virtual std::string FolderUrl(std::string_view name) const = 0;
  // Nothing: the store holds no version.
  virtual base::Result<std::optional<NewestVersion>> FindNewest(
      const base::CancelToken* cancel) = 0;
  // An empty directory for the files of the folder of that name. What was staged before is gone.
  virtual base::Result<std::string> Stage(const std::string& name) = 0;
  // Afterwards readers see the whole version, and if the store is durable it stays. kAlreadyExists
  // if somebody else made it.
  virtual CommitResult Commit(const StagedVersion& staged, base::Progress& progress,
                              const base::CancelToken* cancel) = 0;
  // Moves the newest pointer, unless it is there already.
  virtual base::Status PointTo(const Latest& latest, const base::CancelToken* cancel) = 0;
};

// What a sink is for. Each has its own lock and staging, so a fold may be made beside a publisher.
enum class SinkUse { kPublish, kFold };

// The names that go with it, and who is at work: "publisher", say.
struct SinkNames {
  std::string_view lock;
  std::string_view staging;
  std::string_view who;
};
SinkNames NamesOf(SinkUse use);

struct SinkOptions {
  bool durable = true;         // of a directory: see OpenDirectorySink
  bool exclusive = true;       // likewise
  std::string work_directory;  // of others: see OpenObjectSink
  objects::Settings objects;
  SinkUse use = SinkUse::kPublish;
};

// `store`: a path or URL (objects::Open). kLocked, kIncompatible and more, as the kinds say.
base::Result<std::unique_ptr<Sink>> OpenSink(base::FileSystem& files, const std::string& store,
                                             const SinkOptions& options);

}  // namespace syncline::store

// A store as its readers see it, wherever it is: a directory, an HTTP server, an S3 bucket.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/cancel.h"
#include "base/file.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "objects/object_store.h"
#include "store/arrival.h"
#include "store/folds.h"
#include "store/manifest.h"
#include "store/signature.h"
#include "store/version.h"

namespace syncline::store {

struct SourceOptions {
  objects::Settings connection;
  // PEM files of public keys. If there are any, only what one of them has signed is read.
  std::vector<std::string> trusted_keys;
  // How long to wait for what a manifest names, or for a version that was asked for, to become
  // visible; nothing: 30 for a store that is not a directory, 0 for a directory.
  std::optional<double> wait_seconds;
  // Called before the store is read, and again while something is waited for: a place to refresh a
  // mount. `version`: the one that is wanted; nothing: the newest. Comes from any thread, but from
  // one at a time.
  std::function<base::Status(std::optional<std::uint64_t> version)> before_read;
  const base::CancelToken* cancel = nullptr;  // of every call; must outlive the source
};

// What is known of a version, or of a fold that leads to it, before its weights are read.
struct Described {
  std::uint64_t number = 0;
  std::string folder;                          // in the store: of the version, or of the fold
  std::string directory;                       // the same in Source::files()
  std::optional<DeltaInfo> delta;              // nothing: a full version
  std::optional<ReadManifestResult> manifest;  // nothing: not by a publisher of ours
  std::string identity;   // of the manifest; without one "index:" and the xxh3-128 of the index
                          // text, or "" of a full version without index. Of a fold: of the version
                          // that it makes
  std::string signed_by;  // fingerprint of the trusted key; empty: nobody asked
  std::uint64_t bytes = 0;                       // of its files, the full copy left out
  std::optional<std::uint64_t> full_copy_bytes;  // nothing: there is no full copy

  bool is_fold() const { return manifest && manifest->manifest.fold; }
  // Is it, as far as anybody can tell, what `held` stands for?
  bool IsIdentity(const std::string& held) const { return held.empty() || held == identity; }
};

class Source {
 public:
  // `files` serves local directories; must outlive the source. Asks nothing of the store yet but to
  // read the keys.
  static base::Result<std::unique_ptr<Source>> Open(base::FileSystem& files, const std::string& url,
                                                    SourceOptions options);

  const std::string& url() const { return objects_->url(); }
  bool is_directory() const { return !objects_->local_path().empty(); }
  // Through which the store can be read like a directory, and its path there.
  base::FileSystem& files() { return *files_; }
  const std::string& path() const { return objects_->local_path(); }
  objects::ObjectStore& objects() { return *objects_; }

  // Is only read what is signed?
  bool trusts_keys() const { return !keys_.empty(); }

  // Calls SourceOptions::before_read.
  base::Status Refresh(std::optional<std::uint64_t> version);

  // Ascending; where a store cannot be listed, those that lead to the newest. kNotFound if there is no
  // such directory.
  base::Result<std::vector<std::uint64_t>> ListVersions();
  // The newest version: by the pointer, and what was committed after it. kNotFound: there is none,
  // or a server that cannot be asked has no pointer.
  base::Result<std::uint64_t> Latest();
  base::Result<bool> Has(std::uint64_t version);

  // Waits as wait_seconds says. kNotFound: there is no such version. kPermissionDenied: it is not
  // signed as it must be. kCorrupt: its files do not follow their formats. Of a delta only the index
  // and the manifest are read.
  base::Result<Described> Describe(std::uint64_t version);

  // The folds that a reader looks for: of a directory those that are there, else those that
  // syncline.folds.json names. That is one request. None, if it cannot be read for good.
  base::Result<std::vector<FoldEntry>> KnownFolds();
  // All that are there, where the store can be listed; else the known ones.
  base::Result<std::vector<FoldRange>> ListFolds();
  // kNotFound: it is not there (any more). Other errors as of Describe. Never waits.
  base::Result<Described> DescribeFold(const FoldRange& range);

  // What the files of a full version in a directory look like from outside (sizes, times, numbers):
  // changes when one of them is written to or replaced. Empty for others.
  base::Result<std::string> Stamp(const Described& version);

  // The directory, in files() of the machine, that holds the version's files (or its full copy). Of
  // a store that is a directory: where it is. Of others everything is fetched to `spool`/FOLDER
  // first, in parallel ranges; what a call that was interrupted has fetched is not fetched again.
  // Every file must have the size and SHA-256 of the manifest; of a full version or copy in a
  // directory only the size is looked at: it is copied next, and the copy has to be hashed. Waits as
  // wait_seconds says; then kNotFound, kCorrupt or kChecksumMismatch names the file, expected and
  // actual. kNoSpace before anything is fetched. A fold is not waited for.
  base::Result<std::string> Bring(const Described& version, Part part, const std::string& spool,
                                  base::ThreadPool& pool, base::Progress& progress);

  // Begins to bring deltas (or folds), all at once, and returns while they are on their way: what
  // has come can be read at Arrival::path() in Arrival::files(), and Arrival::Wait() says whether it
  // was right, by the same rules and with the same errors as Bring. Of a store that is a directory
  // only the SHA-256 is left to be checked then; where a size is wrong, it has ended. Where nothing
  // vouches for the bytes of a version, because it has no manifest, it is brought before this
  // returns. As many threads as `pool` has work beside it. The source and `progress` must outlive
  // what is returned; two that are at work must not use one spool.
  base::Result<std::unique_ptr<Arrival>> StartBringing(std::span<const Described> deltas,
                                                       const std::string& spool,
                                                       base::ThreadPool& pool,
                                                       base::Progress& progress);

 private:
  Source() = default;

  base::Result<std::vector<std::uint64_t>> WalkVersions();
  base::Result<Described> DescribeNow(std::uint64_t version);
  base::Result<std::string> BringNow(const Described& version, Part part, const std::string& spool,
                                     base::ThreadPool& pool, base::Progress& progress);
  base::Result<Described> ReadFold(const FoldRange& range);
  base::Result<std::vector<FetchFile>> WantedFiles(const Described& version, Part part,
                                                   const std::string& spool);
  base::Result<std::unique_ptr<Arrival>> StartChecking(std::span<const Described> deltas,
                                                       base::ThreadPool& pool);
  double WaitSeconds() const;
  base::Status CheckSigned(Described& version);
  template <typename Try>
  auto Wait(std::uint64_t version, const base::CancelToken* cancel, const Try& attempt)
      -> decltype(attempt());

  base::FileSystem* local_ = nullptr;
  std::unique_ptr<objects::ObjectStore> objects_;
  std::unique_ptr<base::FileSystem> remote_files_;
  base::FileSystem* files_ = nullptr;
  SourceOptions options_;
  std::vector<TrustedKey> keys_;
  std::optional<bool> has_pointer_;
};

}  // namespace syncline::store

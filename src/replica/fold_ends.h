// The two checkpoints between which a fold is made. Inside of fold.cc.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/cancel.h"
#include "base/file.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "replica/state.h"
#include "store/source.h"

namespace syncline::replica {

using KnownHashes = std::map<std::string, TensorHash, std::less<>>;

// A version as a checkpoint.
struct FoldEnd {
  std::string path;
  KnownHashes hashes;                    // of its tensors, where something vouches for them
  std::unique_ptr<base::FileLock> lock;  // of a replica of somebody's: nobody changes it
};

// Makes them. One thread; what the constructor is given must outlive it.
class FoldEnds {
 public:
  // `scratch`: a folder of ours for what has to be made.
  FoldEnds(base::FileSystem& files, store::Source& source, const store::SourceOptions& options,
           std::string scratch, base::ThreadPool& pool, std::size_t threads,
           base::Progress& progress, const base::CancelToken* cancel)
      : files_(files),
        source_(source),
        options_(options),
        scratch_(std::move(scratch)),
        pool_(pool),
        threads_(threads),
        progress_(progress),
        cancel_(cancel) {}

  // The identity of version `from`, which `to` builds on by whatever way: of its manifest, or as
  // the version after it says, or a replica at `base`. Empty: version 0, a checkpoint outside of
  // the store. kNotFound: nobody knows.
  base::Result<std::string> FindIdentity(std::uint64_t from, const store::Described& to,
                                         const std::string& base);

  // Version `held.version` from a checkpoint or replica that somebody says is it. kOutOfOrder or
  // kChecksumMismatch where it is another one.
  base::Result<FoldEnd> FromBase(const std::string& base, const HeldVersion& held);
  // The same from the store.
  base::Result<FoldEnd> FromStore(std::uint64_t version);
  // Version `version` from the store, starting at `from`, which is `held`.
  base::Result<FoldEnd> Follow(std::uint64_t version, const FoldEnd& from, const HeldVersion& held);

 private:
  base::Result<KnownHashes> HashesOf(std::uint64_t version);
  base::Result<std::optional<FoldEnd>> InPlace(std::uint64_t version);
  base::Result<FoldEnd> PullInto(const std::string& directory, std::uint64_t version);
  base::Status CheckHashes(const std::string& path, const KnownHashes& known,
                           std::uint64_t version);

  base::FileSystem& files_;
  store::Source& source_;
  const store::SourceOptions& options_;
  std::string scratch_;
  base::ThreadPool& pool_;
  std::size_t threads_;
  base::Progress& progress_;
  const base::CancelToken* cancel_;
};

}  // namespace syncline::replica

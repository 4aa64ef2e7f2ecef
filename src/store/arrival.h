// Deltas on their way from a store, that can be read before all of them has come.
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/cancel.h"
#include "base/file.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "objects/object_store.h"
#include "store/fetch.h"

namespace syncline::store {

// The work goes on in threads of its own, so that the threads of a pool may wait in reads. All
// calls may come from any thread.
class Arrival {
 public:
  // Fetches into the folders of `spool` that versions (and folds) have in a store. What it is given
  // must outlive it.
  static base::Result<std::unique_ptr<Arrival>> Fetching(
      objects::ObjectStore& store, base::FileSystem& files, const std::string& spool,
      std::vector<FetchFile> wanted, FetchOptions options, std::size_t threads,
      base::Progress& progress, const base::CancelToken* cancel);

  // How the work ended; after an error whose files were at fault, where it was that.
  struct Verdict {
    base::Status status;
    std::optional<std::uint64_t> version;
  };
  using Check = std::function<Verdict(base::ThreadPool& pool, const base::CancelToken* cancel)>;
  // Of files that are there, in such folders of `path`, and only have to be checked.
  static std::unique_ptr<Arrival> Checking(base::FileSystem& files, const std::string& path,
                                           Check check, std::size_t threads,
                                           const base::CancelToken* cancel);
  // Of files of which that is known already.
  static std::unique_ptr<Arrival> Ended(base::FileSystem& files, const std::string& path,
                                        Verdict verdict);

  // Ends the work, wherever it is.
  ~Arrival();
  Arrival(const Arrival&) = delete;
  Arrival& operator=(const Arrival&) = delete;

  // The store as a directory in files().
  const std::string& path() const { return path_; }
  // Its files are those of the local file system, but of one that is on its way Stat gives the size
  // that it will have, and a read waits until the bytes have come, or fails with the error of
  // Wait(). What is read before Wait() has returned well is not proven, and may change.
  base::FileSystem& files() const { return *files_; }

  // Is it known how the work ended? Then Wait() returns at once.
  bool ended() const;
  // Waits for the end. Success: every file is there with the size and the SHA-256 of its manifest.
  base::Status Wait() const { return verdict_.get().status; }
  // Waits too. Which delta's files are to blame for the error of Wait(); nothing: none.
  std::optional<std::uint64_t> failed_version() const { return verdict_.get().version; }

 private:
  explicit Arrival(const base::CancelToken* cancel) : stop_(cancel) {}
  void Start(std::size_t threads, Check work);

  base::CancelToken stop_;
  std::string path_;
  std::unique_ptr<Fetch> fetch_;                 // null: nothing is fetched
  std::unique_ptr<base::FileSystem> own_files_;  // over fetch_
  base::FileSystem* files_ = nullptr;
  std::shared_future<Verdict> verdict_;
};

}  // namespace syncline::store

// Fetches files of an object store to a local directory, in pieces, in parallel; what has come can
// be read while the rest is still on its way.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/cancel.h"
#include "base/file.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "objects/object_store.h"
#include "store/download.h"

namespace syncline::store {

// Something that may be there in a moment.
bool MayAppear(const base::Error& error);

struct FetchOptions {
  // How long to go on asking for a file that is missing, or is not what it should be, if it is one
  // that may appear.
  double wait_seconds = 0;
  // Called before a file is asked for again. May be empty.
  std::function<base::Status(std::uint64_t version)> refresh;
  // For readers that begin meanwhile: small files first, and of the others the first and the last
  // piece. Otherwise everything in the order in which it is wanted.
  bool ends_first = false;
};

// Run is called once, by one thread; the others are for any thread, before, meanwhile and
// afterwards.
class Fetch {
 public:
  // Makes the directories of what is wanted, and asks for the space: kNoSpace before anything is
  // fetched. store, files and cancel (may be null) must outlive it.
  static base::Result<std::unique_ptr<Fetch>> Plan(objects::ObjectStore& store,
                                                   base::FileSystem& files,
                                                   std::vector<FetchFile> wanted,
                                                   FetchOptions options,
                                                   const base::CancelToken* cancel);

  // Fetches what is not there and checks it. An error is the first one: kCorrupt if an object has
  // another size than is wanted, kChecksumMismatch (with expected and actual) if what came has
  // another SHA-256; it names the object, and ends the fetch at once. What has come by then is not
  // fetched again by the next Fetch. All threads of the pool take part.
  base::Status Run(base::ThreadPool& pool, base::Progress& progress);

  // Which version's file has ended Run; nothing: none.
  std::optional<std::uint64_t> failed_version();

  // The number of a file by its local path; nothing if it is not wanted.
  std::optional<std::size_t> Find(std::string_view path) const;
  std::uint64_t FileBytes(std::size_t file) const { return items_[file]->download.wanted().bytes; }
  // Waits until a range of the file (which lies inside) has come: it is fetched before all that
  // nobody waits for. What has come may still turn out to have a wrong SHA-256. An error is that of
  // Run, which has failed or is about to.
  base::Status Await(std::size_t file, std::uint64_t offset, std::uint64_t bytes);
  // How many calls of Await wait now; they have asked, if the file is open.
  std::size_t waiting();
  // To read what Await has waited for.
  base::Result<std::unique_ptr<base::File>> OpenContent(std::size_t file);

 private:
  using Clock = std::chrono::steady_clock;
  enum class PieceState : char { kMissing, kTaken, kThere };

  struct Item {
    explicit Item(Download of) : download(std::move(of)) {}
    Download download;
    // What follows is guarded by mutex_.
    bool finished = false;
    bool open = false;               // for this try
    std::uint64_t openings = 0;      // so far
    bool in_hash_queue = false;      // or in the hands of a thread that hashes
    std::vector<PieceState> pieces;  // since the last opening
    std::uint64_t hashed = 0;        // pieces
    std::optional<Clock::time_point> missed_since;
  };
  struct Piece {
    std::size_t file = 0;
    std::uint64_t number = 0;
  };
  struct Job {
    Piece piece;
    bool hash = false;  // otherwise it is to be fetched
  };

  Fetch(objects::ObjectStore& store, FetchOptions options, const base::CancelToken* cancel)
      : store_(store), options_(std::move(options)), stop_(cancel) {}

  base::Status RunTries(base::ThreadPool& pool, base::Progress& progress);
  base::Status Pause(std::chrono::milliseconds pause, std::uint64_t version);
  base::Status OpenFiles(base::ThreadPool& pool);
  std::uint64_t Schedule();
  base::Status Work(base::Progress& progress);
  std::optional<Job> Next();
  base::Status Do(const Job& job, base::Buffer& buffer, base::Progress& progress);
  void QueueHash(std::size_t file);
  void NoteFailure(std::size_t file, base::Error error);
  void End(base::Error error);
  void EndLocked();

  objects::ObjectStore& store_;
  FetchOptions options_;
  base::CancelToken stop_;
  std::vector<std::unique_ptr<Item>> items_;
  std::map<std::string, std::size_t, std::less<>> places_;  // by local path

  std::mutex mutex_;                 // guards all below
  std::condition_variable changed_;  // a piece has come, a file is finished, or all is over
  std::deque<Piece> asked_;          // that somebody waits for
  std::size_t waiting_ = 0;
  std::deque<std::size_t> to_hash_;  // files whose next piece can be hashed
  std::vector<Piece> order_;
  std::size_t next_ = 0;  // of order_
  std::chrono::milliseconds pause_{0};
  std::optional<base::Error> error_;  // of this try
  std::optional<std::uint64_t> failed_version_;
  bool over_ = false;  // error_ is that of Run
};

}  // namespace syncline::store

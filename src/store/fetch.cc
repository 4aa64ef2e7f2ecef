// 1. Plan: what is there already is left alone; for all the rest there must be space.
// 2. Run makes one try after the other. A try asks the store for every file that is not open yet,
//    then all threads take jobs until there are none: first pieces that a reader waits for, then
//    pieces to be hashed, then pieces in their order. A file is hashed from its beginning, as far
//    as it has come, by one thread at a time; that which hashes its last piece gives it its name.
// 3. The first failure ends a try: no further job is given out. If it may pass, and there is still
//    time, the next try begins after a pause with the files that are not open; readers know nothing
//    of it. Otherwise it is the end: the transfers of the other threads are cancelled, and every
//    reader gets this error.
//
// Invariants: a piece is kThere only while its bytes are in the file (a file that begins anew has
// none). Threads that fetch never wait for readers, so readers may wait with whatever they hold.
#include "store/fetch.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <thread>
#include <utility>

namespace syncline::store {
namespace {

using base::Code;
using base::Fail;
using base::FileSystem;
using base::Result;
using base::Status;

constexpr std::chrono::milliseconds kFirstPause(50);
constexpr std::chrono::milliseconds kLongestPause(2000);

}  // namespace

bool MayAppear(const base::Error& error) {
  return error.code == Code::kNotFound || error.code == Code::kCorrupt ||
         error.code == Code::kOutOfOrder;
}

Result<std::unique_ptr<Fetch>> Fetch::Plan(objects::ObjectStore& store, FileSystem& files,
                                           std::vector<FetchFile> wanted, FetchOptions options,
                                           const base::CancelToken* cancel) {
  std::unique_ptr<Fetch> fetch(new Fetch(store, std::move(options), cancel));
  std::map<std::string, std::uint64_t> missing;  // bytes by directory
  std::uint64_t bytes = 0;
  for (FetchFile& file : wanted) {
    auto item = std::make_unique<Item>(Download(std::move(file), files));
    const FetchFile& of = item->download.wanted();
    const std::string directory = base::ParentOf(of.path);
    if (missing.try_emplace(directory, 0).second) SYNCLINE_TRY(files.MakeDirectories(directory));
    SYNCLINE_ASSIGN(item->finished, item->download.IsThere());
    if (!item->finished) {
      if (bytes + of.bytes < bytes) {
        return Fail(Code::kNoSpace, fmt::format("{}: {} bytes and {} more are beyond 64 bits",
                                                of.path, bytes, of.bytes));
      }
      bytes += of.bytes;
    }
    fetch->places_.emplace(of.path, fetch->items_.size());
    fetch->items_.push_back(std::move(item));
  }
  if (bytes == 0) return fetch;
  const std::string& directory = missing.begin()->first;
  SYNCLINE_ASSIGN(const std::uint64_t room, files.FreeBytes(directory));
  if (room >= bytes) return fetch;
  return Fail(Code::kNoSpace, fmt::format("{}: fetching from {} needs {} bytes, {} are free",
                                          directory, store.url(), bytes, room));
}

Status Fetch::Run(base::ThreadPool& pool, base::Progress& progress) {
  Status result;
  try {
    result = RunTries(pool, progress);
  } catch (const std::bad_alloc&) {  // readers wait for an end
    result = Fail(Code::kLimitExceeded, "out of memory");
  }
  if (!result) End(result.error());
  return result;
}

Status Fetch::RunTries(base::ThreadPool& pool, base::Progress& progress) {
  if (items_.empty()) return {};
  pause_ = kFirstPause;
  while (true) {
    Status tried = OpenFiles(pool);
    if (tried) {
      progress.Begin("fetch", Schedule());
      tried = pool.ParallelFor(pool.size(), [&](std::size_t) { return Work(progress); });
    }
    std::uint64_t version = 0;
    {
      const std::scoped_lock lock(mutex_);
      if (!error_) return tried;
      if (over_) return std::unexpected(*error_);
      version = *std::exchange(failed_version_, std::nullopt);
      error_.reset();
    }
    SYNCLINE_TRY(Pause(pause_, version));
    pause_ = std::min(2 * pause_, kLongestPause);
  }
}

Status Fetch::Pause(std::chrono::milliseconds pause, std::uint64_t version) {
  const auto until = Clock::now() + pause;
  while (Clock::now() < until) {
    SYNCLINE_TRY(stop_.Check());
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return options_.refresh ? options_.refresh(version) : Status();
}

// A failure of a file is noted; the result says that there was one.
Status Fetch::OpenFiles(base::ThreadPool& pool) {
  return pool.ParallelFor(items_.size(), [&](std::size_t i) -> Status {
    Item& item = *items_[i];
    {
      const std::scoped_lock lock(mutex_);
      if (item.finished || item.open) return {};
    }
    auto marks = item.download.Open(store_, &stop_);
    if (!marks) {
      NoteFailure(i, marks.error());
      return std::unexpected(std::move(marks).error());
    }
    const std::scoped_lock lock(mutex_);
    item.open = true;
    ++item.openings;
    item.hashed = 0;
    item.pieces.clear();
    for (const char mark : *marks) {
      item.pieces.push_back(mark == '1' ? PieceState::kThere : PieceState::kMissing);
    }
    changed_.notify_all();
    return {};
  });
}

// No thread works, and all files are open or finished. Returns how many bytes are to be fetched.
std::uint64_t Fetch::Schedule() {
  const std::scoped_lock lock(mutex_);
  std::vector<std::pair<int, Piece>> missing;  // with their rank in the order
  std::uint64_t bytes = 0;
  to_hash_.clear();
  for (std::size_t file = 0; file < items_.size(); ++file) {
    Item& item = *items_[file];
    if (item.finished) continue;
    item.in_hash_queue = false;
    QueueHash(file);
    const std::uint64_t count = item.pieces.size();
    for (std::uint64_t i = 0; i < count; ++i) {
      if (item.pieces[i] != PieceState::kMissing) continue;
      bytes += item.download.PieceBytes(i);
      const int rank = !options_.ends_first || count == 1 ? 0 : i == 0 || i + 1 == count ? 1 : 2;
      missing.push_back({rank, {file, i}});
    }
  }
  std::ranges::stable_sort(missing, {}, &std::pair<int, Piece>::first);
  order_.clear();
  for (const auto& [rank, piece] : missing) order_.push_back(piece);
  next_ = 0;
  return bytes;
}

Status Fetch::Work(base::Progress& progress) {
  base::Buffer buffer;
  while (const std::optional<Job> job = Next()) {
    if (Status done = Do(*job, buffer, progress); !done) {
      NoteFailure(job->piece.file, std::move(done).error());
    }
  }
  return {};
}

std::optional<Fetch::Job> Fetch::Next() {
  if (const Status going = stop_.Check(); !going) End(going.error());
  const std::scoped_lock lock(mutex_);
  if (error_) return std::nullopt;
  const auto take = [&](const Piece& piece) {
    PieceState& state = items_[piece.file]->pieces[piece.number];
    if (state != PieceState::kMissing) return false;
    state = PieceState::kTaken;
    return true;
  };
  while (!asked_.empty()) {
    const Piece piece = asked_.front();
    asked_.pop_front();
    if (!items_[piece.file]->finished && take(piece)) return Job{piece};
  }
  if (!to_hash_.empty()) {
    const std::size_t file = to_hash_.front();
    to_hash_.pop_front();
    return Job{{file, items_[file]->hashed}, true};
  }
  while (next_ < order_.size()) {
    const Piece piece = order_[next_++];
    if (take(piece)) return Job{piece};
  }
  return std::nullopt;
}

Status Fetch::Do(const Job& job, base::Buffer& buffer, base::Progress& progress) {
  Item& item = *items_[job.piece.file];
  const std::uint64_t number = job.piece.number;
  if (!job.hash) {
    SYNCLINE_TRY(item.download.FetchPiece(store_, number, buffer, progress, &stop_));
    const std::scoped_lock lock(mutex_);
    item.pieces[number] = PieceState::kThere;
    changed_.notify_all();
    QueueHash(job.piece.file);
    return {};
  }
  const std::uint64_t count = item.download.piece_count();
  if (number < count) SYNCLINE_TRY(item.download.HashPiece(number, buffer));
  if (number + 1 >= count) SYNCLINE_TRY(item.download.Finish(store_));
  const std::scoped_lock lock(mutex_);
  item.in_hash_queue = false;
  if (number + 1 >= count) {
    item.finished = true;
    changed_.notify_all();
  } else {
    ++item.hashed;
    QueueHash(job.piece.file);
  }
  return {};
}

// With mutex_ held: if the next piece of the file can be hashed, it will be. An empty file has
// none, but has to be finished, too.
void Fetch::QueueHash(std::size_t file) {
  Item& item = *items_[file];
  if (item.in_hash_queue) return;
  if (!item.pieces.empty() && item.pieces[item.hashed] != PieceState::kThere) return;
  item.in_hash_queue = true;
  to_hash_.push_back(file);
}

// Decides whether there is another try.
void Fetch::NoteFailure(std::size_t file, base::Error error) {
  Item& item = *items_[file];
  const std::scoped_lock lock(mutex_);
  item.open = false;
  if (error_) return;
  failed_version_ = item.download.wanted().version;
  const auto now = Clock::now();
  if (!item.missed_since) item.missed_since = now;
  const std::chrono::duration<double> wait(options_.wait_seconds);
  const bool again = item.download.wanted().may_appear && MayAppear(error) &&
                     now + pause_ <= *item.missed_since + wait;
  error_ = std::move(error);
  if (!again) EndLocked();
}

// The end, unless there was one already.
void Fetch::End(base::Error error) {
  const std::scoped_lock lock(mutex_);
  if (over_) return;
  error_ = std::move(error);
  EndLocked();
}

void Fetch::EndLocked() {
  over_ = true;
  stop_.Cancel();
  changed_.notify_all();
}

std::optional<std::uint64_t> Fetch::failed_version() {
  const std::scoped_lock lock(mutex_);
  return failed_version_;
}

std::optional<std::size_t> Fetch::Find(std::string_view path) const {
  const auto place = places_.find(path);
  if (place == places_.end()) return std::nullopt;
  return place->second;
}

Status Fetch::Await(std::size_t file, std::uint64_t offset, std::uint64_t bytes) {
  Item& item = *items_[file];
  if (bytes == 0) return {};
  const std::uint64_t first = offset / Download::kPieceBytes;
  const std::uint64_t last = (offset + bytes - 1) / Download::kPieceBytes;
  std::unique_lock lock(mutex_);
  std::uint64_t asked_in = 0;  // opening of the file
  while (true) {
    if (over_) return std::unexpected(*error_);
    if (item.finished) return {};
    if (item.open) {
      bool there = true;
      for (std::uint64_t i = first; i <= last; ++i) {
        there = there && item.pieces[i] == PieceState::kThere;
        const bool ask = asked_in != item.openings && item.pieces[i] == PieceState::kMissing;
        if (ask) asked_.push_back({file, i});
      }
      if (there) return {};
      asked_in = item.openings;
    }
    ++waiting_;
    changed_.wait(lock);
    --waiting_;
  }
}

std::size_t Fetch::waiting() {
  const std::scoped_lock lock(mutex_);
  return waiting_;
}

Result<std::unique_ptr<base::File>> Fetch::OpenContent(std::size_t file) {
  bool finished = false;
  {
    const std::scoped_lock lock(mutex_);
    finished = items_[file]->finished;
  }
  return items_[file]->download.OpenContent(finished);
}

}  // namespace syncline::store

#include "store/arrival.h"

#include <fmt/format.h>

#include <chrono>
#include <new>
#include <optional>
#include <utility>

#include "store/arriving_files.h"

namespace syncline::store {

using base::FileSystem;
using base::Result;
using base::Status;

Result<std::unique_ptr<Arrival>> Arrival::Fetching(objects::ObjectStore& store, FileSystem& files,
                                                   const std::string& spool,
                                                   std::vector<FetchFile> wanted,
                                                   FetchOptions options, std::size_t threads,
                                                   base::Progress& progress,
                                                   const base::CancelToken* cancel) {
  std::unique_ptr<Arrival> arrival(new Arrival(cancel));
  arrival->path_ = spool;
  SYNCLINE_ASSIGN(arrival->fetch_, Fetch::Plan(store, files, std::move(wanted), std::move(options),
                                               &arrival->stop_));
  arrival->own_files_ = std::make_unique<ArrivingFiles>(*arrival->fetch_, files);
  arrival->files_ = arrival->own_files_.get();
  arrival->Start(threads,
                 [fetch = arrival->fetch_.get(), &progress](base::ThreadPool& pool,
                                                            const base::CancelToken*) -> Verdict {
                   Status status = fetch->Run(pool, progress);
                   const std::optional<std::uint64_t> version = fetch->failed_version();
                   if (status || !version) return {std::move(status), std::nullopt};
                   return {Annotate(std::move(status).error(), fmt::format("version {}", *version)),
                           version};
                 });
  return arrival;
}

std::unique_ptr<Arrival> Arrival::Checking(FileSystem& files, const std::string& path, Check check,
                                           std::size_t threads, const base::CancelToken* cancel) {
  std::unique_ptr<Arrival> arrival(new Arrival(cancel));
  arrival->path_ = path;
  arrival->files_ = &files;
  arrival->Start(threads, std::move(check));
  return arrival;
}

std::unique_ptr<Arrival> Arrival::Ended(FileSystem& files, const std::string& path,
                                        Verdict verdict) {
  std::unique_ptr<Arrival> arrival(new Arrival(nullptr));
  arrival->path_ = path;
  arrival->files_ = &files;
  std::promise<Verdict> ended;
  arrival->verdict_ = ended.get_future();
  ended.set_value(std::move(verdict));
  return arrival;
}

void Arrival::Start(std::size_t threads, Check work) {
  auto pool = std::make_shared<base::ThreadPool>(threads);
  verdict_ = std::async(std::launch::async, [this, pool, work = std::move(work)]() -> Verdict {
    try {
      return work(*pool, &stop_);
    } catch (const std::bad_alloc&) {  // nobody else could catch it here
      return {base::Fail(base::Code::kLimitExceeded, "out of memory"), std::nullopt};
    }
  });
}

Arrival::~Arrival() {
  stop_.Cancel();
  if (verdict_.valid()) verdict_.wait();
}

bool Arrival::ended() const {
  return verdict_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

}  // namespace syncline::store

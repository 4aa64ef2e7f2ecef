// Files, each replaced atomically by its one writer:
//   leader.json      rank 0: which attempt is open, and for what
//   part-00001.json  rank 1: what it contributes to that attempt
//   rank-1.lock      held by the process that is rank 1
// 1. Rank 0 draws a token when it opens. A call of Publish makes one or more attempts, numbered under
//    that token; each begins with a new leader.json.
// 2. A rank that finds an attempt that is not yet answered writes its part for it: with its token and
//    number, so a part of an earlier attempt or leader is never taken.
// 3. Rank 0 takes the parts once the files that they name are there in full, and commits.
// 4. The others see the version (publisher_ranks.cc), or in leader.json that the call failed, or that
//    an attempt came after theirs: then they contribute anew.
// A rank counts the calls of its leader: if one went by without it, that call fails for it too, and
// its next call meets the leader's next. So the weights of two calls are never mixed.
#include "store/rank_group.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <thread>
#include <utility>

namespace syncline::store {
namespace {

using base::CancelToken;
using base::Code;
using base::Fail;
using base::FileSystem;
using base::Result;
using base::Status;
using Clock = std::chrono::steady_clock;

constexpr auto kFirstPause = std::chrono::milliseconds(1);
constexpr auto kLongestPause = std::chrono::milliseconds(100);

}  // namespace

std::string RankPartName(std::uint64_t rank) { return fmt::format("part-{:05}.json", rank); }

std::string RankFilePrefix(std::uint64_t rank) { return fmt::format("model-r{:05}-", rank); }

Result<RankGroup> RankGroup::Open(FileSystem& files, const std::string& own_directory,
                                  RankOptions options, bool durable) {
  if (options.rank >= options.world || !(options.timeout_seconds > 0)) {
    return Fail(Code::kInvalidArgument,
                fmt::format("rank {} of {} with a timeout of {} s: expected a rank below the "
                            "number of ranks and a time above 0",
                            options.rank, options.world, options.timeout_seconds));
  }
  RankGroup group;
  group.files_ = &files;
  group.directory_ = base::JoinPath(own_directory, "writers");
  group.options_ = std::move(options);
  group.durable_ = durable;
  SYNCLINE_TRY(files.MakeDirectories(group.directory_));
  if (group.leads()) {
    group.announcement_.token = DrawRun();
    group.announcement_.world = group.options_.world;
    SYNCLINE_TRY(group.Write(kLeaderName, AnnouncementText(group.announcement_)));
    return group;
  }
  auto lock = files.Lock(group.Path(fmt::format("rank-{}.lock", group.options_.rank)),
                         base::LockMode::kExclusive, false);
  if (!lock) {
    return Annotate(std::move(lock).error(),
                    fmt::format("another process is rank {}", group.options_.rank));
  }
  group.lock_ = *std::move(lock);
  // A call that is open may be joined; one that is over went by before this process came.
  if (const auto there = group.ReadAnnouncement(); there && *there) {
    group.token_ = (*there)->token;
    const bool open = (*there)->state == Announcement::State::kSurvey ||
                      (*there)->state == Announcement::State::kOpen;
    group.call_ = (*there)->call - (open ? 1 : 0);
  }
  return group;
}

std::string RankGroup::Path(std::string_view name) const {
  return base::JoinPath(directory_, name);
}

Status RankGroup::Write(std::string_view name, std::string_view text) {
  if (text.size() > kMaxRankFileBytes) {
    return Fail(Code::kLimitExceeded, fmt::format("{} of {} bytes, the limit is {}", Path(name),
                                                  text.size(), kMaxRankFileBytes));
  }
  // Of no worth after a restart of the machine, so never synced.
  SYNCLINE_TRY(base::WriteTextAtomically(*files_, Path(name), text, false));
  return options_.flush ? options_.flush() : Status();
}

Status RankGroup::Wait(const std::function<Result<bool>()>& step,
                       const std::function<std::string()>& what, const CancelToken* cancel) {
  // Rank 0 itself waits for the others meanwhile.
  const double limit = std::min(options_.timeout_seconds, 1e8) * (leads() ? 1 : 2);
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                           std::chrono::duration<double>(limit));
  Clock::duration pause = kFirstPause;
  while (true) {
    if (cancel != nullptr) SYNCLINE_TRY(cancel->Check());
    if (options_.refresh) SYNCLINE_TRY(options_.refresh());
    SYNCLINE_ASSIGN(const bool done, step());
    if (done) return {};
    if (Clock::now() >= deadline) {
      return Fail(Code::kTimeout, fmt::format("{} after {:g} s", what(), limit));
    }
    std::this_thread::sleep_for(pause);
    pause = std::min<Clock::duration>(pause * 2, kLongestPause);
  }
}

Result<std::optional<Announcement>> RankGroup::ReadAnnouncement() {
  SYNCLINE_ASSIGN(const bool there, base::Exists(*files_, Path(kLeaderName)));
  if (!there) return std::nullopt;
  SYNCLINE_ASSIGN(const std::string text,
                  base::ReadText(*files_, Path(kLeaderName), kMaxRankFileBytes));
  auto announcement = ParseAnnouncement(text);
  if (!announcement) return Annotate(std::move(announcement).error(), Path(kLeaderName));
  if (announcement->world != options_.world) {
    return Fail(Code::kInvalidArgument,
                fmt::format("rank 0 leads {} ranks, this is rank {} of {}", announcement->world,
                            options_.rank, options_.world));
  }
  return *std::move(announcement);
}

Status RankGroup::Announce(Announcement announcement) {
  announcement.token = announcement_.token;
  announcement.world = options_.world;
  announcement.call = announcement_.call;
  announcement.attempt = announcement_.attempt + 1;
  announcement_ = std::move(announcement);
  return Write(kLeaderName, AnnouncementText(announcement_));
}

void RankGroup::AnnounceFailure(const base::Error& error) {
  announcement_.state = Announcement::State::kFailed;
  announcement_.error = error;
  announcement_.skip.clear();
  (void)Write(kLeaderName, AnnouncementText(announcement_));  // the others' time runs out then
}

Status RankGroup::AnnounceEnd() {
  announcement_.state = Announcement::State::kIdle;
  announcement_.skip.clear();
  return Write(kLeaderName, AnnouncementText(announcement_));
}

Result<std::optional<RankPart>> RankGroup::ReadPart(std::uint64_t rank) {
  const std::string path = Path(RankPartName(rank));
  SYNCLINE_ASSIGN(const bool there, base::Exists(*files_, path));
  if (!there) return std::nullopt;
  auto text = base::ReadText(*files_, path, kMaxRankFileBytes);
  auto part = text ? ParseRankPart(*text) : std::unexpected(std::move(text).error());
  if (!part) {
    // A file of which not all is visible yet.
    if (part.error().code == Code::kCorrupt || part.error().code == Code::kNotFound) {
      return std::nullopt;
    }
    return Annotate(std::move(part).error(), path);
  }
  if (part->token != announcement_.token || part->attempt != announcement_.attempt ||
      part->rank != rank) {
    return std::nullopt;
  }
  if (part->world != options_.world) {
    return Fail(Code::kInvalidArgument, fmt::format("rank {} is one of {} ranks, expected {}", rank,
                                                    part->world, options_.world));
  }
  return *std::move(part);
}

Result<bool> RankGroup::FilesAreThere(const RankPart& part, const std::string& staging,
                                      std::string& lacking) {
  for (const ManifestFile& file : part.files) {
    const auto info = files_->Stat(base::JoinPath(staging, file.name));
    if (info && info->size == file.bytes) continue;
    if (!info && info.error().code != Code::kNotFound) return std::unexpected(info.error());
    lacking = fmt::format("file {} of rank {}: expected {} bytes, found {}", file.name, part.rank,
                          file.bytes, info ? fmt::format("{}", info->size) : "no file");
    return false;
  }
  return true;
}

Result<std::vector<RankPart>> RankGroup::Collect(const std::string& staging,
                                                 const CancelToken* cancel) {
  std::vector<std::optional<RankPart>> parts(options_.world - 1);
  std::string lacking;
  const auto step = [&]() -> Result<bool> {
    bool all = true;
    for (std::uint64_t rank = 1; rank < options_.world; ++rank) {
      std::optional<RankPart>& part = parts[rank - 1];
      if (part) continue;
      SYNCLINE_ASSIGN(std::optional<RankPart> read, ReadPart(rank));
      if (read && read->failed) {
        return Annotate(std::move(*read->failed), fmt::format("rank {}", rank));
      }
      if (read) {
        SYNCLINE_ASSIGN(const bool there, FilesAreThere(*read, staging, lacking));
        if (there) part = std::move(read);
      }
      all = all && part.has_value();
    }
    return all;
  };
  const auto what = [&] {
    std::vector<std::uint64_t> missing;
    for (std::uint64_t rank = 1; rank < options_.world; ++rank) {
      if (!parts[rank - 1]) missing.push_back(rank);
    }
    return fmt::format("ranks {} of {} have not contributed{}{}", fmt::join(missing, ", "),
                       options_.world, lacking.empty() ? "" : ": ", lacking);
  };
  SYNCLINE_TRY(Wait(step, what, cancel));
  std::vector<RankPart> collected;
  collected.reserve(parts.size());
  for (std::optional<RankPart>& part : parts) collected.push_back(*std::move(part));
  return collected;
}

Result<Announcement> RankGroup::AwaitAttempt(const CancelToken* cancel) {
  std::optional<Announcement> found;
  const auto step = [&]() -> Result<bool> {
    SYNCLINE_ASSIGN(std::optional<Announcement> read, ReadAnnouncement());
    if (!read || read->call == 0) return false;
    if (read->token != token_) {
      token_ = read->token;
      call_ = 0;
    }
    if (read->call <= call_) return false;
    const bool open =
        read->state == Announcement::State::kSurvey || read->state == Announcement::State::kOpen;
    if (read->call == call_ + 1 && read->state == Announcement::State::kFailed) {
      call_ = read->call;
      return Annotate(std::move(read->error), "rank 0");
    }
    if (read->call == call_ + 1 && open) {
      if (read->token == answered_token_ && read->attempt == answered_) return false;
      found = std::move(read);
      return true;
    }
    // A call ended without this rank. Nothing is told of its own weights, so this call fails too.
    const bool failed = read->state == Announcement::State::kFailed;
    call_ = open ? read->call - 1 : read->call;
    const std::string text =
        fmt::format("rank {} was not there for a call of rank 0{}{}", options_.rank,
                    failed ? ", which failed: " : "", failed ? read->error.message : "");
    if (open) ContributeFailure(*read, {Code::kOutOfOrder, text});
    if (open) call_ = read->call;
    return Fail(failed ? read->error.code : Code::kOutOfOrder, text);
  };
  SYNCLINE_TRY(Wait(step, [] { return std::string("rank 0 has not begun to publish"); }, cancel));
  return *std::move(found);
}

Status RankGroup::Contribute(const Announcement& announcement, RankPart part) {
  part.token = announcement.token;
  part.attempt = announcement.attempt;
  part.rank = options_.rank;
  part.world = options_.world;
  answered_token_ = announcement.token;
  answered_ = announcement.attempt;
  return Write(RankPartName(options_.rank), RankPartText(part));
}

void RankGroup::ContributeFailure(const Announcement& announcement, const base::Error& error) {
  RankPart part;
  part.failed = error;
  (void)Contribute(announcement, std::move(part));  // the leader's time runs out then
}

Result<RankGroup::Progress> RankGroup::Look(const Announcement& announcement) {
  SYNCLINE_ASSIGN(const std::optional<Announcement> now, ReadAnnouncement());
  if (!now) return Progress::kWaiting;
  if (now->token != announcement.token) {
    // A leader that began anew and has not come to its call yet is waited for.
    return now->call == 0 ? Progress::kWaiting : Progress::kSuperseded;
  }
  if (now->call == announcement.call && now->state == Announcement::State::kFailed) {
    return std::unexpected(now->error);
  }
  return now->attempt == announcement.attempt ? Progress::kWaiting : Progress::kSuperseded;
}

void RankGroup::EndCall(const Announcement& announcement) {
  if (announcement.token == token_) call_ = std::max(call_, announcement.call);
}

}  // namespace syncline::store

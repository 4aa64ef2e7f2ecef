// Fetching from a store that hands out its bytes only when the test says so.
#include "store/fetch.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <random>
#include <set>
#include <thread>

#include "base/result_matchers.h"
#include "base/temp_dir.h"
#include "store/arriving_files.h"
#include "store/file_hash.h"

namespace syncline::store {
namespace {

using base::CancelToken;
using base::Code;
using base::FileSystem;
using base::Result;
using base::Status;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::uint64_t kPiece = Download::kPieceBytes;
constexpr std::chrono::seconds kFarTooLong(60);  // so that a test that fails also ends

FileSystem& files = FileSystem::Posix();

std::string RandomBytes(std::size_t size, unsigned seed) {
  std::string bytes(size, '\0');
  std::mt19937_64 random(seed);
  for (std::size_t i = 0; i < size; i += 8) {
    const std::uint64_t value = random();
    std::memcpy(&bytes[i], &value, std::min<std::size_t>(8, size - i));
  }
  return bytes;
}

// "key@offset" of a read.
std::string Place(const std::string& key, std::uint64_t offset) {
  return fmt::format("{}@{}", key, offset / kPiece);
}

// Objects in memory. Each read waits until the test lets it go on.
class HeldStore final : public objects::ObjectStore {
 public:
  void Set(const std::string& key, std::string bytes, std::string tag) {
    const std::scoped_lock lock(mutex_);
    objects_[key] = {std::move(bytes), std::move(tag)};
  }
  void Release(const std::string& place) {
    const std::scoped_lock lock(mutex_);
    released_.insert(place);
    changed_.notify_all();
  }
  void ReleaseAll() {
    const std::scoped_lock lock(mutex_);
    all_ = true;
    changed_.notify_all();
  }
  // The next read of that place fails when it is released.
  void Fail(const std::string& place, base::Error error) {
    const std::scoped_lock lock(mutex_);
    failures_[place] = std::move(error);
  }
  // Called when a read is let go on.
  void SetHook(std::function<void(const std::string& place)> hook) { hook_ = std::move(hook); }

  // The first `count` reads, in the order in which they came.
  std::vector<std::string> Reads(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kFarTooLong, [&] { return reads_.size() >= count; });
    EXPECT_GE(reads_.size(), count);
    return {reads_.begin(),
            reads_.begin() + static_cast<std::ptrdiff_t>(std::min(count, reads_.size()))};
  }
  std::vector<std::string> reads() {
    const std::scoped_lock lock(mutex_);
    return reads_;
  }
  void ForgetReads() {
    const std::scoped_lock lock(mutex_);
    reads_.clear();
  }

  const std::string& url() const override { return url_; }
  const std::string& local_path() const override { return none_; }
  bool can_list() const override { return false; }
  bool can_write() const override { return false; }
  Result<std::vector<objects::ObjectInfo>> List(const std::string&, bool,
                                                const CancelToken*) override {
    return base::Fail(Code::kIncompatible, "list");
  }
  Result<objects::ObjectInfo> Stat(const std::string& key, const CancelToken* cancel) override {
    if (cancel != nullptr) SYNCLINE_TRY(cancel->Check());
    const std::scoped_lock lock(mutex_);
    const auto object = objects_.find(key);
    if (object == objects_.end()) return base::Fail(Code::kNotFound, key + " is missing");
    return objects::ObjectInfo{key, object->second.bytes.size(), object->second.tag};
  }
  Status ReadAt(const std::string& key, base::MutableByteSpan into, std::uint64_t offset,
                const std::string& tag, const std::function<void(std::uint64_t)>& received,
                const CancelToken* cancel) override {
    const std::string place = Place(key, offset);
    std::unique_lock lock(mutex_);
    reads_.push_back(place);
    changed_.notify_all();
    while (!all_ && !released_.contains(place)) {
      if (cancel != nullptr) SYNCLINE_TRY(cancel->Check());
      changed_.wait_for(lock, std::chrono::milliseconds(2));
    }
    if (hook_) {
      lock.unlock();
      hook_(place);
      lock.lock();
    }
    if (const auto failure = failures_.extract(place)) return std::unexpected(failure.mapped());
    const Object& object = objects_.at(key);
    if (object.tag != tag) return base::Fail(Code::kOutOfOrder, key + " changed while it was read");
    std::memcpy(into.data(), object.bytes.data() + offset, into.size());
    lock.unlock();
    if (received) received(into.size());
    return {};
  }
  Result<std::string> ReadText(const std::string&, std::uint64_t, const CancelToken*) override {
    return base::Fail(Code::kIncompatible, "read");
  }
  Status Put(const std::string&, base::File&, const std::function<void(std::uint64_t)>&,
             const CancelToken*) override {
    return base::Fail(Code::kIncompatible, "put");
  }
  Status PutText(const std::string&, std::string_view, bool, const CancelToken*) override {
    return base::Fail(Code::kIncompatible, "put");
  }
  Status Remove(const std::string&, const CancelToken*) override {
    return base::Fail(Code::kIncompatible, "remove");
  }

 private:
  struct Object {
    std::string bytes;
    std::string tag;
  };
  const std::string url_ = "held://store";
  const std::string none_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, Object> objects_;
  std::map<std::string, base::Error> failures_;
  std::vector<std::string> reads_;
  std::set<std::string> released_;
  bool all_ = false;
  std::function<void(const std::string& place)> hook_;
};

class FetchTest : public testing::Test {
 protected:
  ~FetchTest() override {
    cancel_->Cancel();
    if (run_.valid()) run_.wait();
  }
  void Put(const std::string& name, std::size_t size) {
    content_[name] = RandomBytes(size, static_cast<unsigned>(content_.size() + 1));
    store_.Set("v/" + name, content_[name], "t");
  }
  std::string Path(const std::string& name) const { return dir_ / ("spool/" + name); }
  std::vector<FetchFile> Wanted() const {
    std::vector<FetchFile> wanted;
    for (const auto& [name, bytes] : content_) {
      wanted.push_back({3, "v/" + name, Path(name), bytes.size(), Sha256Hex(base::AsBytes(bytes))});
    }
    return wanted;
  }
  void Start(std::size_t threads, FetchOptions options = {.ends_first = true}) {
    auto planned = Fetch::Plan(store_, files, Wanted(), std::move(options), &*cancel_);
    ASSERT_OK(planned);
    fetch_ = *std::move(planned);
    arriving_.emplace(*fetch_, files);
    run_ = std::async(std::launch::async, [this, threads] {
             base::ThreadPool pool(threads);
             return fetch_->Run(pool, progress_);
           }).share();
  }
  Status Verdict() {
    EXPECT_EQ(run_.wait_for(kFarTooLong), std::future_status::ready);
    return run_.get();
  }
  // The bytes as a reader gets them, who waits.
  Result<std::string> Read(const std::string& name, std::uint64_t offset, std::size_t size) {
    SYNCLINE_ASSIGN(const auto file, arriving_->Open(Path(name), base::OpenMode::kRead));
    std::string bytes(size, '\0');
    SYNCLINE_TRY(base::ReadExactly(*file, std::as_writable_bytes(std::span(bytes)), offset));
    return bytes;
  }
  std::future<Result<std::string>> ReadAside(const std::string& name, std::uint64_t offset,
                                             std::size_t size) {
    return std::async(std::launch::async, [=, this] { return Read(name, offset, size); });
  }
  void WaitForReaders(std::size_t count) {
    const auto end = std::chrono::steady_clock::now() + kFarTooLong;
    while (fetch_->waiting() < count && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ASSERT_EQ(fetch_->waiting(), count);
  }
  void ExpectFetched() {
    for (const auto& [name, bytes] : content_) {
      EXPECT_TRUE(base::ReadText(files, Path(name), 1 << 30).value() == bytes) << name;
      EXPECT_FALSE(base::Exists(files, Path(name) + ".part").value()) << name;
      EXPECT_FALSE(base::Exists(files, Path(name) + ".done").value()) << name;
    }
  }

  const base::TempDir dir_{base::TempDir::MemoryFolder()};
  std::optional<CancelToken> cancel_{std::in_place};
  HeldStore store_;
  base::Progress progress_;
  std::map<std::string, std::string> content_;
  std::unique_ptr<Fetch> fetch_;
  std::optional<ArrivingFiles> arriving_;
  std::shared_future<Status> run_;
};

TEST_F(FetchTest, WhatHasComeIsReadWhileTheRestIsHeld) {
  Put("index", 1000);
  Put("weights", 3 * kPiece + 5);
  Start(1);
  EXPECT_EQ(arriving_->Stat(Path("weights"))->size, 3 * kPiece + 5);
  store_.Release("v/index@0");
  EXPECT_TRUE(Read("index", 0, 1000).value() == content_["index"]);
  store_.Release("v/weights@0");
  store_.Release("v/weights@3");
  EXPECT_EQ(Read("weights", 8, 100).value(), content_["weights"].substr(8, 100));
  // A read that did not wait would find zeros.
  auto later = ReadAside("weights", kPiece - 10, kPiece + 20);
  WaitForReaders(1);
  store_.Release("v/weights@1");
  WaitForReaders(1);
  store_.Release("v/weights@2");
  EXPECT_TRUE(later.get().value() == content_["weights"].substr(kPiece - 10, kPiece + 20));
  EXPECT_NE(run_.wait_for(std::chrono::seconds(0)), std::future_status::ready);
  store_.ReleaseAll();
  EXPECT_OK(Verdict());
  ExpectFetched();
  EXPECT_EQ(Read("weights", 3 * kPiece, 5).value(), content_["weights"].substr(3 * kPiece));
  EXPECT_ERROR(Read("weights", 3 * kPiece, 6), Code::kCorrupt, "is truncated");
}

TEST_F(FetchTest, SmallFilesComeFirstThenTheEndsOfTheOthers) {
  Put("a", 3 * kPiece + 1);
  Put("b", 10);
  Put("c", 2 * kPiece);
  Put("d", 0);
  store_.ReleaseAll();
  Start(1);
  EXPECT_OK(Verdict());
  EXPECT_THAT(store_.reads(),
              ElementsAre("v/b@0", "v/a@0", "v/a@3", "v/c@0", "v/c@1", "v/a@1", "v/a@2"));
  ExpectFetched();
}

TEST_F(FetchTest, OtherwiseTheOrderIsThatOfTheFiles) {
  Put("a", 3 * kPiece + 1);
  Put("b", 10);
  store_.ReleaseAll();
  Start(1, {});
  EXPECT_OK(Verdict());
  EXPECT_THAT(store_.reads(), ElementsAre("v/a@0", "v/a@1", "v/a@2", "v/a@3", "v/b@0"));
}

TEST_F(FetchTest, WhatAReaderAsksForGoesFirst) {
  Put("a", 6 * kPiece);
  Put("b", 6 * kPiece);
  Start(1);
  EXPECT_THAT(store_.Reads(1), ElementsAre("v/a@0"));
  auto late = ReadAside("b", 4 * kPiece - 1, 2);
  WaitForReaders(1);
  store_.ReleaseAll();
  EXPECT_TRUE(late.get().value() == content_["b"].substr(4 * kPiece - 1, 2));
  EXPECT_OK(Verdict());
  const std::vector<std::string> reads = store_.reads();
  EXPECT_THAT(std::vector(reads.begin(), reads.begin() + 4),
              ElementsAre("v/a@0", "v/b@3", "v/b@4", "v/a@5"));
  EXPECT_EQ(reads.size(), 12U);
  EXPECT_EQ(std::set(reads.begin(), reads.end()).size(), 12U);
  ExpectFetched();
}

TEST_F(FetchTest, AFailureWakesEveryReader) {
  Put("a", 4 * kPiece);
  Put("b", 4 * kPiece);
  Start(2);
  EXPECT_THAT(store_.Reads(2), testing::UnorderedElementsAre("v/a@0", "v/a@3"));
  auto first = ReadAside("a", 2 * kPiece, 10);
  auto second = ReadAside("b", 2 * kPiece, 10);
  WaitForReaders(2);
  store_.Fail("v/b@2", {Code::kUnavailable, "held://store/v/b is gone"});
  store_.Release("v/a@0");
  store_.Release("v/a@3");
  // The other one is still held when this one fails.
  EXPECT_THAT(store_.Reads(4), testing::UnorderedElementsAre("v/a@0", "v/a@3", "v/a@2", "v/b@2"));
  store_.Release("v/b@2");
  EXPECT_ERROR(first.get(), Code::kUnavailable, "v/b is gone");
  EXPECT_ERROR(second.get(), Code::kUnavailable, "v/b is gone");
  EXPECT_ERROR(Verdict(), Code::kUnavailable, "v/b is gone");
  EXPECT_EQ(fetch_->failed_version(), 3U);
  EXPECT_ERROR(Read("a", 0, 1), Code::kUnavailable, "v/b is gone");
}

TEST_F(FetchTest, AWrongSha256IsTheVerdictAndTheFileGoes) {
  Put("a", 2 * kPiece);
  std::string wrong = content_["a"];
  wrong[kPiece + 7] ^= 1;
  store_.Set("v/a", wrong, "t");
  Start(1);
  store_.Release("v/a@0");
  EXPECT_EQ(Read("a", 0, 10).value(), content_["a"].substr(0, 10));
  store_.ReleaseAll();
  const Status verdict = Verdict();
  EXPECT_ERROR(verdict, Code::kChecksumMismatch, "held://store/v/a");
  EXPECT_THAT(verdict.error().message, HasSubstr(Sha256Hex(base::AsBytes(content_["a"]))));
  EXPECT_THAT(verdict.error().message, HasSubstr(Sha256Hex(base::AsBytes(wrong))));
  EXPECT_TRUE(files.List(dir_ / "spool").value().empty());
  EXPECT_ERROR(Read("a", 0, 10), Code::kChecksumMismatch, "v/a");
}

TEST_F(FetchTest, CancellingWakesReadersAndTheNextFetchGoesOn) {
  Put("a", 4 * kPiece);
  Put("b", 100);
  Start(1);
  store_.Release("v/b@0");
  store_.Release("v/a@0");
  store_.Release("v/a@3");
  EXPECT_THAT(store_.Reads(4), ElementsAre("v/b@0", "v/a@0", "v/a@3", "v/a@1"));
  auto waiting = ReadAside("a", 2 * kPiece, 10);
  WaitForReaders(1);
  cancel_->Cancel();
  EXPECT_ERROR(waiting.get(), Code::kCancelled, "cancelled");
  EXPECT_ERROR(Verdict(), Code::kCancelled, "cancelled");
  cancel_.emplace();
  store_.ForgetReads();
  store_.ReleaseAll();
  Start(1);
  EXPECT_OK(Verdict());
  EXPECT_THAT(store_.reads(), ElementsAre("v/a@1", "v/a@2"));
  ExpectFetched();
}

// Another object under the same name in the middle of it: nothing of the first one is left, and who
// waits gets the bytes of the second.
TEST_F(FetchTest, AnObjectThatChangesIsFetchedAnew) {
  Put("a", 3 * kPiece);
  const std::string right = content_["a"];
  store_.Set("v/a", RandomBytes(3 * kPiece, 99), "old");
  std::atomic<int> refreshed = 0;
  Start(1, {.wait_seconds = 30,
            .refresh = [&](std::uint64_t version) -> Status {
              EXPECT_EQ(version, 3U);
              ++refreshed;
              return {};
            },
            .ends_first = true});
  store_.Release("v/a@0");
  EXPECT_THAT(store_.Reads(2), ElementsAre("v/a@0", "v/a@2"));
  EXPECT_TRUE(Read("a", 0, 100).value() != right.substr(0, 100));
  auto waiting = ReadAside("a", kPiece, kPiece);
  WaitForReaders(1);
  store_.Set("v/a", right, "new");
  store_.ReleaseAll();
  EXPECT_TRUE(waiting.get().value() == right.substr(kPiece, kPiece));
  EXPECT_OK(Verdict());
  EXPECT_EQ(refreshed, 1);
  ExpectFetched();
  EXPECT_TRUE(Read("a", 0, 100).value() == right.substr(0, 100));
}

TEST_F(FetchTest, WhatIsMissingIsAskedForAsLongAsOneWaits) {
  Put("a", 10);
  Put("b", 10);
  const std::string b = content_["b"];
  store_.Set("v/b", "short", "t");
  store_.ReleaseAll();
  Start(2);
  EXPECT_ERROR(Verdict(), Code::kCorrupt, "held://store/v/b has 5 bytes, expected 10");
  Start(2, {.wait_seconds = 30, .refresh = [&](std::uint64_t) -> Status {
              store_.Set("v/b", b, "t");
              return {};
            }});
  EXPECT_OK(Verdict());
  ExpectFetched();
}

TEST_F(FetchTest, SpaceIsAskedForFirst) {
  Put("a", 10);
  std::vector<FetchFile> wanted = Wanted();
  wanted[0].bytes = std::uint64_t{1} << 60;
  EXPECT_ERROR(Fetch::Plan(store_, files, wanted, {}, nullptr), Code::kNoSpace,
               "needs 1152921504606846976 bytes");
  wanted.push_back(wanted[0]);
  wanted[1].path += "2";
  wanted[0].bytes = wanted[1].bytes = ~std::uint64_t{0};
  EXPECT_ERROR(Fetch::Plan(store_, files, wanted, {}, nullptr), Code::kNoSpace, "beyond 64 bits");
}

TEST_F(FetchTest, FilesOnTheirWayAreOnlyRead) {
  Put("a", 10);
  store_.ReleaseAll();
  Start(1);
  EXPECT_OK(Verdict());
  EXPECT_ERROR(arriving_->Open(Path("a"), base::OpenMode::kReadWrite), Code::kPermissionDenied,
               Path("a"));
  EXPECT_ERROR(arriving_->Remove(Path("a")), Code::kPermissionDenied, Path("a"));
  EXPECT_ERROR(arriving_->Open(Path("b"), base::OpenMode::kRead), Code::kNotFound, Path("b"));
}

// Whatever the sizes, the threads and what is asked for when, and whether an earlier fetch was
// stopped anywhere: readers get the right bytes, and each byte is fetched once.
RC_GTEST_FIXTURE_PROP(FetchTest, ReadersGetTheRightBytes, ()) {
  const auto sizes = *rc::gen::container<std::vector<std::uint64_t>>(
      *rc::gen::inRange<std::size_t>(1, 4),
      rc::gen::element<std::uint64_t>(0, 1, 1000, kPiece - 1, kPiece, kPiece + 1, 2 * kPiece + 9));
  for (std::size_t i = 0; i < sizes.size(); ++i) Put(fmt::format("f{}", i), sizes[i]);
  const auto stop_after = *rc::gen::inRange<int>(0, 12);
  std::atomic<int> passed = 0;
  store_.SetHook([&](const std::string&) {
    if (passed++ == stop_after) cancel_->Cancel();
  });
  store_.ReleaseAll();
  Start(*rc::gen::inRange<std::size_t>(1, 4));
  (void)Verdict();
  store_.SetHook(nullptr);
  cancel_.emplace();
  Start(*rc::gen::inRange<std::size_t>(1, 4));
  std::vector<std::pair<std::string, std::uint64_t>> ranges;
  std::vector<std::future<Result<std::string>>> readers;
  for (std::size_t i = 0; i < 4; ++i) {
    const std::size_t file = *rc::gen::inRange<std::size_t>(0, sizes.size());
    const std::uint64_t from = *rc::gen::inRange<std::uint64_t>(0, sizes[file] + 1);
    const std::uint64_t bytes = std::min<std::uint64_t>(sizes[file] - from, 2'000'000);
    ranges.emplace_back(content_[fmt::format("f{}", file)].substr(from, bytes), bytes);
    readers.push_back(ReadAside(fmt::format("f{}", file), from, bytes));
  }
  for (std::size_t i = 0; i < readers.size(); ++i) {
    const Result<std::string> read = readers[i].get();
    RC_ASSERT(read.has_value());
    RC_ASSERT(*read == ranges[i].first);
  }
  RC_ASSERT(Verdict().has_value());
  ExpectFetched();
  const std::vector<std::string> reads = store_.reads();
  RC_ASSERT(std::set(reads.begin(), reads.end()).size() == reads.size());
}

}  // namespace
}  // namespace syncline::store

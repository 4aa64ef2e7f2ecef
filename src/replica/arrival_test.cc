// Pulls that begin to decode deltas while these are still on their way.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <random>
#include <thread>

#include "base/faulty_file_system.h"
#include "base/result_matchers.h"
#include "base/temp_dir.h"
#include "checkpoint/checkpoint.h"
#include "objects/test_server.h"
#include "replica/fold.h"
#include "replica/overlapping_progress.h"
#include "replica/replica.h"
#include "replica/state.h"
#include "store/download.h"
#include "store/publisher.h"

namespace syncline::replica {
namespace {

using base::Code;
using base::FileSystem;
using base::Result;
using objects::TestConnection;
using objects::TestRequest;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::uint64_t kPiece = store::Download::kPieceBytes;
constexpr std::size_t kTensorBytes = 2 << 20;
constexpr std::size_t kTensors = 6;  // all changed they make a file of two pieces
constexpr std::string_view kShard = "model-00000-of-00001.safetensors";

FileSystem& files = FileSystem::Posix();

// A store behind a server that a test can get between.
class ArrivalTest : public testing::Test {
 protected:
  // Called for each GET of a piece of a delta's shard but the first, of a fold's with the version
  // that it makes; serves it afterwards.
  using Hook = std::function<void(std::uint64_t version)>;

  ArrivalTest()
      : serve_(objects::ServeDirectory(store_)),
        server_([this](auto& request, auto& to) { Serve(request, to); }) {
    publisher_.emplace(store::Publisher::Open(files, store_, store::MakeMemoryBaseline(), false,
                                              {.durable = false, .threads = 2})
                           .value());
    for (int version = 0; version < 3; ++version) Publish();
    EXPECT_OK(Pull(files, server_.url(), into_, {.version = 0, .threads = 2}));
    Forget();
  }
  void Publish() {
    std::vector<std::vector<std::byte>> bytes(kTensors);
    std::vector<tensor::TensorView> views;
    for (std::size_t i = 0; i < kTensors; ++i) {
      bytes[i].resize(kTensorBytes);
      for (std::size_t at = 0; at < kTensorBytes; at += 8) {
        const std::uint64_t value = random_();
        std::memcpy(&bytes[i][at], &value, 8);
      }
      views.push_back({fmt::format("t{}", i), tensor::Dtype::kU8, {kTensorBytes}, bytes[i]});
    }
    ASSERT_OK(publisher_->Publish(std::nullopt, views, false, progress_));
    versions_.push_back(std::move(bytes));
  }
  std::string ShardOf(std::uint64_t version) const {
    return fmt::format("{}/{}", store::VersionName(version), kShard);
  }

  void Serve(const TestRequest& request, TestConnection& connection) {
    std::uint64_t first = 0;
    std::uint64_t last = 0;
    const std::string folder = request.target.substr(1, request.target.find('/', 1) - 1);
    if (request.target.ends_with(kShard) && request.Range(first, last)) {
      const std::scoped_lock lock(mutex_);
      pieces_.push_back(fmt::format("{}@{}", folder, first / kPiece));
    }
    if (hook_ && first > 0) {
      const auto fold = store::ParseFoldName(folder);
      const auto version = fold ? fold->to : store::ParseVersionName(folder).value_or(0);
      if (version > 0) hook_(version);
    }
    serve_(request, connection);
  }
  std::vector<std::string> Pieces() const {
    const std::scoped_lock lock(mutex_);
    return pieces_;
  }
  void Forget() {
    const std::scoped_lock lock(mutex_);
    pieces_.clear();
  }

  // A tensor's records are in the journal of an apply that has not been committed.
  void AwaitJournal() {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    const std::string folder = into_ + "/.weight_sync/journal";
    while (std::chrono::steady_clock::now() < end) {
      std::uint64_t bytes = 0;
      const auto names = files.List(folder);
      for (const std::string& name : names.value_or(std::vector<std::string>())) {
        const auto info = files.Stat(base::JoinPath(folder, name));
        if (info) bytes += info->size;
      }
      if (bytes > kTensorBytes) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ADD_FAILURE() << "no journal before all pieces had come";
  }

  Result<PullReport> PullTo(std::uint64_t version, PullOptions options = {}) {
    options.version = version;
    options.threads = 2;
    return Pull(faulty_, server_.url(), into_, options);
  }
  bool HasBytesOf(std::uint64_t version) {
    const auto mapped = checkpoint::MappedCheckpoint::Open(files, into_);
    for (std::size_t i = 0; mapped && i < kTensors; ++i) {
      const auto* tensor = mapped->checkpoint().Find(fmt::format("t{}", i));
      if (tensor == nullptr) return false;
      if (!std::ranges::equal(mapped->Bytes(*tensor), versions_[version][i])) return false;
    }
    return mapped.has_value();
  }
  void ExpectAt(std::uint64_t version) {
    const auto marker = ReplicaState(files, into_).ReadMarker();
    ASSERT_OK(marker);
    ASSERT_TRUE(marker->has_value());
    EXPECT_EQ((*marker)->version, version);
    EXPECT_TRUE(HasBytesOf(version));
  }
  void ExpectNoJournal() {
    const auto names = files.List(into_ + "/.weight_sync/journal");
    EXPECT_THAT(names.value_or(std::vector<std::string>()), ElementsAre());
  }
  void Write(const std::string& name, const std::string& text) {
    ASSERT_OK(base::WriteTextAtomically(files, base::JoinPath(store_, name), text, false));
  }
  std::string ReadShard(std::uint64_t version) {
    return base::ReadText(files, base::JoinPath(store_, ShardOf(version)), 1 << 30).value();
  }

  const base::TempDir dir_{base::TempDir::MemoryFolder()};
  const std::string store_ = dir_ / "store";
  const std::string into_ = dir_ / "replica";
  std::mt19937_64 random_{5};
  std::vector<std::vector<std::vector<std::byte>>> versions_;
  base::Progress progress_;
  std::optional<store::Publisher> publisher_;
  base::FaultyFileSystem faulty_{files};
  Hook hook_;
  mutable std::mutex mutex_;
  std::atomic<bool> done_ = false;
  std::vector<std::string> pieces_;  // that were asked for; guarded by mutex_
  const objects::TestHandler serve_;
  const objects::TestServer server_;
};

TEST_F(ArrivalTest, ADeltaIsDecodedWhileItsLastPieceIsHeld) {
  hook_ = [&](std::uint64_t) {
    AwaitJournal();
    ExpectAt(0);
  };
  ASSERT_OK_AND_ASSIGN(const PullReport report, PullTo(1));
  EXPECT_THAT(report.applied, ElementsAre(1));
  ExpectAt(1);
  EXPECT_THAT(Pieces(), testing::UnorderedElementsAre("weight_v000001@0", "weight_v000001@1"));
}

TEST_F(ArrivalTest, AChainIsDecodedWhileItsLastPieceIsHeld) {
  hook_ = [&](std::uint64_t version) {
    if (version == 2) AwaitJournal();
    EXPECT_TRUE(HasBytesOf(0));
  };
  ASSERT_OK_AND_ASSIGN(const PullReport report, PullTo(2));
  EXPECT_THAT(report.applied, ElementsAre(1, 2));
  ExpectAt(2);
}

// Wherever it is, and whatever it does to who decodes: it is the checksum that was wrong.
TEST_F(ArrivalTest, ADamagedPieceIsTheChecksumsError) {
  const std::string right = ReadShard(1);
  const std::uint64_t header = 8 + static_cast<std::uint64_t>(right.find("}}") + 2);
  for (const std::uint64_t at : {std::uint64_t{1}, std::uint64_t{9}, header / 2, kPiece / 2,
                                 kPiece + 1000, right.size() - 1}) {
    std::string wrong = right;
    wrong[at] ^= 4;
    Write(ShardOf(1), wrong);
    // In every second case nothing is left to be fetched when it is found.
    hook_ = [&](std::uint64_t) {
      if (at > kPiece) AwaitJournal();
    };
    const auto pulled = PullTo(1);
    EXPECT_ERROR(pulled, Code::kChecksumMismatch,
                 fmt::format("{}/{} has the SHA-256 ", server_.url(), ShardOf(1)));
    EXPECT_THAT(pulled.error().message, HasSubstr(", the manifest says ")) << at;
    EXPECT_THAT(pulled.error().message, testing::StartsWith("version 1: what came of")) << at;
    ExpectAt(0);
    ExpectNoJournal();
  }
  Write(ShardOf(1), right);
  EXPECT_OK(PullTo(1));
  ExpectAt(1);
}

TEST_F(ArrivalTest, AFoldIsDecodedWhileItsLastPieceIsHeld) {
  Publish();
  ASSERT_OK(Fold(files, store_, {.from = 0, .to = 2, .durable = false, .threads = 2}));
  hook_ = [&](std::uint64_t version) {
    if (version == 2) AwaitJournal();
    EXPECT_TRUE(HasBytesOf(0));
  };
  ASSERT_OK_AND_ASSIGN(const PullReport report, PullTo(3));
  EXPECT_THAT(report.applied, ElementsAre(2, 3));
  ExpectAt(3);
  EXPECT_THAT(Pieces(),
              testing::UnorderedElementsAre("fold_v000000_v000002@0", "fold_v000000_v000002@1",
                                            "weight_v000003@0", "weight_v000003@1"));
}

// Of all that arrives the fold alone is left, whatever was read when it turned out to be bad; and
// kept, if it is another's fault.
TEST_F(ArrivalTest, WhatArrivedBadIsToBlame) {
  Publish();
  ASSERT_OK(Fold(files, store_, {.from = 0, .to = 2, .durable = false, .threads = 2}));
  const std::string fold = fmt::format("{}/{}", store::FoldName({0, 2}), kShard);
  const std::string right =
      base::ReadText(files, base::JoinPath(store_, fold), std::uint64_t{1} << 30).value();
  const std::string right_delta = ReadShard(3);
  hook_ = [&](std::uint64_t version) {
    if (version == 3) AwaitJournal();
  };
  for (const std::string& url : {server_.url(), store_}) {
    const auto pull = [&] { return Pull(files, url, into_, {.version = 3, .threads = 2}); };
    std::string wrong = right;
    wrong.back() ^= 4;
    Write(fold, wrong);
    ASSERT_OK_AND_ASSIGN(const PullReport report, pull());
    EXPECT_THAT(report.applied, ElementsAre(1, 2, 3));
    ExpectAt(3);
    Write(fold, right);
    ASSERT_OK(Undo(files, into_, {}));
    wrong = right_delta;
    wrong.back() ^= 4;
    Write(ShardOf(3), wrong);
    EXPECT_ERROR(pull(), Code::kChecksumMismatch,
                 fmt::format("{}/{} has the SHA-256 ", url, ShardOf(3)));
    ExpectAt(0);
    ExpectNoJournal();
    const auto names = files.List(into_ + "/.weight_sync/fetch");
    EXPECT_THAT(names.value_or(std::vector<std::string>()),
                testing::Not(testing::Contains("weight_v000001")));
    Write(ShardOf(3), right_delta);
  }
}

// A hash may be written in capitals: what is decoded is right to the last bit, and yet it is not the
// file that was published.
TEST_F(ArrivalTest, DamageThatOnlyTheChecksumSees) {
  const std::string right = ReadShard(1);
  std::string wrong = right;
  const std::size_t letter = right.find_first_of("abcdef", right.find("\"t0\":\"") + 6);
  ASSERT_LT(letter, right.find("\"t1\":\""));
  wrong[letter] ^= 0x20;
  Write(ShardOf(1), wrong);
  for (const std::string& url : {server_.url(), store_}) {
    EXPECT_ERROR(Pull(files, url, into_, {.version = 1, .threads = 2}), Code::kChecksumMismatch,
                 fmt::format("{}/{} has the SHA-256 ", url, ShardOf(1)));
    ExpectAt(0);
    ExpectNoJournal();
  }
}

// The same of a directory, where nothing has to be fetched.
TEST_F(ArrivalTest, ADamagedFileOfADirectoryIsTheChecksumsError) {
  const std::string right = ReadShard(1);
  for (const std::uint64_t at : {std::uint64_t{9}, kPiece / 2, kPiece + 1000}) {
    std::string wrong = right;
    wrong[at] ^= 4;
    Write(ShardOf(1), wrong);
    EXPECT_ERROR(Pull(files, store_, into_, {.version = 1, .threads = 2}), Code::kChecksumMismatch,
                 fmt::format("version 1: {}/{} has the SHA-256 ", store_, ShardOf(1)));
    ExpectAt(0);
    ExpectNoJournal();
  }
  Write(ShardOf(1), right);
  EXPECT_OK(Pull(files, store_, into_, {.version = 1, .threads = 2}));
  ExpectAt(1);
}

// What was read first was another object, which decodes to something else: two frames have changed
// places. When the right one has come it is read again, headers too.
TEST_F(ArrivalTest, AWrongFirstReadIsMadeGood) {
  const std::string right = ReadShard(1);
  std::string wrong = right;
  wrong.replace(right.find("\"t0\":{"), 5, "\"t1\":");
  wrong.replace(right.find("\"t1\":{"), 5, "\"t0\":");
  ASSERT_NE(wrong, right);
  Write(ShardOf(1), wrong);
  std::atomic<bool> read = false;  // the header, by who decodes: hashing reads whole pieces
  faulty_.SetReadRule(
      [&](const std::string& path, std::uint64_t offset, base::MutableByteSpan bytes) {
        if (path.ends_with(".part") && offset == 8 && bytes.size() < 4096) read = true;
        return bytes.size();
      });
  std::atomic<int> asked = 0;
  hook_ = [&](std::uint64_t) {
    if (asked++ > 0) return;
    AwaitJournal();
    Write(ShardOf(1), right);
  };
  store::SourceOptions source;
  source.wait_seconds = 30;
  ASSERT_OK_AND_ASSIGN(const PullReport report, PullTo(1, {.source = source}));
  EXPECT_TRUE(read);
  EXPECT_EQ(report.tensors_repaired, 0U);
  EXPECT_THAT(report.applied, ElementsAre(1));
  ExpectAt(1);
}

TEST_F(ArrivalTest, CancellingInTheMiddleKeepsWhatHasCome) {
  base::CancelToken cancel;
  hook_ = [&](std::uint64_t) {
    AwaitJournal();
    cancel.Cancel();
    while (!done_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  EXPECT_ERROR(PullTo(1, {.cancel = &cancel}), Code::kCancelled, "cancelled");
  done_ = true;
  hook_ = nullptr;
  ExpectAt(0);
  ExpectNoJournal();
  Forget();
  EXPECT_OK(PullTo(1));
  EXPECT_THAT(Pieces(), ElementsAre("weight_v000001@1"));
  ExpectAt(1);
}

// The disk of the replica fails: nobody has to wait for the rest to be told.
TEST_F(ArrivalTest, AnErrorOfTheReplicaDoesNotWaitForTheFetch) {
  faulty_.SetRule([&](std::string_view operation, const std::string& path) -> base::Status {
    if (operation != "write" || !path.contains("/journal/")) return {};
    return base::Fail(Code::kIo, "the disk is gone");
  });
  hook_ = [&](std::uint64_t) {
    while (!done_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  EXPECT_ERROR(PullTo(1), Code::kIo, "the disk is gone");
  done_ = true;
  ExpectAt(0);
}

TEST(OverlappingProgressTest, TheSecondIsShownAfterTheFirst) {
  std::vector<std::string> seen;
  base::Progress shown([&](std::string_view phase, std::uint64_t done, std::uint64_t total) {
    seen.push_back(fmt::format("{} {}/{}", phase, done, total));
  });
  OverlappingProgress both(shown);
  both.first().Begin("fetch", 10);
  both.second().Begin("apply", 4);
  both.first().Add(5);
  both.second().Add(1);
  both.first().Add(5);
  both.second().Add(1);
  both.second().Add(2);
  both.second().Begin("write", 2);
  both.second().Add(2);
  EXPECT_THAT(seen, ElementsAre("fetch 0/10", "fetch 5/10", "fetch 10/10", "apply 0/4", "apply 2/4",
                                "apply 4/4", "write 0/2", "write 2/2"));
}

}  // namespace
}  // namespace syncline::replica

// Retention over a directory and over a store of objects: by random stores, against a plain reading
// of the rules; by failing every operation once, and from there on; and leases.
#include "store/retention.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include "base/faulty_file_system.h"
#include "base/power_loss_file_system.h"
#include "base/result_matchers.h"
#include "base/temp_dir.h"
#include "checkpoint/index.h"
#include "store/directory_sink.h"
#include "store/folds.h"
#include "store/manifest.h"
#include "store/version.h"

namespace syncline::store {
namespace {

using base::Code;
using base::Fail;
using base::FileSystem;
using base::Json;
using base::Result;
using base::Status;
using Versions = std::set<std::uint64_t>;

// What is said of broken stores is not of interest here.
const int quiet = setenv("SYNCLINE_LOG", "off", 0);

// ---- Stores.

// Objects in memory, as a bucket holds them.
class Bucket final : public objects::ObjectStore {
 public:
  std::map<std::string, std::string> objects;
  // Asked before each call; an error is what the caller gets.
  std::function<Status()> rule;

  const std::string& url() const override { return url_; }
  const std::string& local_path() const override { return local_path_; }
  bool can_list() const override { return true; }
  bool can_write() const override { return true; }

  Result<std::vector<objects::ObjectInfo>> List(const std::string& prefix, bool folders_only,
                                                const base::CancelToken*) override {
    SYNCLINE_TRY(Ask());
    std::map<std::string, std::uint64_t> found;
    for (const auto& [key, text] : objects) {
      if (!key.starts_with(prefix)) continue;
      const std::size_t slash = key.find('/', prefix.size());
      if (!folders_only) found.emplace(key, text.size());
      if (folders_only && slash != std::string::npos) found.emplace(key.substr(0, slash + 1), 0);
    }
    std::vector<objects::ObjectInfo> listed;
    for (const auto& [key, bytes] : found) listed.push_back({.key = key, .bytes = bytes});
    return listed;
  }
  Result<objects::ObjectInfo> Stat(const std::string& key, const base::CancelToken*) override {
    SYNCLINE_TRY(Ask());
    if (!objects.contains(key)) return Fail(Code::kNotFound, key);
    return objects::ObjectInfo{.key = key, .bytes = objects[key].size()};
  }
  Status ReadAt(const std::string&, base::MutableByteSpan, std::uint64_t, const std::string&,
                const std::function<void(std::uint64_t)>&, const base::CancelToken*) override {
    return Fail(Code::kInternal, "not asked for here");
  }
  Result<std::string> ReadText(const std::string& key, std::uint64_t,
                               const base::CancelToken*) override {
    SYNCLINE_TRY(Ask());
    if (!objects.contains(key)) return Fail(Code::kNotFound, key);
    return objects[key];
  }
  Status Put(const std::string&, base::File&, const std::function<void(std::uint64_t)>&,
             const base::CancelToken*) override {
    return Fail(Code::kInternal, "not asked for here");
  }
  Status PutText(const std::string& key, std::string_view text, bool,
                 const base::CancelToken*) override {
    SYNCLINE_TRY(Ask());
    objects[key] = text;
    return {};
  }
  Status Remove(const std::string& key, const base::CancelToken*) override {
    SYNCLINE_TRY(Ask());
    objects.erase(key);
    return {};
  }

 private:
  Status Ask() const { return rule ? rule() : Status(); }

  std::string url_ = "s3://bucket";
  std::string local_path_;
};

// What a test needs of a store of either kind.
class Store {
 public:
  virtual ~Store() = default;
  virtual objects::ObjectStore& objects() = 0;
  virtual FileSystem* files() = 0;
  virtual void Write(const std::string& key, const std::string& text) = 0;
  virtual std::map<std::string, std::string> Picture() = 0;
  virtual void SetRule(std::function<Status()> rule) = 0;
};

class BucketStore final : public Store {
 public:
  objects::ObjectStore& objects() override { return bucket_; }
  FileSystem* files() override { return nullptr; }
  void Write(const std::string& key, const std::string& text) override {
    bucket_.objects[key] = text;
  }
  std::map<std::string, std::string> Picture() override { return bucket_.objects; }
  void SetRule(std::function<Status()> rule) override { bucket_.rule = std::move(rule); }

 private:
  Bucket bucket_;
};

class DirectoryStore final : public Store {
 public:
  DirectoryStore() : store_(objects::Open(files_, directory_.path(), {}).value()) {}
  objects::ObjectStore& objects() override { return *store_; }
  FileSystem* files() override { return &files_; }
  void Write(const std::string& key, const std::string& text) override {
    const std::string path = directory_ / key;
    ASSERT_OK(FileSystem::Posix().MakeDirectories(path.substr(0, path.rfind('/'))));
    ASSERT_OK(base::WriteTextAtomically(FileSystem::Posix(), path, text, false));
  }
  std::map<std::string, std::string> Picture() override {
    std::map<std::string, std::string> picture;
    Add(directory_.path(), "", picture);
    return picture;
  }
  void SetRule(std::function<Status()> rule) override {
    if (!rule) return files_.SetRule(nullptr);
    files_.SetRule(
        [rule = std::move(rule)](std::string_view, const std::string&) { return rule(); });
  }

 private:
  static void Add(const std::string& directory, const std::string& prefix,
                  std::map<std::string, std::string>& picture) {
    const auto names = FileSystem::Posix().List(directory).value();
    for (const std::string& name : names) {
      const std::string path = base::JoinPath(directory, name);
      if (FileSystem::Posix().Stat(path)->kind == base::FileInfo::Kind::kDirectory) {
        picture[prefix + name + "/"] = "";
        Add(path, prefix + name + "/", picture);
      } else {
        picture[prefix + name] = base::ReadText(FileSystem::Posix(), path, 1 << 20).value();
      }
    }
  }

  base::TempDir directory_{"/dev/shm"};  // where syncing costs nothing
  base::FaultyFileSystem files_{FileSystem::Posix()};
  std::unique_ptr<objects::ObjectStore> store_;
};

std::unique_ptr<Store> MakeStore(bool directory) {
  if (directory) return std::make_unique<DirectoryStore>();
  return std::make_unique<BucketStore>();
}

// ---- Versions.

enum class Kind { kFull, kDelta, kCopy, kBroken, kHollowCopy };

struct Made {
  Kind kind = Kind::kFull;
  std::uint64_t base = 0;
};
using MadeVersions = std::map<std::uint64_t, Made>;

void WriteVersion(Store& store, std::uint64_t version, const Made& made) {
  const std::string folder = VersionName(version) + "/";
  store.Write(folder + "model-00001-of-00001.safetensors", "frames");
  if (made.kind == Kind::kBroken) {
    store.Write(folder + std::string(checkpoint::kIndexName), "{");
    return;
  }
  checkpoint::Index index;
  if (made.kind != Kind::kFull) {
    index.metadata = DeltaMetadata({.version = version, .base_version = made.base});
  }
  store.Write(folder + std::string(checkpoint::kIndexName), IndexText(index));
  Manifest manifest;
  manifest.run = DrawRun();
  manifest.version = version;
  if (made.kind != Kind::kFull) manifest.base_version = made.base;
  const bool copy = made.kind == Kind::kCopy || made.kind == Kind::kHollowCopy;
  if (copy) {
    manifest.files.push_back({"full/model.safetensors", 4, std::string(64, '0')});
    store.Write(folder + "full/model.safetensors", made.kind == Kind::kCopy ? "full" : "cut");
  }
  store.Write(folder + std::string(kManifestName), ManifestText(manifest));
}

Versions Listed(Store& store) {
  Versions versions;
  for (const auto& [key, text] : store.Picture()) {
    if (const auto version = ParseVersionName(key.substr(0, key.find('/'))))
      versions.insert(*version);
  }
  return versions;
}

Versions SetOf(const std::vector<std::uint64_t>& versions) {
  return {versions.begin(), versions.end()};
}

// ---- The rules, read plainly.

bool Readable(const MadeVersions& made, std::uint64_t version) {
  return made.contains(version) && made.at(version).kind != Kind::kBroken;
}

// Can a reader without a replica, but with version 0, come to that version?
bool Reachable(const MadeVersions& made, const Versions& there, std::uint64_t version) {
  if (!there.contains(version)) return version == 0 && !made.contains(0);
  if (!Readable(made, version)) return false;
  const Made& of = made.at(version);
  if (of.kind == Kind::kFull || of.kind == Kind::kCopy) return true;
  return Reachable(made, there, of.base);
}

// What must be there for that version to be reachable; nothing: no such set.
std::optional<Versions> Chain(const MadeVersions& made, std::uint64_t version) {
  if (!made.contains(version)) {
    return version == 0 ? std::optional(Versions()) : std::nullopt;
  }
  if (!Readable(made, version)) return std::nullopt;
  const Made& of = made.at(version);
  if (of.kind == Kind::kFull || of.kind == Kind::kCopy) return Versions{version};
  auto chain = Chain(made, of.base);
  if (chain) chain->insert(version);
  return chain;
}

Versions Roots(const MadeVersions& made, const GcOptions& options) {
  Versions roots;
  for (auto it = made.rbegin(); it != made.rend() && roots.size() < options.keep; ++it) {
    if (it->second.kind != Kind::kBroken) roots.insert(it->first);
  }
  for (const auto& [version, of] : made) {
    const bool full = of.kind == Kind::kFull || of.kind == Kind::kCopy;
    if (full && options.keep_full_every > 0 && version % options.keep_full_every == 0) {
      roots.insert(version);
    }
  }
  return roots;
}

MadeVersions RandomStore(bool broken) {
  const auto kinds =
      broken ? std::vector<Kind>{Kind::kFull, Kind::kDelta,      Kind::kDelta, Kind::kDelta,
                                 Kind::kCopy, Kind::kHollowCopy, Kind::kBroken}
             : std::vector<Kind>{Kind::kFull, Kind::kDelta, Kind::kDelta, Kind::kCopy};
  MadeVersions made;
  const auto first = *rc::gen::inRange<std::uint64_t>(0, 2);
  const auto count = *rc::gen::inRange<std::uint64_t>(1, 12);
  for (std::uint64_t version = first; version < first + count; ++version) {
    if (broken && *rc::gen::inRange(0, 10) == 0) continue;  // missing
    Made of{.kind = *rc::gen::elementOf(kinds)};
    if (version == 0 && of.kind != Kind::kBroken) of.kind = Kind::kFull;
    of.base = version == 0 ? 0 : version - 1;
    if (broken && version > 2 && *rc::gen::inRange(0, 6) == 0) of.base = version - 2;
    made.emplace(version, of);
  }
  return made;
}

class RetentionTest : public testing::TestWithParam<bool> {
 protected:
  Result<GcReport> Gc(GcOptions options) {
    options.files = store_->files();
    return Collect(store_->objects(), options);
  }
  void Write(std::uint64_t version, Kind kind) {
    WriteVersion(*store_, version, {kind, version == 0 ? 0 : version - 1});
  }
  // 0 full, 1 to 3 deltas, 4 full, 5 to 7 deltas, 6 with a full copy.
  void WriteEight() {
    for (std::uint64_t version = 0; version < 8; ++version) {
      Write(version, version % 4 == 0 ? Kind::kFull : version == 6 ? Kind::kCopy : Kind::kDelta);
    }
  }

  std::unique_ptr<Store> store_ = MakeStore(GetParam());
};

TEST_P(RetentionTest, KeepsTheNewestAndWhatTheyBuildOn) {
  WriteEight();
  ASSERT_OK_AND_ASSIGN(const GcReport report, Gc({.keep = 3, .grace_seconds = 0}));
  EXPECT_EQ(SetOf(report.kept), (Versions{4, 5, 6, 7}));
  EXPECT_EQ(SetOf(report.removed), (Versions{0, 1, 2, 3}));
  EXPECT_TRUE(report.waiting.empty());
  EXPECT_GT(report.bytes_removed, 0U);
  EXPECT_EQ(Listed(*store_), (Versions{4, 5, 6, 7}));
  ASSERT_OK_AND_ASSIGN(const GcReport again, Gc({.keep = 2, .grace_seconds = 0}));
  EXPECT_EQ(SetOf(again.kept), (Versions{6, 7})) << "the full copy of 6 is where a chain may begin";
}

// The folders of folds; what stands for one is as good as one.
std::set<std::string> Folds(Store& store) {
  std::set<std::string> folds;
  for (const auto& [key, text] : store.Picture()) {
    if (key.starts_with("fold_v") && !key.ends_with('/')) folds.insert(key.substr(0, 20));
  }
  return folds;
}

void WriteFold(Store& store, const FoldRange& range) {
  Manifest manifest{.run = DrawRun(), .version = range.to, .base_version = range.from};
  manifest.fold = ManifestFold{"", std::string(64, 'b')};
  store.Write(FoldName(range) + "/" + std::string(kManifestName), ManifestText(manifest));
  store.Write(FoldName(range) + "/model-00001-of-00001.safetensors", "frames");
}

TEST_P(RetentionTest, AFoldGoesWithTheVersionThatItMakes) {
  WriteEight();
  for (const FoldRange& range : {FoldRange{0, 3}, {1, 6}, {1, 9}, {5, 7}}) {
    WriteFold(*store_, range);
  }
  // One on its way up, for a version that is there.
  store_->Write("fold_v000002_v000007/model-00001-of-00001.safetensors", "fra");
  const auto before = store_->Picture();
  ASSERT_OK_AND_ASSIGN(const GcReport planned,
                       Gc({.keep = 2, .grace_seconds = 0, .dry_run = true}));
  EXPECT_EQ(store_->Picture(), before);
  ASSERT_OK_AND_ASSIGN(const GcReport waiting, Gc({.keep = 2, .grace_seconds = 1000}));
  EXPECT_THAT(waiting.folds_removed, testing::ElementsAre("fold_v000001_v000009"));
  ASSERT_OK_AND_ASSIGN(const GcReport report, Gc({.keep = 2, .grace_seconds = 0}));
  EXPECT_EQ(SetOf(report.kept), (Versions{6, 7}));
  EXPECT_THAT(planned.folds_removed,
              testing::ElementsAre("fold_v000000_v000003", "fold_v000001_v000009"));
  EXPECT_THAT(report.folds_removed, testing::ElementsAre("fold_v000000_v000003"));
  // Those whose base is gone stay, for whoever holds it.
  EXPECT_EQ(Folds(*store_), (std::set<std::string>{"fold_v000001_v000006", "fold_v000002_v000007",
                                                   "fold_v000005_v000007"}));
  const auto text = store_->objects().ReadText(std::string(kFoldsName), 10'000, nullptr);
  ASSERT_OK_AND_ASSIGN(const auto listed, ParseFolds(text.value()));
  ASSERT_EQ(listed.size(), 2U);
  EXPECT_EQ(listed[0].range, (FoldRange{1, 6}));
  EXPECT_EQ(listed[1].range, (FoldRange{5, 7}));
}

TEST_P(RetentionTest, FullOnesByNumberStay) {
  WriteEight();
  ASSERT_OK_AND_ASSIGN(const GcReport report,
                       Gc({.keep = 1, .keep_full_every = 2, .grace_seconds = 0}));
  EXPECT_EQ(SetOf(report.kept), (Versions{0, 4, 6, 7}));
}

TEST_P(RetentionTest, RemovesOnlyAfterTheTimeOfGrace) {
  WriteEight();
  for (int run = 0; run < 2; ++run) {
    ASSERT_OK_AND_ASSIGN(const GcReport report, Gc({.keep = 1, .grace_seconds = 1000}));
    EXPECT_TRUE(report.removed.empty());
    EXPECT_EQ(SetOf(report.waiting), (Versions{0, 1, 2, 3, 4, 5}));
  }
  EXPECT_EQ(Listed(*store_).size(), 8U);
  // Needed again, so the time begins anew.
  ASSERT_OK(Gc({.keep = 8, .grace_seconds = 1000}));
  EXPECT_EQ(store_->Picture().at(".syncline/gc.json").find("000003"), std::string::npos);
  ASSERT_OK(Gc({.keep = 1, .grace_seconds = 1000}));
  std::string notes = store_->Picture().at(".syncline/gc.json");
  // As if the first four had been found long ago, and one in a time to come.
  for (const char* version : {"000000", "000001", "000002", "000003", "000005"}) {
    const std::size_t at = notes.find(':', notes.find(version)) + 2;
    notes.replace(at, notes.find_first_of(",\n", at) - at,
                  version == std::string_view("000005") ? "9000000000000000000" : "5");
  }
  store_->Write(".syncline/gc.json", notes);
  ASSERT_OK_AND_ASSIGN(const GcReport report, Gc({.keep = 1, .grace_seconds = 1000}));
  EXPECT_EQ(SetOf(report.removed), (Versions{0, 1, 2, 3}));
  EXPECT_EQ(SetOf(report.waiting), (Versions{4, 5}));
  EXPECT_EQ(Listed(*store_), (Versions{4, 5, 6, 7}));
}

TEST_P(RetentionTest, DryRunChangesNothing) {
  WriteEight();
  const auto before = store_->Picture();
  ASSERT_OK_AND_ASSIGN(const GcReport report, Gc({.keep = 1, .grace_seconds = 0, .dry_run = true}));
  EXPECT_EQ(SetOf(report.removed), (Versions{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(store_->Picture(), before);
}

TEST_P(RetentionTest, DamagedNotesCostTimeOnly) {
  WriteEight();
  store_->Write(".syncline/gc.json", R"({"format":1,"useless":{"000001":0},"removing":"x"})");
  ASSERT_OK_AND_ASSIGN(const GcReport report, Gc({.keep = 1, .grace_seconds = 1000}));
  EXPECT_TRUE(report.removed.empty());
  EXPECT_EQ(report.waiting.size(), 6U);
}

TEST_P(RetentionTest, ThePointersVersionStays) {
  WriteEight();
  store_->Write("syncline.latest.json", R"({"version": 2})");
  ASSERT_OK_AND_ASSIGN(const GcReport report, Gc({.keep = 1, .grace_seconds = 0}));
  EXPECT_EQ(SetOf(report.kept), (Versions{0, 1, 2, 6, 7}));
}

TEST_P(RetentionTest, UnreadableVersionsAndWhatTheyMayNeedStay) {
  WriteEight();
  Write(2, Kind::kBroken);
  ASSERT_OK_AND_ASSIGN(const GcReport report, Gc({.keep = 1, .grace_seconds = 0}));
  EXPECT_EQ(SetOf(report.kept), (Versions{0, 1, 2, 6, 7}));
  // The newest one may be about to come: it builds on what is kept.
  Write(8, Kind::kBroken);
  ASSERT_OK_AND_ASSIGN(const GcReport later, Gc({.keep = 1, .grace_seconds = 0}));
  EXPECT_EQ(SetOf(later.kept), (Versions{0, 1, 2, 6, 7, 8}));
}

TEST_P(RetentionTest, AMissingBaseKeepsAllThatIsOlder) {
  for (const std::uint64_t version : {0, 1, 2, 4, 5}) {
    Write(version, version == 0 ? Kind::kFull : Kind::kDelta);
  }
  ASSERT_OK_AND_ASSIGN(const GcReport report, Gc({.keep = 1, .grace_seconds = 0}));
  EXPECT_TRUE(report.removed.empty());
}

TEST_P(RetentionTest, VersionZeroMayBeElsewhere) {
  for (std::uint64_t version = 1; version < 4; ++version) Write(version, Kind::kDelta);
  Write(4, Kind::kFull);
  ASSERT_OK_AND_ASSIGN(const GcReport report, Gc({.keep = 2, .grace_seconds = 0}));
  EXPECT_EQ(SetOf(report.kept), (Versions{1, 2, 3, 4}));
  ASSERT_OK_AND_ASSIGN(const GcReport one, Gc({.keep = 1, .grace_seconds = 0}));
  EXPECT_EQ(SetOf(one.kept), (Versions{4}));
}

TEST_P(RetentionTest, RefusesWhatMakesNoSense) {
  EXPECT_ERROR(Gc({.keep = 0}), Code::kInvalidArgument, "at least one");
  ASSERT_OK_AND_ASSIGN(const GcReport report, Gc({.keep = 1}));
  EXPECT_TRUE(report.kept.empty());
}

// Every operation fails once, or all from one on; the next gc ends where an undisturbed one does.
TEST_P(RetentionTest, AnyFailureIsMadeGoodByTheNextRun) {
  for (const bool for_good : {false, true}) {
    for (std::size_t n = 0; true; ++n) {
      store_ = MakeStore(GetParam());
      WriteEight();
      store_->Write(".syncline/publisher.lock", "");
      for (const FoldRange& range : {FoldRange{0, 3}, {1, 5}, {1, 6}, {1, 9}}) {
        WriteFold(*store_, range);
      }
      store_->Write(std::string(kFoldsName), "of another time");
      std::size_t seen = 0;
      store_->SetRule([&]() -> Status {
        if (seen++ == n || (for_good && seen > n)) return Fail(Code::kIo, "made to fail");
        return {};
      });
      const Result<GcReport> first = Gc({.keep = 2, .grace_seconds = 0});
      store_->SetRule({});
      // At every moment what can be seen as a version leads down to a full one.
      const auto picture = store_->Picture();
      for (std::uint64_t version = 0; version < 8; ++version) {
        const bool there = picture.contains(VersionName(version) + "/model.safetensors.index.json");
        EXPECT_TRUE(there || version < 6) << version << " after failure " << n;
        const std::string fold = fmt::format("fold_v{:06}_v{:06}/", version == 3 ? 0 : 1, version);
        EXPECT_TRUE(there || !picture.contains(fold + std::string(kManifestName)))
            << fold << " leads nowhere after failure " << n;
        if (!there || version % 4 == 0 || version == 6) continue;
        EXPECT_TRUE(picture.contains(VersionName(version - 1) + "/model.safetensors.index.json"))
            << version << " after failure " << n;
      }
      if (seen <= n) {
        ASSERT_OK(first);
        ASSERT_GT(n, 20U);
        break;
      }
      ASSERT_OK(Gc({.keep = 2, .grace_seconds = 0}));
      EXPECT_EQ(Listed(*store_), (Versions{6, 7})) << "after failure " << n;
      EXPECT_EQ(Folds(*store_), (std::set<std::string>{"fold_v000001_v000006"})) << n;
      const auto folds = store_->objects().ReadText(std::string(kFoldsName), 10'000, nullptr);
      ASSERT_EQ(ParseFolds(folds.value_or("")).value_or(std::vector<FoldEntry>()).size(), 1U) << n;
      for (const auto& [key, text] : store_->Picture()) {
        EXPECT_FALSE(key.starts_with(".syncline/trash/w")) << key;
        EXPECT_FALSE(key.starts_with(".syncline/trash/f")) << key;
      }
    }
  }
}

void CheckProperty(bool directory) {
  const bool broken = *rc::gen::arbitrary<bool>();
  MadeVersions made = RandomStore(broken);
  const auto store = MakeStore(directory);
  for (const auto& [version, of] : made) WriteVersion(*store, version, of);
  GcOptions options{.files = store->files()};
  std::unique_ptr<Lease> lease;
  Versions leased;
  if (directory && *rc::gen::arbitrary<bool>()) {
    const auto from = *rc::gen::inRange<std::uint64_t>(0, 12);
    const auto to = from + *rc::gen::inRange<std::uint64_t>(0, 5);
    lease = TakeLease(store->objects(), from, to);
    RC_ASSERT(lease != nullptr);
    for (const auto& [version, of] : made) {
      if (from <= version && version <= to) leased.insert(version);
    }
  }
  const auto before = store->Picture();
  const Versions all = Listed(*store);
  Versions roots;
  Versions allowed = all;  // to stay, of a store without faults
  for (int run = 0; run < 3; ++run) {
    options.keep = *rc::gen::inRange<std::uint64_t>(1, 5);
    options.keep_full_every = *rc::gen::inRange<std::uint64_t>(0, 4);
    options.grace_seconds = *rc::gen::element(0.0, 1000.0);
    MadeVersions still = made;
    const Versions there = Listed(*store);
    std::erase_if(still, [&](const auto& item) { return !there.contains(item.first); });
    roots = Roots(still, options);
    const auto report = Collect(store->objects(), options);
    RC_ASSERT(report.has_value());
    const Versions after = Listed(*store);
    RC_ASSERT(std::ranges::includes(after, roots));
    for (const std::uint64_t version : after) {
      RC_ASSERT(!Reachable(made, all, version) || Reachable(made, after, version));
      if (const auto chain = Chain(made, version)) RC_ASSERT(std::ranges::includes(after, *chain));
    }
    RC_ASSERT(std::ranges::includes(after, leased));
    RC_ASSERT(SetOf(report->kept).size() + report->removed.size() + report->waiting.size() +
                  report->leased.size() ==
              there.size());
    if (!broken && options.grace_seconds == 0) {
      Versions needed;
      roots.insert(leased.begin(), leased.end());
      for (const std::uint64_t root : roots) needed.merge(Chain(still, root).value_or(there));
      Versions expected;
      std::ranges::set_intersection(needed, there, std::inserter(expected, expected.end()));
      RC_ASSERT(after == expected);
    }
    for (const auto& [key, text] : store->Picture()) {
      if (key.starts_with("weight_v")) RC_ASSERT(before.at(key) == text);
    }
  }
}

RC_GTEST_PROP(RetentionProperty, OfADirectory, ()) { CheckProperty(true); }
RC_GTEST_PROP(RetentionProperty, OfABucket, ()) { CheckProperty(false); }

INSTANTIATE_TEST_SUITE_P(Stores, RetentionTest, testing::Bool(),
                         [](const auto& param) { return param.param ? "directory" : "bucket"; });

// ---- Elsewhere than in a directory.

TEST(BucketRetentionTest, TheManifestGoesFirstAndWhatIsLeftIsFinished) {
  BucketStore store;
  WriteVersion(store, 0, {Kind::kFull, 0});
  WriteVersion(store, 1, {Kind::kFull, 0});
  std::size_t calls = 0;
  bool removing = false;
  store.SetRule([&]() -> Status {  // dies after the manifest and the index are gone
    const auto picture = store.Picture();
    removing = !picture.contains("weight_v000000/model.safetensors.index.json");
    EXPECT_TRUE(!removing || !picture.contains("weight_v000000/syncline.manifest.json"));
    ++calls;
    return removing ? Fail(Code::kUnavailable, "made to fail") : Status();
  });
  EXPECT_ERROR(Collect(store.objects(), {.keep = 1, .grace_seconds = 0}), Code::kUnavailable,
               "fail");
  store.SetRule({});
  EXPECT_TRUE(removing);
  EXPECT_TRUE(store.Picture().contains("weight_v000000/model-00001-of-00001.safetensors"));
  ASSERT_OK_AND_ASSIGN(const GcReport report, Collect(store.objects(), {.keep = 1}));
  EXPECT_EQ(SetOf(report.removed), (Versions{0}));
  EXPECT_EQ(Listed(store), (Versions{1}));
}

TEST(BucketRetentionTest, AnOutageIsNoReasonToKeepOrRemove) {
  BucketStore store;
  WriteVersion(store, 0, {Kind::kFull, 0});
  WriteVersion(store, 1, {Kind::kFull, 0});
  const auto before = store.Picture();
  for (std::size_t n = 0; n < 5; ++n) {
    std::size_t seen = 0;
    store.SetRule([&]() -> Status {
      return seen++ == n ? Fail(Code::kUnavailable, "made to fail") : Status();
    });
    EXPECT_ERROR(Collect(store.objects(), {.keep = 1, .grace_seconds = 0}), Code::kUnavailable, "");
    EXPECT_EQ(store.Picture(), before);
  }
}

// A full version comes up slowly: its index is there, its manifest is not.
TEST(BucketRetentionTest, AVersionThatIsBeingPublishedReplacesNone) {
  BucketStore store;
  WriteVersion(store, 0, {Kind::kFull, 0});
  store.Write("weight_v000001/model.safetensors.index.json", checkpoint::IndexText({}));
  ASSERT_OK_AND_ASSIGN(GcReport report, Collect(store.objects(), {.keep = 1, .grace_seconds = 0}));
  EXPECT_EQ(SetOf(report.kept), (Versions{0, 1}));
  WriteVersion(store, 1, {Kind::kFull, 0});
  ASSERT_OK_AND_ASSIGN(report, Collect(store.objects(), {.keep = 1, .grace_seconds = 0}));
  EXPECT_EQ(SetOf(report.removed), (Versions{0}));
}

TEST(BucketRetentionTest, StoresWithoutAnyManifestAreReadByTheirIndexes) {
  BucketStore store;
  for (std::uint64_t version = 0; version < 2; ++version) {
    store.Write(VersionName(version) + "/model.safetensors.index.json", checkpoint::IndexText({}));
  }
  ASSERT_OK_AND_ASSIGN(const GcReport report,
                       Collect(store.objects(), {.keep = 1, .grace_seconds = 0}));
  EXPECT_EQ(SetOf(report.removed), (Versions{0}));
}

TEST(BucketRetentionTest, NoLeaseWithoutADirectory) {
  BucketStore store;
  EXPECT_EQ(TakeLease(store.objects(), 0, 1), nullptr);
}

// The power goes at any operation: no version comes back in part, and the next gc ends the work.
TEST(DirectoryRetentionTest, APowerCutLeavesWholeVersions) {
  for (std::size_t n = 0; true; ++n) {
    const base::TempDir directory("/dev/shm");
    const std::vector<std::string> names = {"model.safetensors", "config.json"};
    for (std::uint64_t version = 0; version < 4; ++version) {
      const std::string folder = directory / VersionName(version);
      ASSERT_OK(FileSystem::Posix().MakeDirectories(folder));
      for (const std::string& name : names) {
        ASSERT_OK(base::WriteTextAtomically(FileSystem::Posix(), base::JoinPath(folder, name),
                                            "weights", false));
      }
    }
    base::PowerLossFileSystem power(FileSystem::Posix(), directory.path());
    std::size_t seen = 0;
    {
      base::FaultyFileSystem files(power);
      files.SetRule([&](std::string_view, const std::string&) -> Status {
        return seen++ >= n ? Fail(Code::kIo, "made to fail") : Status();
      });
      const auto store = objects::Open(files, directory.path(), {}).value();
      (void)Collect(*store, {.keep = 1, .grace_seconds = 0, .files = &files});
    }
    ASSERT_OK(power.CutPower(n));
    for (std::uint64_t version = 0; version < 4; ++version) {
      const std::string folder = directory / VersionName(version);
      const bool there = FileSystem::Posix().Stat(folder).has_value();
      EXPECT_TRUE(there || version < 3);
      for (const std::string& name : names) {
        EXPECT_EQ(FileSystem::Posix().Stat(base::JoinPath(folder, name)).has_value(), there)
            << folder << "/" << name << " after operation " << n;
      }
    }
    const auto store = objects::Open(FileSystem::Posix(), directory.path(), {}).value();
    ASSERT_OK_AND_ASSIGN(const GcReport report, Collect(*store, {.keep = 1, .grace_seconds = 0}));
    EXPECT_EQ(SetOf(report.kept), (Versions{3}));
    if (seen <= n) {
      EXPECT_GT(n, 40U);
      break;
    }
  }
}

// ---- Leases.

class LeaseTest : public testing::Test {
 protected:
  void SetUp() override {
    for (std::uint64_t version = 0; version < 4; ++version) {
      WriteVersion(store_, version, {Kind::kFull, 0});
    }
  }
  GcReport Gc() {
    return Collect(store_.objects(), {.keep = 1, .grace_seconds = 0, .files = store_.files()})
        .value();
  }
  // The one lease there is.
  std::string LeaseKey() {
    for (const auto& [key, text] : store_.Picture()) {
      if (key.starts_with(".syncline/leases/") && key.ends_with(".json")) return key;
    }
    return "";
  }
  void Edit(const std::string& field, const std::string& value) {
    std::string text = store_.Picture().at(LeaseKey());
    const std::size_t at = text.find(':', text.find('"' + field + '"')) + 1;
    text.replace(at, text.find_first_of(",}", at) - at, value);
    store_.Write(LeaseKey(), text);
  }

  DirectoryStore store_;
};

TEST_F(LeaseTest, HoldsItsRangeUntilItEnds) {
  auto lease = TakeLease(store_.objects(), 1, 2);
  ASSERT_NE(lease, nullptr);
  const GcReport report = Gc();
  EXPECT_EQ(SetOf(report.removed), (Versions{0}));
  EXPECT_EQ(SetOf(report.leased), (Versions{1, 2}));
  EXPECT_EQ(Listed(store_), (Versions{1, 2, 3}));
  lease.reset();
  EXPECT_EQ(LeaseKey(), "");
  EXPECT_EQ(SetOf(Gc().removed), (Versions{1, 2}));
}

TEST_F(LeaseTest, HoldsWhatItsRangeBuildsOn) {
  WriteVersion(store_, 1, {Kind::kDelta, 0});
  WriteVersion(store_, 2, {Kind::kDelta, 1});
  const auto lease = TakeLease(store_.objects(), 2, 2);
  EXPECT_EQ(SetOf(Gc().leased), (Versions{0, 1, 2}));
}

TEST_F(LeaseTest, OfAProcessThatIsGoneDoesNotCount) {
  const pid_t child = fork();
  if (child == 0) {
    const auto lease = TakeLease(store_.objects(), 0, 2);
    _exit(lease == nullptr ? 1 : 0);  // nothing is destroyed
  }
  int status = 1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  ASSERT_NE(LeaseKey(), "");
  const std::string key = LeaseKey();
  const std::string text = store_.Picture().at(key);
  // On another host its process cannot be looked for, so it counts.
  for (const char* place : {"host", "boot", "pid_namespace"}) {
    store_.Write(key, text);
    Edit(place, "\"elsewhere\"");
    EXPECT_EQ(Gc().leased.size(), 3U) << place;
  }
  store_.Write(key, text);
  EXPECT_EQ(SetOf(Gc().removed), (Versions{0, 1, 2}));
  EXPECT_EQ(LeaseKey(), "");
}

TEST_F(LeaseTest, OfAnotherProcessWithTheSameNumberDoesNotCount) {
  const auto lease = TakeLease(store_.objects(), 0, 2);
  Edit("start", "\"1\"");
  EXPECT_EQ(Gc().removed.size(), 3U);
}

TEST_F(LeaseTest, EndsUnlessItIsRenewed) {
  const auto lease = TakeLease(store_.objects(), 0, 2);
  const std::string fresh = store_.Picture().at(LeaseKey());
  lease->Renew();
  EXPECT_EQ(store_.Picture().at(LeaseKey()), fresh) << "it is not time yet";
  Edit("renewed_ns", "1000");
  EXPECT_EQ(Gc().removed.size(), 3U);
}

TEST_F(LeaseTest, AFileThatCannotBeUnderstoodHoldsEverything) {
  store_.Write(".syncline/leases/x.json", "{");
  EXPECT_EQ(Gc().leased.size(), 3U);
}

TEST_F(LeaseTest, TakenBetweenTheJudgementAndTheRemoval) {
  std::unique_ptr<Lease> lease;
  base::FaultyFileSystem files(FileSystem::Posix());
  files.SetRule([&](std::string_view operation, const std::string& path) -> Status {
    if (operation == "rename" && path.ends_with("trash/weight_v000002")) {
      lease = TakeLease(store_.objects(), 0, 1);
    }
    return {};
  });
  ASSERT_OK_AND_ASSIGN(const GcReport report,
                       Collect(store_.objects(), {.keep = 1, .grace_seconds = 0, .files = &files}));
  EXPECT_EQ(SetOf(report.removed), (Versions{2}));
  EXPECT_EQ(SetOf(report.leased), (Versions{0, 1}));
}

TEST_F(LeaseTest, OneCollectorAtATime) {
  ASSERT_OK(FileSystem::Posix().MakeDirectories(OwnDirectory(store_.objects().local_path())));
  const auto lock = FileSystem::Posix().Lock(
      base::JoinPath(OwnDirectory(store_.objects().local_path()), "gc.lock"),
      base::LockMode::kExclusive, false);
  EXPECT_ERROR(Collect(store_.objects(), {.keep = 1}), Code::kLocked, "another gc");
}

}  // namespace
}  // namespace syncline::store

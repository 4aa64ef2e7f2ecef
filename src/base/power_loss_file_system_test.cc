#include "base/power_loss_file_system.h"

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/result_matchers.h"
#include "base/temp_dir.h"

namespace syncline::base {
namespace {

constexpr std::uint64_t kPage = 4096;
FileSystem& real = FileSystem::Posix();

void Put(FileSystem& files, const std::string& path, std::string_view text) {
  ASSERT_OK_AND_ASSIGN(const auto file, files.Open(path, OpenMode::kCreate));
  ASSERT_OK(file->WriteAt(AsBytes(text), 0));
}
void PutSynced(FileSystem& files, const std::string& path, std::string_view text) {
  Put(files, path, text);
  ASSERT_OK_AND_ASSIGN(const auto file, files.Open(path, OpenMode::kReadWrite));
  ASSERT_OK(file->Sync());
}
// "-" where there is no file.
std::string Get(const std::string& path) { return ReadText(real, path, 1 << 20).value_or("-"); }

using Seen = std::set<std::string>;

class PowerLossTest : public testing::Test {
 protected:
  using Prepare = std::function<void(FileSystem&, const std::string& root)>;
  using Look = std::function<std::string(const std::string& root)>;

  // Cuts the power many times after the same preparation: what is seen then must be one of
  // `expected`, and each of those must occur.
  void ExpectOutcomes(const Prepare& before, const Prepare& live, const Look& look,
                      const Seen& expected) {
    Seen seen;
    for (std::uint64_t seed = 0; seed < 40 || (seed < 1000 && seen != expected); ++seed) {
      const TempDir dir(TempDir::MemoryFolder());
      before(real, dir.path());
      PowerLossFileSystem files(real, dir.path());
      live(files, dir.path());
      ASSERT_OK(files.CutPower(seed));
      EXPECT_FALSE(Exists(real, dir / ".power_cut").value());
      const std::string found = look(dir.path());
      ASSERT_TRUE(expected.contains(found)) << "seed " << seed << ": " << found;
      seen.insert(found);
    }
    EXPECT_EQ(seen, expected);
  }
  static void Nothing(FileSystem&, const std::string&) {}
};

TEST_F(PowerLossTest, WhatWasThereBeforeSurvives) {
  const auto before = [](FileSystem& files, const std::string& root) {
    ASSERT_OK(files.MakeDirectories(root + "/a/b"));
    Put(files, root + "/a/b/f", "old");
    Put(files, root + "/g", "g");
  };
  ExpectOutcomes(before, Nothing, [](auto& root) { return Get(root + "/a/b/f"); }, Seen{"old"});
  const auto list = [](FileSystem& files, const std::string& root) {
    ASSERT_OK(files.List(root + "/a"));
    ASSERT_OK(files.Open(root + "/a/b/f", OpenMode::kRead));
  };
  ExpectOutcomes(before, list, [](auto& root) { return Get(root + "/a/b/f"); }, Seen{"old"});
}

TEST_F(PowerLossTest, SyncMakesContentDurableAndNotTheName) {
  const auto live = [](FileSystem& files, const std::string& root) {
    PutSynced(files, root + "/f", "text");
  };
  const auto look = [](auto& root) { return Get(root + "/f"); };
  ExpectOutcomes(Nothing, live, look, Seen{"-", "text"});
  const auto synced = [&](FileSystem& files, const std::string& root) {
    live(files, root);
    ASSERT_OK(files.SyncDirectory(root));
  };
  ExpectOutcomes(Nothing, synced, look, Seen{"text"});
}

TEST_F(PowerLossTest, ADurableNameMayLeadToNothing) {
  const auto live = [](FileSystem& files, const std::string& root) {
    Put(files, root + "/f", std::string(kPage, 'a') + "b");
    ASSERT_OK(files.SyncDirectory(root));
  };
  const auto look = [](auto& root) { return Get(root + "/f"); };
  const std::string zeros(kPage, '\0');
  const std::string first(kPage, 'a');
  using namespace std::string_literals;
  ExpectOutcomes(Nothing, live, look,
                 Seen{"", zeros + "\0"s, first + "\0"s, zeros + "b", first + "b"});
}

TEST_F(PowerLossTest, PagesAreLostOneByOne) {
  const auto before = [](FileSystem& files, const std::string& root) {
    Put(files, root + "/f", std::string(3 * kPage, 'o'));
  };
  const auto live = [](FileSystem& files, const std::string& root) {
    ASSERT_OK_AND_ASSIGN(const auto file, files.Open(root + "/f", OpenMode::kReadWrite));
    ASSERT_OK(file->WriteAt(AsBytes("x"), 5));
    ASSERT_OK(file->Sync());
    ASSERT_OK(file->WriteAt(AsBytes("y"), 6));
    ASSERT_OK(file->WriteAt(AsBytes("zz"), 2 * kPage - 1));
  };
  const auto look = [](auto& root) {
    const std::string text = Get(root + "/f");
    EXPECT_EQ(text.size(), 3 * kPage);
    return std::string{text[5], text[6], text[2 * kPage - 1], text[2 * kPage]};
  };
  ExpectOutcomes(before, live, look,
                 Seen{"xooo", "xooz", "xozo", "xozz",  //
                      "xyoo", "xyoz", "xyzo", "xyzz"});
}

TEST_F(PowerLossTest, AFileThatWasCutMayBeWholeAgain) {
  const auto before = [](FileSystem& files, const std::string& root) {
    Put(files, root + "/f", std::string(2 * kPage, 'o'));
  };
  const auto look = [](auto& root) {
    const std::string text = Get(root + "/f");
    return std::to_string(text.size()) + text.substr(0, 1) + text.back();
  };
  const auto truncate = [](FileSystem& files, const std::string& root) {
    ASSERT_OK_AND_ASSIGN(const auto file, files.Open(root + "/f", OpenMode::kReadWrite));
    ASSERT_OK(file->Truncate(10));
  };
  ExpectOutcomes(before, truncate, look, Seen{"10oo", "8192oo"});
  const auto create = [](FileSystem& files, const std::string& root) {
    Put(files, root + "/f", "new");
  };
  ExpectOutcomes(before, create, look, Seen{"3nw", "3oo", "8192no", "8192oo"});
  const auto allocate = [](FileSystem& files, const std::string& root) {
    ASSERT_OK_AND_ASSIGN(const auto file, files.Open(root + "/f", OpenMode::kReadWrite));
    ASSERT_OK(file->Allocate(10'000));
  };
  using namespace std::string_literals;
  ExpectOutcomes(before, allocate, look, Seen{"10000o\0"s, "8192oo"});
}

TEST_F(PowerLossTest, NamesOfADirectoryAreLostFromSomePointOn) {
  const auto live = [](FileSystem& files, const std::string& root) {
    ASSERT_OK(files.MakeDirectories(root + "/d"));
    ASSERT_OK(files.SyncDirectory(root));
    PutSynced(files, root + "/d/a", "a");
    PutSynced(files, root + "/d/b", "b");
    ASSERT_OK(files.Rename(root + "/d/a", root + "/d/c"));
  };
  const auto look = [](auto& root) {
    return Get(root + "/d/a") + Get(root + "/d/b") + Get(root + "/d/c");
  };
  ExpectOutcomes(Nothing, live, look, Seen{"---", "a--", "ab-", "-ba"});
}

TEST_F(PowerLossTest, AnAtomicReplacementIsOldOrNew) {
  const auto before = [](FileSystem& files, const std::string& root) {
    Put(files, root + "/f", "old");
  };
  const auto look = [](auto& root) { return Get(root + "/f"); };
  for (const bool durable : {false, true}) {
    const auto live = [&](FileSystem& files, const std::string& root) {
      ASSERT_OK(WriteTextAtomically(files, root + "/f", "new", durable));
    };
    using namespace std::string_literals;
    ExpectOutcomes(before, live, look, durable ? Seen{"new"} : Seen{"old", "new", "", "\0\0\0"s});
  }
}

TEST_F(PowerLossTest, ARenameToAnotherDirectoryIsDurableWithTheTarget) {
  const auto before = [](FileSystem& files, const std::string& root) {
    ASSERT_OK(files.MakeDirectories(root + "/from/v"));
    Put(files, root + "/from/v/f", "f");
    ASSERT_OK(files.MakeDirectories(root + "/to"));
  };
  const auto look = [](auto& root) { return Get(root + "/from/v/f") + Get(root + "/to/w/f"); };
  for (const char* sync : {"/from", "/to"}) {
    const auto live = [&](FileSystem& files, const std::string& root) {
      ASSERT_OK(files.Rename(root + "/from/v", root + "/to/w"));
      ASSERT_OK(files.SyncDirectory(root + sync));
    };
    ExpectOutcomes(before, live, look,
                   std::string_view(sync) == "/to" ? Seen{"-f"} : Seen{"f-", "-f"});
  }
}

TEST_F(PowerLossTest, AFileMadeElsewhereAndMovedNeedsOnlyTheTarget) {
  const auto live = [](FileSystem& files, const std::string& root) {
    ASSERT_OK(files.MakeDirectories(root + "/from"));
    ASSERT_OK(files.MakeDirectories(root + "/to"));
    ASSERT_OK(files.SyncDirectory(root));
    PutSynced(files, root + "/from/f", "f");
    ASSERT_OK(files.Rename(root + "/from/f", root + "/to/f"));
    ASSERT_OK(files.SyncDirectory(root + "/to/"));
  };
  const auto look = [](auto& root) { return Get(root + "/from/f") + Get(root + "/to/f"); };
  ExpectOutcomes(Nothing, live, look, Seen{"-f"});
}

TEST_F(PowerLossTest, WhatWasRemovedMayComeBackAsItIsDurable) {
  const auto before = [](FileSystem& files, const std::string& root) {
    ASSERT_OK(files.MakeDirectories(root + "/d/e"));
    Put(files, root + "/d/e/f", "old");
    Put(files, root + "/d/e/g", "g");
  };
  const auto look = [](auto& root) {
    return fmt::format("{}{}{}", Exists(real, root + "/d/e").value() ? "e" : "-",
                       Get(root + "/d/e/f"), Get(root + "/d/e/g"));
  };
  const auto live = [](FileSystem& files, const std::string& root) {
    Put(files, root + "/d/e/f", "new");
    ASSERT_OK(files.RemoveAll(root + "/d/e"));
  };
  ExpectOutcomes(before, live, look, Seen{"---", "e--", "e-g", "eoldg", "enewg"});
  const auto synced = [&](FileSystem& files, const std::string& root) {
    live(files, root);
    ASSERT_OK(files.SyncDirectory(root + "/d"));
  };
  ExpectOutcomes(before, synced, look, Seen{"---"});
}

TEST_F(PowerLossTest, AfterTheCutNothingWorks) {
  const TempDir dir;
  PowerLossFileSystem files(real, dir.path());
  ASSERT_OK_AND_ASSIGN(const auto file, files.Open(dir / "f", OpenMode::kCreate));
  ASSERT_OK_AND_ASSIGN(const auto lock, files.Lock(dir / "lock", LockMode::kExclusive, false));
  EXPECT_ERROR(real.Lock(dir / "lock", LockMode::kExclusive, false), Code::kLocked, "lock");
  EXPECT_ERROR(file->Map(true), Code::kInvalidArgument, "mapping");
  ASSERT_OK(files.CutPower(1));
  EXPECT_OK(real.Lock(dir / "lock", LockMode::kExclusive, false));
  std::array<std::byte, 1> byte;
  EXPECT_ERROR(file->ReadAt(byte, 0), Code::kIo, "power");
  EXPECT_ERROR(file->WriteAt(byte, 0), Code::kIo, "power");
  EXPECT_ERROR(file->Sync(), Code::kIo, "power");
  EXPECT_ERROR(files.List(dir.path()), Code::kIo, "power");
  EXPECT_ERROR(files.MakeDirectories(dir / "d"), Code::kIo, "power");
  EXPECT_ERROR(files.CutPower(2), Code::kIo, "power");
}

// ---- Random operations against an oracle that tries all prefixes. ----

// What the test knows of one file that it made.
struct Known {
  std::string now;
  std::string durable;

  static std::string Page(const std::string& text, std::size_t at) {
    std::string page = at < text.size() ? text.substr(at, kPage) : "";
    page.resize(kPage);
    return page;
  }
  bool MayBe(const std::string& found) const {
    if (found.size() != now.size() && found.size() != durable.size()) return false;
    for (std::size_t at = 0; at < found.size(); at += kPage) {
      const auto equal = [&](const std::string& text) {
        return found.compare(at, kPage, Page(text, at), 0, std::min(kPage, found.size() - at)) == 0;
      };
      if (!equal(now) && !equal(durable)) return false;
    }
    return true;
  }
};

// Two directories with four possible names each. A file is known by a number.
class Oracle {
 public:
  static constexpr int kDirectories = 2;
  static constexpr int kNames = 4;
  using Slot = std::pair<int, int>;  // directory, name
  using State = std::map<Slot, int>;

  static std::string Path(const std::string& root, Slot slot) {
    return fmt::format("{}/d{}/n{}", root, slot.first, slot.second);
  }

  State now;
  std::map<int, Known> known;

  int Make(Slot slot) {
    const int id = next_id_++;
    known[id] = {};
    Set(slot, id);
    return id;
  }
  void Set(Slot slot, std::optional<int> id) {
    changes_.push_back({slot, id, slot.first, false});
    Apply(changes_.back(), now);
  }
  void Sync(int directory) {
    for (Change& change : changes_) change.synced |= change.directory == directory;
  }
  // Is there a prefix for each directory that explains what is found?
  bool Explains(const std::map<Slot, std::string>& found) const {
    std::array<std::size_t, kDirectories> open = {};
    for (const Change& change : changes_) {
      if (!change.synced) ++open[static_cast<std::size_t>(change.directory)];
    }
    for (std::size_t a = 0; a <= open[0]; ++a) {
      for (std::size_t b = 0; b <= open[1]; ++b) {
        if (Matches(After({a, b}), found)) return true;
      }
    }
    return false;
  }

 private:
  struct Change {
    Slot slot;
    std::optional<int> id;
    int directory;
    bool synced;
  };
  static void Apply(const Change& change, State& state) {
    if (change.id) std::erase_if(state, [&](const auto& at) { return at.second == *change.id; });
    state.erase(change.slot);
    if (change.id) state[change.slot] = *change.id;
  }
  State After(std::array<std::size_t, kDirectories> left) const {
    State state;
    for (const Change& change : changes_) {
      std::size_t& mine = left[static_cast<std::size_t>(change.directory)];
      if (change.synced || mine > 0) Apply(change, state);
      if (!change.synced && mine > 0) --mine;
    }
    return state;
  }
  bool Matches(const State& state, const std::map<Slot, std::string>& found) const {
    return std::ranges::equal(state, found, [&](const auto& expected, const auto& is) {
      return expected.first == is.first && known.at(expected.second).MayBe(is.second);
    });
  }

  std::vector<Change> changes_;
  int next_id_ = 0;
};

class Machine {
 public:
  Machine() {
    for (int d = 0; d < Oracle::kDirectories; ++d) {
      RC_ASSERT(real.MakeDirectories(dir_ / fmt::format("d{}", d)).has_value());
    }
  }

  void Step() {
    const Oracle::Slot slot = Slot();
    const auto at = oracle_.now.find(slot);
    const std::string path = Oracle::Path(dir_.path(), slot);
    switch (*rc::gen::inRange(0, 8)) {
      case 0:
        return Create(slot, path);
      case 1:
        if (at == oracle_.now.end()) return Create(slot, path);
        RC_ASSERT(files_.Remove(path).has_value());
        return oracle_.Set(slot, std::nullopt);
      case 2:
      case 3:
        return at == oracle_.now.end() ? Create(slot, path) : Move(slot, at->second);
      case 4:
        RC_ASSERT(files_.SyncDirectory(dir_ / fmt::format("d{}", slot.first)).has_value());
        return oracle_.Sync(slot.first);
      default:
        return at == oracle_.now.end() ? Create(slot, path) : Change(at->second, path);
    }
  }

  void CutAndCheck() {
    RC_ASSERT(files_.CutPower(*rc::gen::arbitrary<std::uint64_t>()).has_value());
    std::map<Oracle::Slot, std::string> found;
    for (int d = 0; d < Oracle::kDirectories; ++d) {
      for (int n = 0; n < Oracle::kNames; ++n) {
        const std::string path = Oracle::Path(dir_.path(), {d, n});
        if (Exists(real, path).value()) found[{d, n}] = ReadText(real, path, 1 << 20).value();
      }
    }
    RC_ASSERT(oracle_.Explains(found));
    RC_ASSERT(real.List(dir_.path())->size() == 2U);
  }

 private:
  static Oracle::Slot Slot() {
    return {*rc::gen::inRange(0, Oracle::kDirectories), *rc::gen::inRange(0, Oracle::kNames)};
  }
  void Create(Oracle::Slot slot, const std::string& path) {
    const auto at = oracle_.now.find(slot);
    const auto file = files_.Open(path, OpenMode::kCreate);
    RC_ASSERT(file.has_value());
    Known& known = oracle_.known[at == oracle_.now.end() ? oracle_.Make(slot) : at->second];
    known.now.clear();
    Write(**file, known);
  }
  void Move(Oracle::Slot from, int id) {
    const Oracle::Slot to = Slot();
    RC_ASSERT(
        files_.Rename(Oracle::Path(dir_.path(), from), Oracle::Path(dir_.path(), to)).has_value());
    if (to != from) oracle_.Set(to, id);
  }
  void Change(int id, const std::string& path) {
    const auto file = files_.Open(path, OpenMode::kReadWrite);
    RC_ASSERT(file.has_value());
    Known& known = oracle_.known[id];
    const int what = *rc::gen::inRange(0, 5);
    if (what == 0) {
      const auto size = *rc::gen::inRange<std::size_t>(0, 4 * kPage);
      RC_ASSERT((*file)->Truncate(size).has_value());
      known.now.resize(size);
    } else if (what <= 2) {
      RC_ASSERT((*file)->Sync().has_value());
      known.durable = known.now;
    } else {
      Write(**file, known);
    }
  }
  void Write(File& file, Known& known) {
    const auto offset = *rc::gen::inRange<std::size_t>(0, 4 * kPage);
    const std::string text(*rc::gen::inRange<std::size_t>(1, 2 * kPage), fill_++);
    RC_ASSERT(file.WriteAt(AsBytes(text), offset).has_value());
    known.now.resize(std::max(known.now.size(), offset + text.size()));
    known.now.replace(offset, text.size(), text);
  }

  const TempDir dir_{TempDir::MemoryFolder()};
  PowerLossFileSystem files_{real, dir_.path()};
  Oracle oracle_;
  char fill_ = 'a';
};

RC_GTEST_PROP(PowerLossProperty, WhatIsFoundIsWhatADeviceMayHold, ()) {
  Machine machine;
  const int steps = *rc::gen::inRange(1, 40);
  for (int i = 0; i < steps; ++i) machine.Step();
  machine.CutAndCheck();
}

}  // namespace
}  // namespace syncline::base

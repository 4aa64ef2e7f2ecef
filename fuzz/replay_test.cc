// Runs each target on every file of its kept corpus and on mutations of them that are the same in
// every run, with any compiler and without libFuzzer.
//
// A failure says from which file the input was made and leaves the input in the directory of
// temporary files, to be kept as a new file of the corpus.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" {
int FuzzCompact(const std::uint8_t* data, std::size_t size);
int FuzzCompactRoundtrip(const std::uint8_t* data, std::size_t size);
int FuzzDeltaFrame(const std::uint8_t* data, std::size_t size);
int FuzzEncoders(const std::uint8_t* data, std::size_t size);
int FuzzIndex(const std::uint8_t* data, std::size_t size);
int FuzzJournal(const std::uint8_t* data, std::size_t size);
int FuzzJson(const std::uint8_t* data, std::size_t size);
int FuzzManifest(const std::uint8_t* data, std::size_t size);
int FuzzPayload(const std::uint8_t* data, std::size_t size);
int FuzzRankFrames(const std::uint8_t* data, std::size_t size);
int FuzzSafetensors(const std::uint8_t* data, std::size_t size);
int FuzzSignature(const std::uint8_t* data, std::size_t size);
}

namespace syncline::fuzz {
namespace {

namespace fs = std::filesystem;
using Input = std::vector<std::uint8_t>;
using Target = int (*)(const std::uint8_t*, std::size_t);

// Of all files of a corpus together.
constexpr std::size_t kMutations = 100'000;
constexpr std::size_t kMutationsOfTensors = 2000;
constexpr std::size_t kMaxFileBytes = 2048;
constexpr std::size_t kMaxFiles = 60;

Input ReadFile(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class Mutator {
 public:
  explicit Mutator(const std::vector<Input>& corpus) : corpus_(corpus) {}

  Input Mutate(const Input& from) {
    Input input = from;
    for (std::size_t steps = 1 + random_() % 4; steps > 0; --steps) Step(input);
    return input;
  }

 private:
  std::size_t Below(std::size_t bound) { return random_() % std::max<std::size_t>(bound, 1); }

  void Step(Input& input) {
    const auto at = static_cast<std::ptrdiff_t>(Below(input.size()));
    switch (random_() % 7) {
      case 0:  // a bit
        if (!input.empty()) input[at] ^= static_cast<std::uint8_t>(1U << Below(8));
        break;
      case 1:  // a byte of those that mean something somewhere
        if (!input.empty()) input[at] = kBytes[Below(std::size(kBytes))];
        break;
      case 2:
        input.insert(input.begin() + at, 1 + Below(4), kBytes[Below(std::size(kBytes))]);
        break;
      case 3:
        input.erase(input.begin() + at, input.begin() + at + Cut(input, at, 8));
        break;
      case 4:  // the end is missing
        input.resize(static_cast<std::size_t>(at));
        break;
      case 5: {  // a part of itself once more
        const Input part(input.begin() + at, input.begin() + at + Cut(input, at, 64));
        input.insert(input.begin() + static_cast<std::ptrdiff_t>(Below(input.size())), part.begin(),
                     part.end());
        break;
      }
      default: {  // a part of another file in the place of its own
        const Input& other = corpus_[Below(corpus_.size())];
        const auto from = static_cast<std::ptrdiff_t>(Below(other.size()));
        const std::ptrdiff_t size = std::min(Cut(other, from, 64), Cut(input, at, 64));
        std::copy_n(other.begin() + from, size, input.begin() + at);
      }
    }
  }

  // A number of bytes from `at` on, at most `most`.
  std::ptrdiff_t Cut(const Input& input, std::ptrdiff_t at, std::size_t most) {
    const std::size_t left = input.size() - static_cast<std::size_t>(at);
    return static_cast<std::ptrdiff_t>(std::min(left, 1 + Below(most)));
  }

  static constexpr std::uint8_t kBytes[] = {0,   1,   0x7F, 0x80, 0xFF, '{', '}', '[', ']',
                                            '"', ',', ':',  '.',  '/',  '-', '0', '9', 'e'};
  const std::vector<Input>& corpus_;
  std::mt19937_64 random_{20261130};
};

void Run(Target target, const Input& input, const std::string& origin) {
  try {
    target(input.data(), input.size());
  } catch (const std::exception& error) {
    const fs::path kept = fs::temp_directory_path() / "syncline_fuzz_failure";
    std::ofstream(kept, std::ios::binary)
        .write(reinterpret_cast<const char*>(input.data()),
               static_cast<std::streamsize>(input.size()));
    FAIL() << origin << ": does not hold: " << error.what() << "; input kept as " << kept;
  }
}

void Replay(const std::string& name, Target target, std::size_t mutations) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(fs::path(SYNCLINE_FUZZ_CORPUS) / name)) {
    paths.push_back(entry.path());
  }
  std::ranges::sort(paths);
  ASSERT_FALSE(paths.empty());
  EXPECT_LE(paths.size(), kMaxFiles);
  std::vector<Input> corpus;
  for (const fs::path& path : paths) {
    corpus.push_back(ReadFile(path));
    EXPECT_LE(corpus.back().size(), kMaxFileBytes) << path;
    Run(target, corpus.back(), path.filename());
  }
  Mutator mutator(corpus);
  for (std::size_t i = 0; i < mutations && !testing::Test::HasFailure(); ++i) {
    const std::size_t of = i % corpus.size();
    Run(target, mutator.Mutate(corpus[of]),
        paths[of].filename().string() + ", mutation " + std::to_string(i));
  }
}

TEST(Fuzz, Compact) { Replay("compact", FuzzCompact, kMutationsOfTensors); }
TEST(Fuzz, CompactRoundtrip) {
  Replay("compact_roundtrip", FuzzCompactRoundtrip, kMutationsOfTensors);
}
TEST(Fuzz, DeltaFrame) { Replay("delta_frame", FuzzDeltaFrame, kMutationsOfTensors); }
TEST(Fuzz, Encoders) { Replay("encoders", FuzzEncoders, kMutationsOfTensors); }
TEST(Fuzz, Index) { Replay("index", FuzzIndex, kMutations); }
TEST(Fuzz, Journal) { Replay("journal", FuzzJournal, kMutations); }
TEST(Fuzz, Json) { Replay("json", FuzzJson, kMutations); }
TEST(Fuzz, Manifest) { Replay("manifest", FuzzManifest, kMutations); }
TEST(Fuzz, Payload) { Replay("payload", FuzzPayload, kMutations); }
TEST(Fuzz, RankFrames) { Replay("rank_frames", FuzzRankFrames, kMutations); }
TEST(Fuzz, Safetensors) { Replay("safetensors", FuzzSafetensors, kMutations); }
TEST(Fuzz, Signature) { Replay("signature", FuzzSignature, kMutations); }

}  // namespace
}  // namespace syncline::fuzz

// What the encodings take in memory alone, for bench/codec.py:
//
//   codec_bench OLD NEW [--form compact|compact-gap|xor|overwrite] [--rounds N] [--threads N]
//
// 1. Two checkpoints are read into memory, and OLD once more, as the image that is patched.
// 2. A round that is not counted makes everything warm. The digests of OLD are found, which a
//    publisher knows from the version before.
// 3. Each round: the difference is encoded as a publisher does it (store::WriteDelta, with hashes
//    and, for compact, digests), into files in memory; these are decoded over the image in place
//    with the hash of each changed tensor, and without it. After each decoding, with the clock
//    stopped, the image must equal NEW and becomes OLD again.
//
// Prints one JSON object: `encode`, `decode`, `decode_nohash`: seconds, median, best and of all
// rounds, and `cpu`, the median of the processor seconds of all threads together; `frame_bytes`,
// `file_bytes` (index included, without manifest); `bytes`, `elements_changed`, `tensors_changed`;
// `forms`: how many frames of the class form, of the gap form, with dense parts.
#include <fmt/core.h>
#include <sys/mman.h>
#include <time.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>

#include "base/json.h"
#include "checkpoint/checkpoint.h"
#include "decode_in_place.h"
#include "memory_files.h"
#include "store/delta_writer.h"
#include "store/version.h"

namespace syncline::bench {
namespace {

using base::Code;
using base::Fail;
using base::FileSystem;
using base::Json;
using base::Result;
using base::Status;
using tensor::TensorView;

constexpr std::uint64_t kVersion = 1;
constexpr const char* kStore = "memory";

struct Options {
  std::string old_checkpoint;
  std::string new_checkpoint;
  std::string form = "compact";
  std::size_t rounds = 5;
  std::size_t threads = 2;
};

// The tensors of a checkpoint in memory that asks for huge pages, as numpy's arrays do.
class Image {
 public:
  static Result<Image> Read(const std::string& path) {
    SYNCLINE_ASSIGN(const auto mapped,
                    checkpoint::MappedCheckpoint::Open(FileSystem::Posix(), path));
    Image image;
    image.views_ = mapped.Views();
    std::uint64_t size = 0;
    for (const TensorView& view : image.views_) size += RoundUp(view.bytes.size());
    SYNCLINE_TRY(image.Allocate(size));
    for (TensorView& view : image.views_) {
      std::byte* const place = image.memory_.mutable_bytes().data() + image.used_;
      std::ranges::copy(view.bytes, place);
      image.used_ += RoundUp(view.bytes.size());
      image.tensors_.push_back({view.name, view.dtype, {place, view.bytes.size()}});
      view.bytes = image.tensors_.back().bytes;
    }
    return image;
  }

  std::span<const TensorView> views() const { return views_; }
  std::span<const ImageTensor> tensors() const { return tensors_; }

 private:
  static std::uint64_t RoundUp(std::uint64_t bytes) { return (bytes + 63) / 64 * 64; }

  Status Allocate(std::uint64_t size) {
    if (size == 0) return Fail(Code::kInvalidArgument, "a checkpoint without a byte");
    void* const memory =
        mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return base::FailErrno(errno, "cannot allocate an image");
    (void)madvise(memory, size, MADV_HUGEPAGE);
    memory_ = base::Mapping(static_cast<std::byte*>(memory), size);
    return {};
  }

  base::Mapping memory_;
  std::uint64_t used_ = 0;
  std::vector<TensorView> views_;
  std::vector<ImageTensor> tensors_;
};

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

// Of one sort of work, in each round.
class Times {
 public:
  void Start() {
    begin_ = std::chrono::steady_clock::now();
    cpu_begin_ = CpuSeconds();
  }
  void Stop() {
    const auto took = std::chrono::steady_clock::now() - begin_;
    seconds_.push_back(std::chrono::duration<double>(took).count());
    cpu_seconds_.push_back(CpuSeconds() - cpu_begin_);
  }
  void Clear() {
    seconds_.clear();
    cpu_seconds_.clear();
  }

  Json Object() const {
    return Json(Json::Object{{"median", Median(seconds_)},
                             {"best", std::ranges::min(seconds_)},
                             {"cpu", Median(cpu_seconds_)},
                             {"all", Json::Array(seconds_.begin(), seconds_.end())}});
  }

 private:
  // Of all threads.
  static double CpuSeconds() {
    timespec time = {};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }

  std::chrono::steady_clock::time_point begin_;
  double cpu_begin_ = 0;
  std::vector<double> seconds_;
  std::vector<double> cpu_seconds_;
};

class Bench {
 public:
  static Result<Json> Run(const Options& options) {
    SYNCLINE_ASSIGN(const delta::EncodingChoice choice, delta::ChooseEncoding(options.form, 0));
    SYNCLINE_ASSIGN(Image old_image, Image::Read(options.old_checkpoint));
    SYNCLINE_ASSIGN(Image new_image, Image::Read(options.new_checkpoint));
    SYNCLINE_ASSIGN(Image patched, Image::Read(options.old_checkpoint));
    Bench bench(options, choice, std::move(old_image), std::move(new_image), std::move(patched));
    SYNCLINE_TRY(bench.CheckSame());
    SYNCLINE_TRY(bench.Round());
    bench.StartCounting();
    for (std::size_t i = 0; i < options.rounds; ++i) SYNCLINE_TRY(bench.Round());
    return bench.Report();
  }

 private:
  Bench(const Options& options, delta::EncodingChoice choice, Image old_image, Image new_image,
        Image patched)
      : choice_(choice),
        old_(std::move(old_image)),
        new_(std::move(new_image)),
        patched_(std::move(patched)),
        pool_(options.threads) {}

  Status CheckSame() const {
    const auto alike = [](const TensorView& a, const TensorView& b) {
      return a.name == b.name && a.dtype == b.dtype && a.shape == b.shape;
    };
    if (std::ranges::equal(old_.views(), new_.views(), alike)) return {};
    return Fail(Code::kInvalidArgument, "the checkpoints differ in names, dtypes or shapes");
  }

  Status Round() {
    SYNCLINE_TRY(Encode());
    SYNCLINE_TRY(LoadVersion());
    SYNCLINE_TRY(Decode(true, decode_));
    return Decode(false, decode_nohash_);
  }

  void StartCounting() {
    for (Times* times : {&encode_, &decode_, &decode_nohash_}) times->Clear();
    for (const TensorView& view : old_.views()) {
      old_digests_.push_back(tensor::DigestOf(view.bytes, tensor::DigestUnitBytes(view.dtype)));
    }
  }

  Status Encode() {
    files_.Clear();
    new_digests_ = old_digests_;
    std::vector<delta::ChangedLines> lines;
    const store::DeltaFiles how = {.durable = false, .choice = choice_, .digests = &new_digests_};
    const store::DeltaInfo info = {
        .version = kVersion, .base_version = kVersion - 1, .encoding = choice_.encoding};
    base::Progress progress;
    encode_.Start();
    SYNCLINE_ASSIGN(counts_, store::WriteDelta(files_, Directory(), old_.views(), new_.views(),
                                               info, how, lines, pool_, progress, nullptr));
    encode_.Stop();
    return {};
  }

  // What a reader has in memory before it decodes.
  Status LoadVersion() {
    SYNCLINE_ASSIGN(version_, store::ReadVersion(files_, kStore, kVersion));
    frames_.clear();
    for (const std::string& name : version_.files) {
      SYNCLINE_ASSIGN(const auto file,
                      files_.Open(base::JoinPath(version_.directory, name), base::OpenMode::kRead));
      SYNCLINE_ASSIGN(const base::FileInfo info, file->Stat());
      frames_.emplace_back(info.size);
      SYNCLINE_TRY(base::ReadExactly(*file, frames_.back().bytes(), 0));
    }
    return {};
  }

  Status Decode(bool hash, Times& times) {
    times.Start();
    SYNCLINE_TRY(DecodeInPlace(version_, frames_, patched_.tensors(), hash, pool_));
    times.Stop();
    for (std::size_t i = 0; i < patched_.tensors().size(); ++i) {
      const ImageTensor& found = patched_.tensors()[i];
      const std::size_t size = found.bytes.size();
      if (std::memcmp(found.bytes.data(), new_.views()[i].bytes.data(), size) != 0) {
        return Fail(Code::kInternal, fmt::format("tensor {} was not decoded", found.name));
      }
      std::memcpy(found.bytes.data(), old_.views()[i].bytes.data(), size);
    }
    return {};
  }

  Json Report() const {
    std::uint64_t frame_bytes = 0;
    for (const store::DeltaTensor& row : version_.tensors) frame_bytes += row.bytes;
    std::uint64_t bytes = 0;
    for (const TensorView& view : old_.views()) bytes += view.bytes.size();
    return Json(Json::Object{{"encode", encode_.Object()},
                             {"decode", decode_.Object()},
                             {"decode_nohash", decode_nohash_.Object()},
                             {"frame_bytes", frame_bytes},
                             {"file_bytes", files_.total_bytes()},
                             {"bytes", bytes},
                             {"elements_changed", counts_.elements_changed},
                             {"tensors_changed", counts_.tensors_changed},
                             {"forms", Forms()}});
  }

  Json Forms() const {
    std::uint64_t classes = 0;
    std::uint64_t gaps = 0;
    std::uint64_t dense = 0;
    for (std::size_t i = 0; i < version_.tables.size(); ++i) {
      const delta::CompactTable& table = version_.tables[i];
      for (const delta::CompactCell& cell : table.cells) {
        for (const delta::CompactFrame& frame : cell.frames) {
          if (frame.bytes == 0) continue;
          ++(table.models[frame.model].classes == 1 ? gaps : classes);
          // A frame begins with the number of its dense parts.
          if (frames_[i].bytes()[frame.offset] != std::byte{0}) ++dense;
        }
      }
    }
    return Json(Json::Object{{"classes", classes}, {"gaps", gaps}, {"with_dense_parts", dense}});
  }

  static std::string Directory() { return base::JoinPath(kStore, store::VersionName(kVersion)); }

  delta::EncodingChoice choice_;
  Image old_;
  Image new_;
  Image patched_;
  base::ThreadPool pool_;
  MemoryFiles files_;
  std::vector<std::optional<tensor::Digest>> old_digests_;
  std::vector<std::optional<tensor::Digest>> new_digests_;
  store::DeltaCounts counts_;
  store::Version version_;
  std::vector<FrameFile> frames_;
  Times encode_;
  Times decode_;
  Times decode_nohash_;
};

}  // namespace
}  // namespace syncline::bench

int main(int argc, char** argv) {
  CLI::App app("Encodes and decodes the difference of two checkpoints in memory.");
  syncline::bench::Options options;
  app.add_option("old", options.old_checkpoint)->required();
  app.add_option("new", options.new_checkpoint)->required();
  app.add_option("--form", options.form)
      ->check(CLI::IsMember({"compact", "compact-gap", "xor", "overwrite"}));
  app.add_option("--rounds", options.rounds)->check(CLI::PositiveNumber);
  app.add_option("--threads", options.threads)->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  const auto report = syncline::bench::Bench::Run(options);
  if (!report) {
    fmt::print(stderr, "codec_bench: {}\n", report.error().message);
    return Info(report.error().code).exit_code;
  }
  fmt::print("{}\n", syncline::base::ToText(*report));
}

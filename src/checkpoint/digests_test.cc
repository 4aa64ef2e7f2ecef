#include "checkpoint/digests.h"

#include <gtest/gtest.h>

#include "base/result_matchers.h"
#include "base/temp_dir.h"
#include "checkpoint/writer.h"

namespace syncline::checkpoint {
namespace {

using base::Code;
using base::FileSystem;
using tensor::Digest;
using tensor::Dtype;
using tensor::TensorView;

FileSystem& files = FileSystem::Posix();

// Its tensors as they are written, and what they are digested to.
class DigestsTest : public testing::Test {
 protected:
  void Add(std::string name, Dtype dtype, std::uint64_t elements) {
    std::vector<std::byte>& bytes = bytes_.emplace_back(ByteCount(dtype, {{elements}}).value());
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = static_cast<std::byte>((i * 31 + i / 251 + bytes_.size()) & 0xff);
    }
    views_.push_back({std::move(name), dtype, {elements}, {}});
  }
  std::vector<TensorView> Views() {
    for (std::size_t i = 0; i < views_.size(); ++i) views_[i].bytes = bytes_[i];
    return views_;
  }
  void Write(std::uint64_t max_file_bytes) {
    base::ThreadPool pool(2);
    base::Progress progress;
    ASSERT_OK(WriteCheckpoint(files, dir_.path(), Views(), {.max_file_bytes = max_file_bytes}, pool,
                              progress, nullptr));
  }

  const base::TempDir dir_;
  std::vector<TensorView> views_;
  std::vector<std::vector<std::byte>> bytes_;
};

TEST_F(DigestsTest, AreThoseOfTheTensors) {
  Add("bytes", Dtype::kU8, 300'001);
  Add("empty", Dtype::kBF16, 0);
  Add("large", Dtype::kBF16, (16 << 19) * 2 + 12'345);  // three parts
  Add("numbers", Dtype::kI64, 77'777);
  Add("scalar", Dtype::kF32, 1);
  Write(20'000'000);
  ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint, Checkpoint::Open(files, dir_.path()));
  EXPECT_GT(checkpoint.files().size(), 1U);
  for (const std::size_t threads : {1, 3}) {
    base::ThreadPool pool(threads);
    ASSERT_OK_AND_ASSIGN(const std::vector<Digest> digests,
                         DigestCheckpoint(files, checkpoint, pool, nullptr));
    ASSERT_EQ(digests.size(), checkpoint.tensors().size());
    for (const TensorView& view : Views()) {
      const auto index =
          static_cast<std::size_t>(checkpoint.Find(view.name) - checkpoint.tensors().data());
      EXPECT_EQ(digests[index], tensor::DigestOf(view.bytes, DigestUnitBytes(view.dtype)))
          << view.name;
    }
  }
}

TEST_F(DigestsTest, FailuresAreTold) {
  Add("w", Dtype::kBF16, 400'000);
  Write(1'000'000'000);
  ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint, Checkpoint::Open(files, dir_.path()));
  base::ThreadPool pool(2);
  base::CancelToken cancel;
  cancel.Cancel();
  EXPECT_ERROR(DigestCheckpoint(files, checkpoint, pool, &cancel), Code::kCancelled, "cancelled");
  {
    ASSERT_OK_AND_ASSIGN(const auto file,
                         files.Open(checkpoint.FilePath(0), base::OpenMode::kReadWrite));
    ASSERT_OK(file->Truncate(checkpoint.files()[0].bytes - 1));
  }
  EXPECT_ERROR(DigestCheckpoint(files, checkpoint, pool, nullptr), Code::kCorrupt, "tensor w: ");
  ASSERT_OK(files.Remove(checkpoint.FilePath(0)));
  EXPECT_ERROR(DigestCheckpoint(files, checkpoint, pool, nullptr), Code::kNotFound,
               "model.safetensors");
}

}  // namespace
}  // namespace syncline::checkpoint

#include "checkpoint/checkpoint.h"

#include <gtest/gtest.h>

#include "base/result_matchers.h"
#include "base/temp_dir.h"
#include "checkpoint/index.h"
#include "checkpoint/writer.h"

namespace syncline::checkpoint {
namespace {

using base::AsBytes;
using base::AsText;
using base::Code;
using base::FileSystem;
using tensor::Dtype;
using tensor::TensorView;

FileSystem& files = FileSystem::Posix();

class CheckpointTest : public testing::Test {
 protected:
  void Write(std::uint64_t max_file_bytes) {
    base::ThreadPool pool(2);
    base::Progress progress;
    ASSERT_OK(WriteCheckpoint(files, dir_.path(), views_, {.max_file_bytes = max_file_bytes}, pool,
                              progress, nullptr));
  }
  void WriteIndex(const std::string& text) {
    ASSERT_OK(base::WriteTextAtomically(files, dir_ / kIndexName, text, false));
  }

  const base::TempDir dir_;
  const std::vector<TensorView> views_ = {
      {"w.b", Dtype::kBF16, {2, 2}, AsBytes("01234567")},
      {"w.a", Dtype::kU8, {3}, AsBytes("abc")},
      {"scalar", Dtype::kF32, {}, AsBytes("1.00")},
      {"empty", Dtype::kBF16, {2, 0}, {}},
  };
};

TEST_F(CheckpointTest, OneFileOrSeveralHoldTheSameTensors) {
  for (const std::uint64_t limit : {1'000'000, 8, 1}) {
    Write(limit);
    ASSERT_OK_AND_ASSIGN(const MappedCheckpoint mapped, MappedCheckpoint::Open(files, dir_.path()));
    const Checkpoint& checkpoint = mapped.checkpoint();
    EXPECT_EQ(checkpoint.tensors().size(), views_.size());
    EXPECT_EQ(checkpoint.total_bytes(), 15U);
    EXPECT_EQ(checkpoint.files().size(), limit == 8 ? 2U : limit == 1 ? 4U : 1U);
    for (const TensorView& view : views_) {
      const CheckpointTensor* found = checkpoint.Find(view.name);
      ASSERT_NE(found, nullptr) << view.name;
      EXPECT_EQ(found->shape, view.shape);
      EXPECT_EQ(found->dtype, view.dtype);
      EXPECT_EQ(AsText(mapped.Bytes(*found)), AsText(view.bytes));
    }
    EXPECT_EQ(checkpoint.Find("w"), nullptr);
  }
}

TEST_F(CheckpointTest, BR11_IndexThatNamesAMissingFile) {
  Write(8);
  ASSERT_OK(files.Remove(dir_ / "model-00002-of-00002.safetensors"));
  EXPECT_ERROR(Checkpoint::Open(files, dir_.path()), Code::kNotFound,
               "model-00002-of-00002.safetensors");
}

TEST_F(CheckpointTest, BR11_IndexAndFilesMustAgree) {
  Write(1'000'000);
  WriteIndex(R"({"weight_map":{"w.a":"model.safetensors"}})");
  ASSERT_OK_AND_ASSIGN(const Checkpoint one, Checkpoint::Open(files, dir_.path()));
  EXPECT_EQ(one.tensors().size(), 1U);
  WriteIndex(R"({"weight_map":{"w.c":"model.safetensors"}})");
  EXPECT_ERROR(Checkpoint::Open(files, dir_.path()), Code::kCorrupt,
               "w.c is not in its file model.safetensors");
  for (const char* bad : {"", "{}", "[]", R"({"weight_map":[]})", R"({"weight_map":{"a":1}})"}) {
    WriteIndex(bad);
    EXPECT_ERROR(Checkpoint::Open(files, dir_.path()), Code::kCorrupt, kIndexName);
  }
}

TEST_F(CheckpointTest, BR48_IndexMustNotLeaveTheDirectory) {
  for (const char* bad : {"../a.safetensors", "/etc/x", "a/../../b", "a\\u0000b"}) {
    WriteIndex(std::string(R"({"weight_map":{"w":")") + bad + "\"}}");
    EXPECT_ERROR(Checkpoint::Open(files, dir_.path()), Code::kCorrupt, "not inside the directory");
  }
}

TEST_F(CheckpointTest, WithoutIndexANameMustNotBeHeldTwice) {
  EXPECT_ERROR(Checkpoint::Open(files, dir_.path()), Code::kNotFound, "is no checkpoint");
  Write(1'000'000);
  ASSERT_OK(files.Rename(dir_ / "model.safetensors", dir_ / "x.safetensors"));
  EXPECT_OK(Checkpoint::Open(files, dir_.path()));
  Write(1'000'000);
  ASSERT_OK(files.Rename(dir_ / "model.safetensors", dir_ / "y.safetensors"));
  EXPECT_ERROR(Checkpoint::Open(files, dir_.path()), Code::kCorrupt,
               "empty is held by x.safetensors and by y.safetensors");
  EXPECT_OK(Checkpoint::Open(files, dir_ / "x.safetensors"));
}

TEST_F(CheckpointTest, TwoTensorsOfOneNameAreRefused) {
  base::ThreadPool pool(1);
  base::Progress progress;
  const std::vector<TensorView> twice = {views_[1], views_[1]};
  EXPECT_ERROR(WriteCheckpoint(files, dir_.path(), twice, {}, pool, progress, nullptr),
               Code::kInvalidArgument, "two tensors have the name w.a");
}

}  // namespace
}  // namespace syncline::checkpoint

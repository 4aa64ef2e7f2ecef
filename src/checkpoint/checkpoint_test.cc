#include "checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/result_matchers.h"
#include "base/temp_dir.h"
#include "checkpoint/index.h"
#include "checkpoint/reader.h"
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

// A pipeline of two components; folders and files are made as a test needs them.
class TreeTest : public CheckpointTest {
 protected:
  void WriteFolder(const std::string& folder, const std::string& stem, std::uint64_t limit,
                   const std::vector<TensorView>& tensors) {
    base::ThreadPool pool(2);
    base::Progress progress;
    std::vector<TensorView> named = tensors;
    for (TensorView& view : named) view.name = base::JoinPath(folder, view.name);
    ASSERT_OK(
        WriteCheckpoint(files, dir_.path(), named,
                        {.max_file_bytes = limit, .durable = false, .components = {{folder, stem}}},
                        pool, progress, nullptr));
  }
  void Copy(const std::string& from, const std::string& to) {
    ASSERT_OK_AND_ASSIGN(const std::string text, base::ReadText(files, dir_ / from, 1 << 20));
    ASSERT_OK(base::WriteTextAtomically(files, dir_ / to, text, false));
  }
  std::vector<std::string> FileNames() {
    const auto checkpoint = Checkpoint::Open(files, dir_.path());
    EXPECT_OK(checkpoint);
    std::vector<std::string> names;
    if (checkpoint) {
      for (const auto& file : checkpoint->files()) names.push_back(file.name);
    }
    return names;
  }
};

TEST_F(TreeTest, IsTheUnionOfItsComponents) {
  WriteFolder("vae", "diffusion_pytorch_model", 1'000'000, views_);
  WriteFolder("transformer", "diffusion_pytorch_model", 8, views_);
  WriteFolder("text_encoder", "model", 1'000'000, {views_[0]});
  ASSERT_OK(files.MakeDirectories(dir_ / "scheduler"));
  ASSERT_OK(base::WriteTextAtomically(files, dir_ / "scheduler/config.json", "{}", false));
  EXPECT_THAT(FileNames(),
              testing::ElementsAre("text_encoder/model.safetensors",
                                   "transformer/diffusion_pytorch_model-00001-of-00002.safetensors",
                                   "transformer/diffusion_pytorch_model-00002-of-00002.safetensors",
                                   "vae/diffusion_pytorch_model.safetensors"));
  ASSERT_OK_AND_ASSIGN(const MappedCheckpoint mapped, MappedCheckpoint::Open(files, dir_.path()));
  ASSERT_OK_AND_ASSIGN(const CheckpointReader reader, CheckpointReader::Open(files, dir_.path()));
  ASSERT_EQ(mapped.checkpoint().tensors().size(), 9U);
  EXPECT_EQ(mapped.checkpoint().total_bytes(), 38U);
  EXPECT_EQ(mapped.checkpoint().Find("w.b"), nullptr);
  std::vector<std::byte> buffer;
  for (const std::string folder : {"text_encoder", "transformer", "vae"}) {
    for (const TensorView& view : views_) {
      const CheckpointTensor* found = mapped.checkpoint().Find(folder + "/" + view.name);
      ASSERT_EQ(found != nullptr, folder != "text_encoder" || view.name == "w.b");
      if (found == nullptr) continue;
      EXPECT_EQ(AsText(mapped.Bytes(*found)), AsText(view.bytes));
      const auto number = static_cast<std::size_t>(found - mapped.checkpoint().tensors().data());
      ASSERT_OK_AND_ASSIGN(const auto bytes, reader.Load(number, 0, found->bytes, buffer));
      EXPECT_EQ(AsText(bytes), AsText(view.bytes));
    }
  }
  // In the file the names are those of the component.
  ASSERT_OK_AND_ASSIGN(const Checkpoint vae, Checkpoint::Open(files, dir_ / "vae"));
  EXPECT_NE(vae.Find("w.b"), nullptr);
  ASSERT_OK_AND_ASSIGN(const std::string index,
                       base::ReadText(files,
                                      dir_ / "transformer/diffusion_pytorch_model.safetensors."
                                             "index.json",
                                      1 << 20));
  ASSERT_OK_AND_ASSIGN(const Index parsed, ParseIndex(index));
  EXPECT_THAT(parsed.weight_map, testing::Contains(testing::Pair(
                                     "w.a", "diffusion_pytorch_model-00002-of-00002.safetensors")));
}

TEST_F(TreeTest, WeightsInTheRootMakeItOneFolder) {
  WriteFolder("original", "model", 1'000'000, views_);
  Write(1'000'000);
  EXPECT_THAT(FileNames(), testing::ElementsAre("model.safetensors"));
  ASSERT_OK(files.Rename(dir_ / "model.safetensors", dir_ / "x.safetensors"));
  EXPECT_THAT(FileNames(), testing::ElementsAre("x.safetensors"));
  ASSERT_OK(files.Remove(dir_ / "x.safetensors"));
  EXPECT_THAT(FileNames(), testing::ElementsAre("original/model.safetensors"));
}

TEST_F(TreeTest, VariantsCountOnlyAlone) {
  const std::string plain = "vae/diffusion_pytorch_model.safetensors";
  const std::string half = "vae/diffusion_pytorch_model.fp16.safetensors";
  WriteFolder("vae", "diffusion_pytorch_model", 1'000'000, views_);
  Copy(plain, half);
  EXPECT_THAT(FileNames(), testing::ElementsAre(plain));
  ASSERT_OK(files.Remove(dir_ / plain));
  EXPECT_THAT(FileNames(), testing::ElementsAre(half));
  Copy(half, "vae/diffusion_pytorch_model.non_ema.safetensors");
  EXPECT_ERROR(Checkpoint::Open(files, dir_.path()), Code::kCorrupt,
               "tensor vae/empty is held by vae/diffusion_pytorch_model.fp16.safetensors");
}

TEST_F(TreeTest, OneStemAComponent) {
  WriteFolder("vae", "model", 1'000'000, views_);
  WriteFolder("vae", "diffusion_pytorch_model", 8, views_);
  EXPECT_ERROR(Checkpoint::Open(files, dir_.path()), Code::kCorrupt,
               "vae holds weights under two names, model.safetensors and "
               "diffusion_pytorch_model.safetensors");
  ASSERT_OK(files.Remove(dir_ / "vae/model.safetensors"));
  EXPECT_EQ(FileNames().size(), 2U);
}

TEST_F(TreeTest, BR11_IndexOfAComponentMustAgree) {
  const std::string index = dir_ / "unet/diffusion_pytorch_model.safetensors.index.json";
  WriteFolder("unet", "diffusion_pytorch_model", 8, views_);
  ASSERT_OK(base::WriteTextAtomically(
      files, index,
      R"({"weight_map":{"w.c":"diffusion_pytorch_model-00001-of-00002.safetensors"}})", false));
  EXPECT_ERROR(Checkpoint::Open(files, dir_.path()), Code::kCorrupt,
               "tensor unet/w.c is not in its file unet/diffusion_pytorch_model-00001");
  ASSERT_OK(base::WriteTextAtomically(files, index, R"({"weight_map":{"w":"gone"}})", false));
  EXPECT_ERROR(Checkpoint::Open(files, dir_.path()), Code::kNotFound, "not there: gone");
}

TEST_F(TreeTest, BR48_NamesStayInside) {
  const std::string index = dir_ / "vae/model.safetensors.index.json";
  Write(1'000'000);
  ASSERT_OK(files.MakeDirectories(dir_ / "vae"));
  ASSERT_OK(files.Rename(dir_ / "model.safetensors", dir_ / "secret"));
  for (const char* bad : {"../secret", "/etc/x", "a/../../secret", "./x"}) {
    ASSERT_OK(base::WriteTextAtomically(
        files, index, std::string(R"({"weight_map":{"w.a":")") + bad + "\"}}", false));
    EXPECT_ERROR(Checkpoint::Open(files, dir_.path()), Code::kCorrupt, "not inside the directory");
  }
  for (const char* bad : {"..", ".", "", ".hidden", "a/b", "weight_v000001", "caf\xe9"}) {
    EXPECT_FALSE(IsComponentName(bad)) << bad;
  }
  for (const char* bad : {"../x", "/x", ".a/x", "x", "vae/"}) {
    EXPECT_EQ(FolderOfTensor(bad), "") << bad;
  }
  EXPECT_EQ(FolderOfTensor("vae/a/b"), "vae");
  base::ThreadPool pool(1);
  base::Progress progress;
  for (const char* name : {"../x", "x", "other/x"}) {
    const TensorView view{name, Dtype::kU8, {3}, AsBytes("abc")};
    EXPECT_ERROR(WriteCheckpoint(files, dir_.path(), std::span(&view, 1),
                                 {.components = {{"vae", "model"}}}, pool, progress, nullptr),
                 Code::kInvalidArgument, "belongs to no component");
  }
}

TEST_F(TreeTest, AStoreIsNoTree) {
  WriteFolder("vae", "model", 1'000'000, views_);
  ASSERT_OK(files.Rename(dir_ / "vae", dir_ / "weight_v000000"));
  EXPECT_ERROR(Checkpoint::Open(files, dir_.path()), Code::kNotFound, "is no checkpoint");
}

}  // namespace
}  // namespace syncline::checkpoint

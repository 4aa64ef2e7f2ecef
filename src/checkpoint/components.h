// Which files of a directory hold the weights: of one folder, or of a tree of components, as a
// diffusers pipeline is (transformer/, vae/, text_encoder/ …).
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"

namespace syncline::checkpoint {

// Names of weight files begin with one of these stems: "<stem>.safetensors", or
// "<stem>.safetensors.index.json" with its shards. A folder without sub-folders has the first.
inline constexpr std::string_view kModelStem = "model";
inline constexpr std::string_view kDiffusersStem = "diffusion_pytorch_model";
// In the root of a pipeline: which components it has. Read only where folders cannot be listed.
inline constexpr std::string_view kPipelineIndexName = "model_index.json";

std::string IndexNameOf(std::string_view stem);
std::string SingleFileNameOf(std::string_view stem);

// A folder whose files hold weights.
struct Component {
  std::string folder;              // relative to the checkpoint; empty: the root itself
  std::string stem;                // of its files; kModelStem where they have neither
  bool indexed = false;            // an index says which files count
  std::vector<std::string> files;  // without index: those that count, relative to the folder
};

// The root alone if it holds weights; else every sub-folder (one level down) that does, by name;
// nothing if there is none. Hidden sub-folders and those of a store (weight_v…, fold_v…) do not
// count. kCorrupt where a component has both stems. Opens no weight file.
base::Result<std::vector<Component>> FindComponents(base::FileSystem& files,
                                                    const std::string& directory);

// Which stem each folder of a tree has.
using Stems = std::map<std::string, std::string, std::less<>>;

// What is usual for a component of that name.
std::string_view UsualStem(std::string_view folder);

// Can a folder of that name be a component?
bool IsComponentName(std::string_view folder);

// The folder in the name of a tensor of a tree, "transformer" of "transformer/proj.weight"; empty
// where the name holds none that can be a component.
std::string_view FolderOfTensor(std::string_view name);

}  // namespace syncline::checkpoint

#include "serve/tokenizer_command.h"

#include <sstream>

namespace syncline::serve {
namespace {

std::vector<std::string> SplitAtSpaces(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

}  // namespace

std::vector<std::string> TokenizerCommand(base::FileSystem& files, const TokenizerSearch& search) {
  if (!search.command.empty()) return SplitAtSpaces(search.command);
  return HelperCommand(files, search, "tokenizer_helper");
}

std::vector<std::string> HelperCommand(base::FileSystem& files, const TokenizerSearch& search,
                                       const std::string& module) {
  // build/bin/syncline-engine
  const std::string tree = base::JoinPath(search.program_directory, "../..");
  const auto there = [&](const std::string& path) {
    return base::Exists(files, path).value_or(false);
  };
  std::string python = search.python;
  if (python.empty()) {
    python = base::JoinPath(tree, ".venv/bin/python");
    if (!there(python)) python = "python3";
  }
  const std::string file = base::JoinPath(tree, "python/syncline/" + module + ".py");
  if (there(file)) return {python, file};
  return {python, "-m", "syncline." + module};
}

}  // namespace syncline::serve

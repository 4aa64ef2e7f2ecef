// Finds the helper processes that are written in Python.
#pragma once

#include <string>
#include <vector>

#include "base/file.h"

namespace syncline::serve {

// What decides, apart from the file system.
struct TokenizerSearch {
  std::string command;            // --tokenizer-command; empty: none
  std::string python;             // SYNCLINE_PYTHON; empty: none
  std::string program_directory;  // where this program lies
};

// Program and arguments; the directory of the tokenizer is to be appended.
//
// 1. `command`, split at spaces. 2. Python: `python`, else `.venv/bin/python` of the source tree
// that this program was built in, else python3 of PATH; it runs the helper's file of that source
// tree, or, outside of one, the module syncline.tokenizer_helper of the installed package.
std::vector<std::string> TokenizerCommand(base::FileSystem& files, const TokenizerSearch& search);

// 2. for another module of the package. `search.command` does not count.
std::vector<std::string> HelperCommand(base::FileSystem& files, const TokenizerSearch& search,
                                       const std::string& module);

}  // namespace syncline::serve
